# SPDX-License-Identifier: Apache-2.0
"""So many async tools of a call run at once, with so many bytes: who waits for a place gets one,
and each answer arrives, whatever becomes of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import GVISOR, endings

import hutch
from hutch import AsyncSession, Tool, sandbox

PLACES = 16
LARGE = 200_000  # bytes: an answer of so many comes in memory of the caller's
BEGIN = """
import asyncio, concurrent.futures, time
from hutch_tools import *
def in_threads(function, values):
    with concurrent.futures.ThreadPoolExecutor(30) as threads:
        return list(threads.map(function, values))
"""

Ran = Callable[..., Any]


@pytest.fixture(params=["session", "cell", "container", GVISOR])
def ran(request: pytest.FixtureRequest) -> Ran:
    """`ran(source, *tools)`: what `main()` of that source returns, its `repr` as text."""

    async def in_session(source: str, tools: Any) -> Any:
        async with AsyncSession(memory_mb=512, timeout_sec=30, tools=tools) as s:
            assert (await s.exec(BEGIN + source)).ok
            # Twice: what one leaves is nothing to the next.
            assert (await s.exec("await main()")).unwrap() is not None
            return repr((await s.exec("await main()")).unwrap())

    async def in_program(source: str, tools: Any) -> Any:
        outcome = await hutch.run_aio(
            f"{BEGIN}{source}\nprint(repr(asyncio.run(main())))",
            tools=tools,
            isolation=request.param,
            memory_mb=512,
            timeout_sec=30,
        )
        assert outcome.ok, outcome
        return outcome.stdout.strip()

    how = in_session if request.param == "session" else in_program
    return lambda source, *tools: asyncio.run(how(source, tools))


class Count:
    """Of what runs, and the most at once."""

    def __init__(self) -> None:
        self.now = self.most = self.all = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        with self._lock:
            self.all += 1
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            yield
        finally:
            with self._lock:
                self.now -= 1


async def page(size: int) -> bytes:
    """So many bytes, after a moment."""
    await asyncio.sleep(size % 7 / 1000)
    return bytes(size)


# ---- who waits for a place


@pytest.mark.parametrize("given_up", [1, PLACES, 3 * PLACES])
def test_calls_that_are_given_up_while_they_wait_keep_nobody_from_a_place(
    ran: Ran, given_up: int
) -> None:
    async def hold(sec: float) -> str:
        await asyncio.sleep(sec)
        return "held"

    source = f"""
async def main():
    running = [asyncio.create_task(hold(0.2)) for _ in range({PLACES})]
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(hold(0)) for _ in range({given_up})]
    last = asyncio.create_task(hold(0))
    await asyncio.sleep(0)
    for one in waiting:
        one.cancel()
    return [*await asyncio.gather(*running), await last].count("held")
"""
    assert ran(source, hold) == str(PLACES + 1)


def test_calls_that_are_given_up_at_any_moment_keep_nobody_from_a_place(ran: Ran) -> None:
    source = """
async def soon(i):
    try:
        return await asyncio.wait_for(page(i), i % 5 / 200)
    except asyncio.TimeoutError:
        return None

async def main():
    for _ in range(5):
        await asyncio.gather(*map(soon, range(100)))
    return len(await asyncio.gather(*map(page, range(40))))
"""
    assert ran(source, page) == "40"


def test_a_place_is_taken_until_a_tool_that_was_given_up_has_ended(ran: Ran) -> None:
    count = Count()

    async def work(sec: float) -> str:
        with count.one():
            try:
                await asyncio.sleep(sec)
            finally:
                await asyncio.sleep(0.05)  # as a database rolls back
        return "done"

    source = f"""
async def given_up(_):
    try:
        await asyncio.wait_for(work(20), 0.05)
    except asyncio.TimeoutError:
        return "given up"

async def main():
    first = await asyncio.gather(*map(given_up, range({PLACES})))
    then = await asyncio.gather(*(work(0) for _ in range(2 * {PLACES})))
    return first.count("given up"), then.count("done")
"""
    assert ran(source, work) == str((PLACES, 2 * PLACES))
    assert count.most <= PLACES


def test_one_that_is_late_is_waited_for_until_it_has_ended(ran: Ran) -> None:
    count = Count()

    async def work() -> None:
        with count.one():
            try:
                await asyncio.sleep(20)
            finally:
                await asyncio.sleep(0.05)

    source = f"""
async def late(_):
    try:
        await work()
    except TimeoutError as error:
        return str(error)

async def main():
    said = await asyncio.gather(*map(late, range(3 * {PLACES})))
    return set(said)
"""
    said = {"work() took longer than its timeout_sec=0.02"}
    assert ran(source, Tool(work, timeout_sec=0.02)) == str(said)
    assert count.most <= PLACES and count.now == 0


# ---- arguments and answers of any size


def test_calls_wait_while_the_arguments_of_others_are_too_large(ran: Ran) -> None:
    count = Count()

    async def save(number: int, data: bytes) -> int:
        with count.one():
            await asyncio.sleep(0.1)
            return len(data)

    source = """
async def main():
    million, most = bytes(1_000_000), bytes(4_000_000)
    many = await asyncio.gather(*(save(i, million) for i in range(20)))
    few = await asyncio.gather(*(save(i, most if i < 5 else b"") for i in range(25)))
    loop = asyncio.get_running_loop()
    threads = await loop.run_in_executor(None, in_threads, lambda i: save(i, million), range(20))
    return sum(many), sum(few), sum(threads)
"""
    assert ran(source, save) == "(20000000, 20000000, 20000000)"
    assert count.most <= PLACES


@pytest.mark.parametrize("size", [10_000, 30_000, 60_000, LARGE])
def test_answers_that_are_sent_at_once_all_arrive(ran: Ran, size: int) -> None:
    waiting: list[asyncio.Future[None]] = []

    async def together() -> bytes:
        future = asyncio.get_running_loop().create_future()
        waiting.append(future)
        if len(waiting) == PLACES:
            for one in waiting:
                one.set_result(None)
            waiting.clear()
        await future
        return bytes(size)

    source = f"""
async def main():
    return sum([len(one) for _ in range(3)
                for one in await asyncio.gather(*(together() for _ in range({PLACES})))])
"""
    assert ran(source, together) == str(3 * PLACES * size)


@pytest.mark.parametrize(
    "how", ["await asyncio.gather(*map(page, sizes))", "in_threads(page, sizes)"]
)
def test_more_large_answers_than_places_all_arrive(ran: Ran, how: str) -> None:
    waited = how if how.startswith("await") else f"await loop.run_in_executor(None, lambda: {how})"
    source = f"""
async def main():
    loop, sizes = asyncio.get_running_loop(), [{LARGE} + i for i in range(60)]
    return [len(one) for one in {waited}] == sizes
"""
    assert ran(source, page) == "True"


def test_a_large_answer_that_nobody_waits_for_keeps_no_later_one(ran: Ran) -> None:
    source = f"""
async def main():
    task = asyncio.create_task(page({LARGE}))
    await asyncio.sleep(0)
    time.sleep(0.2)  # in which it comes
    task.cancel()
    return len(await page(1000)), len(await page({LARGE}))
"""
    assert ran(source, page) == str((1000, LARGE))


def test_the_first_of_several_may_win(ran: Ran) -> None:
    source = f"""
async def main():
    for _ in range(20):
        mirrors = [asyncio.create_task(page({LARGE} + i)) for i in range(3)]
        done, left = await asyncio.wait(mirrors, return_when=asyncio.FIRST_COMPLETED)
        for one in left:
            one.cancel()
    return len(done) > 0
"""
    assert ran(source, page) == "True"


# ---- tools that are not async, of functions


def with_tools(*tools: Any, source: str, **keywords: Any) -> Any:
    keywords = {"memory_mb": 256, "timeout_sec": 30, **keywords}
    return asyncio.run(hutch.run_aio(BEGIN + source, tools=tools, **keywords))


def test_what_decides_is_asked_once_at_a_time() -> None:
    left, count = 10, Count()

    def approve(_name: str, _arguments: Any) -> bool:
        nonlocal left
        with count.one():
            if left <= 0:
                return False
            threading.Event().wait(0.005)
            left -= 1
            return True

    source = """
async def main():
    made = await asyncio.gather(*map(page, [1] * 40), return_exceptions=True)
    print(sum(type(one) is bytes for one in made))
asyncio.run(main())
"""
    outcome = with_tools(Tool(page, approve=approve), source=source)
    assert outcome.stdout == "10\n", outcome
    assert (left, count.most, count.all) == (0, 1, 40)


def test_a_tool_that_is_not_async_keeps_no_other_waiting() -> None:
    met = threading.Event()

    def block() -> bool:
        return met.wait(20)

    async def meet() -> None:
        met.set()

    source = """
import threading
thread = threading.Thread(target=lambda: print(block()))
thread.start()
meet()
thread.join()
"""
    heard: list[str] = []
    outcome = with_tools(block, meet, source=source)
    assert outcome.stdout == "True\n", outcome
    met.clear()
    outcome = with_tools(
        block,
        meet,
        source="print('hear', flush=True)\nprint(block())",
        on_stdout=lambda text: (heard.append(text), met.set()),
    )
    assert "".join(heard) == "hear\nTrue\n"


def test_a_tool_that_is_not_async_keeps_no_cell_from_its_end() -> None:
    released, begun, returned = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        released.wait(20)
        returned.set()

    async def main() -> None:
        label = uuid.uuid4().hex
        run = sandbox(tools=[block, page], memory_mb=256, labels={"of": label})(lambda: block())
        task = asyncio.create_task(run.run_aio())
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        try:
            while not endings(label)["cancelled"]:
                await asyncio.sleep(0.01)
            assert not returned.is_set()
        finally:
            released.set()

    asyncio.run(main())


def test_calls_that_wait_for_cells_share_threads() -> None:
    async def main() -> int:
        one = sandbox(tools=[page], memory_mb=64)(lambda: 1)
        most = before = threading.active_count()
        tasks = [asyncio.create_task(one.aio()) for _ in range(150)]
        while not all(task.done() for task in tasks):
            most = max(most, threading.active_count())
            await asyncio.sleep(0.001)
        assert [task.result() for task in tasks] == [1] * 150
        return most - before

    assert asyncio.run(main()) < 100
