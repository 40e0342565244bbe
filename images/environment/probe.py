# SPDX-License-Identifier: Apache-2.0
"""The import step of an environment's build: which modules load, how long they take, which start
threads.

    python3 -I -S probe.py OUT DEADLINE MODULE...

Runs as PID 1 of a container with no network, uid 1000, the packages read-only at /opt/env. It
**executes the packages' code**, which may forge what is written to OUT; no reader trusts it:

    {"modules": [{"module": str, "ok": bool, "sec": number, "threads": int, "error": str}],
     "files": [str]}

`files` are the source files that importing read and that have no bytecode, relative to /opt/env:
those are worth compiling.
Modules are imported one after another in one child, as a worker's zygote does it; after one that
fails, hangs for DEADLINE seconds or starts threads, the rest goes on in a fresh child, since that
zygote will not import it.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import time
from typing import Any

TREE = "/opt/env"
ANSWER_LIMIT = 8 << 20
FILE_LIMIT = 50_000
SETTLE = 0.2  # seconds


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def new_threads(before: int) -> int:
    """One that is about to end is none: a timer that was cancelled may take a moment."""
    deadline = time.monotonic() + SETTLE
    while thread_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    return thread_count() - before


def loaded_files() -> list[str]:
    files = set()
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if not isinstance(origin, str) or not origin.startswith(TREE + "/"):
            continue
        cached = getattr(spec, "cached", None)
        if origin.endswith(".py") and not (isinstance(cached, str) and os.path.exists(cached)):
            files.add(origin[len(TREE) + 1 :])
    return sorted(files)


def import_one(name: str) -> dict[str, Any]:
    threads, start, error = thread_count(), time.monotonic(), ""
    try:
        importlib.import_module(name)
    except BaseException as raised:  # SystemExit is a way to fail, too
        try:
            error = (f"{type(raised).__name__}: {raised}")[:400]
        except Exception:
            error = type(raised).__name__
    return {
        "module": name,
        "ok": not error,
        "sec": round(time.monotonic() - start, 4),
        "threads": new_threads(threads),
        "error": error,
    }


def child(modules: list[str], out: int) -> None:
    """Imports `modules` until one goes wrong; one JSON line each."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    sys.path.append(TREE)
    sys.dont_write_bytecode = True
    for name in modules:
        answer = import_one(name)
        answer["files"] = loaded_files()
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(out, data) :]
        if not answer["ok"] or answer["threads"]:
            break
    os._exit(0)


def read_line(fd: int, rest: bytes, seconds: float) -> tuple[bytes | None, bytes]:
    """The next line and what follows it; None at the end, at the deadline, or when too long."""
    end = time.monotonic() + seconds
    while b"\n" not in rest:
        left = end - time.monotonic()
        if left <= 0 or len(rest) > ANSWER_LIMIT or not select.select([fd], [], [], left)[0]:
            return None, rest
        data = os.read(fd, 1 << 16)
        if not data:
            return None, rest
        rest += data
    line, _, rest = rest.partition(b"\n")
    return line, rest


def run(modules: list[str], seconds: float) -> tuple[list[dict[str, Any]], set[str]]:
    """What became of the first of `modules`, as many as one child got through: at least one."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            child(modules, writer)
        finally:
            os._exit(1)
    os.close(writer)
    done: list[dict[str, Any]] = []
    files: set[str] = set()
    rest = b""
    start = time.monotonic()
    while len(done) < len(modules):
        start = time.monotonic()
        line, rest = read_line(reader, rest, seconds)
        if line is None:
            break
        answer = json.loads(line)
        files.update(answer.pop("files"))
        done.append(answer)
        if not answer["ok"] or answer["threads"]:
            break
    late = time.monotonic() - start >= seconds
    os.kill(pid, signal.SIGKILL) if late else None
    os.close(reader)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finished = len(done) == len(modules) or (done and (not done[-1]["ok"] or done[-1]["threads"]))
    if not finished:
        reason = f"did not load within {seconds:g} s" if late else "the process ended"
        if not late and status < 0:
            reason += " by " + signal.Signals(-status).name
        name = modules[len(done)]
        done.append({"module": name, "ok": False, "sec": 0.0, "threads": 0, "error": reason})
    return done, files


def main() -> int:
    out, seconds, modules = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    results: list[dict[str, Any]] = []
    files: set[str] = set()
    while modules:
        done, more = run(modules, seconds)
        results += done
        files |= more
        modules = modules[len(done) :]
    text = json.dumps({"modules": results, "files": sorted(files)[:FILE_LIMIT]})
    with open(out, "w") as file:
        file.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
