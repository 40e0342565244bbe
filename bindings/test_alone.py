# SPDX-License-Identifier: Apache-2.0
"""A program whose time was over while others had the CPU runs once more, with nobody beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hutch._outcome import Outcome, Usage
from hutch.evals import alone


def ended(limit: str | None, wall: float, waited: float) -> Outcome[Any]:
    status: Any = "limit" if limit else "returned"
    return Outcome(status, limit=limit, usage=Usage(wall_sec=wall, cpu_wait_sec=waited))


@pytest.mark.parametrize(
    ("outcome", "suspect"),
    [
        (ended("time", 3, 1), True),
        (ended("time", 3, 0.01), False),
        (ended("cpu_time", 3, 1), False),
        (ended("memory", 3, 1), False),
        (ended(None, 3, 1), False),
    ],
)
def test_only_what_was_kept_from_the_cpu_runs_again(outcome: Outcome[Any], suspect: bool) -> None:
    again = Outcome[Any]("returned", "second")
    given = [again, outcome]
    assert alone.run(given.pop) is (again if suspect else outcome)
    assert given == ([] if suspect else [again])


def test_nobody_runs_beside_one_that_runs_alone() -> None:
    release = threading.Event()
    log: list[str] = []

    def logged(name: str, outcome: Outcome[Any]) -> Callable[[], Outcome[Any]]:
        return lambda: [log.append(name), outcome][1]  # type: ignore[func-returns-value,return-value]

    def first() -> Outcome[Any]:
        assert release.wait(30)
        log.append("first ends")
        return ended(None, 1, 0)

    def waiting(count: int) -> None:
        while alone._calls._alone < count:
            pass

    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(alone.run, first)]
        while alone._calls._running == 0:
            pass
        done.append(pool.submit(alone.run, logged("suspect", ended("time", 1, 1))))
        waiting(1)
        done.append(pool.submit(alone.run, logged("third", ended(None, 1, 0))))
        assert log == ["suspect"]
        release.set()
        for one in done:
            one.result(30)
    assert log == ["suspect", "first ends", "suspect", "third"]


def test_a_call_that_raises_keeps_nobody_out() -> None:
    def broken() -> Outcome[Any]:
        raise ZeroDivisionError

    def broken_alone() -> Outcome[Any]:
        if given:
            return given.pop()
        raise ZeroDivisionError

    given = [ended("time", 1, 1)]
    for call in (broken, broken_alone):
        with pytest.raises(ZeroDivisionError):
            alone.run(call)
    assert alone.run(lambda: ended(None, 1, 0)).ok
