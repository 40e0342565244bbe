# SPDX-License-Identifier: Apache-2.0
"""What a call says and asks that an event loop drives: async tools run at the same time, each as a
task, while the loop hears what the code asks next. All of it is for the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, TypeVar

from hutch import _core
from hutch._calls.dialogue import (
    STOP,
    UNKNOWN,
    Dialogue,
    Feed,
    StopExec,
    call_has_ended,
    error_of,
)
from hutch._calls.kept import KeyValueRequests
from hutch._calls.loops import on_thread
from hutch._calls.turns import Turns
from hutch._tool_calls import ToolCall
from hutch._tools import Tool

if TYPE_CHECKING:
    from hutch._calls.history import Note
    from hutch._calls.printed import Printed

T = TypeVar("T")

_MOST_OPEN = 16  # tools at once; worker/dialogue.py waits for one of them to end
_MOST_BYTES = 8 << 20  # of what they were asked with
_MOST_STOPS = 16  # answers to code that was told to end, and asks again


class _Frame:
    """Of the code that asks: that of the call, or what a tool runs within it. `entry`: its entry in
    the history. `of`: the question that the tool would have answered. `reply`: what it waits for,
    with the number of the question that it is. `begun`: the code says that it is; what is asked
    before is of the code around it.
    """

    def __init__(self, entry: Note | None = None) -> None:
        self.entry = entry
        self.of = 0
        self.standing = 0  # tools that it waits for while its clock stands
        self.stops = 0
        self.begun = False
        self.raised: BaseException | None = None  # by a callback
        self.reply: asyncio.Future[tuple[list[Any], int]] | None = None


class Within:
    """One call of a tool, and the calls of its session that it makes, one after another. `number`:
    of the question that it answers at its end. `depth`: that of the frame that asked.
    """

    def __init__(self, talk: LoopDialogue, frame: _Frame, depth: int, number: int) -> None:
        self.talk = talk
        self.frame = frame
        self.depth = depth
        self.number = number
        self.entry: Note | None = None
        self.is_open = True
        self.is_left = False  # nobody waits for it: the code that it wants run never is
        self.waits = 0  # for what ends with the call: code that it runs within it, and commands
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
    """A Dialogue whose tools wait on the loop. Those that are not async run there, too, one at a
    time; those of them with a time limit on a thread.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._core: _core.Session | None = None
        self._frames = [_Frame()]  # the innermost last
        self._tools: dict[asyncio.Task[None], Within] = {}
        self._asked_bytes = 0
        self._popped = asyncio.Event()  # a frame was
        self._clock_stands = False
        self._acknowledges = any(tool.is_async for tool in self._callbacks.tools.values())
        self._unread = False  # a large answer, whose memory the next one would take
        self._to_send: list[tuple[int, bytes]] = []  # large ones after it
        self._kept: list[tuple[int, bytes]] | None = None
        self._is_cancelled = False
        self._ends = False  # the code has ended, and threads that it began may still ask

    def sent(self, core: _core.Session) -> Turns:
        """Of the call, which was sent."""
        self._core = core
        self._stop_clock = core.stop_clock
        if self._of_session is not None and self._of_session.history.open:
            self._frames[0].entry = self._of_session.history.open[0]
        return Turns(core)

    def cancel(self) -> None:
        """No tool is begun from then on."""
        self._is_cancelled = True
        if self._core is not None:
            self._core.cancel()
        for task in self._tools:
            task.cancel()

    async def drive(self, turns: Turns) -> None:
        """Answers what the code asks, until the call is over. Tools that it has left under way are
        cancelled, and waited for.
        """
        while (asked := await turns.next()) is not None:
            await self._take(*asked)
        self._end()
        while left := {task for task in self._tools if not task.done()}:
            await self._end_of(left)

    def _end(self) -> None:
        """Of the call."""
        self.is_over = True
        self.raised = self.raised or self._frames[0].raised
        self._end_nested(self._frames[1:])
        for task, calls in self._tools.items():
            if not calls.waits:
                task.cancel()

    def _end_nested(self, frames: list[_Frame]) -> None:
        """Of code that runs within the call."""
        self._popped.set()
        for frame in frames:
            if frame.reply is not None and not frame.reply.done():
                frame.reply.set_exception(call_has_ended())

    async def _end_of(self, tasks: set[asyncio.Task[Any]]) -> None:
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:  # the loop ends, and has cancelled these tasks as all
            self.cancel()

    # ---- what is asked

    async def _take(self, data: bytes, body_size: int, number: int) -> None:
        content = self._content_of(data, body_size)
        depth = self._depth_of_asker()
        frame = self._frames[depth - 1]
        if type(content) is bytes:
            self._reply(number, content)
        elif self._stopped or frame.stops >= _MOST_STOPS:
            self._reply(number, None)
        elif frame.stops:
            frame.stops += 1
            self._reply(number, STOP)
        elif content[0] == "nested":
            self._take_reply(number, content[1:])
        elif len(self._to_send) >= _MOST_OPEN:
            self._reply(number, error_of("too many answers are not read"))
        elif not self._waits(content):
            self._size = len(data)
            self._reply(number, await self._answered(frame, content))
        elif not self._has_room(len(data)):
            self._reply(number, error_of("too many tools are called at once"))
        else:
            self._begin(Within(self, frame, depth, number), content, len(data))

    def _depth_of_asker(self) -> int:
        count = len(self._frames)
        return next((at for at in range(count, 1, -1) if self._frames[at - 1].begun), 1)

    def _has_room(self, size: int) -> bool:
        """For one more tool. Those that run code, which may call others, do not count; answers do
        until they are sent.
        """
        running = sum(not calls.waits for calls in self._tools.values()) + len(self._to_send)
        few_bytes = not self._tools or self._asked_bytes + size <= _MOST_BYTES
        return running < _MOST_OPEN and few_bytes

    def _begin(self, calls: Within, content: list[Any], size: int) -> None:
        before = within.set(calls)
        try:
            task = asyncio.ensure_future(self._answer_later(calls, content, size))
        finally:
            within.reset(before)
        self._tools[task] = calls
        self._asked_bytes += size

        def forget(_: asyncio.Task[None]) -> None:
            del self._tools[task]
            self._asked_bytes -= size

        task.add_done_callback(forget)

    def _waits(self, content: list[Any]) -> bool:
        """Whether it is a call of a tool that does, while others may run."""
        if content[0] != "tool" or len(content) != 4 or type(content[1]) is not str:
            return False
        tool = self._callbacks.tools.get(content[1])
        return tool is not None and (tool.needs_loop or tool.timeout_sec is not None)

    async def _answer_later(self, calls: Within, content: list[Any], size: int) -> None:
        self._size = size
        answer = await self._answered(calls.frame, content)
        self._reply(calls.number, answer)  # the number is that of what it asked last

    async def _answered(self, frame: _Frame, content: list[Any]) -> bytes:
        """What a callback raises ends the code of the frame, and is raised after that."""
        stands = content[0] == "tool" and self._callbacks.stops_clock
        try:
            self._stand(frame, stands)
            return await self._answer(True, content[0], content[1:])
        except GeneratorExit:  # its event loop has ended
            raise
        except BaseException as error:
            frame.stops += 1
            if not isinstance(error, StopExec) and frame.raised is None:
                frame.raised = error
            return STOP
        finally:
            self._stand(frame, -stands)

    def _reply(self, number: int, answer: bytes | None) -> None:
        if self.is_over or self._core is None:
            return
        if answer is not None and len(answer) > _core.MAX_PAYLOAD and self._acknowledges:
            self._to_send.append((number, answer))
            self._send_large()
        else:
            self._send(number, answer)

    def _send(self, number: int, answer: bytes | None) -> None:
        assert self._core is not None
        self._core.answer(number, answer)
        self._clock_stands = False
        self._set_clock()

    def _send_large(self) -> None:
        if self._to_send and not self._unread:
            self._unread = True
            self._send(*self._to_send.pop(0))

    async def _answer(self, asks: bool, topic: str, rest: list[Any]) -> bytes:
        if topic == "got" and not asks:
            self._unread = False
            self._send_large()
            return b""
        if topic == "begun" and not asks:
            for frame in self._frames:
                frame.begun = frame.begun or frame.of == _number_of(rest)
            return b""
        if topic == "cancel" and not asks:
            for task, calls in self._tools.items():
                if calls.number == _number_of(rest):
                    calls.is_left = True
                    task.cancel()
            self._end_nested(
                [one for one in self._frames if one.of == _number_of(rest) and not one.begun]
            )
            return b""
        if topic == "ended" and not asks:
            self._ends = True
            self._end_nested(self._frames[1:])
            return b""
        return await super()._answer(asks, topic, rest)

    # ---- its clock

    def _stand(self, frame: _Frame, more: int) -> None:
        frame.standing += more
        self._set_clock()

    def _set_clock(self) -> None:
        """It stands while the innermost code waits for a tool, and no command runs for one."""
        stands = self._frames[-1].standing > 0 and not self._commands
        if stands != self._clock_stands and not self.is_over:
            self._clock_stands = stands
            self._stop_clock(stands)

    # ---- calls within this one, and commands beside it

    @property
    def entry(self) -> Note | None:
        calls = within.get()
        return super().entry if calls is None else calls.entry

    async def nested(self, order: bytes, printed: Printed) -> list[Any]:
        calls = within.get()
        assert calls is not None and self._of_session is not None
        frame = _Frame(self._of_session.history.open[-1] if self._of_session.history.open else None)
        while len(self._frames) > calls.depth and self._runs_code_of(calls):  # that of another tool
            self._popped.clear()
            await self._popped.wait()
        if not self._runs_code_of(calls):
            raise call_has_ended()
        frame.of, frame.reply = calls.number, asyncio.get_running_loop().create_future()
        stands = int(self._callbacks.stops_clock)
        calls.frame.standing -= stands
        self._frames.append(frame)
        self._printed.append(printed)
        self.depth += 1
        calls.waits += 1
        try:
            self._reply(calls.number, order)
            content, calls.number = await frame.reply
        finally:
            calls.waits -= 1
            self.depth -= 1
            self._printed.remove(printed)
            self._frames.remove(frame)
            self._popped.set()
            self._stand(calls.frame, stands)
        if frame.raised is not None:
            raise frame.raised
        return content

    def _runs_code_of(self, calls: Within) -> bool:
        return not (self.is_over or self._ends or calls.is_left)

    def _take_reply(self, number: int, content: list[Any]) -> None:
        """Of the code that was to run instead of an answer to a question."""
        of = _number_of(content[:1])
        reply = next((one.reply for one in self._frames if one.of == of), None)
        if of is None or reply is None or reply.done():
            self._reply(number, UNKNOWN)
        else:
            reply.set_result((content[1:], number))

    @contextlib.contextmanager
    def running_command(self) -> Iterator[None]:
        calls = within.get()
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

    # ---- what is printed

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

    # ---- tools and values

    async def _answer_of_values(
        self, requests: KeyValueRequests, content: list[Any]
    ) -> tuple[Any, ...]:
        """A storage may take long: a cell that asks again and again would stop the loop."""
        if requests.waits_for(content):
            return await on_thread(lambda: requests.answer(content))
        return requests.answer(content)

    def _parent(self) -> Note | None:
        calls = within.get()
        return self._frames[-1].entry if calls is None else calls.frame.entry

    def _began(self, entry: Note | None) -> None:
        calls = within.get()
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
        call.require_approved(await _value_of(call.approval()))
        late = self._callbacks.late
        if tool.timeout_sec is not None and not tool.is_async:
            return await on_thread(lambda: call.run(late), daemon=True)
        return await _value_of(call.run(late))

    async def _end_of_calls(self) -> None:
        """Those that the tool made and did not wait for."""
        calls = within.get()
        if calls is None:
            return
        calls.is_open = False
        while left := {task for task in calls.under_way if not task.done()}:
            await self._end_of(left)


def _number_of(content: list[Any]) -> int | None:
    """Of a question. Other values may raise where they are compared."""
    return content[0] if len(content) == 1 and type(content[0]) is int else None


async def _value_of(made: Any) -> Any:
    return await made if inspect.iscoroutine(made) else made
