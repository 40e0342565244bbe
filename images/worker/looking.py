# SPDX-License-Identifier: Apache-2.0
"""What a session shows of its names to a user interface: completions, one value in detail, and all
variables. What runs code of theirs (`__repr__`, `__len__`) is bounded in time and memory, and
costs no other value. Nothing that comes from here is believed by the client. One thread.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import resource
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from itertools import islice
from typing import Any

import completing
import failures
import lookup
from lookup import is_among, kind_name
from names import Names

COMPLETE_SEC = 1.0
PART_SEC = 0.25  # one fact about a value may take so long
ALL_SEC = 2.0  # all variables may: later ones are given by what costs nothing
MEMORY = 32 << 20  # bytes that code of theirs may take
AGAIN_SEC = 0.2  # code that goes on after it was stopped is stopped again
MOST_VARIABLES = 1000
MOST_NAME = 200  # characters
MOST_TEXT = 200
MOST_LONG_TEXT = 50_000  # a docstring or a source
MOST_CHARACTERS = 1 << 18  # all variables have together
MOST_DIMENSIONS = 64
MOST_NUMBER = (1 << 63) - 1
MOST_ITEMS = 40  # a text shows so many of a value
DEEPEST = 4
PLAIN = (int, float, complex, bool, str, bytes, type(None))  # their facts cost nothing
BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}
BASES: tuple[Any, ...] = (*BRACKETS, str, bytes, bytearray)


class TimeUp(BaseException):
    """Code has run for too long."""


def within(seconds: float, work: Callable[[], Any], instead: Any) -> Any:
    """What it gives, or `instead` where it fails, or takes longer or too much memory. Of time, only
    what Python does is bounded, and on the main thread alone; memory, where no other thread could
    find it bounded, too.
    """
    if threading.get_ident() != threading.main_thread().ident:
        try:
            return work()
        except Exception:
            return instead
    is_open = True

    def ring(*_: Any) -> None:
        if is_open:
            raise TimeUp

    memory = resource.getrlimit(resource.RLIMIT_DATA)
    before = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SEC)
    try:
        if threading.active_count() == 1:
            bound_memory(*memory)
        value = work()
        is_open = False
        return value
    except BaseException:  # an interrupt, too: the rest takes no long time
        return instead
    finally:
        is_open = False
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        with contextlib.suppress(ValueError):  # it has lowered the limit for ever
            resource.setrlimit(resource.RLIMIT_DATA, memory)


def bound_memory(soft: int, hard: int) -> None:
    most = failures.data_bytes() + MEMORY
    if soft == resource.RLIM_INFINITY or most < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def answer(names: Names, verb: str, args: Any) -> Any:
    space = names.space
    if verb == "complete":
        (text,) = args
        return within(COMPLETE_SEC, lambda: completing.complete(space, text), ([], len(text)))
    if verb == "inspect":
        return inspected(space, *args)
    return variables(names, *args)


# ---- one value


def inspected(space: dict[str, Any], name: str) -> tuple[str, ...] | None:
    """Type, signature, docstring, source and text of a value; None: there is none."""
    found = within(COMPLETE_SEC, lambda: (lookup.value_of(space, name),), None)
    if found is None:
        return None
    value = found[0]
    parts = (lambda: signature_of(value), lambda: inspect.getdoc(value), lambda: source_of(value))
    said = (cut(within(PART_SEC, part, ""), MOST_LONG_TEXT) for part in parts)
    return (cut(kind_name(type(value)), MOST_NAME), *said, text_of(value, PART_SEC))


def cut(text: Any, most: int) -> str:
    """How a str begins, also one of a class of the code."""
    return str.__getitem__(text, slice(0, most)) if issubclass(type(text), str) else ""


def signature_of(value: Any) -> str:
    return str(inspect.signature(value)) if callable(value) else ""


def source_of(value: Any) -> str:
    """The text of what Python code defines, as far as it is at hand."""
    if not issubclass(type(value), type):
        function = lookup.function_of(value)[0]
        if function is None:
            return ""
        lines = linecache.getlines(function.__code__.co_filename)
        return "".join(inspect.getblock(lines[function.__code__.co_firstlineno - 1 :]))
    members = vars(type)["__dict__"].__get__(value)
    functions = [one for one in members.values() if type(one) is types.FunctionType]
    places = [one.__code__.co_filename for one in functions]
    if members.get("__module__") == "__main__":  # the latest code of the session first
        places += [one for one in reversed(linecache.cache) if one.startswith("<cell ")]
    for place in dict.fromkeys(places):
        found = class_in("".join(linecache.getlines(place)), value.__qualname__)
        if found:
            return found
    return ""


def class_in(source: str, name: str) -> str:
    try:
        body: list[ast.stmt] = ast.parse(source).body
    except SyntaxError:
        return ""
    found: Any = None
    for step in name.split("."):
        classes = [one for one in body if isinstance(one, ast.ClassDef) and one.name == step]
        if not classes:
            return ""
        found = classes[-1]
        body = found.body
    first = min(one.lineno for one in (found, *found.decorator_list))
    return "\n".join(source.splitlines()[first - 1 : found.end_lineno]) + "\n"


# ---- all


def variables(names: Names, modules: bool) -> list[tuple[Any, ...]]:
    """Name, type, bytes of memory, shape, length and text of each; None: that is not known."""
    until = time.monotonic() + ALL_SEC
    found: list[tuple[Any, ...]] = []
    room = MOST_CHARACTERS
    for name in names.listed():
        value = names.space.get(name, lookup.missing)
        if value is lookup.missing or len(name) > MOST_NAME:
            continue
        if not modules and issubclass(type(value), types.ModuleType):
            continue
        entry = (name, *facts_of(value, until))
        room -= len(name) + len(entry[1]) + len(entry[-1])
        if len(found) == MOST_VARIABLES or room < 0:
            break
        found.append(entry)
    return found


def facts_of(value: Any, until: float) -> tuple[Any, ...]:
    kind = type(value)
    name = cut(kind_name(kind), MOST_NAME)
    if is_among(kind, PLAIN):
        length = len(value) if is_among(kind, (str, bytes)) else None
        return name, sys.getsizeof(value), None, length, text_of(value, 0)

    def fact(work: Callable[[Any], Any]) -> Any:
        left = min(PART_SEC, until - time.monotonic())
        return within(left, lambda: work(value), None) if left > 0 else None

    left = min(PART_SEC, until - time.monotonic())
    return name, fact(size_of), fact(shape_of), fact(length_of), text_of(value, left)


def number(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_NUMBER else None


def size_of(value: Any) -> int | None:
    kind = type(value)
    if kind.__module__ != "builtins":
        found = number(getattr(value, "nbytes", None))  # arrays
        if found is not None:
            return found
        if callable(getattr(kind, "estimated_size", None)):  # polars
            return number(value.estimated_size())
        if callable(getattr(kind, "memory_usage", None)):  # pandas
            used = value.memory_usage()
            return number(int(used.sum() if hasattr(used, "sum") else used))
    return number(sys.getsizeof(value))


def shape_of(value: Any) -> tuple[int, ...] | None:
    if type(value).__module__ == "builtins":
        return None
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple) or len(shape) > MOST_DIMENSIONS:
        return None
    numbers = [*map(number, shape)]
    return None if None in numbers else tuple(numbers)  # type: ignore[arg-type]


def length_of(value: Any) -> int | None:
    kind = type(value)
    has_length = not is_among(lookup.in_classes(kind, "__len__"), (lookup.missing, None))
    return number(len(value)) if has_length else None


# ---- as text


def text_of(value: Any, seconds: float) -> str:
    """One line, of a repr that takes no longer for a large value."""

    def written() -> str:
        text = cut(brief(value, [MOST_ITEMS], DEEPEST), 10 * MOST_TEXT)
        return " ".join(text.split()) if "\n" in text else text

    if is_among(type(value), PLAIN):
        text = written()
    else:
        text = within(seconds, written, "") if seconds > 0 else ""
    return cut(text or f"<{kind_name(type(value))}>", MOST_TEXT)


def brief(value: Any, room: list[int], depth: int) -> str:
    """`room`: how many values may still be shown."""
    room[0] -= 1
    kind = type(value)
    if kind is int and value.bit_length() > 4096:
        return f"<int of {value.bit_length():,} bits>"
    if is_among(kind, (str, bytes, bytearray)):
        return repr(value[:MOST_TEXT])
    brackets = next((pair for one, pair in BRACKETS.items() if one is kind), None)
    if brackets is None:
        return brief_record(value, room, depth) if is_record(kind) else own_repr(value)
    if not value and brackets == "{}" and kind is not dict:
        return f"{kind.__name__}()"
    items = islice(iter(value.items() if kind is dict else value), MOST_ITEMS)
    parts = []
    for item in items:
        if room[0] <= 0 or depth == 0:
            parts.append("…")
            break
        if kind is dict:
            key = brief(item[0], room, depth - 1)
            parts.append(f"{key}: {brief(item[1], room, depth - 1)}")
        else:
            parts.append(brief(item, room, depth - 1))
    else:
        if len(value) > len(parts):
            parts.append("…")
        elif kind is tuple and len(parts) == 1:
            parts.append("")
    text = brackets[0] + ", ".join(parts).rstrip(" " if parts[-1:] == [""] else "") + brackets[1]
    return f"frozenset({text})" if kind is frozenset else text


def own_repr(value: Any) -> str:
    for base in BASES:
        if issubclass(type(value), base) and base.__len__(value) > 10 * MOST_ITEMS:
            return f"<{kind_name(type(value))} of {base.__len__(value):,}>"
    return repr(value)


def is_record(kind: type) -> bool:
    """A dataclass with the repr that was made for it."""
    if lookup.in_classes(kind, "__dataclass_fields__") is lookup.missing:
        return False
    function = lookup.function_of(lookup.in_classes(kind, "__repr__"))[0]
    return function is not None and function.__code__.co_filename == "<string>"


def brief_record(value: Any, room: list[int], depth: int) -> str:
    parts = []
    for name, item in islice(lookup.own_of(value).items(), MOST_ITEMS):
        if room[0] <= 0 or depth == 0:
            parts.append("…")
            break
        parts.append(f"{name}={brief(item, room, depth - 1)}")
    return f"{kind_name(type(value))}({', '.join(parts)})"
