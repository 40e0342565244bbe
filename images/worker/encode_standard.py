# SPDX-License-Identifier: Apache-2.0
"""The part of the encoder for the standard library's types and for classes of the user's own (see
encode.py).

`handler(kind)` gives the function that writes values of exactly that class, or None. A class of
the user's own travels as its name and its fields; the host looks the name up among those that the
caller's annotations and arguments name.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, Iterable

if TYPE_CHECKING:
    from encode import Encoder

    Handler = Callable[[Encoder, Any], None]

NO_CLASS = "a class of the sandbox's own is not returned: return what it is made of, as a dict"
_BUILTINS = (int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)


def handler(kind: type) -> Handler | None:
    found = _TABLE.get(kind.__qualname__)
    if found is not None and getattr(sys.modules.get(found[0]), kind.__qualname__, None) is kind:
        return found[1]
    enum = sys.modules.get("enum")
    if enum and issubclass(kind, enum.Enum):
        return _flag if issubclass(kind, enum.Flag) else _enum
    if issubclass(kind, tuple) and type(getattr(kind, "_fields", None)) is tuple:
        return _named_tuple
    if "__dataclass_fields__" in dir(kind) and not issubclass(kind, (*_BUILTINS, BaseException)):
        return _dataclass
    pydantic = sys.modules.get("pydantic")
    if pydantic and issubclass(kind, pydantic.BaseModel):
        return _model
    return None


def named_fields_of(x: Any) -> Iterable[tuple[str, Any]]:
    """Names and values of what a class of the user's own is made of; nothing of another value."""
    kind = type(x)
    names = getattr(kind, "_fields", None)
    if issubclass(kind, tuple) and type(names) is tuple:
        return zip(names, tuple.__iter__(x))
    names = kind.__dict__.get("__dataclass_fields__") or getattr(kind, "model_fields", None)
    if type(names) is dict:
        return ((name, getattr(x, name, None)) for name in names)
    return ()


def fields_of(x: Any) -> list[Any] | None:
    """Their values; None: it has none. Also of the dicts that travel as the dict they equal."""
    if isinstance(x, dict):
        return [*dict.keys(x), *dict.values(x)]
    return [value for _, value in named_fields_of(x)] or None


def _date(e: Encoder, x: Any) -> None:
    e.mark(0x10, x.year, x.month, x.day)


def _time(e: Encoder, x: Any) -> None:
    e.mark(0x11, x.hour, x.minute, x.second, x.microsecond, x.fold, x.tzinfo)


def _datetime(e: Encoder, x: Any) -> None:
    clock = (x.hour, x.minute, x.second, x.microsecond, x.fold, x.tzinfo)
    e.mark(0x12, x.year, x.month, x.day, *clock)


def _timedelta(e: Encoder, x: Any) -> None:
    e.mark(0x13, x.days, x.seconds, x.microseconds)


def _timezone(e: Encoder, x: Any) -> None:
    arguments = x.__getinitargs__()
    e.mark(0x14, arguments[0], arguments[1] if len(arguments) > 1 else None)


def _fixed_offset(e: Encoder, x: Any) -> None:
    e.mark(0x14, x.utcoffset(None), None)


def _zone_info(e: Encoder, x: Any) -> None:
    if x.key is None:
        e.refuse(x, "a ZoneInfo made from a file has no key: use ZoneInfo('Area/City')")
    e.mark(0x15, x.key)


def _decimal(e: Encoder, x: Any) -> None:
    sign, digits, exponent = x.as_tuple()
    if len(digits) > 100_000 or (type(exponent) is int and abs(exponent) > 999_999):
        e.refuse(
            x, "it has more than 100,000 digits or an exponent beyond 999,999: return it as str"
        )
    e.mark(0x16, sign, "".join(map(str, digits)), exponent)


def _fraction(e: Encoder, x: Any) -> None:
    if max(x.numerator.bit_length(), x.denominator.bit_length()) > 32_768:
        e.refuse(x, "a part of it has more than 32,768 bits: return numerator and denominator")
    e.mark(0x17, x.numerator, x.denominator)


def _uuid(e: Encoder, x: Any) -> None:
    e.mark(0x18, x.bytes)


def _path(e: Encoder, x: Any) -> None:
    e.mark(0x19, str(x))


def _dict(e: Encoder, x: Any) -> None:
    e.map({key: value for key, value in x.items()})


_TABLE: dict[str, tuple[str, Handler]] = {
    "date": ("datetime", _date),
    "time": ("datetime", _time),
    "datetime": ("datetime", _datetime),
    "timedelta": ("datetime", _timedelta),
    "timezone": ("datetime", _timezone),
    "TzInfo": ("pydantic_core._pydantic_core", _fixed_offset),
    "ZoneInfo": ("zoneinfo", _zone_info),
    "Decimal": ("decimal", _decimal),
    "Fraction": ("fractions", _fraction),
    "UUID": ("uuid", _uuid),
    "PosixPath": ("pathlib", _path),
    "PurePosixPath": ("pathlib", _path),
    "OrderedDict": ("collections", _dict),
    "defaultdict": ("collections", _dict),
    "Counter": ("collections", _dict),
}


def _wire_name(e: Encoder, x: Any) -> str:
    if not e.named:
        e.refuse(x, NO_CLASS)
    return f"{type(x).__module__}.{type(x).__qualname__}"


def _enum(e: Encoder, x: Any) -> None:
    e.mark(0x20, _wire_name(e, x), x._name_)


def _flag(e: Encoder, x: Any) -> None:
    e.mark(0x21, _wire_name(e, x), int(x._value_))


def _named(
    e: Encoder, kind: int, x: Any, values: dict[str, Any], more: tuple[Any, ...] = ()
) -> None:
    """Name and fields; unlike in a dict, a refused field's step is `.field`."""
    e.open(2 + len(more), kind)
    e.value(_wire_name(e, x))
    e.open_map(len(values))
    for name, value in values.items():
        e.value(name)
        e.value(value, "." + name)
    e.close()
    for field in more:
        e.value(field)
    e.close()


def _dataclass(e: Encoder, x: Any) -> None:
    _named(e, 0x22, x, {f: getattr(x, f) for f, field in _fields(x).items() if field.init})


def _fields(x: Any) -> dict[str, Any]:
    dataclasses = sys.modules["dataclasses"]
    return {field.name: field for field in dataclasses.fields(x)}


def _named_tuple(e: Encoder, x: Any) -> None:
    e.open(2, 0x23)
    e.value(_wire_name(e, x))
    e.open(len(x))
    for name, value in zip(type(x)._fields, tuple.__iter__(x)):
        e.value(value, "." + name)
    e.close()
    e.close()


def _model(e: Encoder, x: Any) -> None:
    if not hasattr(type(x), "model_fields"):
        e.refuse(x, "models of pydantic 1 do not travel: return x.dict()")
    values = {name: x.__dict__[name] for name in type(x).model_fields}
    values.update(x.model_extra or {})
    _named(e, 0x24, x, values, (sorted(x.model_fields_set),))
