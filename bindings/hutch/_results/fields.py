# SPDX-License-Identifier: Apache-2.0
"""Checks of one field that a builder is given, and the import of a package that it needs.

The fields come from a cell and may be anything. What is raised becomes a DecodeError.
"""

from __future__ import annotations

import datetime
import importlib
import re
from typing import Any

# Longest tz database key is 32 characters; no dots, so no way out of its directory.
_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}")


def want(value: Any, *kinds: type) -> Any:
    """The value, whose type is exactly one of `kinds`."""
    if type(value) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"a field is a {type(value).__name__}, where {names} belongs")
    return value


def zone(value: Any) -> datetime.tzinfo | None:
    """A field that is a timezone or None."""
    if value is None or type(value) is datetime.timezone:
        return value
    from zoneinfo import ZoneInfo

    checked: datetime.tzinfo = want(value, ZoneInfo)
    return checked


def zone_key(key: Any) -> str:
    if not _ZONE_KEY.fullmatch(want(key, str)):
        raise ValueError(f"{key[:80]!r} is not a key of the tz database")
    return str(key)


def need(package: str, what: str) -> Any:
    """Imports a package whose type a result holds."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.split(".")[0].replace("PIL", "Pillow")
        raise ValueError(
            f"the result holds {what}, and {name} is not installed here: install {name}"
        ) from None


def is_panic(error: BaseException) -> bool:
    """Whether a package in Rust raised it: its panics are not subclasses of Exception."""
    return type(error).__name__ == "PanicException"
