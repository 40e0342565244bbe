# SPDX-License-Identifier: Apache-2.0
"""What a user interface asks of a session's names: completions, one value in detail, and all
variables. A mixin of Session and Child, and one of their twins.

What the session's process answers may be anything: it is checked, and never run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hutch._namespace import Namespace
from hutch._options.checks import quoted
from hutch._session_transfers import not_said
from hutch._text import escape
from hutch._twins import awaits, result_of

# images/worker/completing.py and looking.py have the same.
_MOST_MATCHES = 1000
_MOST_VARIABLES = 1000
_MOST_NAME = 200  # characters of a match, a name or a type
_MOST_TEXT = 200
_MOST_LONG_TEXT = 50_000
_MOST_CHARACTERS = 1 << 18  # all variables have together
_MOST_DIMENSIONS = 64
_FAR = 1 << 63  # sizes and lengths are below


@dataclass(frozen=True, slots=True)
class Completion:
    """How a text may go on. `matches`: sorted, each for the place of `code[start:end]`; 1000 at
    most, of 200 characters at most. `start`, `end`: in characters, as `cursor_start` and
    `cursor_end` of Jupyter.
    """

    matches: list[str]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """A value in detail. `name`: as it was asked for. `type`: the name of its class. `signature`:
    with its brackets. `doc`: its docstring. `source`: that of a function or class of Python.
    `text`: how its repr begins, in one line. What is not known is "". Docstring and source have
    50,000 characters at most, the other texts 200 (the signature 50,000). `str()` of it reads as
    `help()`, and escapes what could act on a terminal; its fields are as they came.
    """

    name: str
    type: str
    signature: str
    doc: str
    source: str
    text: str

    def __str__(self) -> str:
        parts = [f"{self.name}{self.signature}", f"Type: {self.type}", f"Value: {self.text}"]
        if self.doc:
            parts += ["", self.doc]
        if self.source:
            parts += ["", "Source:", self.source.rstrip("\n")]
        return escape("\n".join(parts))


@dataclass(frozen=True, slots=True)
class Variable:
    """`type`: the name of its class. `size`: bytes of memory, as far as that is known cheaply: of
    arrays and frames with their numbers, and never with objects that something refers to. `shape`:
    of an array or a frame. `length`: what `len()` gives. `text`: how its repr begins, in one line
    of 200 characters at most; where that fails or takes long, its type. None: not known.
    """

    name: str
    type: str
    size: int | None
    shape: tuple[int, ...] | None
    length: int | None
    text: str


for _kind in (Completion, Inspection, Variable):
    _kind.__module__ = "hutch"


class Looking(Namespace):
    """What is said of its names, for a user interface."""

    def complete(self, code: str, pos: int | None = None) -> Completion:
        """How `code` may go on at the character `pos` (default: its end): names, attributes, keys
        of dicts and columns of frames, modules, and parameters of functions. Nothing of `code` is
        run: what only a call, a property or a `__getattr__` gives has no completions. It takes a
        second at most. Raises ValueError where `pos` is outside of `code`.

            with Session() as s:
                s.exec("import math; prices = {'apple': 1}")
                assert s.complete("math.sq").matches == ["sqrt"]
                assert s.complete("prices['").matches == ["apple"]
        """
        if not isinstance(code, str):
            raise TypeError(f"complete() takes source text, not {type(code).__name__}")
        end = len(code) if pos is None else pos
        if type(end) is not int:
            raise TypeError(f"pos is a number of characters, not {type(pos).__name__}")
        if not 0 <= end <= len(code):
            raise ValueError(f"pos={quoted(end)}: the code has the places 0 to {len(code)}")

        def completion(reply: Any) -> Completion:
            matches, start = _pair(reply)
            if type(start) is not int or not 0 <= start <= end:
                raise not_said()
            for match in _listed(matches, _MOST_MATCHES):
                if not _text(match, _MOST_NAME).isprintable():
                    raise not_said()
            return Completion(sorted(matches), start, end)

        return self._verb(completion, "complete", code[:end])

    def inspect(self, name: str) -> Inspection:
        """A value in detail: type, signature, docstring, source. `name`: also one of an attribute,
        such as `np.mean`. A property is not run: it is what is inspected. Raises KeyError where
        there is no such value.

            with Session() as s:
                s.exec("def tax(n, rate=0.07):\\n    'Of an amount.'\\n    return n * rate")
                assert s.inspect("tax").signature == "(n, rate=0.07)"
        """
        if not isinstance(name, str):
            raise TypeError(f"a name is text, not {type(name).__name__}")
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{quoted(name)} is no name, nor names with dots between them")

        def inspection(reply: Any) -> Inspection:
            if reply is None:
                raise KeyError(name)
            if type(reply) is not tuple or len(reply) != 5:
                raise not_said()
            kind, signature, doc, source, text = reply
            return Inspection(
                name,
                _text(kind, _MOST_NAME),
                _text(signature, _MOST_LONG_TEXT),
                _text(doc, _MOST_LONG_TEXT),
                _text(source, _MOST_LONG_TEXT),
                _text(text, _MOST_TEXT),
            )

        return self._verb(inspection, "inspect", name)

    def variables(self, *, modules: bool = False) -> list[Variable]:
        """Those that its code has made, in that order; with `modules`, modules, too. The first 1000
        at most, and names of 200 characters at most. The texts of values run their `__repr__`: one
        that fails, or takes more than a quarter of a second, costs its own text; after two seconds
        for all, later ones have none.

            with Session() as s:
                s.exec("rows = [1, 2, 3]")
                (rows,) = s.variables()
                assert (rows.name, rows.type, rows.length) == ("rows", "list", 3)
        """
        return self._verb(_variables, "variables", bool(modules))


def _variables(reply: Any) -> list[Variable]:
    found, room = [], _MOST_CHARACTERS
    for entry in _listed(reply, _MOST_VARIABLES):
        if type(entry) is not tuple or len(entry) != 6:
            raise not_said()
        name, kind, size, shape, length, text = entry
        if shape is not None:
            if type(shape) is not tuple or len(shape) > _MOST_DIMENSIONS:
                raise not_said()
            for one in shape:
                _number(one)
        known = [None if one is None else _number(one) for one in (size, length)]
        texts = _text(name, _MOST_NAME), _text(kind, _MOST_NAME), _text(text, _MOST_TEXT)
        room -= sum(map(len, texts))
        if room < 0:
            raise not_said()
        found.append(Variable(texts[0], texts[1], known[0], shape, known[1], texts[2]))
    return found


def _pair(reply: Any) -> tuple[Any, Any]:
    if type(reply) is not tuple or len(reply) != 2:
        raise not_said()
    return reply


def _listed(found: Any, most: int) -> list[Any]:
    if type(found) is not list or len(found) > most:
        raise not_said()
    return found


def _text(text: Any, most: int) -> str:
    if type(text) is not str or len(text) > most:
        raise not_said()
    return text


def _number(number: Any) -> int:
    if type(number) is not int or not 0 <= number < _FAR:
        raise not_said()
    return number


class AsyncLooking:
    """The same, awaited."""

    _of: Looking  # whose methods give awaitables

    @awaits(Looking.complete)
    async def complete(self, code: str, pos: int | None = None) -> Completion:
        return await result_of(self._of.complete, code, pos)

    @awaits(Looking.inspect)
    async def inspect(self, name: str) -> Inspection:
        return await result_of(self._of.inspect, name)

    @awaits(Looking.variables)
    async def variables(self, *, modules: bool = False) -> list[Variable]:
        return await result_of(self._of.variables, modules=modules)
