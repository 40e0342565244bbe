# SPDX-License-Identifier: Apache-2.0
"""Text from a sandbox, or about a value from one: harmless to a terminal, and bounded in length.

A cell's text and the repr of its values may be anything and of any size. Pure; safe on any thread.
"""

from __future__ import annotations

import math
import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_TEXT = 2000  # characters of each text in a report

# What moves a cursor, starts a terminal's command or reorders what is read, not \n and \t; and half
# characters, which nothing that writes UTF-8 takes.
_PLACES = (
    *range(9),
    *range(11, 32),
    *range(127, 160),
    *(0x61C, 0x200E, 0x200F),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)
_ESCAPES = {place: f"\\x{place:02x}" if place < 256 else f"\\u{place:04x}" for place in _PLACES}
_CONTROL = re.compile(f"[{''.join(map(chr, _PLACES))}]")


def escape(text: str) -> str:
    text = text.replace("\r\n", "\n")
    return text.translate(_ESCAPES) if _CONTROL.search(text) else text


def one_line(text: str) -> str:
    return " ".join(text.split())


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def cut_in_middle(text: str, most: int, missing: int = 0) -> str:
    """The text, or its two ends of `most` characters together, with the number of those that are
    left out between them; of which `missing` were left out of `text` before, in its middle.
    """
    if len(text) <= most:
        return text
    half = most // 2
    number = len(text) - 2 * half + missing
    return f"{text[:half]}\n… ({number:,} more characters left out) …\n{text[-half:]}"


def escaped_ends(text: str, most: int, missing: int = 0) -> str:
    """As `cut_in_middle`, escaped: the two ends then have `most` characters together."""
    if len(text) <= most:
        escaped = escape(text)
        if len(escaped) <= most:
            return escaped
    half = most // 2
    first, last = _fitting(text[:half], half), _fitting(text[: -half - 1 : -1], half)
    number = len(text) - first - last + missing
    begin, end = escape(text[:first]), escape(text[len(text) - last :])
    return f"{begin}\n… ({number:,} more characters left out) …\n{end}"


def _fitting(text: str, most: int) -> int:
    """How many characters of its beginning are no more than `most` once they are escaped."""
    if len(escape(text)) <= most:
        return len(text)
    lengths = accumulate(len(escape(one)) for one in text)
    return sum(length <= most for length in lengths)


_MOST_ITEMS = 10_000  # of an array that its repr spells out
_JSON_DIGITS = 4000  # of an int; beyond 4300 Python writes none, unless it is asked to


_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}


def brief_repr(value: Any) -> str:
    """The repr of a value that may be anything and of any size, or how it begins: that takes no
    longer for a large one.
    """
    return _brief(value, [100], 6)


def _brief(value: Any, room: list[int], depth: int) -> str:
    """`room`: how many values may still be shown."""
    room[0] -= 1
    kind = type(value)
    if kind is int:
        return _whole_number(value, 4096)
    if kind in (str, bytes, bytearray):
        return repr(value[:200]) + ("…" if len(value) > 200 else "")
    from hutch._results import types

    brackets = _BRACKETS.get(kind)
    if brackets is None and types.is_record(kind):
        fields = types.record_fields(value)
        inner = _list_of(((f"{name}=", item) for name, item in fields), room, depth)
        return f"{kind.__qualname__}({inner})"
    if brackets is None:
        text = own_repr(value)
        return f"<{kind.__name__}>" if text is None else text
    if kind is dict:
        pairs = ((f"{_brief(key, room, depth - 1)}: ", item) for key, item in value.items())
        inner = _list_of(pairs, room, depth)
    else:
        inner = _list_of((("", item) for item in value), room, depth)
    if kind is tuple and len(value) == 1:
        inner += ","
    if kind in (set, frozenset) and not value:
        return f"{kind.__name__}()"
    text = brackets[0] + inner + brackets[1]
    return f"frozenset({text})" if kind is frozenset else text


def _list_of(items: Iterator[tuple[str, Any]], room: list[int], depth: int) -> str:
    if depth == 0:
        return "…"
    shown = []
    for before, item in items:
        if room[0] <= 0:
            shown.append("…")
            break
        shown.append(before + _brief(item, room, depth - 1))
    return ", ".join(shown)


def _whole_number(value: int, most_bits: int) -> str:
    if value.bit_length() <= most_bits:
        return repr(value)
    return f"<int of {value.bit_length():,} bits>"


def as_json(value: Any, depth: int = 0) -> Any:
    """`value` as JSON can hold it, for a reader that has JSON only: what it cannot is there as
    text."""
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if value.bit_length() <= 3 * _JSON_DIGITS else _whole_number(value, 0)
    if type(value) is float:
        return value if value - value == 0 else repr(value)  # no NaN or infinity in JSON
    if depth < 20:
        if type(value) in (list, tuple, set, frozenset):
            return [as_json(item, depth + 1) for item in value]
        if type(value) is dict:
            return {
                key if type(key) is str else _repr_of(key): as_json(item, depth + 1)
                for key, item in value.items()
            }
    return _repr_of(value)


def _repr_of(value: Any) -> str:
    text = own_repr(value)
    return shortened(brief_repr(value) if text is None else text, MOST_TEXT)


def shown(value: Any, most: int) -> str:
    """The repr, cut to `most` characters; of a value that has more in it, how it begins."""
    if type(value) in (str, bytes, bytearray):
        return repr(value[:most])[:most]
    text = own_repr(value) if _has_at_most(value, most) else None
    return (brief_repr(value) if text is None else text)[:most]


def repr_to_cut(value: Any, most: int) -> tuple[str, int]:
    """The repr, for cut_in_middle(…, most), and how many characters of a long text it lacks. Of
    another value that has more than `most` in it, how it begins.
    """
    if type(value) in (str, bytes, bytearray) and len(value) > 2 * most:
        ends = repr(value[:most] + value[-most:])
        return ends, len(value) - 2 * most
    text = own_repr(value) if _has_at_most(value, 2 * most) else None
    return (brief_repr(value) if text is None else text), 0


def _has_at_most(value: Any, most: int) -> bool:
    """Whether its texts and numbers, as far as built-in containers and records hold them, have no
    more characters.
    """
    from hutch._results import types

    waiting = [value]
    while waiting and most >= 0:
        one = waiting.pop()
        kind = type(one)
        if kind is int:
            most -= one.bit_length() // 4
        elif kind in (str, bytes, bytearray) or kind in _BRACKETS:
            most -= len(one)
        most -= 1
        if most >= 0 and kind in _BRACKETS:
            waiting.extend(one)
            waiting.extend(one.values() if kind is dict else ())
        elif most >= 0 and types.is_record(kind):
            waiting.extend(item for _, item in types.record_fields(one))
    return most >= 0


def _is_spelled_out(value: Any) -> bool:
    """Of an array, whose repr leaves out what is in the middle of an axis, but no axis: one of many
    short axes is spelled out, which takes seconds for each of its megabytes.
    """
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple) or not all(isinstance(length, int) for length in shape):
        return False
    items: int = math.prod(min(length, 6) for length in shape)
    return items > _MOST_ITEMS


def own_repr(value: Any) -> str | None:
    """None: it fails, as of an int of too many digits, or of a time far from all calendars; or it
    takes long, as of an array of many axes.
    """
    try:
        if _is_spelled_out(value):
            return None
        return repr(value)
    except BaseException as error:
        from hutch._results.fields import is_panic

        if not isinstance(error, Exception) and not is_panic(error):
            raise
        return None
