# SPDX-License-Identifier: Apache-2.0
"""A call's arguments as bytes: pickle protocol 5, large buffers out of band, and marshal for the
plainest (wire/cell_frame.h).

Buffers (arrays, PickleBuffer) of 64 KiB and more are not copied into the pickle; nor is a large
`bytes` or `bytearray` that is an argument itself. An argument that cannot be pickled is named,
before anything is sent. No shared state.
"""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pickle import PickleBuffer
from typing import Any

from hutch._carry import pickling
from hutch._carry.pickling import Tools
from hutch._errors import SerializationError

OUT_OF_BAND = 64 << 10  # bytes; below it copying is cheaper than a descriptor


class _Large:
    """Stands for a large bytes or bytearray."""

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        return type(self.data), (PickleBuffer(self.data),)


# What any pickler pickles alike, at the speed of C; the second, where they are large, beside it.
_PLAIN = {int, str, float, bool, type(None)}
_SIMPLE = {*_PLAIN, bytes, bytearray, PickleBuffer}


NONE = marshal.dumps((), 2)  # as pickle_arguments gives them, of a call without any


def _kinds(values: Iterable[Any]) -> set[type]:
    return set(map(type, values))


def _is_small(value: Any) -> bool:
    kind = type(value)
    return kind in _PLAIN or (kind is bytes and len(value) < OUT_OF_BAND)


def _outside(value: Any) -> Any:
    if type(value) in (bytes, bytearray) and len(value) >= OUT_OF_BAND:
        return _Large(value)
    return value


def pickle_arguments(
    function: Callable[..., Any] | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    sandbox_modules: frozenset[str] = frozenset(),
    tools: Tools = pickling.NO_TOOLS,
) -> tuple[bytes, list[Any]]:
    """The bytes, and the buffers beside them. Raises SerializationError."""
    kinds = _kinds(args)
    simple = kinds <= _SIMPLE and _kinds(kwargs.values()) <= _SIMPLE
    if not kwargs and (kinds <= _PLAIN or (simple and all(map(_is_small, args)))):
        return marshal.dumps(tuple(args), 2), []
    args = tuple(map(_outside, args))
    kwargs = {name: _outside(value) for name, value in kwargs.items()}
    try:
        if simple:
            return _simply_pickled((args, kwargs))
        return _pickled((args, kwargs), sandbox_modules, tools)
    except Exception as error:
        raise _naming(function, args, kwargs, sandbox_modules, error, tools) from error


def pickle_chunk(
    function: Callable[..., Any] | None,
    items: Sequence[tuple[Any, ...]],
    sandbox_modules: frozenset[str] = frozenset(),
    tools: Tools = pickling.NO_TOOLS,
) -> tuple[bytes, list[Any]]:
    """The same of a list of calls' positional arguments."""
    kinds = _kinds(chain.from_iterable(items))
    simple = kinds <= _SIMPLE
    if kinds <= _PLAIN or (simple and all(map(_is_small, chain.from_iterable(items)))):
        return marshal.dumps(list(map(tuple, items)), 2), []
    calls: list[Any] = [(tuple(map(_outside, args)), {}) for args in items]
    try:
        return _simply_pickled(calls) if simple else _pickled(calls, sandbox_modules, tools)
    except Exception as error:
        for args, _ in calls:
            try:
                _pickled(args, sandbox_modules, tools)
            except Exception as one:
                raise _naming(function, args, {}, sandbox_modules, one, tools) from one
        raise _naming(function, (), {}, sandbox_modules, error, tools) from error


def _simply_pickled(value: Any) -> tuple[bytes, list[Any]]:
    buffers: list[Any] = []
    return pickle.dumps(value, pickling.PROTOCOL, buffer_callback=_keeps(buffers)), buffers


def _pickled(value: Any, sandbox_modules: frozenset[str], tools: Tools) -> tuple[bytes, list[Any]]:
    buffers: list[Any] = []
    keeps = _keeps(buffers)
    return pickling.dumps(value, sandbox_modules, buffer_callback=keeps, tools=tools), buffers


def _keeps(buffers: list[Any]) -> Callable[[PickleBuffer], bool]:
    def keep(buffer: PickleBuffer) -> bool:
        """False: out of band; True: into the pickle."""
        try:
            raw = buffer.raw()
        except BufferError:
            return True  # not contiguous
        if raw.nbytes < OUT_OF_BAND:
            return True
        # A bytes as itself: what takes it out of band may make a bytes of it again.
        buffers.append(raw.obj if type(raw.obj) is bytes else raw)
        return False

    return keep


def _naming(
    function: Callable[..., Any] | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    sandbox_modules: frozenset[str],
    error: Exception,
    tools: Tools,
) -> SerializationError:
    """The error that names the argument: each is tried by itself."""
    found: tuple[str, Any] | None = None
    for name, value in [*zip(_names(function, len(args)), args), *kwargs.items()]:
        try:
            _pickled(value, sandbox_modules, tools)
        except Exception as one:
            found, error = (name, value), one
            break
    reason = " ".join(str(error).split()) or type(error).__name__
    if found is None:
        return SerializationError(f"the arguments cannot be sent: {reason}", path="arguments")
    name, value = found
    kind = type(value)
    type_name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        type_name = f"{kind.__module__}.{type_name}"
    return SerializationError(
        f"the argument {name!r} ({_article(type_name)}) cannot be sent: {reason}",
        hint="pass plain data; make what cannot be pickled (connections, files, locks) inside",
        path=name,
        type_name=type_name,
    )


def _names(function: Callable[..., Any] | None, count: int) -> list[str]:
    names: list[str] = []
    code = getattr(function, "__code__", None)
    if code is not None:
        names = list(code.co_varnames[: code.co_argcount])[:count]
    return names + [f"argument {i + 1}" for i in range(len(names), count)]


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
