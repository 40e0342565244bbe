# SPDX-License-Identifier: Apache-2.0
"""Sandboxed generator functions: lazy, a few items ahead, with a clock that stands meanwhile."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import pytest

import hutch
from hutch import sandbox


@dataclass
class Point:
    x: int


def test_items_come_in_order_and_the_value_last() -> None:
    @sandbox
    def count(n: int) -> Iterator[int]:
        yield from range(n)
        return "done"  # type: ignore[return-value]

    for n in (0, 1, 7, 8, 9, 1000):
        items = count(n)
        assert list(items) == list(range(n))
        assert items.outcome is not None and items.outcome.value == "done"  # type: ignore[attr-defined]
        assert list(items) == []


def test_nothing_runs_before_the_first_item_is_wanted() -> None:
    @sandbox
    def fail() -> Iterator[int]:
        raise ValueError("at once")
        yield 1

    items = fail()
    with pytest.raises(ValueError, match="at once"):
        next(items)
    with pytest.raises(StopIteration):
        next(items)


def test_what_is_raised_after_items_comes_after_them() -> None:
    @sandbox
    def fail() -> Iterator[int]:
        yield 1
        yield 2
        raise LookupError("third")

    items = fail()
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(LookupError, match="third"):
        next(items)


def test_an_endless_one_is_only_a_few_items_ahead() -> None:
    made: list[int] = []

    def note(n: int) -> None:
        made.append(n)

    @sandbox(tools=[note])
    def endless() -> Iterator[int]:
        for i in itertools.count():
            note(i)
            yield i

    items = endless()
    assert [next(items) for _ in range(100)] == list(range(100))
    before = 0
    while before != (before := len(made)):
        time.sleep(0.3)  # until it stands
    assert 100 <= before < 140
    items.close()  # type: ignore[attr-defined]


def test_its_time_limit_stands_still_while_its_caller_does_not_ask() -> None:
    @sandbox(timeout_sec=1)
    def count() -> Iterator[int]:
        yield from range(60)

    items = count()
    assert next(items) == 0
    time.sleep(1.8)  # the agent would have killed it by now
    assert list(items) == list(range(1, 60))


def test_its_time_limit_stands_still_while_its_caller_takes_each_item_slowly() -> None:
    @sandbox(timeout_sec=1)
    def count() -> Iterator[int]:
        yield from range(60)

    taken = []
    for item in count():
        taken.append(item)
        time.sleep(0.03)
    assert taken == list(range(60))


def test_its_time_limit_counts_what_it_takes_itself() -> None:
    @sandbox(timeout_sec=1)
    def hang() -> Iterator[int]:
        yield 1
        while True:
            pass

    items = hang()
    assert next(items) == 1
    time.sleep(0.5)
    with pytest.raises(hutch.SandboxTimeoutError):
        next(items)


def test_a_slow_one_gives_each_item_as_it_comes() -> None:
    has_come = [threading.Event() for _ in range(3)]

    def came(number: int) -> bool:
        return has_come[number].wait(20)

    @sandbox(tools=[came])
    def slow() -> Iterator[int]:
        for number in range(3):
            yield number
            assert came(number)

    for number in slow():
        has_come[number].set()
    assert all(one.is_set() for one in has_come)


def test_closing_raises_generator_exit_inside(capfd: pytest.CaptureFixture[str]) -> None:
    @sandbox
    def count() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            print("closed inside")

    with count() as items:  # type: ignore[attr-defined]
        assert next(items) == 0
    assert items.outcome is not None and items.outcome.ok
    assert "closed inside" in capfd.readouterr().out
    items.close()
    with pytest.raises(StopIteration):
        next(items)
    unused = count()
    unused.close()  # type: ignore[attr-defined]
    assert list(unused) == []


def test_closing_kills_one_that_does_not_end() -> None:
    @sandbox
    def stubborn() -> Iterator[int]:
        try:
            yield 1
            time.sleep(60)
        finally:
            time.sleep(60)

    items = stubborn()
    assert next(items) == 1
    begun = time.monotonic()
    items.close()  # type: ignore[attr-defined]
    assert list(items) == []
    assert time.monotonic() - begun < 30


def test_one_that_is_dropped_ends() -> None:
    @sandbox(labels={"of": "dropped"})
    def endless() -> Iterator[int]:
        yield from itertools.count()

    items = endless()
    next(items)
    stream = items._stream  # type: ignore[attr-defined]
    del items
    gc.collect()
    with stream._changed:
        assert stream._changed.wait_for(lambda: stream._over, 30)


def test_an_async_one() -> None:
    @sandbox
    async def count(n: int) -> AsyncIterator[int]:
        for i in range(n):
            await asyncio.sleep(0)
            yield i

    @sandbox
    async def closing() -> AsyncIterator[int]:
        try:
            for i in itertools.count():
                yield i
        finally:
            print("closed inside")

    async def main() -> None:
        assert [item async for item in count(20)] == list(range(20))
        both = await asyncio.gather(*(first_of(closing()) for _ in range(3)))
        assert both == [[0, 1, 2]] * 3

    async def first_of(items: Any) -> list[int]:
        async with items:
            found = [await items.__anext__() for _ in range(3)]
        assert items.outcome.ok and "closed inside" in items.outcome.stdout
        return found

    asyncio.run(main())


def test_an_await_that_is_given_up_loses_no_item_and_no_thread() -> None:
    @sandbox
    async def slowly() -> AsyncIterator[int]:
        for i in range(40):
            time.sleep(0.02)
            yield i

    async def main() -> tuple[list[int], int]:
        items = slowly()
        first = await items.__anext__()
        before, found = threading.active_count(), [first]
        while True:
            try:
                found.append(await asyncio.wait_for(items.__anext__(), 0.005))
            except TimeoutError:
                continue
            except asyncio.TimeoutError:  # before 3.11
                continue
            except StopAsyncIteration:
                return found, threading.active_count() - before

    found, more = asyncio.run(main())
    assert found == list(range(40))
    assert more <= 1


def test_items_are_what_results_are() -> None:
    @sandbox(dependencies=["numpy"])
    def items() -> Iterator[Any]:
        import numpy

        yield {"a": (1, None, b"x")}
        yield numpy.arange(3)

    plain, array = items()
    assert plain == {"a": (1, None, b"x")} and array.tolist() == [0, 1, 2]
    assert isinstance(array, numpy.ndarray)

    @sandbox
    def points() -> Iterator[Point]:
        yield Point(1)
        yield Point(2)

    assert list(points()) == [Point(1), Point(2)]


def test_an_item_that_is_no_data_is_an_error_of_the_generator() -> None:
    @sandbox
    def bad() -> Iterator[Any]:
        try:
            yield 1
            yield object()
        finally:
            print("cleaned up")

    items = bad()
    assert next(items) == 1
    with pytest.raises(TypeError, match="no data that can be sent: it has object in it"):
        next(items)

    @sandbox
    def unnamed() -> Iterator[Any]:
        yield Point(1)

    with pytest.raises(hutch.SerializationError, match="Point"):
        list(unnamed())


def test_two_at_once_and_one_with_tools() -> None:
    def double(n: int) -> int:
        return 2 * n

    @sandbox(tools=[double])
    def doubled(n: int) -> Iterator[int]:
        for i in range(n):
            yield double(i)

    pairs = zip(doubled(20), doubled(20))
    assert list(pairs) == [(2 * i, 2 * i) for i in range(20)]


@pytest.mark.parametrize("isolation", ["container", "gvisor"])
def test_on_other_rungs(isolation: Any) -> None:
    @sandbox(isolation=isolation)
    def count() -> Iterator[int]:
        yield from range(30)

    assert list(count()) == list(range(30))


def test_what_is_refused() -> None:
    @sandbox
    def count() -> Iterator[int]:
        yield 1

    for name in ("run", "submit", "map"):
        with pytest.raises(TypeError, match="is a generator function: call it, and iterate"):
            getattr(count, name)()
    with pytest.raises(ValueError, match='isolation="shared" is not supported for a generator'):
        count.options(isolation="shared")
    with pytest.raises(ValueError, match='isolation="shared" is not supported for a generator'):
        sandbox(isolation="shared")(count.__wrapped__)


def test_a_cell_that_dies_between_items() -> None:
    @sandbox
    def dies() -> Iterator[int]:
        import os

        yield 1
        os._exit(3)

    items = dies()
    assert next(items) == 1
    with pytest.raises(hutch.SandboxDied) as caught:
        next(items)
    assert caught.value.outcome is not None and caught.value.outcome.exit_code == 3


def test_a_cell_that_yields_without_asking_waits_all_the_same() -> None:
    """Frames without end, of which none asks, take no memory of the host's."""

    @sandbox(timeout_sec=2)
    def flood() -> Iterator[bytes]:
        import sys

        sys._getframe(1).f_globals["SAID_AT_ONCE"] = 1 << 60
        while True:
            yield bytes(100_000)

    items = flood()
    assert len(next(items)) == 100_000
    time.sleep(1)
    assert len(items._stream._items) <= 20  # type: ignore[attr-defined]
    items.close()  # type: ignore[attr-defined]


def test_none_is_left_waiting_when_the_interpreter_ends(tmp_path: Any) -> None:
    import subprocess
    import sys

    code = """
from hutch import sandbox
@sandbox
def endless():
    while True:
        yield 1
items = endless()
next(items)
print("ends")
"""
    (tmp_path / "program.py").write_text(code)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr


def test_a_forked_child_leaves_its_parents_alone() -> None:
    import os

    @sandbox
    def count() -> Iterator[int]:
        yield from itertools.count()

    items = count()
    assert next(items) == 0
    if (child := os.fork()) == 0:
        try:
            next(items)
        except RuntimeError:
            items.close()  # type: ignore[attr-defined]
            del items
            os._exit(7)
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    time.sleep(1.5)
    assert [next(items) for _ in range(100)] == list(range(1, 101))
    items.close()  # type: ignore[attr-defined]
