# SPDX-License-Identifier: Apache-2.0
"""Calls of a session with `queue=True`: one that begins while another one runs waits its turn."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from support import until

from hutch import AsyncSession, SandboxStartupError, Session, SessionBusy


class Gate:
    """A tool that waits until it is opened."""

    def __init__(self) -> None:
        self.begun, self.opened = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.begun.set()
        assert self.opened.wait(60)


@contextlib.contextmanager
def taken(queue: bool = True) -> Iterator[tuple[Session, Gate]]:
    """A session whose call waits for the gate, on a thread of its own."""
    gate = Gate()
    with Session(queue=queue, tools=[gate.wait], timeout_sec=60) as s:
        s.exec("said = []").unwrap()
        caller = threading.Thread(target=lambda: s.exec("wait()"))
        caller.start()
        assert gate.begun.wait(60)
        try:
            yield s, gate
        finally:
            gate.opened.set()
            caller.join()


def waiting(s: Session) -> int:
    return len(s._engine.turn._waiting)


class Caller(threading.Thread):
    """Of one call, which waits by then. `failed`: what it raised."""

    def __init__(self, s: Session, call: Callable[[], object]) -> None:
        super().__init__()
        self.call = call
        self.failed: BaseException | None = None
        before = waiting(s)
        self.start()
        until(lambda: waiting(s) == before + 1)

    def run(self) -> None:
        try:
            self.call()
        except BaseException as error:
            self.failed = error


def test_calls_have_their_turns_in_the_order_in_which_they_came() -> None:
    with taken() as (s, gate):
        says = [lambda n=n: s.exec(f"said.append({n})").unwrap() for n in range(5)]
        callers = [Caller(s, call) for call in (*says, lambda: s.set("x", 1), s.names)]
        gate.opened.set()
        for caller in callers:
            caller.join()
            assert caller.failed is None
        assert s["said"] == [0, 1, 2, 3, 4] and s["x"] == 1


def test_without_it_they_are_refused() -> None:
    with taken(queue=False) as (s, _), pytest.raises(SessionBusy):
        s.exec("1")


def test_what_a_tool_calls_does_not_wait_for_its_own_call() -> None:
    def twice(n: int) -> int:
        value: int = t.exec(f"2 * {n}").value
        return value

    with Session(queue=True, tools=[twice]) as t:
        assert t.exec("twice(4)").value == 8


def test_what_reads_the_output_of_a_call_is_refused_and_not_kept_waiting() -> None:
    found: list[type[BaseException]] = []

    def read(text: str) -> None:
        try:
            s.exec("2")
        except SessionBusy as error:
            found.append(type(error))

    with Session(queue=True) as s:
        assert s.exec("print('a'); 1", on_stdout=read).value == 1
        assert found and s.exec("3").value == 3


def test_reset_waits_too() -> None:
    with taken() as (s, gate):
        resets = Caller(s, s.reset)
        after = Caller(s, lambda: s.exec("y = 1"))
        gate.opened.set()
        resets.join()
        after.join()
        assert (resets.failed, after.failed) == (None, None)
        assert s.names() == ["y"]


def test_a_session_that_is_closed_lets_nobody_wait() -> None:
    with taken() as (s, gate):
        callers = [Caller(s, lambda: s.exec("said.append(1)")) for _ in range(3)]
        s.close()
        gate.opened.set()
        for caller in callers:
            caller.join()
            assert isinstance(caller.failed, SandboxStartupError)
            assert "it was closed" in str(caller.failed) and not caller.failed.may_have_run
        with pytest.raises(SandboxStartupError):
            s.exec("1")


def test_who_is_interrupted_while_it_waits_leaves_the_queue() -> None:
    with taken() as (s, gate):

        def press() -> None:
            until(lambda: waiting(s) == 1)
            signal.pthread_kill(main, signal.SIGINT)

        main = threading.get_ident()
        presses = threading.Thread(target=press)
        presses.start()
        with pytest.raises(KeyboardInterrupt):
            s.exec("said.append('never')")
        presses.join()
        assert waiting(s) == 0
        gate.opened.set()
        assert s.exec("said").value == []


def test_what_a_signal_handler_of_one_that_waits_calls_is_refused() -> None:
    found: list[type[BaseException]] = []

    def handle(*_: object) -> None:
        try:
            s.exec("2")
        except SessionBusy as error:
            found.append(type(error))
        gate.opened.set()

    with taken() as (s, gate):

        def send() -> None:
            until(lambda: waiting(s) == 1)
            signal.pthread_kill(main, signal.SIGUSR1)

        main = threading.get_ident()
        before = signal.signal(signal.SIGUSR1, handle)
        sends = threading.Thread(target=send)
        sends.start()
        try:
            assert s.exec("3").value == 3
        finally:
            sends.join()
            signal.signal(signal.SIGUSR1, before)
        assert found


def test_an_interrupt_is_for_whoever_has_the_turn_and_not_for_the_next_one() -> None:
    with Session(queue=True) as s:
        s.exec("said = []").unwrap()
        with s._engine.turn:
            caller = Caller(s, lambda: s.exec("said.append(1)").unwrap())
            s.interrupt()  # before anything is sent
        caller.join()
        assert caller.failed is None and s["said"] == [1]


def test_a_forked_child_is_told_whose_session_it_is() -> None:
    with taken() as (s, _):
        child = os.fork()
        if not child:
            try:
                s.exec("1")
            except SandboxStartupError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("kind", [Session, AsyncSession])
@pytest.mark.parametrize("wrong", ["yes", 1, None, 5.0])
def test_it_is_true_or_false(kind: Any, wrong: Any) -> None:
    with pytest.raises(TypeError, match="queue= takes True or False"):
        kind(queue=wrong)


# ---- awaited


@contextlib.asynccontextmanager
async def awaited(queue: bool = True) -> AsyncIterator[tuple[AsyncSession, asyncio.Task[Any]]]:
    """A session, and a task whose call waits for what is never said."""
    begun = asyncio.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with AsyncSession(queue=queue, tools=[forever]) as s:
        await s.exec("said = []")
        task = asyncio.ensure_future(s.exec("await forever()"))
        await begun.wait()
        yield s, task
        task.cancel()
        await asyncio.wait({task})


async def begun(*calls: Any) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.ensure_future(call) for call in calls]
    for _ in range(3):
        await asyncio.sleep(0)  # they wait by then
    return tasks


def test_awaited_calls_have_their_turns_in_order() -> None:
    async def main() -> None:
        async with awaited() as (s, first):
            tasks = await begun(*(s.exec(f"said.append({n})") for n in range(5)))
            assert not any(task.done() for task in tasks)
            first.cancel()
            await asyncio.gather(*tasks)
            assert await s.get("said") == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_handlers_of_a_server_need_no_lock_of_their_own() -> None:
    async def main() -> None:
        async with AsyncSession(queue=True) as s:
            await s.exec("n = 0")
            step = "import asyncio; m = n; await asyncio.sleep(0); n = m + 1"
            await asyncio.gather(*(s.exec(step) for _ in range(40)))
            assert await s.get("n") == 40

    asyncio.run(main())


def test_without_it_an_awaited_call_is_refused() -> None:
    async def main() -> None:
        async with awaited(queue=False) as (s, _):
            with pytest.raises(SessionBusy):
                await s.exec("1")

    asyncio.run(main())


def test_one_that_is_cancelled_while_it_waits_never_runs_and_keeps_nobody_waiting() -> None:
    async def main() -> None:
        async with awaited() as (s, first):
            before, gone, after = await begun(*(s.exec(f"said.append({n})") for n in range(3)))
            gone.cancel()
            await asyncio.wait({gone})
            assert len(s._of._engine._waiting) == 2
            first.cancel()
            await asyncio.gather(before, after)
            assert gone.cancelled() and await s.get("said") == [0, 2]
            with pytest.raises(asyncio.TimeoutError):
                async with awaited() as (t, _):
                    await asyncio.wait_for(t.exec("1"), 0.01)

    asyncio.run(main())


def test_one_that_is_cancelled_when_it_gets_its_turn_gives_it_on() -> None:
    async def main() -> None:
        async with awaited() as (s, first):
            gone, after = await begun(s.exec("said.append(0)"), s.exec("said.append(1)"))
            turn = s._of._engine._waiting[0]
            first.cancel()
            while not turn.done():
                await asyncio.sleep(0)
            gone.cancel()  # before it goes on
            await asyncio.wait({gone})
            await after
            assert gone.cancelled() and await s.get("said") == [1]

    asyncio.run(main())


def test_a_closed_one_lets_nobody_wait() -> None:
    async def main() -> None:
        async with awaited() as (s, _):
            tasks = await begun(s.exec("1"), s.names(), s.files.list())
            await s.close()
            for task in tasks:
                with pytest.raises(SandboxStartupError, match="it was closed"):
                    await task

    asyncio.run(main())


def test_what_waits_on_another_loop_is_refused() -> None:
    async def main() -> None:
        async with awaited() as (s, _):

            def call() -> None:
                with pytest.raises(SessionBusy):
                    asyncio.run(s.exec("1"))

            await asyncio.to_thread(call)

    asyncio.run(main())


def test_an_async_tool_calls_its_session_within_its_own_call() -> None:
    async def main() -> None:
        async def twice(n: int) -> int:
            value: int = (await s.exec(f"2 * {n}")).value
            return value

        async with AsyncSession(queue=True, tools=[twice]) as s:
            outcomes = await asyncio.gather(*(s.exec(f"await twice({n})") for n in range(4)))
            assert [one.value for one in outcomes] == [0, 2, 4, 6]

    asyncio.run(main())
