# SPDX-License-Identifier: Apache-2.0
"""A row of one caller that behaves, beside a hundred hostile calls at once.

Its floor is what the kernel's scheduler does to a caller of parked forks beside a few processes
that only spin, of the same weight as the caller: nobody is hostile there, and nothing else is held
back.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from calls import PACE, Bench
from floors import PARKED
from table import Row

import hutch
from hutch import Pool, sandbox
from hutch.cli import measure


def hostile(kind: str) -> None:
    import os

    if kind == "forks":
        while True:
            if os.fork() == 0:
                while True:
                    pass
    held = []
    while kind == "memory":
        held.append(bytearray(os.urandom(1 << 20)))
    while kind == "output":
        os.write(1, b"x" * 65536)
    while kind == "spin":
        pass


@contextlib.contextmanager
def spinning(count: int) -> Iterator[None]:
    command = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    spinners = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def rows(bench: Bench) -> Iterator[Row]:
    kinds = ("forks", "memory", "output", "spin")
    count = 20 if bench.quick else 100
    function = bench.function()
    attack = sandbox(
        hostile, memory_mb=48, disk_mb=16, pids=16, timeout_sec=4, queue_sec=600,
        pool=Pool(max_cells=16), labels={"bench": "crowd"},
    )  # fmt: skip
    attack("nothing")
    before = hutch.status()["memory_bytes"]
    crowd = [attack.submit(kinds[n % len(kinds)]) for n in range(count)]
    time.sleep(0.5)
    taken: list[float] = []
    while not all(flight.done() for flight in crowd):
        taken += measure.each(function, 50, 1 / PACE).taken
    grown = hutch.status()["memory_bytes"] - before
    limits = sum(flight.outcome().status == "limit" for flight in crowd)
    times = measure.Times(taken)
    spinners = 2 * measure.cores()
    with bench.parked() as parked, spinning(spinners):
        floor = measure.each(parked, bench.many // 2, 1 / PACE)
    yield Row(
        "crowd",
        f"a caller beside {count} hostile calls",
        times.p50,
        p99=times.p99,
        floor=floor.p50,
        floor_is=f"{PARKED}, beside {spinners} that spin",
        floor_p99=floor.p99,
        target="p99 ≤ 20 ms",
        p99_most=0.02,
        note=f"agent {grown / 2**20:+.1f} MB, {limits} of {count} met a limit",
        more={"agent_grown_bytes": grown, "calls": len(taken)},
    )


ROWS = {"crowd": rows}
