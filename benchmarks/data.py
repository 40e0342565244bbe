# SPDX-License-Identifier: Apache-2.0
"""Rows of large arguments and results, beside what brings the same bytes to another process.

An argument that is lent in shared memory is copied once, and one that was born there not at all:
their floor is a copy in memory. A small value is copied by the socket. The bytes of a large result
are written to a memory file, a new one each time, since the sandboxed process had a hand on it.

Steady: after two calls of the same size, so that what can be kept for reuse is kept. A result's
figure leaves out the time in which the function itself ran, that is, made the value.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from calls import Bench
from carry import Carrier, copy_of
from table import Row

import hutch

MB, GB = 1_000_000, 1_000_000_000
# What, bytes, whether numpy, most seconds as an argument, repeats.
SIZES: list[tuple[str, int, bool, float, int]] = [
    ("1 MB of bytes", MB, False, 0.001, 50),
    ("100 MB of bytes", 100 * MB, False, 0.120, 8),
    ("100 MB of numpy", 100 * MB, True, 0.040, 8),
    ("1 GB of numpy", GB, True, 0.250, 4),
]
Floor = tuple[Callable[[], object] | None, str]


def look(value: Any) -> int:
    return len(value)


def make(size: int, numpy: bool) -> Any:
    if not numpy:
        return b"x" * size
    import numpy as np

    return np.ones(size // 8)


def _argument(function: Any, value: Any) -> float:
    begin = time.perf_counter()
    function(value)
    return time.perf_counter() - begin


def _result(function: Any, size: int, numpy: bool) -> float:
    begin = time.perf_counter()
    outcome = function.run(size, numpy)
    whole = time.perf_counter() - begin
    assert len(outcome.unwrap()) in (size, size // 8)
    return float(whole - outcome.usage.wall_sec)


def _timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    value = action()
    taken = time.perf_counter() - begin
    del value  # which takes time too
    return taken


def _beside(
    repeats: int, ours: Callable[[], float], floor: Callable[[], object]
) -> tuple[float, float]:
    """Medians of both, in turns."""
    taken = []
    for _ in range(repeats + 2):
        time.sleep(0.05)
        taken.append((ours(), _timed(floor)))
    both = [statistics.median(part) for part in zip(*taken[2:])]
    return both[0], both[1]


def _pair(what: str, size: int, numpy: bool, most: float, repeats: int) -> Iterator[Row]:
    dependencies = ["numpy"] if numpy else []
    limits: dict[str, Any] = {"memory_mb": 4096, "result_mb": 1024, "timeout_sec": 120}
    take = hutch.sandbox(look, dependencies=dependencies, **limits)
    give = hutch.sandbox(make, dependencies=dependencies, **limits)
    value = make(size, numpy)
    with Carrier(size) as carrier:
        there: Floor = (None, "memcpy")
        back: Floor = (carrier.mapped, "write to a new memory file, mmap")
        if size <= MB:
            there = (lambda: carrier.there(value), "the bytes by a socket")
            back = (carrier.back, "the bytes by a socket")
        elif not numpy:
            back = (carrier.copied, "write to a new memory file, copy")
        measures: list[tuple[str, float, Callable[[], float], Floor]] = [
            (f"argument: {what}", most, lambda: _argument(take, value), there),
            (f"result: {what}", 2 * most, lambda: _result(give, size, numpy), back),
        ]
        if numpy:
            born = hutch.empty(size // 8)
            born[:] = 1.0
            name = f"argument: {what}, born in hutch.empty"
            measures.insert(1, (name, most, lambda: _argument(take, born), there))
        for name, bound, ours, (floor, floor_is) in measures:
            row = Row(name, name, target=f"≤ {bound * 1000:g} ms", floor_is=floor_is)
            try:
                row.value, row.floor = _beside(repeats, ours, floor or (lambda: None))
                row.met = row.value <= bound
            except hutch.SandboxError as error:
                row.skipped = str(error).splitlines()[0][:100]
            if floor is None:  # not in turns: it is quick, but its buffers are as large again
                row.floor = copy_of(size)
            yield row


def rows(bench: Bench) -> Iterator[Row]:
    for what, size, numpy, most, repeats in SIZES:
        if bench.quick and size > 100 * MB:
            continue
        if numpy and importlib.util.find_spec("numpy") is None:
            yield Row(what, what, skipped="numpy is not installed")
            continue
        yield from _pair(what, size, numpy, most, repeats)


ROWS = {"data": rows}
