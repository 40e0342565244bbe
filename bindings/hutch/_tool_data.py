# SPDX-License-Identifier: Apache-2.0
"""What a tool returns, and defaults of its parameters, as plain data."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

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
