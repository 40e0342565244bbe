# SPDX-License-Identifier: Apache-2.0
"""Checks of one value of a keyword, and the name that was meant by one that there is not.

Each returns the value as it is kept, or raises ValueError, or TypeError for what is no value of its
kind; the message names the keyword, the value and what is allowed. Pure; safe on any thread.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_YEAR = 366 * 86400.0
_TIB = 1 << 20  # in MiB


def quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def without_credentials(text: str) -> str:
    """Without those of the addresses in it."""
    return re.sub(r"(?<=://)[^/\s]*@", "***@", text)


def _number(name: str, value: Any, low: float, high: float, *, zero: bool = False) -> float:
    """A finite number above `low` (or equal, if `zero`) up to `high`."""
    if isinstance(value, (bool, str, bytes)) or not (
        hasattr(type(value), "__float__") or hasattr(type(value), "__index__")
    ):
        raise TypeError(f"{name} takes a number, not {type(value).__name__}: {quoted(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = high * 2  # a whole number that no float holds
    if number != number:
        raise ValueError(f"{name} is NaN: give a number")
    if number < low or (number == low and not zero):
        bound = "0 or more" if zero else f"more than {low:g}"
        raise ValueError(f"{name}={quoted(value)} is too small: it must be {bound}")
    if number > high:
        raise ValueError(f"{name}={quoted(value)} is too large: it can be at most {high:g}")
    return number


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, float) and value == value and abs(value) < 1e18 and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        if isinstance(value, float):
            raise ValueError(f"{name}={value!r} is not a whole number")
        raise TypeError(f"{name} takes a whole number, not {type(value).__name__}: {quoted(value)}")
    number = value.__index__()
    if number < low:
        raise ValueError(f"{name}={number} is too small: it must be {low} or more")
    if number > high:
        raise ValueError(f"{name}={quoted(number)} is too large: it can be at most {high}")
    return cast(int, number)


def _optional_sec(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, float) and value == float("inf"):
        raise ValueError(f"{name}=inf: say {name}=None for no limit")
    return _number(name, value, 0, _YEAR)


def _sec(name: str, value: Any) -> float:
    if value is None:
        raise TypeError(f"{name} takes a number of seconds; it cannot be None")
    return _number(name, value, 0, _YEAR)


def _wait_sec(name: str, value: Any) -> float:
    return _number(name, value, 0, _YEAR, zero=True)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} takes text, not {type(value).__name__}: {quoted(value)}")
    if "\0" in value:
        raise ValueError(f"{name} holds a NUL character")
    return value


def _pairs(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not hasattr(value, "items"):
        raise TypeError(f"{name} takes a dict of str to str, not {type(value).__name__}")
    pairs = []
    for key, item in value.items():
        key = _utf8(f"a name in {name}", key)
        if not key or "=" in key:
            raise ValueError(f"{name} has the name {key!r}: a name is not empty and has no '='")
        pairs.append((key, _utf8(f"{name}[{key!r}]", item)))
    return tuple(sorted(pairs))


def _utf8(name: str, value: Any) -> str:
    """Text that the agent can be sent."""
    text = _text(name, value)
    try:
        text.encode()
    except UnicodeEncodeError:  # Python has bytes of its own environment so
        raise ValueError(f"{name} is not UTF-8: leave it out, or write it as text") from None
    return text


def _items(name: str, value: Any) -> tuple[Any, ...]:
    """A sequence; what is not iterable, or is text, is one item."""
    if value is None:
        return ()
    if isinstance(value, (str, os.PathLike)) or not hasattr(value, "__iter__"):
        return (value,)
    if isinstance(value, (bytes, dict)):
        raise TypeError(f"{name} takes a list, not {type(value).__name__}")
    return tuple(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} takes True or False, not {quoted(value)}")
    return value


_UNITS = {"sec": "seconds", "mb": "MiB (1 MiB = 1,048,576 bytes)"}
_SUFFIX = (
    "s ms us ns sec secs second seconds min minutes hours b kb kib k mb mib m gb gib g tb tib "
    "bytes limit size mbytes"
).split()
_PREFIX = ("max", "limit", "total")
_NONE: Mapping[str, str] = {}
_CLOSE = 0.8  # of difflib's ratio: "gpus" and "cpus" have 0.75, as have "image" and "age"


def nearest(name: str, known: Collection[str], aliases: Mapping[str, str] = _NONE) -> str:
    """The one of `known` that was most likely meant, "" if none is near. `aliases`: what others
    call them, without the unit and without words that say nothing.
    """
    import difflib

    def stem(text: str) -> str:
        words = text.lower().replace("-", "_").split("_")
        while len(words) > 1 and words[-1] in _SUFFIX:
            words.pop()
        while len(words) > 1 and words[0] in _PREFIX:
            words.pop(0)
        return "_".join(words)

    wanted = stem(name)
    if aliases.get(name) in known:
        return aliases[name]
    for item in known:
        if stem(item) == wanted:
            return item
    if aliases.get(wanted) in known:
        return aliases[wanted]
    close = difflib.get_close_matches(name, known, 1, _CLOSE) or difflib.get_close_matches(
        wanted, [stem(item) for item in known], 1, _CLOSE
    )
    return next((item for item in known if close and close[0] in (item, stem(item))), "")


def unknown(
    kind: str,
    name: str,
    known: Collection[str],
    aliases: Mapping[str, str] = _NONE,
    instead: Mapping[str, str] = _NONE,
) -> str:
    """The sentence about a name that there is not; `kind`: "keyword", "key". `instead`: what is to
    be said of names that mean none of `known`.
    """
    if name in instead:
        return f"unknown {kind} {name!r}: {instead[name]}"
    meant = nearest(name, known, aliases)
    if not meant:
        return f"unknown {kind} {name!r}"
    unit = _UNITS.get(meant.rpartition("_")[2])
    return f"unknown {kind} {name!r}; did you mean {meant!r}" + (f", in {unit}?" if unit else "?")
