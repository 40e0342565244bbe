# SPDX-License-Identifier: Apache-2.0
"""What code says and asks for while it runs: tools, `input()`, what it shows, what it yields.

All of it comes from the sandbox: it is decoded as data, and each field may be anything.
"""

from __future__ import annotations

import inspect
import os
import pickle
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hutch import _core
from hutch._calls.nested import Printed
from hutch._calls.outcomes import not_decoded
from hutch._tool_results import check_result
from hutch._tools import ArgumentError, Tool, plain

if TYPE_CHECKING:
    from hutch._calls.stream import Stream
    from hutch._calls.target import Target

_MOST = 32 << 20  # bytes of memory that one message may take, once it is decoded
_MOST_SHOWN = 10_000  # forms that are kept of one call
_MOST_FORMS = 32  # of one thing that is shown
_MOST_KEPT = 256 << 20  # bytes of memory of what is shown in one call, about
_OF_DATA = 72  # bytes of memory for one of JSON as it was sent, at most


class StopExec(BaseException):
    """Raised by a tool: ends the code that called it."""

    __module__ = "hutch"


Feed = Callable[[int, bytes], None]


class Dialogue:
    """Of one call, on its thread. `displayed`: what it showed, as dicts of forms by type of media.
    `depth`: how many calls run within it. `exchange`: as that of the call's `_core.Session`.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        on_input: Callable[[str], str] | None,
        on_display: Callable[[dict[str, Any]], object] | None,
        wait_for: Callable[[Any], Any] | None = None,
        stream: Stream | None = None,
        types: Mapping[str, type] | None = None,  # that what it yields may hold
        stops_clock: bool = False,  # while a tool runs
    ) -> None:
        self.displayed: list[dict[str, Any]] = []
        self.raised: BaseException | None = None  # by a callback: to be raised after the call
        self._tools = tools
        self._await = wait_for  # runs a coroutine to its end; None: there are none
        self._on_input = on_input
        self._on_display = on_display
        self._stream = stream
        self._types = types or {}
        self._stops_clock = stops_clock
        self._calls: dict[str, int] = {}
        self._room = _MOST_KEPT
        self._size = 0  # of the message at hand
        self._stopped = False
        self.depth = 0
        self.exchange: Callable[[bytes], tuple[bytes, int] | None] = lambda _: None
        self._thread = threading.get_ident()
        self._pid = os.getpid()  # a forked child has the same thread
        self._asked = False  # what the code asks is open
        self._stop_clock: Callable[[bool], None] = lambda _: None
        self._stands = False  # the clock, for the tool that is asked for
        self._over = False  # the call is
        self._printed: list[Printed] = []  # by those within it

    def answer(
        self, asks: bool, data: bytes, body_size: int, stop_clock: Callable[[bool], None]
    ) -> bytes | None:
        """The pickle that is sent back. What a callback raises ends the code, and is raised after
        the call. None: code that went on and asks again is ended with its process.
        """
        try:
            content = _content(data, body_size, self._types)
        except _core.DecodeError as error:
            if self._stream is not None:  # an item may be lost
                self.raised = not_decoded(error)
                return None
            return _error(f"this cannot be sent: {error!s:.1000}")
        if content is None:
            return _UNKNOWN
        if asks or self._stream is not None:
            self._stop_clock = stop_clock
        self._size = len(data)
        return self._answer_to(asks, content)

    def _answer_to(self, asks: bool, content: list[Any]) -> bytes | None:
        if self._stopped or self._over:
            return None
        before, self._asked = (self._asked, self._stands), asks
        try:
            if content[0] == "yield" and self._stream is not None and len(content) == 2:
                goes_on = self._stream.put(content[1], asks, self._stop_clock)
                return pickle.dumps(("ok", goes_on), 5)
            self._stands = content[0] == "tool" and asks and self._stops_clock
            if self._stands:
                self._stop_clock(True)
            reply = self._answer(asks, content[0], content[1:])
        except BaseException as error:
            self._stopped = True
            if not isinstance(error, StopExec):
                self.raised = error
            reply = pickle.dumps(("stop", None), 5)
        finally:
            self._asked, self._stands = before
        return None if self._over else reply

    # ---- calls within this one

    def waits_here(self) -> bool:
        """Whether this is the thread of the call, and its code waits for an answer."""
        return self._asked and self._thread == threading.get_ident() and self._pid == os.getpid()

    def nested(self, order: bytes, printed: Printed) -> list[Any]:
        """Answers what is open with this, and everything asked from then on until its reply comes,
        which is open then. Raises StopExec where the call has ended instead, and what a callback
        raised.
        """
        self.depth += 1
        self._printed.append(printed)
        self._asked = False
        try:
            return self._reply_to(order)
        finally:
            self._asked = True
            self._printed.pop()
            self.depth -= 1

    def _reply_to(self, order: bytes) -> list[Any]:
        answer: bytes | None = order
        while answer is not None:
            said = self.exchange(answer)
            if said is None:
                break
            self._size = len(said[0])
            try:
                content = _content(*said, self._types)
            except _core.DecodeError as error:
                answer = _error(f"this cannot be sent: {error!s:.1000}")
                continue
            if content is None or content[0] != "nested":
                answer = _UNKNOWN if content is None else self._answer_to(True, content)
                continue
            if self._stands:
                self._stop_clock(True)
            self._stopped = False  # that ended only what ran within
            raised, self.raised = self.raised, None
            if raised is not None:
                raise raised
            return content[1:]
        self._over = True
        raise StopExec("the call of the session has ended")

    def feeding(self, feed: Feed | None) -> Feed:
        """What is printed, for calls within this one, too."""

        def fed(stream: int, data: bytes) -> None:
            for printed in self._printed:
                printed.add(stream, data)
            if feed is not None:
                feed(stream, data)

        return fed

    def _answer(self, asks: bool, topic: str, rest: list[Any]) -> bytes:
        if topic == "display":
            self._display(rest)
            return b""
        if not asks:
            return b""
        if topic == "tool" and len(rest) == 3:
            return self._call_tool(*rest)
        if topic == "input" and len(rest) == 1 and type(rest[0]) is str:
            return self._input(rest[0])
        return _UNKNOWN

    def _display(self, rest: list[Any]) -> None:
        if len(rest) != 1 or type(rest[0]) is not dict or len(self.displayed) >= _MOST_SHOWN:
            return
        forms = {
            name: form
            for name, form in list(rest[0].items())[:_MOST_FORMS]
            if type(name) is str and type(form) in (str, bytes, dict, list)
        }
        plain_text = all(type(form) in (str, bytes) for form in forms.values())
        self._room -= self._size if plain_text else _OF_DATA * self._size
        if not forms or self._room < 0:
            return
        self.displayed.append(forms)
        if self._on_display is not None:
            self._on_display(forms)

    def _input(self, prompt: str) -> bytes:
        if self._on_input is None:
            return _error("nobody answers input() in this session", "EOFError")
        return pickle.dumps(("ok", str(self._on_input(prompt))), 5)

    def _call_tool(self, name: Any, args: Any, kwargs: Any) -> bytes:
        tool = self._tools.get(name) if type(name) is str else None
        if tool is None or type(args) is not list or type(kwargs) is not dict:
            shown = repr(name[:100]) if type(name) is str else f"of type {type(name).__name__}"
            return _error(f"there is no tool {shown}: {', '.join(self._tools)}")
        if not all(type(key) is str for key in kwargs):
            return _error("the names of a tool's arguments are text", "TypeError")
        self._calls[tool.name] = self._calls.get(tool.name, 0) + 1
        if tool.max_calls is not None and self._calls[tool.name] > tool.max_calls:
            return _error(f"{tool.name}() may be called {tool.max_calls} times in one exec")
        try:
            value = tool.invoke(args, kwargs)
            if self._await is not None and inspect.iscoroutine(value):
                value = self._await(value)
        except ArgumentError as error:
            return _error(str(error), "TypeError")
        except Exception as error:
            return _error(str(error), type(error).__name__)
        try:
            check_result(tool.result_type, value)
        except ArgumentError as error:
            text = f"{tool.name}() ran, but returned what it is not annotated with: result{error}"
            return _error(text, "TypeError")
        try:
            return pickle.dumps(("ok", plain(value)), 5)
        except Exception as error:
            return _error(f"{tool.name}() ran, but its result cannot be sent: {error}")


def of_call(
    target: Target, wait_for: Callable[[Any], Any] | None, stream: Stream | None
) -> Dialogue:
    """Of a call that has tools, or yields. Raises TypeError for an async tool that nothing runs."""
    tools = {tool.name: tool for tool in target.options.tools}
    if wait_for is None:
        for tool in tools.values():
            if tool.is_async:
                raise TypeError(
                    f"the tool {tool.name}() is async: await the function, or its .aio(), so that "
                    "it runs on your event loop"
                )
    types = target.named_types if stream is not None else {}
    return Dialogue(tools, None, None, wait_for, stream, types)


def _content(data: bytes, body_size: int, types: Mapping[str, type]) -> list[Any] | None:
    """What was said, the topic first; None: nothing that can be. Raises DecodeError."""
    content = _core.decode(data, body_size, types, _MOST)
    if type(content) is list and content and type(content[0]) is str:
        return content
    return None


def _error(text: str, name: str = "RuntimeError") -> bytes:
    return pickle.dumps(("error", name, text[:10_000]), 5)


_UNKNOWN = _error("a message of this kind is not known")
