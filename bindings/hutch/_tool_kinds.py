# SPDX-License-Identifier: Apache-2.0
"""What a tool's arguments may be: one object for each annotation, made once with its tool, that has
its JSON schema and builds the argument. Classes of the host's: _tool_classes.

What arrives are plain data of the closed set of results. All of it comes from a sandbox: nothing is
built that may import or look for files, and one call's arguments take a fifth of a second at most.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import pathlib
import typing
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from hutch._choices import NONE, Choices
from hutch._tool_data import json_of

ARRAYS = (list, tuple, set, frozenset)
_MOST_STEPS = 400_000
_MOST_OF_A_HASH = 100  # values of one set
_MOST_OF_TEXT = 1000  # characters of a date, a number and the like
_MOST_OF_PATH = 4096  # characters
MOST_BITS = 4096  # of an int that is compared with a Decimal, or made one, which takes long
_MOST_REASON = 500  # characters of why an argument is not one of several classes
# Of one item, for its time and memory:
_LOOKED_AT = 1 / 32  # by its type
_COPIED = 1 / 4
_IN_A_SET = 3
_COUNTED = 3  # by its hash
_CONTAINER = 3
_REFUSED = 20  # by one choice of a union
_NUMBERS = (int, float)
NO_TYPES: frozenset[type] = frozenset()
_TEXT = frozenset([str, bytes])  # whose hashes nobody can choose


class ArgumentError(TypeError):
    """An argument that is not what it is annotated with. `steps`: where, the innermost first. The
    text is made when it is shown: most of those that alternatives of unions raise never are.
    """

    def __init__(self, text: str, *values: Any) -> None:
        super().__init__(text, *values)
        self.steps: list[str] = []

    @property
    def text(self) -> str:
        text, *values = self.args
        return text.format(*values) if values else str(text)

    def __str__(self) -> str:
        return "".join(reversed(self.steps)) + " " + self.text


class TooMuch(ArgumentError):
    """What nobody may take for a mere alternative that does not fit."""

    def __init__(self) -> None:
        super().__init__("is too large, or is tried in too many ways, to be checked")


class Work:
    """What building the arguments of one call may take: steps of some 0.2 µs and 40 bytes."""

    def __init__(self) -> None:
        self.left: float = _MOST_STEPS

    def take(self, steps: float) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooMuch


class Kind:
    """Of one annotation. `takes`: the types that it may be built of, None for any; `sure`: those of
    them that are built as they are, whatever they hold; `text`: as in a signature.
    """

    takes: frozenset[type] | None = None
    sure: frozenset[type] = NO_TYPES
    text = "Any"

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        """JSON schema; what it refers to is put into `shared`."""
        return {}

    def build(self, value: Any, work: Work) -> Any:
        """Raises ArgumentError, or what a class of the caller's raises."""
        return value

    def refuse(self, value: Any) -> ArgumentError:
        return ArgumentError("must be {}, not {}", self.text, type(value).__name__)


class Plain(Kind):
    names: ClassVar[dict[type, dict[str, str]]] = {
        str: {"type": "string"},
        int: {"type": "integer"},
        float: {"type": "number"},
        bool: {"type": "boolean"},
        type(None): {"type": "null"},
        bytes: {"type": "string", "format": "binary"},
    }

    also: ClassVar[dict[type, tuple[type, ...]]] = {float: (int,), bytes: (bytearray,)}

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self.sure = frozenset([kind])
        self.takes = frozenset([kind, *self.also.get(kind, ())])
        self.text = "None" if kind is type(None) else kind.__name__

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        return dict(self.names[self._kind])

    def build(self, value: Any, work: Work) -> Any:
        if type(value) is self._kind:
            return value
        if self._kind is bytes and type(value) is bytearray:
            return bytes(value)
        if self._kind is float and type(value) is int:
            try:
                return float(value)
            except OverflowError:
                raise ArgumentError("is too large for a float") from None
        raise self.refuse(value)


def _of_iso(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Also of a text that ends with Z, which Python 3.10 does not read."""
    return lambda text: read(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)


class ByText(Kind):
    """Values that may be given as text, too: what the schema calls it, and what reads it."""

    kinds: ClassVar[dict[type, tuple[str, Callable[[str], Any]]]] = {
        datetime.datetime: ("date-time", _of_iso(datetime.datetime.fromisoformat)),
        datetime.date: ("date", datetime.date.fromisoformat),
        datetime.time: ("time", _of_iso(datetime.time.fromisoformat)),
        decimal.Decimal: ("decimal", decimal.Decimal),
        uuid.UUID: ("uuid", uuid.UUID),
        pathlib.Path: ("path", pathlib.Path),
        pathlib.PurePath: ("path", pathlib.PurePath),
        pathlib.PurePosixPath: ("path", pathlib.PurePosixPath),
    }

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._form, self._make = self.kinds[kind]
        self._is_path = issubclass(kind, pathlib.PurePath)
        self.sure = NO_TYPES if self._is_path else frozenset([kind])
        numbers = _NUMBERS if kind is decimal.Decimal else ()
        self.takes = frozenset([str, pathlib.PurePosixPath if self._is_path else kind, *numbers])
        self.text = kind.__name__

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        schema = {"type": "string", "format": self._form}
        return {"anyOf": [{"type": "number"}, schema]} if self._kind is decimal.Decimal else schema

    def build(self, value: Any, work: Work) -> Any:
        if self._is_path and isinstance(value, pathlib.PurePath):
            value = str(value)
        if type(value) is self._kind:
            return value
        if self._kind is decimal.Decimal and type(value) in _NUMBERS:
            if type(value) is int and value.bit_length() > MOST_BITS:
                raise ArgumentError("has an int of more than {} bits beside a Decimal", MOST_BITS)
            return decimal.Decimal(str(value))
        if type(value) is str:
            most = _MOST_OF_PATH if self._is_path else _MOST_OF_TEXT
            if len(value) > most:
                raise ArgumentError(
                    "must be {}, or its text of at most {} characters", self.text, most
                )
            try:
                return self._make(value)
            except (ValueError, ArithmeticError):
                raise ArgumentError(
                    "must be a {} or its text ({})", self.text, self._form
                ) from None
        raise self.refuse(value)


class Choice(Kind):
    """A Literal or an enum: not by a call, that makes members of flags for ever."""

    def __init__(self, kind: Any) -> None:
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            pairs = [(one.value, one) for one in kind]
        else:
            pairs = [(one, one) for one in typing.get_args(kind)]
        self._values = [value for value, _ in pairs]
        self._choices = Choices(pairs)
        self.takes = frozenset(map(type, self._values))
        self.text = f"Literal[{', '.join(map(repr, self._values))}]"

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"enum": [json_of(one) for one in self._values]}
        except ValueError:
            return {}

    def build(self, value: Any, work: Work) -> Any:
        work.take(self._choices.others)
        found = self._choices.find(value)
        if found is NONE:
            raise ArgumentError("must be one of {}", self._choices)
        return found


class Union(Kind):
    """The first choice that fits."""

    def __init__(self, choices: list[Kind]) -> None:
        self.choices = choices
        self._by_type: dict[type, list[Kind]] = {}
        types = frozenset().union(*(one.takes or () for one in choices))
        for kind in types:
            self._by_type[kind] = [one for one in choices if one.takes is None or kind in one.takes]
        self._others = [one for one in choices if one.takes is None]
        self.sure = frozenset(kind for kind in types if kind in self._by_type[kind][0].sure)
        self.takes = None if self._others else types
        self.text = " | ".join(one.text for one in choices)

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        return {"anyOf": [one.schema(shared) for one in self.choices]}

    def build(self, value: Any, work: Work) -> Any:
        refused = []
        for one in self._by_type.get(type(value), self._others):
            work.take(1)
            try:
                return one.build(value, work)
            except TooMuch:
                raise
            except ArgumentError as error:
                work.take(_REFUSED)
                refused.append((one, error))
        if len(refused) > 1 or (refused and type(value) is dict):
            raise _NoneFits(self.text, refused)
        raise refused[0][1] if refused else self.refuse(value)


class _NoneFits(ArgumentError):
    """Each choice that might have been, with why not."""

    @property
    def text(self) -> str:
        name, refused = self.args
        why = (f"as {one.text}: {error}".replace(":  ", ": ") for one, error in refused)
        return f"must be {name} ({'; '.join(one[:_MOST_REASON] for one in why)})"


class Array(Kind):
    """Items of one kind, as a list, tuple, set or frozenset."""

    takes = frozenset(ARRAYS)

    def __init__(self, make: type, item: Kind, is_typed: bool) -> None:
        self._make, self._item = make, item
        inside = f"{item.text}, ..." if make is tuple else item.text
        self.text = f"{make.__name__}[{inside}]" if is_typed else make.__name__

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        return {"type": "array", "items": self._item.schema(shared)}

    def build(self, value: Any, work: Work) -> Any:
        if type(value) not in ARRAYS:
            raise self.refuse(value)
        items = self._items(value, work)
        if type(items) is self._make:
            return items
        if self._make in (list, tuple):
            work.take(len(items) * _COPIED)
            return self._make(items)
        work.take(len(items) * _IN_A_SET)
        if type(items) not in (set, frozenset) and not _TEXT.issuperset(map(type, items)):
            work.take(len(items) * _COUNTED)
            _require_different_hashes(items)
        return self._make(items)

    def _items(self, value: Any, work: Work) -> Any:
        item = self._item
        if type(item) is Kind:
            return value
        work.take(_CONTAINER + len(value) * _LOOKED_AT)
        if item.sure and item.sure.issuperset(map(type, value)):
            return value
        return items_of(((item, one) for one in value), work)


class FixedTuple(Kind):
    takes = frozenset(ARRAYS)

    def __init__(self, items: list[Kind]) -> None:
        self._items = items
        self.text = f"tuple[{', '.join(one.text for one in items) or '()'}]"

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        count = len(self._items)
        made = {"type": "array", "prefixItems": [one.schema(shared) for one in self._items]}
        return {**made, "minItems": count, "maxItems": count}

    def build(self, value: Any, work: Work) -> Any:
        if type(value) not in ARRAYS:
            raise self.refuse(value)
        if len(value) != len(self._items):
            raise ArgumentError("must have {} items, not {}", len(self._items), len(value))
        return tuple(items_of(zip(self._items, value), work))


class Mapping(Kind):
    """A dict with keys of text."""

    takes = frozenset([dict])

    def __init__(self, item: Kind, is_typed: bool) -> None:
        self._item = item
        self._is_typed = is_typed
        self.text = f"dict[str, {item.text}]" if is_typed else "dict"

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self._item.schema(shared)}

    def build(self, value: Any, work: Work) -> Any:
        if type(value) is not dict:
            raise self.refuse(value)
        if not self._is_typed:
            return value
        work.take(_CONTAINER + len(value) * _LOOKED_AT)
        require_text_keys(value)
        return values_of(self._item, value, work)


def require_text_keys(value: dict[Any, Any]) -> None:
    others = {*map(type, value)} - {str}
    if others:
        raise ArgumentError("has keys that are {}, not str", others.pop().__name__)


def items_of(pairs: Iterable[tuple[Kind, Any]], work: Work) -> list[Any]:
    made: list[Any] = []
    try:
        for kind, value in pairs:
            work.take(1)
            made.append(kind.build(value, work))
    except ArgumentError as error:
        error.steps.append(f"[{len(made)}]")
        raise
    return made


def values_of(kind: Kind, value: dict[str, Any], work: Work) -> dict[str, Any]:
    if type(kind) is Kind or (kind.sure and kind.sure.issuperset(map(type, value.values()))):
        return value
    made = {}
    for key, one in value.items():
        work.take(1)
        try:
            made[key] = kind.build(one, work)
        except ArgumentError as error:
            error.steps.append(f"[{key!r:.100}]")
            raise
    return made


def _require_different_hashes(items: Iterable[Any]) -> None:
    """Code inside may choose numbers, or what is made of them, that have one hash: in a set each of
    them is compared with all others, and an int is made decimal for that with a Decimal.
    """
    counts = Counter(map(hash, items))
    shared = [item for item in items if counts[hash(item)] > 1]
    if _holds_decimals_and_large_ints(shared):
        raise ArgumentError("has an int of more than {} bits beside a Decimal", MOST_BITS)
    found: dict[int, set[Any]] = {}
    for item in shared:
        same = found.setdefault(hash(item), set())
        same.add(item)
        if len(same) > _MOST_OF_A_HASH:
            raise ArgumentError("has more than {} values of the same hash", _MOST_OF_A_HASH)


def _holds_decimals_and_large_ints(items: Iterable[Any]) -> bool:
    decimals = large = False
    stack = list(items)
    while stack:
        one = stack.pop()
        decimals = decimals or type(one) is decimal.Decimal
        large = large or (type(one) is int and one.bit_length() > MOST_BITS)
        if type(one) in ARRAYS:
            stack.extend(one)
        elif hasattr(one, "__dict__"):
            stack.extend(vars(one).values())
        else:
            stack.extend(getattr(one, name, None) for name in getattr(one, "__slots__", ()))
    return decimals and large
