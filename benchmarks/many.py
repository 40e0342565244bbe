# SPDX-License-Identifier: Apache-2.0
"""Rows of many calls at once: a long map, 1,000 awaited calls, 64 threads; who waits longest."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from calls import Bench
from table import RATE, RATIO, Row

from hutch.cli import measure


def _own(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def long_map(bench: Bench) -> Iterator[Row]:
    count = 1000 if bench.quick else 10_000
    function = bench.function()
    sum(function.map(range(100)))
    before = _own("RssAnon")
    begin = time.perf_counter()
    assert sum(function.map(range(count))) == count * (count - 1)
    rate = count / (time.perf_counter() - begin)
    grown = _own("RssAnon") - before
    # Beside the throughput of this moment, not that of some minutes ago.
    raw = measure.by_threads(function, 4 * measure.cores(), 2 * bench.long).rate
    yield Row(
        "map-10000",
        f"map of {count:,} calls",
        rate,
        RATE,
        floor=raw,
        floor_is="by threads",
        target="≥ 0.9 × that, memory flat",
        met=rate >= 0.9 * raw and grown < 8 * 1024,
        note=f"client {grown / 1024:+.1f} MB",
        more={"grown_kb": grown},
    )


def fairness(bench: Bench) -> Iterator[Row]:
    """The waits of calls that all want a cell at once: first come, first served."""
    function = bench.function().options(queue_sec=120)
    count = 200 if bench.quick else 1000
    most_threads = 0

    async def one(n: int) -> float:
        nonlocal most_threads
        begin = time.perf_counter()
        assert await function.aio(n) == 2 * n
        if n % 50 == 0:
            most_threads = max(most_threads, _own("Threads"))
        return time.perf_counter() - begin

    async def all_of_them() -> list[float]:
        return await asyncio.gather(*(one(n) for n in range(count)))

    def row(key: str, what: str, taken: list[float], note: str = "") -> Row:
        mean = sum(taken) / len(taken)
        ratio = max(taken) / mean
        return Row(
            key,
            what,
            ratio,
            RATIO,
            target="longest wait ≤ 3 × the mean",
            met=ratio <= 3,
            note=note,
            more={"mean_sec": mean, "max_sec": max(taken), "calls": len(taken)},
        )

    taken = asyncio.run(all_of_them())
    found = row("aio-1000", f"{count:,} awaited calls at once", taken, f"{most_threads} threads")
    found.met = bool(found.met) and most_threads < count / 4
    yield found
    callers, each_ = 64, 5 if bench.quick else 20
    waits: list[list[float]] = [[] for _ in range(callers)]

    def work(n: int) -> None:
        waits[n] = measure.each(function, each_).taken

    threads = [threading.Thread(target=work, args=(n,)) for n in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # What a caller waited in all: one call may find a cell at once, another one none.
    per_caller = [sum(part) for part in waits if len(part) == each_]
    assert len(per_caller) == callers, "a thread got no answer"
    yield row("64-threads", f"64 threads, {each_} calls each: a thread's wait", per_caller)


ROWS = {"map-10000": long_map, "fairness": fairness}
