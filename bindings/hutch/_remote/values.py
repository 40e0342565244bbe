# SPDX-License-Identifier: Apache-2.0
"""Values of sessions as JSON and back: plain data, and by an object with one field that begins with
`$` what JSON has not. Values; safe on any thread.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import fractions
import math
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

MOST_VALUES = 100_000
_MOST_DEPTH = 28  # levels of JSON, with those around it
_SAFE = 1 << 53  # whole numbers that every reader of JSON has are below
_MOST_DIGITS = 1000  # of a decimal number, and of each part of a fraction
_MOST_ALIKE = 64


class NotData(Exception):
    """What it is, or that there is too much of it."""


def to_json(value: Any) -> Any:
    """Raises NotData."""
    return _Encoder().of(value, 0)


class _Encoder:
    def __init__(self) -> None:
        self._left = MOST_VALUES

    def of(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise NotData(f"it holds more than {MOST_VALUES:,} values")
        if depth > _MOST_DEPTH:
            raise NotData("it is nested too deep")
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            if not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value):
                return {"$str": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}
            return value
        if kind is int:
            return value if -_SAFE < value < _SAFE else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind is list:
            return [self.of(one, depth + 1) for one in value]
        if kind in (tuple, set, frozenset):
            return {f"${kind.__name__}": [self.of(one, depth + 2) for one in value]}
        if kind is dict:
            if all(type(key) is str and key.isascii() and key[:1] != "$" for key in value):
                return {key: self.of(one, depth + 1) for key, one in value.items()}
            pairs = [[self.of(part, depth + 3) for part in pair] for pair in value.items()]
            return {"$dict": pairs}
        encode = _ENCODERS.get(kind)
        if encode is None:
            raise NotData(f"it holds a {kind.__name__}")
        return {f"${kind.__name__}": encode(value)}


def _of_decimal(value: decimal.Decimal) -> str:
    text = str(value)
    if len(text) > _MOST_DIGITS:
        raise NotData(f"it holds a Decimal of more than {_MOST_DIGITS} digits")
    return text


def _is_named(zone: datetime.timezone) -> bool:
    plain = datetime.timezone(zone.utcoffset(None))
    return zone.tzname(None) != plain.tzname(None)


def _hex(value: int) -> str:
    text = hex(value)
    if len(text) > _MOST_DIGITS:
        raise NotData(f"it holds a Fraction of more than {_MOST_DIGITS} digits")
    return text


def _of_time(value: Any) -> str:
    zone = value.tzinfo
    if zone is not None and (type(zone) is not datetime.timezone or _is_named(zone)):
        raise NotData(f"it holds a {type(value).__name__} of a time zone by name")
    if value.fold:
        raise NotData(f"it holds a {type(value).__name__} of an hour that comes twice")
    text: str = value.isoformat()
    return text


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    bytes: lambda value: base64.b64encode(value).decode(),
    bytearray: lambda value: base64.b64encode(value).decode(),
    complex: lambda value: [repr(value.real), repr(value.imag)],
    decimal.Decimal: _of_decimal,
    fractions.Fraction: lambda value: [_hex(value.numerator), _hex(value.denominator)],
    uuid.UUID: lambda value: value.hex,
    datetime.date: lambda value: value.isoformat(),
    datetime.datetime: _of_time,
    datetime.time: _of_time,
    datetime.timedelta: lambda value: [value.days, value.seconds, value.microseconds],
}


def from_json(found: Any) -> Any:
    """Raises ValueError for what to_json() does not give."""
    try:
        return _decoded(found)
    except ValueError:
        raise
    except (TypeError, ArithmeticError, OverflowError) as error:
        raise ValueError(f"its value is none: {error}") from None


def _decoded(found: Any) -> Any:
    if type(found) is list:
        return [_decoded(one) for one in found]
    if type(found) is not dict:
        return found
    name = next(iter(found), "")
    if name[:1] != "$":
        return {key: _decoded(one) for key, one in found.items()}
    decode = _DECODERS.get(name)
    if decode is None or len(found) != 1:
        raise ValueError(f"its value has {name[:100]!r}")
    return decode(found[name])


def _bytes(text: Any) -> bytes:
    return base64.b64decode(_text(text), validate=True)


def _text(found: Any, most: int | None = None) -> str:
    if type(found) is not str or (most is not None and len(found) > most):
        raise ValueError("its value has a text that is none")
    return found


def _parts(found: Any, count: int | None = None) -> list[Any]:
    if type(found) is not list or (count is not None and len(found) != count):
        raise ValueError("its value has a list that is none")
    return found


def _pairs(found: Any) -> dict[Any, Any]:
    pairs = [(_decoded(_parts(pair, 2)[0]), _decoded(pair[1])) for pair in _parts(found)]
    _spread([key for key, _ in pairs])
    return dict(pairs)


def _spread(keys: list[Any]) -> list[Any]:
    """Their hashes are: of keys that all have the same, each is compared with all before it."""
    hashes = Counter(map(hash, keys))
    if hashes and max(hashes.values()) > _MOST_ALIKE:
        raise ValueError("its value has too many keys of one hash")
    return keys


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$str": lambda found: _bytes(found).decode("utf-8", "surrogatepass"),
    "$int": lambda found: int(_text(found), 16),
    "$float": lambda found: float(_text(found, 30)),
    "$tuple": lambda found: tuple(map(_decoded, _parts(found))),
    "$set": lambda found: set(_spread([*map(_decoded, _parts(found))])),
    "$frozenset": lambda found: frozenset(_spread([*map(_decoded, _parts(found))])),
    "$dict": _pairs,
    "$bytes": _bytes,
    "$bytearray": lambda found: bytearray(_bytes(found)),
    "$complex": lambda found: complex(*(float(_text(one, 30)) for one in _parts(found, 2))),
    "$Decimal": lambda found: decimal.Decimal(_text(found, _MOST_DIGITS)),
    "$Fraction": lambda found: fractions.Fraction(
        *(int(_text(one, _MOST_DIGITS), 16) for one in _parts(found, 2))
    ),
    "$UUID": lambda found: uuid.UUID(hex=_text(found, 32)),
    "$date": lambda found: datetime.date.fromisoformat(_text(found, 50)),
    "$datetime": lambda found: datetime.datetime.fromisoformat(_text(found, 50)),
    "$time": lambda found: datetime.time.fromisoformat(_text(found, 50)),
    "$timedelta": lambda found: datetime.timedelta(*_parts(found, 3)),
}
