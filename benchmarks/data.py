"""Rows of large arguments and results, beside a copy of the same bytes in memory.

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
from table import Row

import hutch
from hutch import _measure

MB, GB = 1_000_000, 1_000_000_000
# What, bytes, whether numpy, most seconds as an argument, repeats.
SIZES: list[tuple[str, int, bool, float, int]] = [
    ("1 MB of bytes", MB, False, 0.001, 50),
    ("100 MB of bytes", 100 * MB, False, 0.120, 8),
    ("100 MB of numpy", 100 * MB, True, 0.040, 8),
    ("1 GB of numpy", GB, True, 0.250, 4),
]


def look(value: Any) -> int:
    return len(value)


def make(size: int, numpy: bool) -> Any:
    if not numpy:
        return b"x" * size
    import numpy as np

    return np.ones(size // 8)


def copy_of(size: int) -> float:
    """Seconds of one copy between two buffers that are in memory already."""
    source, target = bytearray(size), bytearray(size)
    view = memoryview(target)
    view[:] = source
    return statistics.median(
        _measure.each(lambda _: view.__setitem__(slice(None), source), 3).taken
    )


def _argument(function: Any, value: Any, repeats: int) -> list[float]:
    taken = []
    for n in range(repeats + 2):
        time.sleep(0.05)
        begin = time.perf_counter()
        function(value)
        if n >= 2:
            taken.append(time.perf_counter() - begin)
    return taken


def _result(function: Any, size: int, numpy: bool, repeats: int) -> list[float]:
    taken = []
    for n in range(repeats + 2):
        time.sleep(0.05)
        begin = time.perf_counter()
        outcome = function.run(size, numpy)
        whole = time.perf_counter() - begin
        assert len(outcome.unwrap()) in (size, size // 8)
        if n >= 2:
            taken.append(whole - outcome.usage.wall_sec)
        del outcome
    return taken


def _pair(what: str, size: int, numpy: bool, most: float, repeats: int) -> Iterator[Row]:
    dependencies = ["numpy"] if numpy else []
    limits: dict[str, Any] = {"memory_mb": 4096, "result_mb": 1024, "timeout_sec": 120}
    take = hutch.sandbox(look, dependencies=dependencies, **limits)
    give = hutch.sandbox(make, dependencies=dependencies, **limits)
    value = make(size, numpy)
    measures: list[tuple[str, float, Callable[[], list[float]]]] = [
        (f"argument: {what}", most, lambda: _argument(take, value, repeats)),
        (f"result: {what}", 2 * most, lambda: _result(give, size, numpy, repeats)),
    ]
    if numpy:
        born = hutch.empty(size // 8)
        born[:] = 1.0
        name = f"argument: {what}, born in hutch.empty"
        measures.insert(1, (name, most, lambda: _argument(take, born, repeats)))
    for name, bound, measure in measures:
        row = Row(name, name, target=f"≤ {bound * 1000:g} ms")
        row.floor, row.floor_is = copy_of(size), "memcpy"
        try:
            row.value = statistics.median(measure())
            row.met = row.value <= bound
        except hutch.SandboxError as error:
            row.skipped = str(error).splitlines()[0][:100]
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
