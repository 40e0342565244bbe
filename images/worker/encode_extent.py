# SPDX-License-Identifier: Apache-2.0
"""How large a value is at least, and what of it is too large (see encode.py)."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any, Iterable

import encode_standard
from encode_refusals import MAX_DEPTH, step_in_dict, step_in_list

_LONG = 4096  # items: of a longer list whose ends are plain, the rest is taken for plain, too
_CONTAINERS = {list, tuple, dict, set, frozenset}
_PLAIN = {type(None), bool, int, float}
_TEXTS = {str, bytes, bytearray}


class Extent:
    """At least how many bytes a value makes, in time that grows with what is in memory: each
    container is looked through once, however often it is met.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.known: dict[int, int] = {}  # by id of the container

    def of(self, x: Any, depth: int = 0) -> int:
        if type(x) in _TEXTS:
            return 1 + len(x)
        children = _children(x)
        if children is None:
            return 1 + _bytes_beside(x)
        if self.has_too_many(x):
            return 1 + len(x)
        known = self.known.get(id(x))
        if known is not None:
            return known
        self.known[id(x)] = size = 1  # what holds itself is refused elsewhere
        if depth <= MAX_DEPTH:
            for child in children:
                kind = type(child)
                if kind in _PLAIN:
                    size += 1
                else:
                    size += 1 + len(child) if kind is str else self.of(child, depth + 1)
        self.known[id(x)] = size
        return size

    def has_too_many(self, x: Any) -> bool:
        """Whether its items alone are too many, which then need not be looked through."""
        return type(x) in _CONTAINERS and len(x) > self.limit

    def culprit(self, value: Any) -> str:
        """The path of the innermost value that alone is too large."""
        path = "result"
        try:
            while True:
                children = _children(value)
                if children is None or self.has_too_many(value):
                    return path
                large = [child for child in children if self.of(child) > self.limit]
                if len(large) != 1:
                    return path
                path += _step_to(value, large[0])
                value = large[0]
        except Exception:
            return path


def _children(x: Any) -> Iterable[Any] | None:
    kind = type(x)
    if kind is list or kind is tuple:
        if len(x) >= _LONG and {type(x[0]), type(x[len(x) // 2]), type(x[-1])} <= _PLAIN:
            return repeat(None, len(x))
        return x  # type: ignore[no-any-return]
    if kind is dict:
        return chain(x, x.values())
    if kind is set or kind is frozenset:
        return x  # type: ignore[no-any-return]
    if kind in _PLAIN or kind in _TEXTS:
        return None
    return encode_standard.fields_of(x)


def _bytes_beside(x: Any) -> int:
    """Of what is written as its bytes, and holds no other values."""
    if type(x).__module__ in ("numpy", "pandas", "pandas.core.frame", "pandas.core.series"):
        size = getattr(x, "nbytes", 0)
        return size if type(size) is int else 0
    return 0


def _step_to(x: Any, child: Any) -> str:
    if type(x) is dict:
        return step_in_dict(x, child)
    if type(x) in (list, tuple, set, frozenset):
        return step_in_list(x, child)
    names = (name for name, value in encode_standard.named_fields_of(x) if value is child)
    return "." + next(names, "?")
