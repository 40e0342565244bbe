# SPDX-License-Identifier: Apache-2.0
"""Rows of what a session does beside Python: commands, JavaScript, packages, snapshots, names."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from calls import Bench
from session_floors import COPIED
from table import Row, shown

import hutch
from hutch import Session
from hutch.cli.measure import Times, each, in_turns

_BASH = "bash alone"
# Warm is a program whose cell, or Node, is made already: the making of the next one takes longer
# than the program.
_PACE_SEC = 0.02
_START_SEC = 1 / 3


def _back_to_back(times: Times) -> str:
    return f"back to back {shown(times.p50)}"


def commands(bench: Bench) -> Iterator[Row]:
    part = bench.many // 100
    program = hutch.Program("true", language="bash")
    program.run().unwrap()

    def alone(_: int) -> None:
        subprocess.run(["bash", "-c", "true"], check=True)

    with Session() as s:
        s.bash("true").unwrap()
        ours, paced, programs, floor = in_turns(
            10,
            lambda: each(lambda _: s.bash("true").unwrap(), part),
            lambda: each(lambda _: program.run().unwrap(), part, _PACE_SEC, _PACE_SEC),
            lambda: each(lambda _: program.run().unwrap(), part),
            lambda: each(alone, part),
        )
    yield Row("bash", 's.bash("true")', ours.p50, p99=ours.p99, floor=floor.p50, floor_is=_BASH,
              floor_p99=floor.p99, target="≤ 5 ms", met=ours.p50 <= 0.005)  # fmt: skip
    yield Row("bash-program", f"a bash program, warm, {1 / _PACE_SEC:g} a second", paced.p50,
              p99=paced.p99, floor=floor.p50, floor_is=_BASH, floor_p99=floor.p99, target="≤ 5 ms",
              met=paced.p50 <= 0.005, note=_back_to_back(programs))  # fmt: skip


def javascript(bench: Bench) -> Iterator[Row]:
    part = max(5, bench.many // 200)
    program = hutch.Program("1", language="javascript")
    program.run().unwrap()
    same = hutch.Program("1")

    def first() -> Times:
        with Session() as s:
            s.exec("0").unwrap()
            return each(lambda _: s.node("1").unwrap(), 1)

    with Session() as s:
        s.node("1").unwrap()
        begun, later, floor, paced, programs, python = in_turns(
            part,
            first,
            lambda: each(lambda _: s.node("1 + 1").unwrap(), 10),
            lambda: each(lambda _: s.exec("1 + 1").unwrap(), 10),
            lambda: each(lambda _: program.run().unwrap(), 1, _START_SEC, _START_SEC),
            lambda: each(lambda _: program.run().unwrap(), 1),
            lambda: each(lambda _: same.run().unwrap(), 1),
        )
    yield Row("node-first", "the first s.node of a session", begun.p50, p99=begun.p99,
              target="≤ 80 ms", met=begun.p50 <= 0.08)  # fmt: skip
    yield Row("node", 's.node("1 + 1")', later.p50, p99=later.p99, floor=floor.p50,
              floor_is="s.exec of it", floor_p99=floor.p99, target="≤ 1 ms",
              met=later.p50 <= 0.001)  # fmt: skip
    yield Row("javascript-program", f"a JavaScript program, warm, {1 / _START_SEC:g} a second",
              paced.p50, p99=paced.p99, floor=python.p50, floor_is="a Python program",
              floor_p99=python.p99, target="≤ 20 ms", met=paced.p50 <= 0.02,
              note=_back_to_back(programs))  # fmt: skip


def install(bench: Bench) -> Iterator[Row]:
    """The wheel is in the cache of the builder, the environment is not there."""

    def added(n: int) -> None:
        with Session() as s:
            begin = time.perf_counter()
            s.install(f"six>=0.{time.time_ns()}.{n}")
            times.append(time.perf_counter() - begin)

    times: list[float] = []
    for n in range(1 if bench.quick else 5):
        added(n)
    taken = Times(times)
    yield Row("install", 's.install("six")', taken.p50, target="≤ 1.5 s",
              met=taken.p50 <= 1.5)  # fmt: skip


_STATE = """
import os
os.makedirs("files", exist_ok=True)
for n in range(50):
    with open(f"files/{n}", "wb") as file: file.write(os.urandom(1 << 20))
arrays = [bytearray(os.urandom(1 << 20)) for _ in range(50)]
"""


def snapshots(bench: Bench) -> Iterator[Row]:
    """100 MB, half of it files, half of it values."""
    rounds = 1 if bench.quick else 5
    with tempfile.TemporaryDirectory() as directory:
        path, copy = Path(directory, "state"), Path(directory, "copy")
        with Session(memory_mb=1024, disk_mb=512) as s:
            s.exec(_STATE).unwrap()
            taken = each(lambda _: s.snapshot(to=path), rounds)
            floor = each(lambda _: shutil.copy(path, copy), rounds)
            given = each(lambda _: s.restore(path), rounds)
    yield Row("snapshot", "snapshot of 100 MB of files and arrays", taken.p50, floor=floor.p50,
              floor_is=COPIED, target="≤ 0.5 s", met=taken.p50 <= 0.5)  # fmt: skip
    yield Row("restore", "its restore", given.p50, floor=floor.p50, floor_is=COPIED,
              target="≤ 0.5 s", met=given.p50 <= 0.5)  # fmt: skip


def named(bench: Bench) -> Iterator[Row]:
    rounds = max(5, bench.many // 200)
    with tempfile.TemporaryDirectory() as directory:
        with Session(id="bench", storage=directory) as s:
            s.exec("import os\ntext = os.urandom(1 << 20)").unwrap()

        def until_first_exec(code: str, **keywords: str) -> Times:
            begin = time.perf_counter()
            with Session(**keywords) as s:
                s.exec(code).unwrap()
                return Times([time.perf_counter() - begin])

        opened, fresh = in_turns(
            rounds,
            lambda: until_first_exec("text[0]", id="bench", storage=directory),
            lambda: until_first_exec("0"),
        )
    yield Row("named", "a named session of 1 MB, to its first exec", opened.p50, p99=opened.p99,
              floor=fresh.p50, floor_is="one without a name", floor_p99=fresh.p99,
              target="≤ 50 ms", met=opened.p50 <= 0.05)  # fmt: skip


ROWS = {
    "bash": commands,
    "node": javascript,
    "install": install,
    "snapshot": snapshots,
    "named": named,
}
