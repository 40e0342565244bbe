# SPDX-License-Identifier: Apache-2.0
"""What a call says and asks that an event loop drives: async tools run at the same time, each as a
task, while the loop hears what the code asks next. All of it is for the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, TypeVar

from hutch import _core
from hutch._calls.dialogue import (
    STOP,
    UNKNOWN,
    Dialogue,
    call_has_ended,
    ends_the_code,
    error_of,
)
from hutch._calls.frames import Frame, Frames
from hutch._calls.kept import KeyValueRequests
from hutch._calls.loops import OneAtATime, OnThread, on_thread
from hutch._calls.outbox import LaterFeed, Outbox
from hutch._calls.turns import Turns
from hutch._calls.within import MOST_OPEN, UnderWay, Within, within
from hutch._faults import from_core
from hutch._tool_calls import ToolCall
from hutch._tool_late import LateCalls
from hutch._tools import Tool

if TYPE_CHECKING:
    from hutch._calls.history import Note
    from hutch._calls.printed import Printed

T = TypeVar("T")

_MOST_STOPS = 16  # answers to code that was told to end, and asks again


class LoopDialogue(Dialogue):
    """A Dialogue whose tools wait on the loop. Those that are not async run there, too, one at a
    time; those of them with a time limit on a thread, and with `on_threads` all of them. `feed`:
    gets what the code prints.
    """

    def __init__(self, *args: Any, on_threads: bool = False, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._turns: Turns | None = None
        self._on_threads = on_threads
        self._blocking = OneAtATime()
        self._frames = Frames()
        self._under_way = UnderWay()
        self._clock_stands = False
        acknowledges = any(tool.is_async for tool in self._callbacks.tools.values())
        self._outbox = Outbox(acknowledges, self._send)
        self.feed = LaterFeed()
        self._is_cancelled = False
        self._ends = False  # the code has ended, and threads that it began may still ask

    def sent(self, core: _core.Turns) -> Turns:
        """Of the call, which was sent."""
        self._turns = Turns(core)
        self._stop_clock = core.stop_clock
        if self._of_session is not None and self._of_session.history.open:
            self._frames.outer.entry = self._of_session.history.open[0]
        return self._turns

    def cancel(self) -> None:
        """No tool is begun from then on."""
        self._is_cancelled = True
        if self._turns is not None:
            self._turns.cancel()
        self._under_way.cancel()

    async def drive(self, turns: Turns, end: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Answers what the code asks, until the call is over, and returns what its `end` gives.
        Tools that it has left under way are cancelled, and waited for.
        """
        try:
            while (asked := await turns.next()) is not None:
                await self._take(*asked)
            self._end()
            result = await end()
        except Exception:
            self.cancel()
            self._end()
            await self._end_of_tools()
            raise
        await self._end_of_tools()
        return result

    async def _end_of_tools(self) -> None:
        while left := self._under_way.left():
            await self._end_of(left)

    def _end(self) -> None:
        """Of the call."""
        self.is_over = True
        self.raised = self.raised or self._frames.outer.raised
        self._frames.end_all()
        self._under_way.cancel(all_of_them=False)

    async def _end_of(self, tasks: set[asyncio.Task[Any]]) -> None:
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:  # the loop ends, and has cancelled these tasks as all
            self.cancel()

    # ---- what is asked

    async def _take(self, data: bytes, body_size: int, number: int) -> None:
        content = self._content_of(data, body_size)
        frame, depth = self._frames.asker()
        if type(content) is bytes:
            self._reply(number, content)
        elif self._stopped or frame.stops >= _MOST_STOPS:
            self._reply(number, None)
        elif frame.stops:
            frame.stops += 1
            self._reply(number, STOP)
        elif content[0] == "nested":
            if not self._frames.take(_number_of(content[1:2]), content[2:], number):
                self._reply(number, UNKNOWN)
        elif len(self._outbox) >= MOST_OPEN:
            self._reply(number, error_of("too many answers are not read"))
        elif (tool := self._tool_that_waits(content)) is None:
            self._size = len(data)
            self._reply(number, await self._answered(frame, content))
        elif not self._under_way.has_room(
            calls := Within(self, frame, depth, number, len(data), tool.is_async),
            self._outbox.places,
        ):
            self._reply(number, error_of("too many tools are called at once"))
        else:
            self._under_way.begin(calls, self._answer_later(calls, content))

    def _tool_that_waits(self, content: list[Any]) -> Tool | None:
        """That is called, if it does so while others may run."""
        if content[0] != "tool" or len(content) != 4 or type(content[1]) is not str:
            return None
        tool = self._callbacks.tools.get(content[1])
        if tool is None or self._on_threads or tool.needs_loop or tool.timeout_sec is not None:
            return tool
        return None

    async def _answer_later(self, calls: Within, content: list[Any]) -> None:
        self._size = calls.size
        answer = await self._answered(calls.frame, content)
        # The number is that of what it asked last.
        self._reply(calls.number, answer, calls.has_place)
        calls.is_answered = True

    async def _answered(self, frame: Frame, content: list[Any]) -> bytes:
        """What a callback raises ends the code of the frame, and is raised after that."""
        stands = content[0] == "tool" and self._callbacks.stops_clock
        try:
            self._stand(frame, stands)
            return await self._answer(True, content[0], content[1:])
        except GeneratorExit:  # its event loop has ended
            raise
        except BaseException as error:
            frame.stops += 1
            if not ends_the_code(error) and frame.raised is None:
                frame.raised = error
            return STOP
        finally:
            self._stand(frame, -stands)

    def _reply(self, number: int, answer: bytes | None, has_place: bool = False) -> None:
        if not self.is_over and self._turns is not None:
            self._outbox.add(number, answer, has_place)

    def _send(self, number: int, answer: bytes | None) -> None:
        assert self._turns is not None
        try:
            self._turns.answer(number, answer)
        except _core.Error as error:  # as there is no descriptor left for a large one
            self.raised = self.raised or from_core(error)
            self._turns.answer(number, STOP)
        self._clock_stands = False
        self._set_clock()

    async def _answer(self, asks: bool, topic: str, rest: list[Any]) -> bytes:
        if asks:
            return await super()._answer(asks, topic, rest)
        if topic == "got":
            self._outbox.acknowledge()
        elif topic == "begun":
            self._frames.begin(_number_of(rest))
        elif topic == "cancel":
            self._leave(_number_of(rest))
        elif topic == "ended":
            self._ends = True
            self._frames.end_all()
        else:
            return await super()._answer(asks, topic, rest)
        return b""

    def _leave(self, number: int | None) -> None:
        """A tool that nobody waits for any more, and the code that it wants run."""
        self._under_way.leave(number)
        self._frames.end_one(number)

    # ---- its clock

    def _stand(self, frame: Frame, more: int) -> None:
        frame.standing += more
        self._set_clock()

    def _set_clock(self) -> None:
        """It stands while the innermost code waits for a tool, and no command runs for one."""
        stands = self._frames.inner.standing > 0 and not self._commands
        if stands != self._clock_stands and not self.is_over:
            self._clock_stands = stands
            self._stop_clock(stands)

    # ---- calls within this one, and commands beside it

    @property
    def entry(self) -> Note | None:
        calls = within(self)
        return super().entry if calls is None else calls.entry

    async def nested(self, order: bytes, printed: Printed) -> list[Any]:
        calls = within(self)
        assert calls is not None and self._of_session is not None
        noted = self._of_session.history.open
        entry = noted[-1] if noted else None
        await self._frames.room_above(calls.depth, lambda: self._runs_code_of(calls))
        if not self._runs_code_of(calls):
            raise call_has_ended()
        frame = Frame(entry, calls.number)
        stands = int(self._callbacks.stops_clock)
        calls.frame.standing -= stands
        self._frames.push(frame)
        self._printed.append(printed)
        self.depth += 1
        calls.waits += 1
        try:
            self._reply(calls.number, order)
            assert frame.reply is not None
            content, calls.number = await frame.reply
        finally:
            calls.waits -= 1
            self.depth -= 1
            self._printed.remove(printed)
            self._frames.pop(frame)
            self._stand(calls.frame, stands)
        if frame.raised is not None:
            raise frame.raised
        return content

    def _runs_code_of(self, calls: Within) -> bool:
        return not (self.is_over or self._ends or calls.is_left)

    @contextlib.contextmanager
    def running_command(self) -> Iterator[None]:
        calls = within(self)
        if calls is not None:
            calls.waits += 1
        self._commands += 1
        self._set_clock()
        try:
            yield
        finally:
            self._commands -= 1
            self._set_clock()
            if calls is not None:
                calls.waits -= 1

    # ---- tools and values

    async def _answer_of_values(
        self, requests: KeyValueRequests, content: list[Any]
    ) -> tuple[Any, ...]:
        """A storage may take long: a cell that asks again and again would stop the loop."""
        if requests.waits_for(content):
            return await on_thread(lambda: requests.answer(content))
        return requests.answer(content)

    def _parent(self) -> Note | None:
        calls = within(self)
        return self._frames.inner.entry if calls is None else calls.frame.entry

    def _began(self, entry: Note | None) -> None:
        calls = within(self)
        if calls is not None:
            calls.entry = entry

    async def _invoke(self, tool: Tool, args: Any, kwargs: Any) -> Any:
        if self._is_cancelled:
            raise CancelledError
        try:
            return await self._result_of(ToolCall(tool, args, kwargs), tool)
        except asyncio.CancelledError:  # which is reported to the code, as any other failure
            raise CancelledError from None
        finally:
            await self._end_of_calls()

    async def _result_of(self, call: ToolCall, tool: Tool) -> Any:
        if tool.approve is not None:
            on_a_thread = self._on_threads and not tool.asks_later
            call.require_approved(await self._value_of(call.approval, on_a_thread))
        if tool.is_async or tool.timeout_sec is None:
            return await self._value_of(call.run, self._on_threads and not tool.is_async)
        late = self._callbacks.late or tool.late
        made = await _in_time(call, tool.name, tool.timeout_sec, late)
        return await made if inspect.iscoroutine(made) else made

    async def _value_of(self, work: Callable[[], Any], on_a_thread: bool) -> Any:
        made = await self._blocking.run(work) if on_a_thread else work()
        return await made if inspect.iscoroutine(made) else made

    async def _end_of_calls(self) -> None:
        """Those that the tool made and did not wait for."""
        calls = within(self)
        if calls is None:
            return
        calls.is_open = False
        while left := {task for task in calls.under_way if not task.done()}:
            await self._end_of(left)


async def _in_time(call: ToolCall, name: str, timeout: float, late: LateCalls) -> Any:
    """What it returns. One that is cancelled, or late, goes on: so many of them may."""
    late.require_room(name)
    thread = OnThread(call.apply, daemon=True)
    try:
        await thread.wait(timeout)
    finally:
        if thread.is_alive():
            late.add(name, thread)
    if thread.is_alive():
        raise call.too_long()
    return await thread.result()


def _number_of(content: list[Any]) -> int | None:
    """Of a question. Other values may raise where they are compared."""
    return content[0] if len(content) == 1 and type(content[0]) is int else None
