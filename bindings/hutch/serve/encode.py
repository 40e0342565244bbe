# SPDX-License-Identifier: Apache-2.0
"""What leaves, as JSON. Pure; safe on any thread."""

from __future__ import annotations

import base64
import json
from typing import Any


def encoded(found: Any) -> bytes:
    """Bytes in it are base64. A text may hold half of a surrogate pair."""
    return json.dumps(found, default=_of_bytes).encode()


def _of_bytes(value: Any) -> str:
    if type(value) is not bytes:
        raise TypeError(f"{type(value).__name__} does not leave")
    return base64.b64encode(value).decode()


def size_of(found: Any) -> int:
    """About how many bytes its texts, its bytes and its other values take."""
    if type(found) in (str, bytes):
        return len(found)
    if type(found) is dict:
        return sum(map(size_of, found.values()))
    if type(found) is list:
        return sum(map(size_of, found))
    return 8
