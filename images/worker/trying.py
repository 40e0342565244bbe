# SPDX-License-Identifier: Apache-2.0
"""Whether names that were pickled can be loaded: a copy of this process loads them once, so that
what their classes do then happens to nobody, and their end is not that of the session.

One stream of pickles has one memo. What a pickle refers to of those before it is given to its load
as it is in this process: so each is tried by itself, and nothing is loaded a second time.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from struct import Struct
from types import FunctionType
from typing import Any, NamedTuple

MOST_REASON = 300  # characters
Begin = Callable[[], None]
HEAD = Struct("<II")  # which one, and the length of why not
MOST_TRIED = 8 << 20  # bytes of pickles in a snapshot, beside their buffers
HOOKS = (
    *("__new__", "__setstate__", "__reduce__", "__reduce_ex__", "__getstate__"),
    *("__getnewargs__", "__getnewargs_ex__", "__setattr__", "__hash__", "__eq__"),
)
NEXT_KEPT = b"\x97\x940"  # the next of the buffers is memorized, and taken off the stack
STOP = b"N."


class Pickled(NamedTuple):
    """`record`: the name and its value. `is_uncertain`: to load it runs code of a class."""

    record: list[Any]
    parts: list[bytes]
    buffers: list[Any]
    is_uncertain: bool

    def size(self) -> int:
        return sum(map(len, self.parts))


def runs_code(kind: type, module: object) -> bool:
    """Whether a class has methods that pickle calls, or is of this module, the session's."""
    if kind.__module__ == module:
        return True
    return any(isinstance(getattr(kind, hook, None), FunctionType) for hook in HOOKS)


class Loader:
    """Loads pickles of one stream, but not all of them. `memo`: what they memorized, in order, as
    far as they refer to it.
    """

    def __init__(self, memo: list[Any]) -> None:
        self.memo = memo
        self.reset()

    def reset(self) -> None:
        self.file = io.BytesIO()
        self.buffers: Iterator[Any] = iter(())
        self.done = 0  # how much of the memo there is
        self.unpickler = pickle.Unpickler(self.file, buffers=self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.buffers)

    def load_from(self, data: bytes, buffers: list[Any]) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.file.write(data)
        self.file.seek(0)
        self.buffers = iter(buffers)
        self.unpickler.load()

    def load(self, one: Pickled, begin: int, end: int) -> None:
        """`begin`, `end`: how much was memorized before it, and with it."""
        missing = self.memo[self.done : begin]
        self.load_from(NEXT_KEPT * len(missing) + STOP, missing)
        self.load_from(b"".join(one.parts), [buffer.raw() for buffer in one.buffers])
        self.done = end


def why_not(
    found: list[Pickled], start: int, pickler: Any, space: dict[str, Any], begin: Begin
) -> dict[int, str]:
    """Those of `found`, from the one at `start`, that cannot be loaded, by their places, each with
    why. Where the copy ends early, that is why of the one that it was at; those after it are not
    tried then. `pickler`: theirs; `begin()` is called before the first is loaded.
    """
    places = [place for place in within_limit(found) if place >= start]
    if not places:
        return {}
    memo = pickler.memo.copy()
    begins = [*(memo[id(one.record)][0] for one in found), len(memo)]
    loader = Loader(referred_to(memo, [found[place] for place in places]))
    out, into = os.pipe()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
    except OSError:  # no room for one more process
        os.close(out)
        os.close(into)
        return {}
    if pid == 0:
        try:
            os.close(out)
            begin()
            load_all(found, places, (loader, begins), space, into)
        finally:
            os._exit(0)
    os.close(into)
    try:
        with open(out, "rb") as file:
            return read(file, places)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def within_limit(found: list[Pickled]) -> list[int]:
    places, left = [], MOST_TRIED
    for place, one in enumerate(found):
        if one.is_uncertain and one.size() <= left:
            places.append(place)
            left -= one.size()
    return places


def referred_to(memo: dict[int, Any], found: list[Pickled]) -> list[Any]:
    """What was memorized, in order; None for what the pickles certainly do not refer to, since the
    copy would have to write to the memory of each object that it knows.
    """
    wanted = set(range(256))  # these have a short reference
    for one in found:
        data = b"".join(one.parts)
        at = data.find(pickle.LONG_BINGET)
        while at >= 0:
            wanted.add(int.from_bytes(data[at + 1 : at + 5], "little"))
            at = data.find(pickle.LONG_BINGET, at + 1)
    kept: list[Any] = [None] * len(memo)
    for place, value in memo.values():
        if place in wanted:
            kept[place] = value
    return kept


def load_all(
    found: list[Pickled],
    places: list[int],
    loads: tuple[Loader, list[int]],
    space: dict[str, Any],
    into: int,
) -> None:
    """In the copy, whose names come back one by one, as they do when all is loaded."""
    gc.disable()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    for one in found:
        space.pop(one.record[0], None)
    loader, begins = loads
    tried = set(places)
    for place, one in enumerate(found):
        why = ""
        if place in tried:
            try:
                loader.load(one, begins[place], begins[place + 1])
            except BaseException as error:
                why = reason_of(error)
                loader.reset()
            text = why.encode("utf-8", "replace")
            os.write(into, HEAD.pack(place, len(text)) + text)
        if not why:
            space[one.record[0]] = one.record[1]


def read(file: Any, places: list[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for place in places:
        head = file.read(HEAD.size)
        size = HEAD.unpack(head)[1] if len(head) == HEAD.size else 0
        text = file.read(size)
        if len(head) < HEAD.size or len(text) < size:
            return {**found, place: "to load it ends the process"}
        if size:
            found[place] = str(text, "utf-8", "replace")
    return found


def reason_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    name = type(error).__name__
    plain = type(error) in (pickle.PicklingError, TypeError) and text
    return (text if plain else f"{name}: {text}" if text else name)[:MOST_REASON]
