# SPDX-License-Identifier: Apache-2.0
"""Whether a value from a sandbox is one of some values of the host's. Safe on any thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from hutch._text import brief_repr

_SCALARS = (str, int, float, bool, bytes, type(None))
_MOST_SHOWN = 20

NONE: Final = object()


class Choices:
    """Of pairs of a value and what it stands for. Equal are values of one type: True is not 1.

    However many scalars there are, it takes as long to find one. The others are looked through:
    `others` is how many values these have with all that is in them.
    """

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self._scalars: dict[tuple[type, Any], Any] = {}
        self._others: list[tuple[Any, Any]] = []
        self._bits = 0  # of the largest int: it takes long to hash a larger one
        shown: list[str] = []
        for value, meaning in pairs:
            if len(shown) < _MOST_SHOWN:
                shown.append(brief_repr(value))
            if type(value) in _SCALARS:
                self._scalars.setdefault((type(value), value), meaning)
            else:
                self._others.append((value, meaning))
            if type(value) is int:
                self._bits = max(self._bits, value.bit_length())
        self.others = sum(_count(value) for value, _ in self._others)
        left = len(self._scalars) + len(self._others) - len(shown)
        self._text = ", ".join(shown) + (f" or {left:,} others" if left > 0 else "")

    def find(self, value: Any) -> Any:
        """What it stands for; NONE, if it is none of them."""
        kind = type(value)
        if kind in _SCALARS:
            if kind is int and value.bit_length() > self._bits:
                return NONE
            return self._scalars.get((kind, value), NONE)
        for one, meaning in self._others:
            if type(one) is kind and one == value:
                return meaning
        return NONE

    def __str__(self) -> str:
        return self._text


def _count(value: Any) -> int:
    if type(value) is dict:
        return 1 + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if type(value) in (list, tuple) else 1
