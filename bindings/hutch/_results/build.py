# SPDX-License-Identifier: Apache-2.0
"""Builds the values that the decoder does not build itself, one function for each kind of
bindings/decode.h.

The fields come from a cell and may be anything that the decoder builds, in any number: every
function checks the type of each one before it uses it, and names no class, module or file that the
fields name. What a function raises becomes a DecodeError with the same message. numpy, pandas,
pyarrow, polars, torch and PIL are imported only when a result holds their types.

What a function does takes time and memory in proportion to its fields, whatever they say. Where the
value has lengths that no bytes stand for, the function (from 0x30 on) returns a pair: the value,
and the bytes to charge for them.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import importlib
import re
import sys
import weakref
from typing import Any, Callable

from hutch._results.checking import check
from hutch._results.fields import want, zone, zone_key
from hutch._results.types import field_hints
from hutch._results.validating import Validation, is_tried_often, validation

_DIGITS = re.compile(r"[0-9]{0,100000}")
_MAX_EXPONENT = 999_999  # beyond it, writing out a Decimal takes memory without bound
_FRACTION_BITS = 32_768  # of each part; the time to find a common divisor grows with their square
_MOST_COMBINATIONS = 1024  # of the flags of one class, alive at once, of which results reported
_MOST_ERRORS = 100  # of one model that are spelled out


def _date(year: Any, month: Any, day: Any) -> datetime.date:
    return datetime.date(want(year, int), want(month, int), want(day, int))


def _time(hour: Any, minute: Any, second: Any, us: Any, fold: Any, tz: Any) -> datetime.time:
    for field in (hour, minute, second, us, fold):
        want(field, int)
    return datetime.time(hour, minute, second, us, zone(tz), fold=fold)


def _datetime(
    year: Any,
    month: Any,
    day: Any,
    hour: Any,
    minute: Any,
    second: Any,
    us: Any,
    fold: Any,
    tz: Any,
) -> datetime.datetime:
    for field in (year, month, day, hour, minute, second, us, fold):
        want(field, int)
    return datetime.datetime(year, month, day, hour, minute, second, us, zone(tz), fold=fold)


def _timedelta(days: Any, seconds: Any, us: Any) -> datetime.timedelta:
    return datetime.timedelta(want(days, int), want(seconds, int), want(us, int))


def _timezone(offset: Any, name: Any) -> datetime.timezone:
    want(offset, datetime.timedelta)
    if name is None:
        return datetime.timezone(offset)
    return datetime.timezone(offset, want(name, str))


def _zone_info(key: Any) -> Any:
    from zoneinfo import ZoneInfo

    return ZoneInfo(zone_key(key))


def _decimal(sign: Any, digits: Any, exponent: Any) -> Any:
    from decimal import Decimal

    if want(sign, int) not in (0, 1) or not _DIGITS.fullmatch(want(digits, str)):
        raise ValueError("a Decimal's sign or digits are malformed")
    if exponent not in ("F", "n", "N") and abs(want(exponent, int)) > _MAX_EXPONENT:
        raise ValueError("a Decimal's exponent is beyond 999,999")
    return Decimal((sign, tuple(map(int, digits)), exponent))


def _fraction(numerator: Any, denominator: Any) -> Any:
    from fractions import Fraction

    if want(denominator, int) <= 0:
        raise ValueError("a Fraction's denominator is not positive")
    if max(want(numerator, int).bit_length(), denominator.bit_length()) > _FRACTION_BITS:
        raise ValueError(f"a part of a Fraction has more than {_FRACTION_BITS:,} bits")
    return Fraction(numerator, denominator)


def _uuid(data: Any) -> Any:
    from uuid import UUID

    return UUID(bytes=want(data, bytes))


def _path(text: Any) -> Any:
    from pathlib import PurePosixPath

    return PurePosixPath(want(text, str))


class UnknownClass(ValueError):
    """A class that the caller's `types` do not have; those of the arguments may."""


def _find(types: dict[str, type], name: Any, base: type, what: str) -> Any:
    found = types.get(want(name, str))
    article = "an" if what == "enum" else "a"
    if found is None:
        raise UnknownClass(
            f"the function returned {article} {what}, {name[:200]!r}, that "
            "its annotation does not name: annotate what it returns with that class"
        )
    if not issubclass(found, base):
        raise ValueError(f"{name[:200]!r} is not {article} {what} here")
    return found


def _enum(types: dict[str, type], name: Any, member: Any) -> Any:
    members = _find(types, name, enum.Enum, "enum").__members__
    if want(member, str) not in members:
        raise ValueError(f"{name[:200]!r} has no member {member[:200]!r}")
    return members[member]


# Flags that were made for results, by class.
_combined: weakref.WeakKeyDictionary[type, list[Any]] = weakref.WeakKeyDictionary()


def _flag(types: dict[str, type], name: Any, value: Any) -> Any:
    """A class keeps each combination of its flags that it ever made, so that it is the same one
    wherever it is met. Those that only results named are dropped once nothing refers to them.
    """
    kind = _find(types, name, enum.Flag, "flag")
    known: dict[Any, Any] = kind._value2member_map_
    if want(value, int) in known:
        return known[value]
    widest = max((member.value.bit_length() for member in kind.__members__.values()), default=0)
    if value.bit_length() > max(64, widest):
        raise ValueError(f"{name[:200]!r} has no flag of so many bits")
    if issubclass(kind, int):
        return _int_flag(kind, value)
    had = len(known)
    made = kind(value)
    if len(known) > had:
        held = _combined.setdefault(kind, [])
        held.append(made)
        if len(held) > _MOST_COMBINATIONS:
            del made
            _forget(known, held)
            if len(held) > _MOST_COMBINATIONS:
                known.pop(held.pop()._value_, None)
                raise ValueError(
                    f"more than {_MOST_COMBINATIONS:,} combinations of the flags {name[:200]!r}"
                )
            return known[value]
    return made


@functools.lru_cache(maxsize=256)
def _int_flag(kind: Any, value: int) -> Any:
    """A combination that its class does not keep: as an int it equals any other of its value."""
    known: dict[Any, Any] = kind._value2member_map_
    had = len(known)
    made = kind(value)
    while len(known) > had:
        known.popitem()
    return made


def _forget(known: dict[Any, Any], held: list[Any]) -> None:
    """Takes back all but the newest that are referred to by nothing but these two."""
    kept = []
    newest = held.pop()
    while held:
        member = held.pop()
        if sys.getrefcount(member) > 3:  # `known`, `member`, and the argument
            kept.append(member)
        else:
            known.pop(member._value_, None)
    held.extend(reversed(kept))
    held.append(newest)


def _dataclass(types: dict[str, type], name: Any, values: Any) -> Any:
    kind: Any = _find(types, name, object, "dataclass")
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        raise ValueError(f"{name[:200]!r} is not a dataclass here")
    expected = {field.name for field in dataclasses.fields(kind) if field.init}
    _check_fields(kind, want(values, dict), expected)
    seen = _may_validate(kind)
    _check_tries(kind, values, seen)
    given = _with_paths(values, seen)
    return _validated(kind, lambda: kind(**given))


def _named_tuple(types: dict[str, type], name: Any, items: Any) -> Any:
    kind = _find(types, name, tuple, "NamedTuple")
    names = getattr(kind, "_fields", None)
    if type(names) is not tuple or len(names) != len(want(items, list)):
        raise ValueError(f"{name[:200]!r} has other fields here")
    values = dict(zip(names, items))
    _check_fields(kind, values, set(names))
    return kind(*items)


def _check_fields(kind: type, values: dict[Any, Any], expected: set[str]) -> None:
    if values.keys() != expected:
        raise ValueError(
            f"{kind.__qualname__} has other fields here: {', '.join(sorted(expected))[:500]}"
        )
    hints = field_hints(kind)
    for field, value in values.items():
        hint = hints.get(field, Any)
        if type(value) is not hint:
            check(value, hint, f"{kind.__qualname__}.{field}")


def _may_validate(kind: type) -> Validation:
    seen = validation(kind)
    if seen.refusal:
        raise ValueError(seen.refusal)
    return seen


def _check_tries(kind: type, values: dict[Any, Any], seen: Validation) -> None:
    if seen.branches > 1 and is_tried_often(values.values(), seen):
        raise ValueError(
            f"{kind.__qualname__} holds data that are nested deeply in unions: pydantic would "
            "validate them over and over"
        )


def _check_stored(kind: Any, values: dict[str, Any], seen: Validation) -> None:
    """Fields of a model are what its annotations say before pydantic sees them, so that it converts
    nothing: what text becomes, or which model a dict could be, takes any time. The encoder sends
    what a model stores, so only what was stored without validation is refused: but a plain default.
    """
    hints = field_hints(kind)
    raw_enums = kind.model_config.get("use_enum_values", False)
    for field, value in values.items():
        hint = hints.get(field, seen.extra)
        if type(value) is hint:
            continue
        if field in hints and _is_default(value, kind.model_fields[field].default):
            continue
        check(value, hint, f"{kind.__qualname__}.{field}", raw_enums)


def _is_default(value: Any, default: Any) -> bool:
    if type(value) is not type(default):
        return False
    if type(value) in (list, tuple, dict):
        return not value and not default
    return type(value) in (int, float, str, bytes, bool, type(None)) and value == default


def _validated(kind: type, make: Callable[[], Any]) -> Any:
    """What `make` makes. pydantic spells out an error of each item, so not all are asked for."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        return make()
    try:
        return make()
    except pydantic.ValidationError as error:
        count = error.error_count()
        said = str(error) if count <= _MOST_ERRORS else f"{count:,} values are not valid"
    raise ValueError(f"{kind.__qualname__}: {said}")


def _model(types: dict[str, type], name: Any, values: Any, set_fields: Any) -> Any:
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        raise ValueError("the result holds a pydantic model, and pydantic is not imported here")
    kind = _find(types, name, pydantic.BaseModel, "pydantic model")
    seen = _may_validate(kind)
    fields = kind.model_fields
    if any(type(key) is not str for key in want(values, dict)):
        raise ValueError(f"{kind.__qualname__} has a field whose name is not text")
    extra = values.keys() - fields.keys()
    if fields.keys() - values.keys() or (extra and kind.model_config.get("extra") != "allow"):
        raise ValueError(f"{kind.__qualname__} has other fields here: {', '.join(fields)[:500]}")
    for base in kind.__mro__ if extra else ():
        code = getattr(vars(base).get("__init__"), "__code__", None)
        if code is None:
            continue
        named = slice(code.co_posonlyargcount, code.co_argcount + code.co_kwonlyargcount)
        if not extra.isdisjoint(code.co_varnames[named]):
            # As of pydantic-settings: `_env_file` would name a file that is read here.
            raise ValueError(f"{kind.__qualname__} has a field that its __init__ takes for its own")
    _check_stored(kind, values, seen)
    _check_tries(kind, values, seen)
    chosen = {want(field, str) for field in want(set_fields, list)}
    by_input = {}
    for key, value in _with_paths(values, seen).items():
        alias = fields[key].validation_alias if key in fields else None
        if alias is not None and not isinstance(alias, str):
            raise ValueError(f"{kind.__qualname__}.{key} has an alias that is not a plain name")
        by_name = kind.model_config.get("populate_by_name") or alias is None
        by_input[key if by_name else alias] = value
    # A model of one root takes what it stores as it is.
    given = values["root"] if issubclass(kind, pydantic.RootModel) else by_input
    model = _validated(kind, lambda: kind.model_validate(given))
    model.__pydantic_fields_set__ = chosen & values.keys()
    return model


def _with_paths(values: dict[str, Any], seen: Validation) -> dict[str, Any]:
    """pydantic takes a path that cannot be opened for no `Path`."""
    if not seen.paths:
        return values
    return {**values, **{name: _as_path(values[name]) for name in seen.paths & values.keys()}}


def _as_path(value: Any) -> Any:
    from pathlib import Path, PurePosixPath

    if type(value) is PurePosixPath:
        return Path(value)
    if type(value) is dict:
        return {_as_path(key): _as_path(item) for key, item in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(map(_as_path, value))
    return value


def _later(module: str, name: str) -> Callable[..., Any]:
    """A builder of a module of ours that is imported when first needed."""

    @functools.cache
    def builder() -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(
            importlib.import_module(f"hutch._results.build_{module}"), name
        )
        return found

    def build(*fields: Any) -> Any:
        return builder()(*fields)

    return build


# From 0x20 to 0x24 the caller's `types` come before the fields.
BUILDERS: dict[int, Callable[..., Any]] = {
    0x10: _date,
    0x11: _time,
    0x12: _datetime,
    0x13: _timedelta,
    0x14: _timezone,
    0x15: _zone_info,
    0x16: _decimal,
    0x17: _fraction,
    0x18: _uuid,
    0x19: _path,
    0x20: _enum,
    0x21: _flag,
    0x22: _dataclass,
    0x23: _named_tuple,
    0x24: _model,
    0x30: _later("arrays", "ndarray"),
    0x31: _later("arrays", "scalar"),
    0x32: _later("arrays", "numpy_str"),
    0x33: _later("arrays", "numpy_bytes"),
    0x40: _later("arrays", "object_column"),
    0x41: _later("arrays", "zoned_column"),
    0x42: _later("arrays", "categorical"),
    0x43: _later("arrays", "masked_column"),
    0x44: _later("arrays", "string_column"),
    0x45: _later("arrow", "typed_column"),
    0x46: _later("arrays", "index"),
    0x47: _later("arrays", "range_index"),
    0x48: _later("arrays", "multi_index"),
    0x49: _later("arrays", "series"),
    0x4A: _later("arrays", "data_frame"),
    0x4B: _later("arrays", "timestamp"),
    0x4C: _later("arrays", "timedelta"),
    0x4D: _later("arrays", "not_a_time"),
    0x4E: _later("arrays", "not_available"),
    0x50: _later("arrow", "array"),
    0x51: _later("arrow", "chunked"),
    0x52: _later("arrow", "table"),
    0x53: _later("polars", "frame"),
    0x54: _later("polars", "series"),
    0x55: _later("torch", "tensor"),
    0x60: _later("arrays", "image"),
}
