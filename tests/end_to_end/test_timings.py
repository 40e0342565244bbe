# SPDX-License-Identifier: Apache-2.0
"""The stages of an Outcome add up to what its caller waited, however the call was made or ended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import hutch
from hutch._outcome import STAGES

Run = Callable[[], "hutch.Outcome[Any]"]


@hutch.sandbox
def double(x: int) -> int:
    return 2 * x


@hutch.sandbox(timeout_sec=1)
def doze(seconds: float) -> None:
    import time

    time.sleep(seconds)


@hutch.sandbox
def fail() -> None:
    raise ValueError("no")


@hutch.sandbox
def leave() -> None:
    import os

    os._exit(3)


PROGRAM = hutch.Program("print(input())")

RUNS: dict[str, Run] = {
    "returned": lambda: double.run(1),
    "raised": lambda: fail.run(),
    "died": lambda: leave.run(),
    "limit": lambda: doze.run(30),
    "program": lambda: PROGRAM.run(stdin="x"),
    "aio": lambda: asyncio.run(double.run_aio(1)),
    "submit": lambda: double.submit(1).outcome(),
    "map": lambda: next(double.map([1], on_error="outcome")),
    "program, submitted": lambda: PROGRAM.submit(stdin="x").result(),
}


def watched(run: Run) -> tuple[hutch.Outcome[Any], float, float]:
    """The Outcome, what the caller waited, and what its stages add up to."""
    before = time.monotonic()
    outcome = run()
    seen = time.monotonic() - before
    return outcome, seen, sum(outcome.timings.values())


@pytest.mark.parametrize("name", RUNS)
def test_stages_are_never_more_than_was_waited(name: str) -> None:
    for _ in range(5):
        outcome, seen, told = watched(RUNS[name])
        assert tuple(sorted(outcome.timings)) == tuple(sorted(STAGES))
        assert all(seconds >= 0 for seconds in outcome.timings.values()), outcome.timings
        assert told <= seen


@pytest.mark.parametrize("name", ["returned", "raised", "program"])
def test_stages_are_most_of_what_was_waited(name: str) -> None:
    """At its best: what is left out is the caller's own, and any call may be held up there."""
    watched(RUNS[name])
    shares = [told / seen for _, seen, told in (watched(RUNS[name]) for _ in range(40))]
    assert max(shares) > 0.9, shares


def test_sleep_counts_as_running() -> None:
    outcome, _, _ = watched(lambda: doze.run(0.3))
    assert outcome.timings["run"] >= 0.3


def test_a_limit_counts_as_running_until_it_bites() -> None:
    outcome, _, _ = watched(lambda: doze.run(30))
    assert outcome.limit == "time"
    assert outcome.timings["run"] >= 1.0


class Slow:
    """Takes its time to be pickled, here, and to come back inside."""

    def __reduce__(self) -> Any:
        time.sleep(0.2)
        return (int, ())


def test_pickling_counts_as_sending() -> None:
    outcome, _, _ = watched(lambda: double.run(Slow()))  # type: ignore[arg-type]
    assert outcome.timings["send"] >= 0.2
    assert outcome.timings["run"] < outcome.timings["send"]


def test_decoding_counts_as_receiving() -> None:
    @hutch.sandbox
    def many() -> list[str]:
        return [str(i) for i in range(300_000)]

    many.run()
    outcome, seen, told = watched(lambda: many.run())
    assert outcome.ok and outcome.timings["receive"] > double.run(1).timings["receive"]
    assert told <= seen


def test_the_wait_for_a_cell_counts_as_queueing() -> None:
    busy = doze.options(pool=hutch.Pool(max_cells=1), timeout_sec=10)
    busy.run(0)
    first = busy.submit(3)
    time.sleep(0.1)
    outcome, seen, told = watched(lambda: busy.run(0))
    assert first.outcome().ok and outcome.ok
    assert outcome.timings["queue"] > 0.2
    assert outcome.usage.waited_sec > 0.2
    assert told <= seen


def test_the_wait_for_a_thread_counts_as_queueing() -> None:
    with hutch.Executor(max_workers=1) as executor:
        futures = [executor.submit(doze, 0.2) for _ in range(3)]
        outcomes = [future.outcome() for future in futures]
    assert outcomes[2].timings["queue"] >= 0.3


def test_items_of_a_chunk_have_the_times_of_the_chunk() -> None:
    outcomes = list(double.map(range(4), chunksize=4, on_error="outcome"))
    assert [outcome.value for outcome in outcomes] == [0, 2, 4, 6]
    assert all(outcome.timings == outcomes[0].timings for outcome in outcomes)
    assert outcomes[0].timings["run"] > 0


def test_a_fault_has_timings_too() -> None:
    busy = doze.options(pool=hutch.Pool(max_cells=1), timeout_sec=10)
    busy.run(0)
    first = busy.submit(2)
    time.sleep(0.2)
    before = time.monotonic()
    with pytest.raises(hutch.SandboxBusy) as caught:
        busy.options(queue_sec=0.5).run(0)
    seen = time.monotonic() - before
    outcome = caught.value.outcome
    assert outcome is not None and outcome.status == "fault"
    assert 0.4 < outcome.timings["queue"] <= sum(outcome.timings.values()) <= seen
    first.cancel()


def test_what_was_never_sent_took_no_time() -> None:
    lock = threading.Lock()
    outcome = next(double.map([lock], on_error="outcome"))
    assert not outcome.ok and not outcome.may_have_run
    assert outcome.timings == dict.fromkeys(STAGES, 0.0)
