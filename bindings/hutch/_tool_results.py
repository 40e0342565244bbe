# SPDX-License-Identifier: Apache-2.0
"""Whether what a tool returns is what its function is annotated with. Nothing is built, and no
metadata of `Annotated[…]` is asked: the function is the host's own.
"""

from __future__ import annotations

import collections.abc
import enum
import typing
from typing import Any, Literal

from hutch._results.types import is_typed_dict
from hutch._tool_kinds import ArgumentError
from hutch._tool_types import is_record, is_union, plain_type, type_name

_PLAIN = (str, int, bool, bytes, type(None))
_LISTS = (list, tuple, set, frozenset)


def check_result(kind: Any, value: Any) -> None:
    """Raises ArgumentError. A model or a dataclass may be given as a dict, of which only that is
    checked.
    """
    kind = plain_type(kind)
    if not _is_of(kind, value):
        raise ArgumentError(f"must be {type_name(kind)}, not {type(value).__name__}")


def _is_of(kind: Any, value: Any) -> bool:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if is_union(kind):
        return any(_is_valid(one, value) for one in args)
    if origin is Literal:
        return any(type(one) is type(value) and one == value for one in args)
    wanted: Any = origin or kind
    if not isinstance(wanted, type):
        return True
    if issubclass(wanted, collections.abc.Mapping) and not is_record(wanted):
        if isinstance(value, wanted) and args:
            for key, one in value.items():
                _check_within(f"[{key!r:.100}]", args[0], key)
                _check_within(f"[{key!r:.100}]", args[1], one)
        return isinstance(value, wanted)
    if origin is not None or wanted in _LISTS:
        if isinstance(value, wanted) and isinstance(value, collections.abc.Collection):
            _check_items(wanted, args, value)
        return isinstance(value, wanted)
    return _is_instance(kind, value)


def _is_valid(kind: Any, value: Any) -> bool:
    try:
        check_result(kind, value)
    except ArgumentError:
        return False
    return True


def _check_items(kind: Any, args: tuple[Any, ...], value: Any) -> None:
    if kind is tuple and args and Ellipsis not in args:
        if len(value) != len(args):
            raise ArgumentError(f"must have {len(args)} items, not {len(value)}")
        kinds = args
    else:
        kinds = args[:1] * len(value)
    for i, (of, one) in enumerate(zip(kinds, value)):
        _check_within(f"[{i}]", of, one)


def _check_within(step: str, kind: Any, value: Any) -> None:
    try:
        check_result(kind, value)
    except ArgumentError as error:
        error.steps.append(step)
        raise


def _is_instance(kind: Any, value: Any) -> bool:
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind in _PLAIN:
        return isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if is_record(kind):
        return isinstance(value, dict) or (not is_typed_dict(kind) and isinstance(value, kind))
    if issubclass(kind, enum.Enum):
        known = any(type(one.value) is type(value) and one.value == value for one in kind)
        return known or isinstance(value, kind)
    return isinstance(value, kind) or hasattr(kind, "__get_pydantic_core_schema__")
