# SPDX-License-Identifier: Apache-2.0
"""What a tool returns as plain data, and defaults of its parameters as JSON has them."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import pathlib
import uuid
from typing import Any

_MOST_DEFAULT = 1000  # characters
_LEAVES = (str, int, float, bool, bytes, type(None))


def plain(value: Any) -> Any:
    """Dataclasses and models as dicts, enums as their values."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if kind is dict:
        return {plain(key): plain(one) for key, one in value.items()}
    if kind is list:
        return [plain(one) for one in value]
    if isinstance(value, tuple):
        return tuple(plain(one) for one in value)
    if dataclasses.is_dataclass(kind):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if callable(getattr(kind, "model_dump", None)):
        return plain(value.model_dump())
    if kind.__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return value.item()
    return value


def json_of(value: Any) -> Any:
    """As a schema shows it: dates and the like as text, tuples and sets as lists. Raises ValueError
    for what JSON has no value of.
    """
    value = plain(value)
    kind = type(value)
    if kind in (str, int, bool, type(None)) or (kind is float and math.isfinite(value)):
        return value
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID, pathlib.PurePath)):
        return str(value)
    if kind is dict and all(type(key) is str for key in value):
        return {key: json_of(one) for key, one in value.items()}
    if kind in (list, tuple):
        return [json_of(one) for one in value]
    if kind in (set, frozenset):
        return sorted(map(json_of, value), key=repr)  # the same in every process
    raise ValueError(f"JSON has no {kind.__name__}")


def default_in_schema(value: Any) -> dict[str, Any]:
    """{"default": …}, or nothing where JSON has no such value."""
    try:
        return {"default": json_of(value)}
    except ValueError:
        return {}


def default_text(value: Any) -> str:
    """As in a signature: `...` where JSON has no such value, or its text is long."""
    found = default_in_schema(value)
    text = repr(found["default"]) if found else "..."
    return text if len(text) <= _MOST_DEFAULT else "..."
