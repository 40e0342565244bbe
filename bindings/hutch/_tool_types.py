# SPDX-License-Identifier: Apache-2.0
"""Annotations of tools: their names and JSON schemas, and arguments that are built by them.

What arrives are plain data of the closed set of results. All of it comes from a sandbox: nothing is
built that may import, look for files, or take more time than its size.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import types
import typing
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union

from hutch._choices import NONE, Choices
from hutch._results.validating import validation

_MOST_REASON = 500  # characters of why an argument is not one of several classes
_PLAIN: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_DATA = (bytes,)
_ARRAYS = (list, tuple, set, frozenset)
# Values of these may be given as text, too: what the schema calls it, and what reads it.
_BY_TEXT: dict[Any, tuple[str, Callable[[str], Any]]] = {
    datetime.datetime: ("date-time", datetime.datetime.fromisoformat),
    datetime.date: ("date", datetime.date.fromisoformat),
    datetime.time: ("time", datetime.time.fromisoformat),
    decimal.Decimal: ("decimal", decimal.Decimal),
    uuid.UUID: ("uuid", uuid.UUID),
}
_MOST_OF_TEXT = 1000  # characters of one
_ALLOWED = (
    "take str, int, float, bool, None, bytes, datetime, date, time, Decimal, UUID or Any; list, "
    "tuple, set and dict of these; Literal, unions, enums, dataclasses and pydantic models (a path "
    "is a str: it names a file inside)"
)
_MOST_OF_A_HASH = 100  # values of one set
_MOST_ERRORS = 20  # of a model, that are reported in full


class ArgumentError(TypeError):
    """An argument that is not what it is annotated with. `steps`: where, the innermost first."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.steps: list[str] = []

    def __str__(self) -> str:
        return "".join(reversed(self.steps)) + " " + self.text


def plain(value: Any) -> Any:
    """What a tool returns, as data: dataclasses and models as dicts, enums as their values."""
    kind = type(value)
    if kind in _PLAIN or kind in _DATA:
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if kind is dict:
        return {plain(key): plain(one) for key, one in value.items()}
    if kind is list:
        return [plain(one) for one in value]
    if isinstance(value, tuple):
        return tuple(plain(one) for one in value)
    if dataclasses.is_dataclass(kind):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if callable(getattr(kind, "model_dump", None)):
        return plain(value.model_dump())
    if kind.__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return value.item()
    return value


def default_of(value: Any) -> Any:
    return str(value) if type(value) in _BY_TEXT else plain(value)


def default_text(value: Any) -> str:
    """As in a signature."""
    return f"{default_of(value)!r:.1000}"


def type_name(kind: Any, of_class: Callable[[type], str] = lambda _: "dict") -> str:
    """As in a signature. `of_class`: what a class of the host's own is called, which is a dict to
    the sandbox.
    """
    found = bare(kind)
    if found is type(None):
        return "None"
    origin, args = typing.get_origin(found), typing.get_args(found)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if is_union(found):
        return " | ".join(type_name(one, of_class) for one in args)
    if origin is not None:
        inside = ", ".join("..." if one is Ellipsis else type_name(one, of_class) for one in args)
        return f"{origin.__name__}[{inside}]" if inside else str(origin.__name__)
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return f"Literal[{', '.join(repr(one.value) for one in found)}]"
    if _is_class(found):
        return of_class(found)
    return found.__name__ if isinstance(found, type) else str(found).replace("typing.", "")


def _is_class(kind: Any) -> bool:
    """Of the host's own, which is made of a dict."""
    return isinstance(kind, type) and (is_model(kind) or dataclasses.is_dataclass(kind))


def _name_of(kind: type) -> str:
    return kind.__name__


def schema_of(kind: Any, where: str, shared: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of an annotation, with what it refers to in `shared`. Raises TypeError for
    one that cannot be checked.
    """
    kind = bare(kind)
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind in _DATA:
        return {"type": "string", "format": "binary"}
    if kind in _BY_TEXT:
        return {"type": "string", "format": _BY_TEXT[kind][0]}
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(args)}
    if is_union(kind):
        return {"anyOf": [schema_of(one, where, shared) for one in args]}
    if kind in _ARRAYS or origin in _ARRAYS:
        items = [one for one in args if one is not Ellipsis]
        if (origin or kind) is tuple and items and Ellipsis not in args:
            return {
                "type": "array",
                "prefixItems": [schema_of(one, where, shared) for one in items],
            }
        return {"type": "array", "items": schema_of(items[0], where, shared) if items else {}}
    if kind is dict or origin is dict:
        if args and bare(args[0]) is not str:
            raise TypeError(f"{where}: the keys of a dict must be annotated as str")
        return {
            "type": "object",
            "additionalProperties": schema_of(args[1], where, shared) if args else {},
        }
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [one.value for one in kind]}
    if isinstance(kind, type) and (is_model(kind) or dataclasses.is_dataclass(kind)):
        seen = validation(kind)
        if seen.acting or seen.refusal:
            raise TypeError(
                f"{where}: {kind.__name__} cannot be built of what a sandbox sends: "
                f"{seen.refusal or seen.acting}"
            )
    if is_model(kind):
        schema = dict(kind.model_json_schema())
        shared.update(schema.pop("$defs", {}))
        return schema
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        fields = [one for one in dataclasses.fields(kind) if one.init]
        return {
            "type": "object",
            "properties": {
                one.name: schema_of(hints[one.name], where, shared)
                | ({} if _is_required(one) else _default_of_field(one))
                for one in fields
            },
            "required": [one.name for one in fields if _is_required(one)],
        }
    raise TypeError(
        f"{where}: {kind!r} is not an annotation by which an argument can be checked: {_ALLOWED}"
    )


def build(kind: Any, value: Any) -> Any:
    """The argument that this data stands for. Raises ArgumentError, or what a class of the
    caller's raises.
    """
    kind = bare(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if kind is float and type(value) is int:
        return float(value)
    if kind in _PLAIN or kind in _DATA:
        return _expect(type(value) is kind, kind, value)
    if kind in _BY_TEXT:
        return value if type(value) is kind else _of_text(kind, value)
    if origin is Literal:
        return _chosen(kind, value)
    if is_union(kind):
        refused: dict[str, str] = {}  # by class
        for one in args:
            try:
                return build(one, value)
            except (TypeError, ValueError) as error:
                if type(value) is dict and _is_class(one):
                    refused[one.__name__] = f"{error}".strip()[:_MOST_REASON]
        names = type_name(kind, _name_of)
        if refused:
            why = "; ".join(f"as {name}: {reason}" for name, reason in refused.items())
            raise ArgumentError(f"must be {names} ({why})")
        raise ArgumentError(f"must be {names}, not {type(value).__name__}")
    wanted: Any = origin or kind
    if wanted in _ARRAYS:
        _expect(type(value) in _ARRAYS, wanted, value)
        items = [one for one in args if one is not Ellipsis]
        if wanted is tuple and items and Ellipsis not in args:
            if len(value) != len(items):
                raise ArgumentError(f"must have {len(items)} items, not {len(value)}")
            return tuple(items_of(zip(items, value), list))
        of = items[0] if items else Any
        return items_of(((of, one) for one in value), wanted)
    if wanted is dict:
        _expect(type(value) is dict, dict, value)
        if not args:
            return value
        for key in value:
            _expect(type(key) is str, str, key)
        return values_of(args[1], value)
    if issubclass(wanted, enum.Enum):
        return _chosen(wanted, value)
    _expect(type(value) is dict and all(type(key) is str for key in value), dict, value)
    if is_model(wanted):
        return _model(wanted, value)
    fields = _fields(wanted)
    made = {}
    for key, one in value.items():
        if key not in fields:
            raise ArgumentError(f"has no field {key!r:.100}")
        try:
            made[key] = build(fields[key][0], one)
        except ArgumentError as error:
            error.steps.append("." + key)
            raise
    for key, (_, is_required) in fields.items():
        if key not in made and is_required:
            raise ArgumentError(f"has no field {key!r}, which it needs")
    return wanted(**made)


@functools.lru_cache(maxsize=1000)
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Of a dataclass: the annotation of each, and whether it has to be given."""
    hints = typing.get_type_hints(kind)
    fields = [one for one in dataclasses.fields(kind) if one.init]
    return {one.name: (hints[one.name], _is_required(one)) for one in fields}


def _chosen(kind: Any, value: Any) -> Any:
    """What a Literal or an enum has for it: not by a call, that makes members of flags for ever."""
    choices = _choices(kind)
    found = choices.find(value)
    if found is NONE:
        raise ArgumentError(f"must be one of {choices}")
    return found


@functools.lru_cache(maxsize=1000)
def _choices(kind: Any) -> Choices:
    if typing.get_origin(kind) is Literal:
        return Choices((one, one) for one in typing.get_args(kind))
    return Choices((one.value, one) for one in kind)


def _of_text(kind: Any, value: Any) -> Any:
    form, make = _BY_TEXT[kind]
    if type(value) is str and len(value) <= _MOST_OF_TEXT:
        try:
            return make(value)
        except (ValueError, ArithmeticError):
            raise ArgumentError(f"must be a {kind.__name__} or its text ({form})") from None
    return _expect(False, kind, value)


def items_of(pairs: Iterable[tuple[Any, Any]], make: Callable[[list[Any]], Any]) -> Any:
    made: list[Any] = []
    try:
        for kind, value in pairs:
            made.append(build(kind, value))
    except ArgumentError as error:
        error.steps.append(f"[{len(made)}]")
        raise
    if make in (set, frozenset):
        _require_different_hashes(made)
    return make(made)


def _require_different_hashes(items: list[Any]) -> None:
    """Code inside may choose numbers, or what is made of them, that have one hash: in a set each of
    them is compared with all others.
    """
    shared = {of for of, count in Counter(map(hash, items)).items() if count > _MOST_OF_A_HASH}
    found: dict[int, set[Any]] = {of: set() for of in shared}
    for item in items if shared else ():
        same = found.get(hash(item))
        if same is not None:
            same.add(item)
            if len(same) > _MOST_OF_A_HASH:
                raise ArgumentError(f"has more than {_MOST_OF_A_HASH} values of the same hash")


def values_of(kind: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    made = {}
    for key, one in value.items():
        try:
            made[key] = build(kind, one)
        except ArgumentError as error:
            error.steps.append(f"[{key!r:.100}]")
            raise
    return made


def _model(wanted: Any, value: dict[str, Any]) -> Any:
    try:
        return wanted.model_validate(value)
    except ValueError as error:
        count = error.error_count() if hasattr(error, "error_count") else 1
        if count > _MOST_ERRORS:
            raise ArgumentError(f"has {count:,} errors for {wanted.__name__}") from None
        raise ArgumentError(f"is not valid: {error!s:.2000}") from None


def _expect(holds: bool, kind: Any, value: Any) -> Any:
    if not holds:
        raise ArgumentError(f"must be {kind.__name__}, not {type(value).__name__}")
    return value


def bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (Union, types.UnionType)


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and callable(getattr(kind, "model_json_schema", None))


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default_of_field(field: dataclasses.Field[Any]) -> dict[str, Any]:
    return {} if field.default is dataclasses.MISSING else {"default": plain(field.default)}
