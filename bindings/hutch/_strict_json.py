# SPDX-License-Identifier: Apache-2.0
"""JSON that another machine sent, parsed at a cost that is bounded beforehand. Pure; safe on any
thread.
"""

from __future__ import annotations

import json
import re
from typing import Any

# An empty list takes 64 bytes of memory for 3 of the text, and time: so they are counted first.
MOST_VALUES = 1_000_000
MOST_DEPTH = 32
_SEPARATORS = (b",", b"[", b"{")
_FEW_VALUES = 1000
_OF_A_VALUE = 100  # bytes of memory, beside those of texts; an object with one field has two


def parsed(
    data: bytes, most_values: int = MOST_VALUES, most_digits: int | None = None
) -> dict[str, Any]:
    """An object whose fields are each there once, of at most so many values and levels, whose whole
    numbers have at most so many digits, of which reading takes the time of their square. Raises
    ValueError, whose text goes on after "the body", or whatever the data is.
    """
    if sum(map(data.count, _SEPARATORS)) > most_values and _values(data) > most_values:
        raise ValueError(f"holds more than {most_values} values")
    try:
        decoder = _DECODER if most_digits is None else _decoder(data, most_digits)
        found = decoder.decode(data.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8, at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"is not JSON: {why[:500]}") from None
    if type(found) is not dict:
        raise ValueError("is not a JSON object")
    if data.count(b"[") + data.count(b"{") > MOST_DEPTH and _is_deep(found):
        raise ValueError(f"is nested more than {MOST_DEPTH} deep")
    return found


def memory(data: bytes) -> int:
    """Bytes that what is parsed of `data` takes at the most, about."""
    wide = not data.isascii() or b"\\u" in data  # characters of a text have 4 bytes if one has
    values = sum(map(data.count, _SEPARATORS))
    if values > _FEW_VALUES:  # it may be a text with commas
        values = _values(data)
    return len(data) * (4 if wide else 1) + _OF_A_VALUE * values


def _values(data: bytes) -> int:
    """About how many, not counting what stands in texts; takes time as the data's size does."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = plain.count(b'"')
    if quotes > 4 * MOST_VALUES:
        return quotes
    outside = b"".join(plain.split(b'"')[::2])
    return sum(map(outside.count, _SEPARATORS))


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for one in level
            for inner in (one.values() if type(one) is dict else one)
            if type(inner) in (dict, list)
        ]
        if not level:
            return False
    return True


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field is there twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse)


_LOOKED_AT = 10  # digits of a number that has too many


def _decoder(data: bytes, most_digits: int) -> json.JSONDecoder:
    # Of so many digits in a row some are at these places, which alone are looked at.
    places = data[:: most_digits // _LOOKED_AT]
    if re.search(rb"[0-9]{%d}" % (_LOOKED_AT - 1), places) is None:
        return _DECODER

    def whole(text: str) -> int:
        if len(text) > most_digits:
            raise ValueError(f"a number has more than {most_digits} digits")
        return int(text)

    return json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse, parse_int=whole)
