# SPDX-License-Identifier: Apache-2.0
"""Many calls, bounded in flight: the logic of map with calls that are made up."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hutch
from hutch import _core
from hutch._calls import map
from hutch._calls.map import Item, Plan
from hutch._outcome import Outcome, Usage

AT_ONCE = {"queue": 0.0, "run": 1.0}


def plan(**changed: Any) -> Plan:
    settings: dict[str, Any] = {
        "concurrency": 3,
        "ordered": True,
        "chunksize": 1,
        "on_error": "raise",
        "retries": 0,
        **changed,
    }
    return Plan(**settings)


def each(function: Callable[..., Any]) -> map.ChunkRunner:
    def run_chunk(items: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        return [Outcome("returned", function(*item)) for item in items]

    return map.ChunkRunner(run_chunk)


def items(values: Any) -> Iterator[Item]:
    return ((value,) for value in values)


def test_results_come_in_order_whatever_is_ready_first() -> None:
    first = threading.Event()

    def work(x: int) -> int:
        if x == 0:
            assert first.wait(10)
        if x == 2:
            first.set()
        return x * x

    assert list(map.run(plan(), items(range(6)), each(work))) == [0, 1, 4, 9, 16, 25]


def test_unordered_yields_what_is_ready() -> None:
    gate = threading.Event()

    def work(x: int) -> int:
        if x == 0:
            assert gate.wait(10)
        return x

    found = map.run(plan(ordered=False), items(range(3)), each(work))
    assert {next(found), next(found)} == {1, 2}
    gate.set()
    assert list(found) == [0]


def test_an_endless_iterator_is_taken_from_only_as_calls_come_free() -> None:
    taken = []

    def endless() -> Iterator[Item]:
        for i in itertools.count():
            taken.append(i)
            yield (i,)

    found = map.run(plan(), endless(), each(lambda x: x))
    assert [next(found) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(taken) <= 5 + 3
    found.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("count", "size"), [(0, 1), (1, 4), (7, 3), (6, 3)])
def test_chunks_hold_every_item_once(count: int, size: int) -> None:
    chunks: list[int] = []

    def run_chunk(chunk: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        chunks.append(len(chunk))
        return [Outcome("returned", item[0]) for item in chunk]

    found = list(map.run(plan(chunksize=size), items(range(count)), map.ChunkRunner(run_chunk)))
    assert found == list(range(count)) and all(n <= size for n in chunks)


def fails(x: int) -> Outcome[Any]:
    if x == 1:
        return Outcome[Any]("died", signal=9).fail(hutch.SandboxDied("gone", signal=9))
    return Outcome("returned", x)


def test_the_first_failure_is_raised_or_yielded() -> None:
    def run_chunk(chunk: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        return [fails(*item) for item in chunk]

    found = map.run(plan(), items(range(3)), map.ChunkRunner(run_chunk))
    assert next(found) == 0
    with pytest.raises(hutch.SandboxDied):
        next(found)
    outcomes = list(map.run(plan(on_error="outcome"), items(range(3)), map.ChunkRunner(run_chunk)))
    assert [outcome.status for outcome in outcomes] == ["returned", "died", "returned"]


def test_only_what_certainly_did_not_run_is_repeated() -> None:
    tries: dict[int, int] = {}

    def run_chunk(chunk: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        x = chunk[0][0]
        tries[x] = tries.get(x, 0) + 1
        if x == 0 and tries[x] < 3:
            raise hutch.SandboxBusy("full")
        if x == 1:
            raise hutch.SandboxStartupError("lost", may_have_run=True)
        return [Outcome("returned", x)]

    found = list(
        map.run(plan(retries=2, on_error="outcome"), items(range(3)), map.ChunkRunner(run_chunk))
    )
    assert [outcome.status for outcome in found] == ["returned", "fault", "returned"]
    assert found[1].may_have_run and not found[1].safe_to_retry
    assert tries == {0: 3, 1: 1, 2: 1}


def test_without_retries_a_fault_is_raised() -> None:
    def run_chunk(chunk: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        raise hutch.SandboxBusy("full")

    with pytest.raises(hutch.SandboxBusy):
        list(map.run(plan(), items([1]), map.ChunkRunner(run_chunk)))


def test_following_pressure_it_tries_fewer_before_it_gives_up() -> None:
    refused: list[int] = []

    def run_chunk(chunk: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        x = chunk[0][0]
        if x not in refused:
            refused.append(x)
            raise hutch.SandboxBusy("full")
        return [Outcome("returned", x)]

    assert list(map.run(plan(concurrency=None), items([7]), map.ChunkRunner(run_chunk))) == [7]

    def never(chunk: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        raise hutch.SandboxBusy("full")

    with pytest.raises(hutch.SandboxBusy):
        list(map.run(plan(concurrency=None), items([7]), map.ChunkRunner(never)))


def settled(window: map._Window, used: Usage, pressure: float = 0.0) -> int:
    for _ in range(200):
        window.see(AT_ONCE, used, pressure)
    return window.size


def test_on_a_pressed_host_fewer_are_in_flight_until_the_least() -> None:
    settings = plan(concurrency=None)
    window = map._Window(settings)
    short = Usage(wall_sec=0.001)
    assert settled(window, short) == settings.concurrency
    assert settings.least < settled(window, short, 0.5) < settings.concurrency
    assert settled(window, short, 1.0) == settings.least


def test_no_more_are_in_flight_than_the_processors_have_time_for() -> None:
    window = map._Window(plan(concurrency=None), cores=4)
    assert settled(window, Usage(wall_sec=1, cpu_sec=0.98)) == 4
    slowed = Usage(wall_sec=16, cpu_sec=1, cpu_wait_sec=15)
    assert settled(window, slowed) == 4, "what slows it is that it waits for others"
    assert settled(window, Usage(wall_sec=1, cpu_sec=2)) == 2, "threads"
    assert settled(window, Usage(wall_sec=1, cpu_sec=0.25)) == 16
    assert settled(window, Usage(wall_sec=1, cpu_sec=0.01)) == 64, "it sleeps"
    assert settled(window, Usage(wall_sec=1, cpu_sec=1e9)) == 1, "a cell may say anything"
    assert settled(window, Usage(wall_sec=1, cpu_sec=0, cpu_wait_sec=1e9)) == 64
    short = Usage(wall_sec=0.001, cpu_sec=0.001)
    assert settled(window, short) == 64, "cells are made meanwhile"


def test_what_one_call_reports_does_not_slow_the_others() -> None:
    window = map._Window(plan(concurrency=None), cpus=1, cores=64)
    honest = Usage(wall_sec=3, cpu_sec=3)
    assert settled(window, honest) == 64
    for lie in (Usage(wall_sec=3, cpu_sec=1e9), Usage(wall_sec=3, cpu_sec=3, cpu_wait_sec=30)):
        assert settled(window, lie) == 64
    assert settled(map._Window(plan(concurrency=None), cpus=4, cores=64), honest) == 64
    four = Usage(wall_sec=3, cpu_sec=12)
    assert settled(map._Window(plan(concurrency=None), cpus=4, cores=64), four) == 16


def test_a_long_call_does_not_keep_others_from_the_processors() -> None:
    gate = threading.Event()
    begun: list[int] = []

    def run_chunk(chunk: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        x = chunk[0][0]
        begun.append(x)
        if x == 1:
            assert gate.wait(10)
        if x == 20:
            gate.set()
        return [Outcome("returned", x, usage=Usage(wall_sec=1, cpu_sec=1), timings=AT_ONCE)]

    found = map.run(plan(concurrency=None), items(range(30)), map.ChunkRunner(run_chunk))
    assert list(found) == list(range(30))


def test_what_does_not_count_is_run_once_more_alone() -> None:
    running = 0
    lock = threading.Lock()
    at_once: dict[int, list[int]] = {}

    def run_chunk(chunk: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        nonlocal running
        x = chunk[0][0]
        with lock:
            running += 1
            at_once.setdefault(x, []).append(running)
        tries = len(at_once[x])
        with lock:
            running -= 1
        if x == 4 and tries < 3:
            raise hutch.SandboxBusy("full")
        return [Outcome("limit" if x in (2, 5) or (x == 4 and tries < 4) else "returned", tries)]

    settings = plan(
        concurrency=2,
        on_error="outcome",
        retries=2,
        once_more_alone=lambda outcome: outcome.status == "limit",
    )
    found = list(map.run(settings, items(range(8)), map.ChunkRunner(run_chunk)))
    assert [one.value for one in found] == [1, 1, 2, 1, 4, 2, 1, 1]
    assert [one.status for one in found] == [
        "limit" if i in (2, 5) else "returned" for i in range(8)
    ]
    assert at_once[2][-1] == at_once[4][-1] == at_once[5][-1] == 1


def test_a_fault_of_a_later_call_comes_in_its_turn() -> None:
    gate = threading.Event()

    def run_chunk(chunk: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        x = chunk[0][0]
        if x == 10:
            assert gate.wait(10)
        if x == 11:
            gate.set()
            raise hutch.SandboxStartupError("lost", may_have_run=True)
        return [Outcome("returned", x, usage=Usage(wall_sec=1, cpu_sec=1), timings=AT_ONCE)]

    found = map.run(plan(concurrency=None), items(range(20)), map.ChunkRunner(run_chunk))
    assert [next(found) for _ in range(11)] == list(range(11))
    with pytest.raises(hutch.SandboxStartupError):
        next(found)


def test_no_more_are_in_flight_than_the_pool_has_cells() -> None:
    assert plan(concurrency=None, cells=1).concurrency == 1
    assert plan(concurrency=3, cells=1).concurrency == 3


def test_a_bug_is_raised_whatever_on_error_says() -> None:
    def run_chunk(chunk: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(map.run(plan(on_error="outcome"), items([1]), map.ChunkRunner(run_chunk)))


def test_leaving_early_cancels_what_is_in_flight() -> None:
    tokens: list[_core.Cancel] = []
    release = threading.Event()

    def run_chunk(chunk: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        if chunk[0][0] > 0:
            tokens.append(token)
            assert release.wait(10)
        return [Outcome("returned", 0)]

    found = map.run(plan(), items(range(100)), map.ChunkRunner(run_chunk))
    next(found)
    while len(tokens) < 2:
        pass
    found.close()  # type: ignore[attr-defined]
    release.set()
    assert all(token.cancelled for token in tokens)


@pytest.mark.parametrize(
    "settings",
    [{"concurrency": 0}, {"chunksize": 0}, {"retries": -1}, {"on_error": "ignore"}],
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        plan(**settings)


def test_bad_settings_are_refused_before_the_first_item() -> None:
    @hutch.sandbox
    def f(x: int) -> int:
        return x

    with pytest.raises(ValueError, match="chunksize"):
        f.map([1], chunksize=0)
