# SPDX-License-Identifier: Apache-2.0
"""Names that are opened past those that cannot be: what these are not part of is as it was."""

from __future__ import annotations

import io
import pickle
import random
import types
from collections.abc import Iterator
from typing import Any

import opening
import pytest
from cloudpickle import Pickler  # type: ignore[import-untyped,unused-ignore]

fails = False


def made(*parts: Any) -> Any:
    if fails:
        raise ValueError("not this")
    return Bad(*parts)


class Bad:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return made, self.parts


class BadState:
    """Is there when its state fails."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        if fails:
            raise ValueError("not this")
        self.__dict__.update(state)


class Good:
    pass


class Listed(list[Any]):
    pass


def stream_of(names: dict[str, Any]) -> bytearray:
    out = io.BytesIO()
    pickler = Pickler(out, 5)
    for name, value in {**names, "": b""}.items():
        pickler.dump([name, value])
    return bytearray(out.getvalue())


def opened(stream: bytearray, dispensable: Any) -> tuple[dict[str, Any], dict[str, str]]:
    found, left_out = {}, {}
    for part in opening.parts_of(stream, [], dispensable):
        if part.why_not:
            left_out[part.name] = part.why_not
        elif part.name:
            found[part.name] = part.value
    return found, left_out


def children(one: Any) -> Iterator[Any]:
    if isinstance(one, dict):
        yield from one.values()
    elif isinstance(one, (list, tuple, frozenset)):
        yield from one
    if isinstance(one, types.FunctionType):
        yield from (cell.cell_contents for cell in one.__closure__ or ())
        yield from one.__dict__.values()
    elif hasattr(one, "__dict__") and not isinstance(one, type):
        yield from vars(one).values()


def reaches_bad(value: Any) -> bool:
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, (Bad, BadState)):
            return True
        if id(one) not in seen:
            seen.add(id(one))
            waiting += children(one)
    return False


def shape(value: Any, seen: dict[int, int]) -> Any:
    """The same for two values with the same content and the same identities."""
    if isinstance(value, (str, int, bytes)):
        return value
    if id(value) in seen:
        return ("again", seen[id(value)])
    seen[id(value)] = len(seen)
    inner = [shape(one, seen) for one in children(value)]
    return type(value).__name__, inner


def function_of(value: Any) -> Any:
    def inner() -> Any:
        return value

    inner.__module__ = "__main__"  # is pickled by value
    return inner


def names_at(seed: int) -> dict[str, Any]:
    """A graph of objects, with circles."""
    chance = random.Random(seed)
    pool: list[Any] = ["text", 7, b"bytes"]
    names: dict[str, Any] = {}
    for number in range(chance.randint(5, 40)):
        some = [chance.choice(pool) for _ in range(chance.randint(0, 3))]
        kind = chance.randrange(10)
        one: Any
        if kind == 0 and chance.random() < 0.5:
            one = Bad(*some)
        elif kind == 1 and chance.random() < 0.5:
            one = BadState()
            one.state = some
        elif kind in (2, 3):
            one = Good()
            vars(one).update((f"a{i}", part) for i, part in enumerate(some))
        elif kind == 4:
            one = dict(enumerate(some))
        elif kind == 5:
            one = tuple(some)
        elif kind == 6:
            one = Listed(some)
        elif kind == 7:
            one = function_of(some[0] if some else None)
        else:
            one = some
        lists = [part for part in pool if isinstance(part, list)]
        if lists and chance.random() < 0.3:
            chance.choice(lists).append(one)  # perhaps a circle
        pool.append(one)
        if chance.random() < 0.5:
            names[f"n{number}"] = one
    return names


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_what_has_nothing_to_do_with_what_fails_comes_as_it_was(start: int) -> None:
    global fails
    tried = 0
    for seed in range(start, start + 100):
        names = names_at(seed)
        bad = {name for name, value in names.items() if reaches_bad(value)}
        stream = stream_of(names)
        fails = False
        whole, none = opened(stream, set(names))
        assert not none and whole.keys() == names.keys()
        fails = True
        try:
            found, left_out = opened(stream, bad)
            assert left_out.keys() == bad, seed
            kept = {name: value for name, value in names.items() if name not in bad}
            assert shape(found, {}) == shape(kept, {}), seed
            if bad:
                tried += 1
                with pytest.raises(pickle.PicklingError):
                    opened(stream, bad - {min(bad)})
        finally:
            fails = False
    assert tried > 20
