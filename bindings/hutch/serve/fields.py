# SPDX-License-Identifier: Apache-2.0
"""Fields of requests, checked. Each of these raises Refused with what the field takes."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any

from hutch.serve.gate import Refused
from hutch.serve.settings import Settings


def text(body: Mapping[str, Any], name: str, usual: str | None = None) -> str:
    value = body.get(name)
    if value is None and usual is not None:
        return usual
    if type(value) is not str:
        raise Refused(422, f"{name} must be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(422, f"{name} holds half of a surrogate pair") from None
    return value


def seconds(value: Any, name: str, most: float) -> float:
    """At most `most`; None, 0 and what is below are that."""
    if value is None:
        return most
    if type(value) not in (int, float) or not math.isfinite(value):
        raise Refused(422, f"{name} must be a number of seconds")
    return min(float(value), most) if value > 0 else most


def memory_mb(value: Any, name: str, most: int) -> int:
    """One of a few sizes, since each needs workers of its own; None, 0 and below are the most."""
    if value is None:
        return most
    if type(value) not in (int, float) or not math.isfinite(value):
        raise Refused(422, f"{name} must be a number of MiB")
    if value <= 0 or value >= most:
        return most
    return int(min(most, max(64, 2 ** math.ceil(math.log2(value)))))


def texts(value: Any, name: str, most: int) -> list[str]:
    if value is None:
        return []
    if type(value) is not list or not all(type(one) is str for one in value):
        raise Refused(422, f"{name} must be a list of texts")
    if len(value) > most:
        raise Refused(422, f"{name} has more than {most} items")
    return value


def path(value: str, name: str) -> str:
    parts = value.split("/")
    if not value or "\0" in value or value.startswith("/") or ".." in parts or len(value) > 4000:
        raise Refused(422, f"{name} has {value[:100]!r}, which is not a path below the directory")
    return value


def files(body: Mapping[str, Any], settings: Settings) -> dict[str, bytes]:
    """`files`: {path: base64}."""
    found = body.get("files")
    if found is None:
        return {}
    if type(found) is not dict:
        raise Refused(422, "files must be an object of paths and contents")
    if len(found) > settings.files:
        raise Refused(422, f"files has more than {settings.files} names")
    contents = {}
    for name, content in found.items():
        path(name, "files")
        if content is None:
            continue
        if type(content) is not str:
            raise Refused(422, f"files[{name[:100]!r}] must be a text in base64")
        try:
            contents[name] = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            raise Refused(422, f"files[{name[:100]!r}] is not base64") from None
    return contents
