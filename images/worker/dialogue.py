# SPDX-License-Identifier: Apache-2.0
"""What a call says to its caller, and asks of it, while it runs: tools, input, what it shows and
yields.

A thread that asks waits for its answer with the lock held, so that threads take turns. Works in the
process of the call only, and while a call runs: afterwards it raises RuntimeError.
"""

from __future__ import annotations

import builtins
import mmap
import os
import pickle
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import encode as encoding
from _hutch_cell import (  # type: ignore[import-not-found,unused-ignore]
    ANSWER,
    ASK,
    MAX_PAYLOAD,
    MOST_IN_PARTS,
    PART,
    SAY,
)

TOOLS = "hutch_tools"
SAID_AT_ONCE = 8  # items that are yielded without waiting for an answer
QUICK_NS = 1_000_000  # between two of them
MOST_FIGURES = 20  # shown at the end of a call
_getpid = os.getpid


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
        self.pid = _getpid()
        self.call_id = 0  # 0: no call runs
        self.number = 0
        self.nested: Callable[[Any], list[Any]] | None = None
        self.running: list[object] = []  # nested calls, the innermost last
        self.turn = threading.Condition(self.lock)

    def begin(self, call_id: int, nested: Callable[[Any], list[Any]] | None = None) -> None:
        """`nested` runs what the caller wants run before it answers."""
        self.call_id, self.number, self.nested = call_id, 0, nested
        if self.running:  # of a call that ended in the middle; nobody adds to it between calls
            with self.turn:
                self.running.clear()
                self.turn.notify_all()

    def end(self) -> None:
        """Once nobody waits for an answer."""
        with self.lock:
            self.call_id = 0

    def say(self, topic: str, *content: Any) -> None:
        with self.lock:
            self._send(SAY, [topic, *content])

    def ask(self, topic: str, *content: Any) -> Any:
        """The answer, or raises what the caller answered with."""
        kind, value, *rest = self._exchange([topic, *content])
        while kind == "run" and self.nested is not None:
            mine = rest[0]
            try:
                reply = self.nested(value)
            except BaseException:
                self._ran(mine)
                raise
            kind, value, *rest = self._exchange(["nested", *reply], mine)
        if kind == "ok":
            return value
        if kind == "stop":
            raise StopExec()
        raise error_of(value, rest[0])

    def _exchange(self, content: list[Any], mine: object = None) -> Any:
        """`mine`: the nested call whose reply this is, which comes after those within it."""
        with self.turn:
            self.turn.wait_for(lambda: mine not in self.running[:-1])
            self._ran(mine)
            self._send(ASK, content)
            try:
                answer = self._receive()
            except (ImportError, AttributeError) as error:
                text = f"it ran, but its result cannot be loaded here: {error}"
                raise ToolError(text) from None
            if answer[0] == "run":
                answer = (*answer, object())
                self.running.append(answer[-1])
            return answer

    def _ran(self, mine: object) -> None:
        with self.turn:
            if mine in self.running:
                self.running.remove(mine)
                self.turn.notify_all()

    def offer(self, item: Any, waits: bool) -> bool:
        """Sends what was yielded. `waits`: until the caller wants more; False: it wants none."""
        with self.lock:
            self._send(ASK if waits else SAY, ["yield", item], True)
            return not waits or self._receive()[1] is True

    def _send(self, kind: int, content: list[Any], named: bool = False) -> None:
        if self.call_id == 0 or self.pid != _getpid():
            raise RuntimeError(
                "tools, display(), input() and yield work only while a call runs, and in its own "
                "process"
            )
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
        self.flush()
        self.number += 1
        head = (self.fd, kind, len(payload.body), self.call_id, self.number, len(data))
        if len(data) <= MAX_PAYLOAD:
            self.cell.send(*head, data)
            return
        for at in range(0, len(data), MAX_PAYLOAD):
            piece = data[at : at + MAX_PAYLOAD]
            self.cell.send(self.fd, PART, 0, self.call_id, 0, len(data), piece)
        self.cell.send(*head)

    def _receive(self) -> Any:
        while True:
            frame = self.cell.recv(self.fd)
            if frame is None:
                os._exit(0)
            kind, _, call_id, number, _, payload, descriptors = frame
            if kind == ANSWER and call_id == self.call_id and number == self.number:
                break
            for fd in descriptors:  # of one that was interrupted while it waited
                os.close(fd)
        if not descriptors:
            return pickle.loads(payload)
        fd = descriptors[0]
        try:
            size = os.fstat(fd).st_size
            with mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as content:
                return pickle.loads(content[:])
        finally:
            os.close(fd)


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


# Name, documentation, parameters and result, as bindings/hutch/_tool_stubs.py sends them.
Described = tuple[str, str, Sequence[tuple[str, int, str, Any]], str]


def add_tools(dialogue: Dialogue, tools: Sequence[Described], **more: Any) -> dict[str, Any]:
    """Makes a function of each, in `hutch_tools`, unless that has another of its name; them by
    name. `more`: what else that has.
    """
    module = types.ModuleType(TOOLS, "The caller's tools.")

    def call(name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the tool of that name."""
        return dialogue.ask("tool", name, plain(list(args)), plain(kwargs))

    def search(text: str = "") -> list[str]:
        """The names of the tools whose name or documentation has this text."""
        return [one[0] for one in tools if text.lower() in f"{one[0]} {one[1]}".lower()]

    module.call, module.search = call, search  # type: ignore[attr-defined]
    stubs = {one[0]: stub_of(call, *one) for one in tools}
    module.__dict__.update({**stubs, **module.__dict__, **more, "__tools__": stubs})
    sys.modules[TOOLS] = module
    return stubs


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
) -> Any:
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
