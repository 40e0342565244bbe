# SPDX-License-Identifier: Apache-2.0
"""What code says and asks for while it runs: tools, `input()`, what it shows, what it yields.

All of it comes from the sandbox: it is decoded as data, and each field may be anything.
"""

from __future__ import annotations

import inspect
import math
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hutch import _core
from hutch._calls.kept import Kept, KeyValueRequests
from hutch._calls.loops import at_once
from hutch._calls.outcomes import not_decoded
from hutch._calls.printed import Printed
from hutch._tool_calls import ToolCall
from hutch._tool_data import plain
from hutch._tool_kinds import ArgumentError
from hutch._tool_late import LateCalls
from hutch._tool_results import check_result
from hutch._tools import Tool

if TYPE_CHECKING:
    from hutch._calls.history import Note
    from hutch._calls.stream import Stream
    from hutch._calls.target import Target

_MOST = 32 << 20  # bytes of memory that one message may take, once it is decoded
_MOST_SHOWN = 10_000  # forms that are kept of one call
_MOST_FORMS = 32  # of one thing that is shown
_MOST_KEPT = 256 << 20  # bytes of memory of what is shown in one call
_OF_DATA = 72  # bytes of memory for one of other data as it was sent, at most
_LEAVES = (str, bytes, int, float, bool, type(None))


class StopExec(BaseException):
    """Raised by a tool: ends the code that called it."""

    __module__ = "hutch"


def ends_the_code(error: BaseException) -> bool:
    """Whether it is StopExec, or a group of these alone, as a task group raises it."""
    within = getattr(error, "exceptions", None)
    return isinstance(error, StopExec) or (
        type(within) is tuple and all(map(ends_the_code, within))
    )


Feed = Callable[[int, bytes], None]


@dataclass(frozen=True)
class Callbacks:
    """What code may call on the host. `stops_clock`: while a tool runs. `late`: those of its
    session; None: of all calls of functions.
    """

    tools: Mapping[str, Tool]
    on_input: Callable[[str], str] | None = None
    on_display: Callable[[dict[str, Any]], object] | None = None
    stops_clock: bool = False
    late: LateCalls | None = None


class Dialogue:
    """Of one call, on its thread. `displayed`: what it showed, as dicts of forms by type of media.
    `depth`: how many calls run within it. `exchange`: as that of the call's `_core.Session`.

    Where a thread waits for the call, no coroutine here ever waits (loops.at_once); where an event
    loop drives it, they wait for async tools (turns.py).
    """

    # Until something is said, which most calls never do.
    raised: BaseException | None = None  # by a callback: to be raised after the call
    depth = 0
    _room = _MOST_KEPT
    _size = 0  # of the message at hand
    _stopped = False
    _asked = False  # what the code asks is open
    _stands = False  # the clock, for the tool that is asked for
    _commands = 0  # that run for tools, and have it go on
    is_over = False  # the call is

    def __init__(
        self,
        callbacks: Callbacks,
        wait_for: Callable[..., Any] | None = None,
        stream: Stream | None = None,
        types: Mapping[str, type] | None = None,  # that what it yields may hold
        kept: Kept | None = None,  # by its session
        runs_code: bool = True,
    ) -> None:
        """`runs_code`: the call is one of the caller's code, which may call tools and the like."""
        self.displayed: list[dict[str, Any]] = []
        self._callbacks = callbacks
        self._await = wait_for  # loops.OnLoop; None: there are no coroutines
        self._stream = stream
        self._types = types or {}
        self._of_session = kept
        self._runs_code = runs_code
        self._calls: dict[str, int] = {}
        self.exchange: Callable[[bytes], tuple[bytes, int] | None] = lambda _: None
        self._thread = threading.get_ident()
        self._pid = os.getpid()  # a forked child has the same thread
        self._stop_clock: Callable[[bool], Any] = lambda _: None
        self._printed: list[Printed] = []  # by those within it

    def answer(
        self, asks: bool, data: bytes, body_size: int, stop_clock: Callable[[bool], float]
    ) -> bytes | None:
        """`answered`, for `_core`."""
        if asks or self._stream is not None:
            self._stop_clock = stop_clock
        return at_once(self.answered(asks, data, body_size))

    async def answered(self, asks: bool, data: bytes, body_size: int) -> bytes | None:
        """The pickle that is sent back. What a callback raises ends the code, and is raised after
        the call. None: code that went on and asks again is ended with its process.
        """
        if self._stream is None:
            content = self._content_of(data, body_size)
            if type(content) is bytes:
                return content
        else:
            try:
                content = _content(data, body_size, self._types) or []
            except _core.DecodeError as error:  # an item may be lost
                self.raised = not_decoded(error)
                return None
            if not content:
                return UNKNOWN
        self._size = len(data)
        return await self._answer_to(asks, content)

    def _content_of(self, data: bytes, body_size: int) -> Any:
        """What was said, a list with the topic first; or the answer to what can be none."""
        try:
            return _content(data, body_size, self._types) or UNKNOWN
        except _core.DecodeError as error:
            return error_of(f"this cannot be sent: {error!s:.1000}")

    async def _answer_to(self, asks: bool, content: list[Any]) -> bytes | None:
        if self._stopped or self.is_over:
            return None
        before, self._asked = (self._asked, self._stands), asks
        try:
            if content[0] == "yield" and self._stream is not None and len(content) == 2:
                goes_on = self._stream.put(content[1], asks, self._stop_clock)
                return pickle.dumps(("ok", goes_on), 5)
            self._stands = content[0] == "tool" and asks and self._callbacks.stops_clock
            if self._stands:
                self._stop_clock(True)
            reply = await self._answer(asks, content[0], content[1:])
        except GeneratorExit:  # its event loop has ended
            raise
        except BaseException as error:
            self._stopped = True
            if not ends_the_code(error):
                self.raised = error
            reply = STOP
        finally:
            self._asked, self._stands = before
        return None if self.is_over else reply

    # ---- calls within this one

    def waits_here(self) -> bool:
        """Whether this is the thread of the call, and its code waits for an answer."""
        return self._asked and self._thread == threading.get_ident() and self._pid == os.getpid()

    async def nested(self, order: bytes, printed: Printed) -> list[Any]:
        """Answers what is open with this, and everything asked from then on until its reply comes,
        which is open then. Raises StopExec where the call has ended instead, and what a callback
        raised.
        """
        self.depth += 1
        self._printed.append(printed)
        self._asked = False
        try:
            return await self._reply_to(order)
        finally:
            self._asked = True
            self._printed.pop()
            self.depth -= 1

    async def _reply_to(self, order: bytes) -> list[Any]:
        answer: bytes | None = order
        while answer is not None:
            said = self.exchange(answer)
            if said is None:
                break
            self._size = len(said[0])
            content = self._content_of(*said)
            if type(content) is bytes or content[0] != "nested":
                is_none = type(content) is bytes
                answer = content if is_none else await self._answer_to(True, content)
                continue
            if self._stands and not self._commands:
                self._stop_clock(True)
            self._stopped = False  # that ended only what ran within
            raised, self.raised = self.raised, None
            if raised is not None:
                raise raised
            reply: list[Any] = content[2:]  # of the only question that is open
            return reply
        self.is_over = True
        raise call_has_ended()

    # ---- commands of its tools, which run beside it

    @property
    def entry(self) -> Note | None:
        """Of the history: the innermost of what runs."""
        entries = [] if self._of_session is None else self._of_session.history.open
        return entries[-1] if entries else None

    @contextmanager
    def running_command(self) -> Iterator[None]:
        """The clock goes on."""
        self._commands += 1
        if self._stands:
            self._stop_clock(False)
        try:
            yield
        finally:
            self._commands -= 1
            if self._stands and self._asked and not self._commands:
                self._stop_clock(True)

    def feeding(self, feed: Feed | None) -> Feed:
        """What is printed, for calls within this one, too."""

        def fed(stream: int, data: bytes) -> None:
            for printed in self._printed:
                printed.add(stream, data)
            if feed is not None:
                feed(stream, data)

        return fed

    async def _answer(self, asks: bool, topic: str, rest: list[Any]) -> bytes:
        if topic == "display":
            self._display(rest)
            return b""
        if not asks:
            return b""
        if topic in ("tool", "input") and not self._is_of_code():
            return error_of("tools and input() work only while an exec or a call runs")
        if topic == "tool" and len(rest) == 3:
            return await self._call_tool(*rest)
        if topic == "kv" and self._of_session is not None:
            return pickle.dumps(await self._answer_of_values(self._of_session.requests, rest), 5)
        if topic == "input" and len(rest) == 1 and type(rest[0]) is str:
            return self._input(rest[0])
        return UNKNOWN

    async def _answer_of_values(
        self, requests: KeyValueRequests, content: list[Any]
    ) -> tuple[Any, ...]:
        return requests.answer(content)

    def _display(self, rest: list[Any]) -> None:
        if self._of_session is None and self._callbacks.on_display is None:
            return  # nobody looks
        if len(rest) != 1 or type(rest[0]) is not dict or len(self.displayed) >= _MOST_SHOWN:
            return
        forms = {
            name: form
            for name, form in list(rest[0].items())[:_MOST_FORMS]
            if type(name) is str and type(form) in (str, bytes, dict, list)
        }
        if not forms or self._room < 0:
            return
        size = _size_of(forms)
        self._room -= _OF_DATA * self._size if size is None else size
        if self._room < 0:
            return
        self.displayed.append(forms)
        if self._callbacks.on_display is not None and self._is_of_code():
            self._callbacks.on_display(forms)

    def _is_of_code(self) -> bool:
        return self._runs_code or self.depth > 0

    def _input(self, prompt: str) -> bytes:
        if self._callbacks.on_input is None:
            return error_of("nobody answers input() in this session", "EOFError")
        return pickle.dumps(("ok", str(self._callbacks.on_input(prompt))), 5)

    async def _call_tool(self, name: Any, args: Any, kwargs: Any) -> bytes:
        if self._of_session is None:
            return _sent(name, await self._tool_reply(name, args, kwargs))[1]
        history = self._of_session.history
        with history.of_tool(name, args, kwargs, self._size, self._parent()) as finish:
            self._began(history.open[-1] if history.open else None)
            (kind, value, *_), data = _sent(name, await self._tool_reply(name, args, kwargs))
            if kind == "ok":
                finish("returned", "", len(data))
            else:
                finish("raised", value)
        return data

    async def _tool_reply(self, name: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """("ok", the result) or ("error", its type, its text)."""
        tool = self._callbacks.tools.get(name) if type(name) is str else None
        if tool is None or type(args) is not list or type(kwargs) is not dict:
            shown = repr(name[:100]) if type(name) is str else f"of type {type(name).__name__}"
            return _failure(f"there is no tool {shown}: {', '.join(self._callbacks.tools)}")
        if not all(type(key) is str for key in kwargs):
            return _failure("the names of a tool's arguments are text", "TypeError")
        self._calls[tool.name] = self._calls.get(tool.name, 0) + 1
        if tool.max_calls is not None and self._calls[tool.name] > tool.max_calls:
            return _failure(f"{tool.name}() may be called {tool.max_calls} times in one exec")
        try:
            value = await self._invoke(tool, args, kwargs)
        except ArgumentError as error:
            return _failure(str(error), "TypeError")
        except Exception as error:
            return _failure(_text_of(error), type(error).__name__)
        try:
            check_result(tool.result_type, value)
        except ArgumentError as error:
            text = f"{tool.name}() ran, but returned what it is not annotated with: result{error}"
            return _failure(text, "TypeError")
        return "ok", value

    def _parent(self) -> Note | None:
        """The entry of the code that calls a tool; None: that of the innermost."""
        return None

    def _began(self, entry: Note | None) -> None:
        """A tool, of which this is the entry."""

    async def _invoke(self, tool: Tool, args: Any, kwargs: Any) -> Any:
        call = ToolCall(tool, args, kwargs)
        call.require_approved(self._awaited(call.approval()))
        return self._awaited(call.run(self._callbacks.late))

    def _awaited(self, value: Any) -> Any:
        """What a coroutine gives, where there is a loop for it."""
        if not inspect.iscoroutine(value):
            return value
        if self._await is not None:
            left = math.inf if self._stands else self._stop_clock(False)
            unwanted = self._stream is not None and self._stream.ends
            return self._await(value, left, unwanted or (lambda: False))
        value.close()
        raise TypeError("it returned a coroutine, and is no async function")


def of_call(
    target: Target, wait_for: Callable[[Any], Any] | None, stream: Stream | None
) -> Dialogue:
    """Of a call that has tools, or yields. Raises TypeError for an async tool that nothing runs."""
    tools = {tool.name: tool for tool in target.options.tools}
    if wait_for is None:
        for tool in tools.values():
            if tool.needs_loop:
                what = "the tool" if tool.is_async else "approve= of the tool"
                raise TypeError(f"{what} {tool.name}() is async: {_how_to_await(target, stream)}")
    types = target.named_types if stream is not None else {}
    return Dialogue(Callbacks(tools), wait_for, stream, types)


def _how_to_await(target: Target, stream: Stream | None) -> str:
    if stream is not None:
        how = "make the function an async generator, and iterate over it by `async for`"
    elif target.is_program:
        how = "await run_aio()"
    else:
        how = "await the function, or its .aio() or run_aio()"
    return f"{how}, so that it runs on your event loop"


def call_has_ended() -> StopExec:
    return StopExec("the call of the session has ended")


def _content(data: bytes, body_size: int, types: Mapping[str, type]) -> list[Any] | None:
    """What was said, the topic first; None: nothing that can be. Raises DecodeError."""
    content = _core.decode(data, body_size, types, _MOST)
    if type(content) is list and content and type(content[0]) is str:
        return content
    return None


def _size_of(forms: dict[str, Any]) -> int | None:
    """The memory that text, bytes and JSON take as they were built; None for other data."""
    size, waiting, seen = 0, [forms], set()
    while waiting:
        one: Any = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        kind = type(one)
        if kind is dict:
            waiting.extend(one)
            waiting.extend(one.values())
        elif kind is list:
            waiting.extend(one)
        elif kind not in _LEAVES:
            return None
    return size


def _sent(name: Any, reply: tuple[Any, ...]) -> tuple[tuple[Any, ...], bytes]:
    """The reply of a tool, and its pickle."""
    try:
        if reply[0] == "ok":
            return reply, pickle.dumps(("ok", plain(reply[1])), 5)
    except Exception as error:
        reply = _failure(f"{name}() ran, but its result cannot be sent: {error}")
    return reply, pickle.dumps(reply, 5)


def _failure(text: str, name: str = "RuntimeError") -> tuple[str, str, str]:
    return "error", name, text[:10_000]


_MOST_OF_A_GROUP = 10  # exceptions that are named
_DEEPEST_GROUP = 4


def _text_of(error: BaseException, depth: int = 0) -> str:
    """What it says, and of a group what those in it say: code inside is to learn what failed."""
    try:
        # The text of a KeyError is the repr of its key, of which the code's own makes one again.
        is_key = type(error) is KeyError and len(error.args) == 1
        text = str(error.args[0] if is_key else error)
    except Exception as second:
        return f"(its text cannot be had: {type(second).__name__})"
    within: Any = getattr(error, "exceptions", None)
    if type(within) not in (tuple, list) or depth == _DEEPEST_GROUP:
        return text
    said = (
        f"{type(one).__name__}: {_text_of(one, depth + 1)}" for one in within[:_MOST_OF_A_GROUP]
    )
    return f"{text}: {'; '.join(said)}"


def error_of(text: str, name: str = "RuntimeError") -> bytes:
    return pickle.dumps(_failure(text, name), 5)


UNKNOWN = error_of("a message of this kind is not known")
STOP = pickle.dumps(("stop", None), 5)  # the code is to end
