# SPDX-License-Identifier: Apache-2.0
"""joblib's Parallel over cells."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future
from math import sqrt
from typing import Any

import joblib
import numpy
import pytest

import hutch
import hutch.joblib

OFFSET = 3


def shifted(number: int, *, by: int = 0) -> int:
    return number + by + OFFSET


def place() -> tuple[str, int]:
    import socket

    return socket.gethostname(), os.getpid()


@pytest.fixture
def backend() -> Iterator[None]:
    with joblib.parallel_config("hutch", n_jobs=2):
        yield


def test_results_come_in_order(backend: None) -> None:
    parallel = joblib.Parallel()
    assert parallel(joblib.delayed(sqrt)(i**2) for i in range(50)) == list(range(50))
    found = parallel(joblib.delayed(shifted)(i, by=2 * i) for i in range(500))
    assert found == [3 * i + OFFSET for i in range(500)]
    assert parallel([]) == []


def test_it_runs_in_cells(backend: None) -> None:
    places = joblib.Parallel()(joblib.delayed(place)() for _ in range(4))
    assert all(name != os.uname().nodename for name, _ in places)


def test_as_a_generator(backend: None) -> None:
    parallel = joblib.Parallel(return_as="generator")
    assert list(parallel(joblib.delayed(shifted)(i) for i in range(20))) == list(range(3, 23))
    unordered = joblib.Parallel(return_as="generator_unordered")
    assert sorted(unordered(joblib.delayed(shifted)(i) for i in range(20))) == list(range(3, 23))


def test_what_fails_is_raised_and_the_rest_is_cancelled(backend: None) -> None:
    def fails(number: int) -> float:
        if number:
            time.sleep(60)
        return 1 / number

    begun = time.monotonic()
    with pytest.raises(hutch.SandboxExecutionError, match="division by zero") as raised:
        joblib.Parallel(n_jobs=4, batch_size=1)(joblib.delayed(fails)(i) for i in range(4))
    assert raised.value.is_a(ZeroDivisionError)
    assert time.monotonic() - begun < 50
    assert joblib.Parallel()(joblib.delayed(shifted)(i) for i in (1, 2)) == [4, 5]


def test_a_function_that_adds_results_gives_others_none_of_them(backend: None) -> None:
    def adds(change: str) -> int:
        import sys

        frame: Any = sys._getframe()
        while "items" not in frame.f_locals:
            frame = frame.f_back
        items = frame.f_locals["items"]
        if change == "more":
            items.append((abs, (1,), {}))
        elif change == "fewer":
            items.pop()
        return 0

    parallel = joblib.Parallel(batch_size=3, pre_dispatch="all")
    for change, count in (("more", 4), ("fewer", 2)):
        with pytest.raises(
            hutch.SerializationError, match=f"cell: 3; results that it gave: {count}"
        ):
            parallel(joblib.delayed(adds)(one) for one in (change, *[""] * 5))
    assert parallel(joblib.delayed(adds)("") for _ in range(6)) == [0] * 6


def test_a_call_with_a_cell_of_its_own_moves_no_results_of_others(backend: None) -> None:
    def moves() -> int:
        import sys

        frame: Any = sys._getframe()
        while "items" not in frame.f_locals:
            frame = frame.f_back
        frame.f_locals["items"][1:] = frame.f_locals["items"][:0:-1]
        return 0

    calls = [joblib.delayed(moves)(), *(joblib.delayed(shifted)(one) for one in range(7))]
    assert joblib.Parallel(batch_size=1)(calls) == [0, *range(3, 10)]
    together = joblib.Parallel(batch_size=4, pre_dispatch="all")(calls)
    assert together == [0, 5, 4, 3, 6, 7, 8, 9], (
        "calls of one batch share a cell: there the attack works"
    )


def test_what_is_no_list_of_results_is_refused() -> None:
    backend = hutch.joblib.HutchBackend()
    future: Future[Any] = Future()
    backend._counts[future] = 2
    future.set_result("ab")
    with pytest.raises(hutch.SerializationError, match="gave: no list"):
        backend.retrieve_result_callback(future)


def test_a_limit_is_raised() -> None:
    limited = joblib.parallel_config("hutch", n_jobs=2, timeout_sec=0.5)
    with limited, pytest.raises(hutch.SandboxTimeoutError):
        joblib.Parallel()(joblib.delayed(time.sleep)(60) for _ in range(2))


def test_threads_inside_are_limited_and_arrays_arrive() -> None:
    def threads() -> str | None:
        return os.environ.get("OMP_NUM_THREADS")

    def total(values: Any) -> float:
        return float(values.sum())

    with joblib.parallel_config("hutch", n_jobs=2, inner_max_num_threads=1):
        assert joblib.Parallel()([joblib.delayed(threads)()]) == ["1"]
    with joblib.parallel_config("hutch", n_jobs=2, dependencies=["numpy"]):
        array = numpy.arange(100_000)
        expected = float(array.sum())
        assert joblib.Parallel()(joblib.delayed(total)(array) for _ in range(4)) == [expected] * 4


def test_wrong_keywords_are_refused() -> None:
    with pytest.raises(TypeError, match="memory"):
        joblib.parallel_config("hutch", memory="much")
    with pytest.raises(ValueError, match="n_jobs == 0"), joblib.parallel_config("hutch"):
        joblib.Parallel(n_jobs=0)([joblib.delayed(place)()])
