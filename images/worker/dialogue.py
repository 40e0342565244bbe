# SPDX-License-Identifier: Apache-2.0
"""What a call says to its caller, and asks of it, while it runs: tools, input, what it shows and
yields.

A thread that asks waits for its answer with the lock held, so that threads take turns; those that
ask for tools which run at the same time do not. Works in the process of the call only, and while a
call runs: afterwards it raises RuntimeError.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import encode as encoding
from _hutch_cell import (  # type: ignore[import-not-found,unused-ignore]
    ASK,
    MAX_PAYLOAD,
    MOST_IN_PARTS,
    PART,
    SAY,
)
from answers import OVER, Answers, Place, Waiter

TOOLS = "hutch_tools"
SAID_AT_ONCE = 8  # items that are yielded without waiting for an answer
QUICK_NS = 1_000_000  # between two of them
MOST_FIGURES = 20  # shown at the end of a call
_getpid = os.getpid
Encoded = tuple[int, bytearray]  # the size of its body, and all of it


class ToolError(Exception):
    """A tool of the host's raised: its type and message."""


def error_of(name: str, message: str) -> Exception:
    """What the host raised: the builtin exception of that name, or a ToolError so named."""
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(name, (ToolError,), {"__module__": TOOLS})
    try:
        error: Exception = kind(message)
    except Exception:  # one that takes other arguments
        error = ToolError(f"{name}: {message}")
    return error


class StopExec(BaseException):
    """A tool of the host's ended the code that called it."""


class Dialogue:
    """Of one process. `flush` writes what was printed, which is to arrive first."""

    def __init__(self, cell: Any, fd: int, flush: Callable[[], None]) -> None:
        self.cell = cell
        self.fd = fd
        self.flush = flush
        self.lock = threading.RLock()
        self.sending = threading.RLock()
        self.acknowledges = False
        self.answers = Answers(cell, fd, self._got_large)
        self.pid = _getpid()
        self.call_id = 0  # 0: no call runs
        self.number = 0
        self.nested: Callable[[Any], list[Any]] | None = None
        self.running: list[object] = []  # nested calls, the innermost last
        self.turn = threading.Condition(self.lock)

    def begin(self, call_id: int, nested: Callable[[Any], list[Any]] | None = None) -> None:
        """`nested` runs what the caller wants run before it answers."""
        answers = self.answers
        with self.sending:
            self.call_id, self.number, self.nested = call_id, 0, nested
            answers.call_id, answers.ends = call_id, False
            if answers.found or answers.reader:
                answers.forget_all()
        if self.running:  # of a call that ended in the middle; nobody adds to it between calls
            with self.turn:
                self.running.clear()
                self.turn.notify_all()

    def end(self) -> None:
        """Once no thread waits for an answer."""
        answers = self.answers
        with self.lock:
            if self.acknowledges and self.number:
                self._send(SAY, ["ended"])
            with self.sending:
                if not (
                    answers.waiting
                    or answers.threads
                    or answers.reader
                    or answers.places
                    or answers.queues
                ):
                    self.call_id = answers.call_id = 0
                    return
            answers.end()
            with self.sending:
                self.call_id = 0

    def say(self, topic: str, *content: Any) -> None:
        with self.lock:
            self._send(SAY, [topic, *content])

    def ask(self, topic: str, *content: Any) -> Any:
        """The answer, or raises what the caller answered with."""
        number, answer = self._exchange([topic, *content])
        while answer[0] == "run" and self.nested is not None:
            mine = answer[-1]
            try:
                reply = self._run_nested(number, answer[1])
            except BaseException:
                self._ran(mine)
                raise
            number, answer = self._exchange(["nested", number, *reply], mine)
        return result_of(answer)

    def _exchange(self, content: list[Any], mine: object = None) -> tuple[int, Any]:
        """`mine`: the nested call whose reply this is, which comes after those within it."""
        with self.turn:
            self.turn.wait_for(lambda: mine not in self.running[:-1])
            self._ran(mine)
            number = self._send(ASK, content)
            answer = self.answers.wait(number)
            if answer[0] == "run":
                answer = (*answer, object())
                self.running.append(answer[-1])
            return number, answer

    def _ran(self, mine: object) -> None:
        with self.turn:
            if mine in self.running:
                self.running.remove(mine)
                self.turn.notify_all()

    def ask_beside(self, topic: str, *content: Any) -> Any:
        """As `ask`, while other threads and coroutines do."""
        encoded = self._encoded([topic, *content])
        place = self.answers.enter(len(encoded[1]))
        try:
            number, answer = self._exchange_beside(encoded, place)
            while answer[0] == "run" and self.nested is not None:
                with self.answers.outside(place):
                    reply = self._run_nested(number, answer[1])
                encoded = self._encoded(["nested", number, *reply])
                number, answer = self._exchange_beside(encoded, place)
        finally:
            self.answers.leave(place)
        return result_of(answer)

    def _exchange_beside(self, encoded: Encoded, place: Place) -> tuple[int, Any]:
        call_id = self.call_id
        number = self._send_encoded(ASK, encoded)
        try:
            return number, self.answers.wait(number, place)
        except BaseException:  # as it was interrupted
            self._leave(call_id, number)
            raise

    async def ask_later(self, topic: str, *content: Any) -> Any:
        """As `ask_beside`, on the loop that runs."""
        import asyncio

        loop = asyncio.get_running_loop()
        encoded = self._encoded([topic, *content])
        place: Place | None = None
        self.answers.watch(loop)
        try:
            if self.answers.has_room(size := len(encoded[1])):
                place = await self.answers.enter_later(loop, size)
            else:  # many may wait, each for long
                del encoded
                place = await self.answers.enter_later(loop, size)
                encoded = self._encoded([topic, *content])
                place.size = len(encoded[1])
            number, answer = await self._exchange_later(loop, encoded, place)
            while answer[0] == "run" and self.nested is not None:
                with self.answers.outside(place):
                    reply = self._run_nested(number, answer[1])
                encoded = self._encoded(["nested", number, *reply])
                number, answer = await self._exchange_later(loop, encoded, place)
        finally:
            self.answers.unwatch(loop)
            if place is not None:
                self.answers.leave(place)
        return result_of(answer)

    async def _exchange_later(self, loop: Any, encoded: Encoded, place: Place) -> tuple[int, Any]:
        waiter = Waiter(loop)
        call_id = self.call_id
        number = self._send_encoded(ASK, encoded, waiter)
        try:
            return number, await waiter.future
        except BaseException:  # as it was cancelled
            self.answers.forget(number, place)
            self._leave(call_id, number)
            raise

    def _leave(self, call_id: int, number: int) -> None:
        """Nobody waits for that answer any more."""
        if self.call_id == call_id != 0:
            with contextlib.suppress(RuntimeError):  # the call ends
                self._send(SAY, ["cancel", number])

    def _run_nested(self, number: int, order: Any) -> list[Any]:
        """Instead of an answer to that question. It is no part of the loop that runs the code which
        asked.
        """
        assert self.nested is not None
        if self.acknowledges:
            self._send(SAY, ["begun", number])
        asyncio = sys.modules.get("asyncio")
        loop = None if asyncio is None else asyncio._get_running_loop()
        if asyncio is None or loop is None:
            return self.nested(order)
        swap = getattr(asyncio.tasks, "_swap_current_task", None)  # Python 3.12
        task = None if swap is None else swap(loop, None)
        asyncio._set_running_loop(None)
        try:
            return self.nested(order)
        finally:
            asyncio._set_running_loop(loop)
            if swap is not None:
                swap(loop, task)

    def offer(self, item: Any, waits: bool) -> bool:
        """Sends what was yielded. `waits`: until the caller wants more; False: it wants none."""
        with self.lock:
            number = self._send(ASK if waits else SAY, ["yield", item], True)
            return not waits or self.answers.wait(number)[1] is True

    def _got_large(self) -> None:
        """The caller may use its memory for another answer."""
        if self.acknowledges:
            self._send(SAY, ["got"])

    def _require_call(self) -> None:
        if self.call_id == 0 or self.pid != _getpid():
            raise RuntimeError(
                "tools, display(), input() and yield work only while a call runs, and in its own "
                "process"
            )

    def _send(self, kind: int, content: list[Any], named: bool = False) -> int:
        """The number of what was sent."""
        return self._send_encoded(kind, self._encoded(content, named))

    def _encoded(self, content: list[Any], named: bool = False) -> Encoded:
        self._require_call()
        try:
            payload = encoding.encode(content, MOST_IN_PARTS, named)
        except encoding.Unencodable as error:
            text = f"this is no data that can be sent: it has {error.type_name} in it"
            raise TypeError(text) from None
        except encoding.TooLarge as error:
            text = f"{error.size:,} bytes cannot be sent at once: at most {MOST_IN_PARTS:,}"
            raise ValueError(text) from None
        data = bytearray(payload.size)
        for at, chunk in payload.chunks():
            data[at : at + chunk.nbytes] = chunk
        return len(payload.body), data

    def _send_encoded(self, kind: int, encoded: Encoded, waiter: Waiter | None = None) -> int:
        """`waiter`: who waits for the answer; None: this thread."""
        self._require_call()
        call_id = self.call_id
        body_size, data = encoded
        self.flush()
        with self.sending:
            if call_id != self.call_id:
                raise RuntimeError(OVER[2])
            number = self.number + 1
            if kind == ASK:
                self.answers.expect(number, waiter)
            self.number = number
            try:
                self._send_data(kind, body_size, number, data)
            except BaseException:
                self.answers.forget(number)
                raise
        return number

    def _send_data(self, kind: int, body_size: int, number: int, data: bytearray) -> None:
        head = (self.fd, kind, body_size, self.call_id, number, len(data))
        if len(data) <= MAX_PAYLOAD:
            self.cell.send(*head, data)
            return
        for at in range(0, len(data), MAX_PAYLOAD):
            piece = data[at : at + MAX_PAYLOAD]
            self.cell.send(self.fd, PART, 0, self.call_id, 0, len(data), piece)
        self.cell.send(*head)


def result_of(answer: Any) -> Any:
    kind, value, *rest = answer
    if kind == "ok":
        return value
    if kind == "stop":
        raise StopExec()
    if kind == "lost" and isinstance(value, (ImportError, AttributeError)):
        raise ToolError(
            f"it ran, but its result cannot be loaded here: {value}; a tool may return plain data, "
            "or what packages of dependencies= have"
        ) from None
    if kind == "lost":
        raise value
    raise error_of(value, rest[0])


def send_items(dialogue: Dialogue, made: Any) -> Any:
    """Sends what a generator yields, as long as the caller takes it; what it returns."""
    if isinstance(made, types.AsyncGeneratorType):
        import asyncio

        return asyncio.run(_send_async(dialogue, made))
    pace = Pace()
    try:
        while dialogue.offer(next(made), pace.waits()):
            pass
    except StopIteration as ended:
        return ended.value
    finally:
        made.close()
    return None


async def _send_async(dialogue: Dialogue, made: Any) -> None:
    pace = Pace()
    try:
        async for item in made:
            if not dialogue.offer(item, pace.waits()):
                break
    finally:
        await made.aclose()


class Pace:
    """Whether an item waits for the caller: one in so many of those that follow at once, and each
    that comes later, so that a caller that stops is heard before the next.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last = 0

    def waits(self) -> bool:
        now = time.monotonic_ns()
        quick, self.last = now - self.last < QUICK_NS, now
        self.count = self.count + 1 if quick else 0
        return self.count % SAID_AT_ONCE == 0


# Name, documentation, parameters, result and how it is called, as bindings/hutch/_tool_stubs.py
# sends them.
Described = tuple[str, str, Sequence[tuple[str, int, str, Any]], str, int]
# How: each call has to return before the next; it may be awaited, too; others run meanwhile.
PLAIN = 0
AWAITED = 1
BESIDE = 2


def add_tools(dialogue: Dialogue, tools: Sequence[Described], **more: Any) -> dict[str, Any]:
    """Makes a function of each, in `hutch_tools`, unless that has another of its name; them by
    name. `more`: what else that has.
    """
    module = types.ModuleType(TOOLS, "The caller's tools.")
    ways = {one[0]: one[-1] for one in tools}
    dialogue.acknowledges = BESIDE in ways.values()

    def call(name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the tool of that name. An async one is to be awaited, where a loop runs."""
        how = ways.get(name, PLAIN)
        content = ("tool", name, plain(list(args)), plain(kwargs))
        if how != PLAIN and a_loop_runs():
            coroutine: Any = dialogue.ask_later(*content) if how == BESIDE else later(*content)
            coroutine.__name__ = coroutine.__qualname__ = str(name)  # which its repr shows
            return coroutine
        return dialogue.ask_beside(*content) if how == BESIDE else dialogue.ask(*content)

    async def later(*content: Any) -> Any:
        return dialogue.ask(*content)

    def search(text: str = "") -> list[str]:
        """The names of the tools whose name or documentation has this text."""
        return [one[0] for one in tools if text.lower() in f"{one[0]} {one[1]}".lower()]

    module.call, module.search = call, search  # type: ignore[attr-defined]
    stubs = {one[0]: stub_of(call, *one) for one in tools}
    module.__dict__.update({**stubs, **module.__dict__, **more, "__tools__": stubs})
    sys.modules[TOOLS] = module
    return stubs


def a_loop_runs() -> bool:
    """On this thread."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def plain(value: Any, depth: int = 0) -> Any:
    """Dataclasses, models, named tuples and enums as what they are made of, for a tool's arguments:
    the host has classes of its own.
    """
    kind: Any = type(value)
    if depth > 100 or kind in (str, int, float, bool, bytes, type(None)):
        return value
    if kind is dict:
        return {plain(key, depth + 1): plain(one, depth + 1) for key, one in value.items()}
    if kind in (list, set, frozenset) or issubclass(kind, tuple):
        made = [plain(one, depth + 1) for one in value]
        if kind is set or kind is frozenset:
            return kind(made)
        return made if kind is list else tuple(made)
    if "__dataclass_fields__" in dir(kind):
        return {name: plain(getattr(value, name), depth + 1) for name in kind.__dataclass_fields__}
    if callable(getattr(kind, "model_dump", None)):
        return plain(value.model_dump(), depth + 1)
    enum = sys.modules.get("enum")
    if enum is not None and isinstance(value, enum.Enum):
        return plain(value.value, depth + 1)
    if kind.__module__ == "numpy" and callable(getattr(kind, "item", None)):
        return value.item() if getattr(value, "ndim", 1) == 0 else value.tolist()
    return value


class Shown:
    """An annotation, or a default, that is there as text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def stub_of(
    call: Callable[..., Any],
    name: str,
    documentation: str,
    parameters: Sequence[tuple[str, int, str, Any]],
    result: str,
    how: int,
) -> Any:
    import inspect
    from inspect import Parameter, Signature, _ParameterKind

    def stub(*args: Any, **kwargs: Any) -> Any:
        return call(name, *args, **kwargs)

    made = [
        Parameter(
            one,
            _ParameterKind(kind),
            default=Parameter.empty if default is None else value_of(default),
            annotation=annotation_of(annotation),
        )
        for one, kind, annotation, default in parameters
    ]
    stub.__name__ = stub.__qualname__ = name
    stub.__module__ = TOOLS
    stub.__doc__ = documentation
    signature = Signature(made, return_annotation=annotation_of(result))
    stub.__signature__ = signature  # type: ignore[attr-defined]
    if how != PLAIN and hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(stub)
    return stub


def annotation_of(text: str) -> Any:
    kind = getattr(builtins, text, None)
    return kind if isinstance(kind, type) else Shown(text)


def value_of(text: str) -> Any:
    import ast

    try:
        return Shown(text) if text == "..." else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return Shown(text)
