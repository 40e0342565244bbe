# SPDX-License-Identifier: Apache-2.0
"""A call of a session that an event loop drives: the loop watches the cell's descriptor and the
call's clock, and no thread waits. All of it is for the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from hutch import _core
from hutch._calls.dialogue import Dialogue, Feed
from hutch._calls.kept import KeyValueRequests
from hutch._calls.loops import on_thread
from hutch._tool_calls import ToolCall
from hutch._tools import Tool

T = TypeVar("T")


class Turns:
    """Of a call that `core.begin` has sent."""

    def __init__(self, core: _core.Session) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()

    async def next(self) -> tuple[bytes, int] | None:
        """What the code asks, which is open from then on; None: the call is over."""
        while True:
            turn = self._core.turn()
            if not isinstance(turn, float):
                if turn is not None:
                    await self._yield()
                return turn
            await self._change(turn)

    async def exchange(self, answer: bytes | None) -> tuple[bytes, int] | None:
        """Answers what is open, and what is next."""
        self._core.answer(answer)
        return await self.next()

    async def _yield(self) -> None:
        """To the rest of the loop: a cell may ask again and again without a pause."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:  # as in _change
            self._core.cancel()

    async def _change(self, patience: float) -> None:
        changed = self._loop.create_future()

        def wake() -> None:
            if not changed.done():
                changed.set_result(None)

        descriptor = self._core.turn_fd
        timer = self._loop.call_later(patience, wake)
        self._loop.add_reader(descriptor, wake)
        try:
            await changed
        except asyncio.CancelledError:  # the loop ends, and waits for the call's end, which is soon
            self._core.cancel()
        finally:
            timer.cancel()
            if not self._loop.is_closed():
                self._loop.remove_reader(descriptor)


class Within:
    """The calls that an async tool makes within the one that waits for it, one after another."""

    def __init__(self, talk: Dialogue) -> None:
        self.talk = talk
        self.entry = talk.entry  # the tool's
        self.is_open = True
        self.under_way: set[asyncio.Task[Any]] = set()
        self._lock = asyncio.Lock()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(self._one(work))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        return task

    async def _one(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with self._lock:
                return await work
        finally:
            work.close()  # if it never began


# Of the tool that the task belongs to.
within: contextvars.ContextVar[Within | None] = contextvars.ContextVar("within", default=None)


class LoopDialogue(Dialogue):
    """A Dialogue whose coroutines wait for tools on the loop. Tools that are not async run there,
    too; those with a time limit on a thread.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._core: _core.Session | None = None
        self._turns: Turns | None = None
        self._tasks: list[asyncio.Task[Any]] = []  # of async tools, the outermost first
        self._kept: list[tuple[int, bytes]] | None = None
        self._is_cancelled = False

    def sent(self, core: _core.Session) -> Turns:
        """Of the call, which was sent."""
        self._core = core
        self._turns = Turns(core)
        self._stop_clock = core.stop_clock
        return self._turns

    def cancel(self) -> None:
        """No tool is begun from then on."""
        self._is_cancelled = True
        if self._core is not None:
            self._core.cancel()
        for task in self._tasks:
            task.cancel()

    def fed(self, feed: Feed) -> Feed:
        """The same, except where it is called on another thread: within `feeds_later`."""

        def fed(stream: int, data: bytes) -> None:
            if self._kept is None:
                feed(stream, data)
            else:
                self._kept.append((stream, data))

        return fed

    @contextlib.contextmanager
    def feeds_later(self, feed: Feed | None) -> Iterator[None]:
        kept: list[tuple[int, bytes]] = []
        self._kept = kept
        yield
        self._kept = None
        for stream, data in kept:
            if feed is not None:
                feed(stream, data)

    async def _exchange(self, answer: bytes) -> tuple[bytes, int] | None:
        return None if self._turns is None else await self._turns.exchange(answer)

    async def _answer_of_values(
        self, requests: KeyValueRequests, content: list[Any]
    ) -> tuple[Any, ...]:
        """A storage may take long: a cell that asks again and again would stop the loop."""
        if requests.waits_for(content):
            return await on_thread(lambda: requests.answer(content))
        return requests.answer(content)

    async def _invoke(self, tool: Tool, args: Any, kwargs: Any) -> Any:
        if self._is_cancelled:
            raise CancelledError
        call = ToolCall(tool, args, kwargs)
        call.require_approved(await self._value_of(call.approval()))
        late = self._callbacks.late
        if tool.timeout_sec is not None and not tool.is_async:
            return await on_thread(lambda: call.run(late), daemon=True)
        return await self._value_of(call.run(late))

    async def _value_of(self, made: Any) -> Any:
        return await self._result_of(made) if inspect.iscoroutine(made) else made

    async def _result_of(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        calls = Within(self)
        before = within.set(calls)
        try:
            task = asyncio.ensure_future(coroutine)
        finally:
            within.reset(before)
        self._tasks.append(task)
        try:
            await self._end_of(task)
            calls.is_open = False
            for call in [*calls.under_way]:
                await self._end_of(call)
        finally:
            calls.is_open = False
            self._tasks.pop()
        if task.cancelled():
            raise CancelledError  # which is reported to the code, as any other failure
        return task.result()

    async def _end_of(self, task: asyncio.Task[Any]) -> None:
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:  # the loop ends, and has cancelled this task as all
                self.cancel()
