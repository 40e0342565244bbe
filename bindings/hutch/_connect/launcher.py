# SPDX-License-Identifier: Apache-2.0
"""Runs the installed `hutch-agent` program: its verbs that start, install, stop and check.

Each is a process of its own whose last line on stdout is one JSON object; its progress lines go to
this process's stderr. The ids name the base image and the runtime: two installations of the same
bytes share them. No shared state but cached ids; safe on any thread.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any

from hutch import _core
from hutch._errors import PlatformNotSupportedError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUNTIME = os.path.join(_PACKAGE, "_runtime")
PROGRAM = os.path.join(RUNTIME, "hutch-agent")
_finding = threading.Lock()


def run(verb: str, *more: str) -> dict[str, Any]:
    """`--start`, `--install`, `--stop` or `--check`. Raises `_core.Error` as the program says."""
    import json
    import subprocess

    from hutch._connect import progress

    flags = _flags() if verb in ("--start", "--install") else []
    arguments = [_program(), verb, *flags, *more]
    lines: list[str] = []
    with subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stderr:
            lines.append(line.rstrip("\n"))
            progress.say(line.rstrip("\n"))
        output = process.stdout.read()
    try:
        reply = json.loads(output.strip().splitlines()[-1])
        ok = bool(reply["ok"])
    except (IndexError, KeyError, TypeError, ValueError):
        last = "; ".join(lines[-3:]) or f"exit code {process.returncode}"
        raise _core.Error("internal", f"hutch-agent {verb} failed: {last}", "", False) from None
    if not ok:
        raise _core.Error(
            str(reply.get("code", "internal")),
            str(reply.get("message", "")),
            str(reply.get("hint", "")),
            False,
        )
    return dict(reply)


def capture(verb: str) -> str:
    """The stdout of a verb that needs neither flags nor the agent (`--doctor`)."""
    import subprocess

    done = subprocess.run(
        [_program(), verb], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0 and not done.stdout:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        raise _core.Error("internal", f"hutch-agent {verb} failed: {reason}", "", False)
    return done.stdout


def become(arguments: list[str]) -> None:
    """Replaces this process by the program. Returns never."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(_program(), [PROGRAM, *arguments])


def _program() -> str:
    if not os.access(PROGRAM, os.X_OK):
        raise PlatformNotSupportedError(
            "this installation of hutch has no agent program in it",
            hint="install hutch on Linux from its wheel, or from source by `pip install .`",
        )
    return PROGRAM


def foreground_flags() -> list[str]:
    return _flags()


def _flags() -> list[str]:
    flags = ["--package", RUNTIME, "--python", interpreter(), "--cloudpickle", _cloudpickle()]
    uv = _uv()
    if uv:
        flags += ["--uv", uv]
    return [*flags, "--base-id", base_id(), "--runtime-id", runtime_id()]


def interpreter() -> str:
    """The interpreter itself, not a virtual environment's link to it."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _cloudpickle() -> str:
    import importlib.util

    spec = importlib.util.find_spec("cloudpickle")
    assert spec is not None and spec.origin is not None, "cloudpickle is a dependency of hutch"
    return os.path.dirname(spec.origin)


@functools.cache
def _uv() -> str:
    """The uv program, "" where there is none (then no environment can be built)."""
    import shutil

    try:
        from uv import find_uv_bin

        with _finding:  # sysconfig, which it asks, is not made for a first use by many threads
            return os.path.realpath(os.fsdecode(find_uv_bin()))
    except (ImportError, OSError):
        beside = os.path.join(os.path.dirname(sys.executable), "uv")
        found = beside if os.access(beside, os.X_OK) else shutil.which("uv")
        return os.path.realpath(found) if found else ""


@functools.cache
def base_id() -> str:
    """Changes when the interpreter does, or how an image is derived from it."""
    import hashlib

    python = interpreter()
    facts: list[object] = [sys.version, sys.implementation.cache_tag, os.uname().machine, python]
    facts.append(os.confstr("CS_GNU_LIBC_VERSION") if os.name == "posix" else "")
    for path in (python, os.__file__):
        status = os.stat(path)
        facts += [status.st_size, status.st_mtime_ns]
    digest = hashlib.sha256(repr(facts).encode())
    derive = os.path.join(RUNTIME, "base", "derive.py")
    if os.path.exists(derive):
        with open(derive, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:32]


@functools.cache
def runtime_id() -> str:
    """Changes with any of the bytes that are put inside; uv counts by its size."""
    import hashlib

    digest = hashlib.sha256()
    for root in (RUNTIME, _cloudpickle()):
        for directory, directories, files in os.walk(root):
            directories[:] = sorted(name for name in directories if name != "__pycache__")
            for name in sorted(files):
                path = os.path.join(directory, name)
                with open(path, "rb") as file:
                    content = file.read()
                relative = os.path.relpath(path, root)
                digest.update(f"{relative}\0{len(content)}\0".encode())
                digest.update(content)
    uv = _uv()
    digest.update(str(os.stat(uv).st_size if uv else 0).encode())
    return digest.hexdigest()[:32]
