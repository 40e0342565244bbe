# SPDX-License-Identifier: Apache-2.0
"""What a user would pick instead, at the same trivial call, and what each of them does not isolate.

Each is measured as its own documentation says to call it. Published packages are installed only
with `--rivals`, into a throw-away environment under build/.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cold
from calls import PACE, Bench, plain
from table import RATE, shown

from hutch.cli import measure
from hutch.cli.measure import by_threads, each

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "build" / "rivals"
CODE = "print(2 * 21)"

_OWN_HOME = {"HOME": str(PACKAGES / "home"), "XDG_CACHE_HOME": str(PACKAGES / "cache")}

COLUMNS = ["what", "a call", "calls/s", "does not isolate"]


@dataclass
class Rival:
    """`p50`: of one caller, a call after another unless the name says how. `per_sec`: all cores."""

    name: str
    lacks: str
    p50: float = 0.0
    per_sec: float | None = None
    skipped: str = ""

    def cells(self) -> list[str]:
        if self.skipped:
            return [self.name, "–", "", f"not measured: {self.skipped}"]
        return [self.name, shown(self.p50), shown(self.per_sec, RATE), self.lacks]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _command(name: str, lacks: str, command: list[str], bench: Bench) -> Rival:
    def once(_: int) -> None:
        done = subprocess.run(command, capture_output=True, check=True)
        assert done.stdout.strip() == b"42"

    rival = Rival(name, lacks)
    try:
        once(0)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or str(error).encode()
        rival.skipped = said.decode(errors="replace").strip()[-120:]
        return rival
    rival.p50 = each(once, 3 if bench.quick else 10).p50
    rival.per_sec = by_threads(once, measure.cores(), 2 * bench.long).rate
    return rival


def _subprocess(bench: Bench) -> Rival:
    return _command(
        "subprocess.run, python -c",
        "anything: files, network, memory and environment are the caller's",
        [sys.executable, "-c", CODE],
        bench,
    )


def _process_pool(bench: Bench) -> Rival:
    rival = Rival(
        f"ProcessPoolExecutor, {PACE} a second",
        "anything; calls share a process, and its results are unpickled by the host",
    )
    with ExitStack() as stack:
        one = stack.enter_context(ProcessPoolExecutor(1))
        one.submit(plain, 1).result()
        known = bench.known.get("process pool")
        rival.p50 = (
            known or each(lambda n: one.submit(plain, n).result(), bench.many, 1 / PACE)
        ).p50
        pool = stack.enter_context(ProcessPoolExecutor(measure.cores()))
        rival.per_sec = by_threads(
            lambda n: pool.submit(plain, n).result(), 4 * measure.cores(), 2 * bench.long
        ).rate
    return rival


def _podman(bench: Bench) -> Rival:
    return _command(
        "podman run --rm",
        "fresh and walled, with no limits unless given; output is text to be parsed",
        cold.run_command("python3", "-c", CODE),
        bench,
    )


def _bwrap(bench: Bench) -> Rival:
    name = "bwrap --unshare-all … python -c"
    lacks = "reading the host's files (bound read-only here); no memory, CPU or system call limit"
    if shutil.which("bwrap") is None:
        return Rival(name, lacks, skipped="bubblewrap is not installed (--install does it)")
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc"]
    command += ["/proc", "--dev", "/dev", sys.executable, "-c", CODE]
    return _command(name, lacks, command, bench)


_PRELUDE = """
import json, statistics, sys, time
def measure(once, count, pause=0):
    once(); once()
    taken = []
    for _ in range(count):
        time.sleep(pause)
        begin = time.perf_counter()
        once()
        taken.append(time.perf_counter() - begin)
    print(json.dumps(statistics.median(taken)))
"""

_MONTY = """
import pydantic_monty
with pydantic_monty.Monty() as pool:
    def once():
        with pool.checkout() as session:
            assert session.feed_run("2 * x", inputs={"x": 21}) == 42
    measure(once, 500)
"""

_LLM_SANDBOX = """
from llm_sandbox import SandboxBackend, SandboxSession
import podman
client = podman.PodmanClient(base_url="unix://" + sys.argv[1])
with SandboxSession(
    backend=SandboxBackend.PODMAN, client=client, image=sys.argv[2], lang="python",
    skip_environment_setup=True, keep_template=True,
) as session:
    def once():
        done = session.run("print(2 * 21)")
        assert done.stdout.strip() == "42", done
    measure(once, 10)
"""


# Each box serves one call; a pause lets the next one be ready, as its own pool makes it.
_KERN = """
import kern_sandbox
with kern_sandbox.Sandbox(image=sys.argv[1], prewarm=4, track_files=False) as box:
    def once():
        done = box.run_code("print(2 * 21)")
        assert done.stdout.strip() == "42", done
    measure(once, 50, 0.2)
"""

_KERN_SESSION = """
import kern_sandbox
with kern_sandbox.Sandbox(image=sys.argv[1], track_files=False) as box, box.kernel() as kernel:
    def once():
        done = kernel.run_code("print(2 * 21)")
        assert done.stdout.strip() == "42", done
    measure(once, 500)
"""


def _published(name: str, lacks: str, code: str, *arguments: str) -> Rival:
    python = PACKAGES / "bin" / "python"
    rival = Rival(name, lacks)
    if not python.exists():
        rival.skipped = "not installed (--rivals does it)"
        return rival
    done = subprocess.run(
        [str(python), "-c", _PRELUDE + code, *arguments],
        env={**os.environ, "PATH": f"{PACKAGES}/bin:{os.environ['PATH']}", **_OWN_HOME},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        rival.p50 = float(json.loads(done.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        rival.skipped = (done.stderr.strip() or "it printed nothing").splitlines()[-1][:120]
    return rival


def _monty(_: Bench) -> Rival:
    return _published(
        "pydantic-monty, a session each",
        "by the kernel: its interpreter is the wall; a part of Python, and no packages",
        _MONTY,
    )


def _kern(_: Bench) -> Rival:
    return _published(
        "kern-sandbox, a box made ahead, 5 a second",
        "hostile code, as its own pages say: a list of what is denied; results are text",
        _KERN,
        _image(),
    )


def _kern_session(_: Bench) -> Rival:
    return _published(
        "kern-sandbox, a session's interpreter",
        "one piece of code from the next",
        _KERN_SESSION,
        _image(),
    )


def _llm_sandbox(_: Bench) -> Rival:
    from hutch import _core

    return _published(
        "llm-sandbox, Podman, warm session",
        "one call from the next: they share a container; no limits unless given",
        _LLM_SANDBOX,
        f"{_core.paths()['run_dir']}/podman/podman.sock",
        _image(),
    )


def _image() -> str:
    from hutch._connect import launcher

    return f"localhost/hutch-base:{launcher.base_id()}"


ALL: list[Callable[[Bench], Rival]] = [
    _process_pool,
    _monty,
    _kern,
    _kern_session,
    _bwrap,
    _subprocess,
    _podman,
    _llm_sandbox,
]


def measured(bench: Bench) -> Iterator[Rival]:
    for rival in ALL:
        yield rival(bench)


def install_packages() -> None:
    from hutch._connect import launcher

    venv.create(PACKAGES, with_pip=True, clear=True)
    command = [str(PACKAGES / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    packages = ["pydantic-monty", "llm-sandbox[podman]", "kern-sandbox==0.2.49"]
    subprocess.run([*command, *packages], check=True)
    # Its own store of images is given ours, as there is no registry to be asked.
    archive = PACKAGES / "base.tar"
    save = [launcher.PROGRAM, "--podman", "--", "save", "--format", "docker-archive", _image()]
    with archive.open("wb") as file:
        subprocess.run(save, stdout=file, stderr=subprocess.DEVNULL, check=True)
    for place in _OWN_HOME.values():
        Path(place).mkdir(exist_ok=True)
    load = [str(PACKAGES / "bin" / "kern"), "load", "-i", str(archive)]
    subprocess.run(load, env={**os.environ, **_OWN_HOME}, stdout=subprocess.DEVNULL, check=True)
    archive.unlink()


def install_bubblewrap() -> None:
    command = ["apt-get", "install", "--yes", "--no-install-recommends", "bubblewrap"]
    print("$", *command)
    subprocess.run(command, check=True)
