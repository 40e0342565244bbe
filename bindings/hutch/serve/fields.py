# SPDX-License-Identifier: Apache-2.0
"""Fields of requests, checked. Each of these raises Refused with what the field takes."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Mapping
from typing import Any

from hutch.serve.gate import Refused
from hutch.serve.settings import Settings

MOST_SCRIPTS = 10_000  # of one request, and cells
_MOST_PARTS = 32  # of a path


def text(body: Mapping[str, Any], name: str, usual: str | None = None) -> str:
    value = body.get(name)
    if value is None and usual is not None:
        return usual
    return _text(value, name)


def _text(value: Any, name: str) -> str:
    if type(value) is not str:
        raise Refused(422, f"{name} must be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(422, f"{name} holds half of a surrogate pair") from None
    return value


def _number(value: Any, name: str, unit: str) -> float | int:
    finite = type(value) is int or (type(value) is float and math.isfinite(value))
    if not finite:
        raise Refused(422, f"{name} must be a number of {unit}")
    number: float | int = value
    return number


def seconds(value: Any, name: str, most: float) -> float:
    """At most `most`; None, 0 and what is below are that."""
    if value is None:
        return most
    number = _number(value, name, "seconds")
    return most if number <= 0 or number >= most else float(number)


def memory_mb(value: Any, name: str, most: int) -> int:
    """One of a few sizes, since each needs workers of its own; None, 0 and below are the most."""
    if value is None:
        return most
    number = _number(value, name, "MiB")
    if number <= 0 or number >= most:
        return most
    return int(min(most, max(64, 2 ** math.ceil(math.log2(number)))))


def scaled(value: Any, name: str, unit: str, by: float) -> Any:
    """A number in another unit; None is that."""
    if value is None:
        return None
    return min(max(_number(value, name, unit), -1e15), 1e15) / by


def within(value: float | int, name: str, most: float | int) -> None:
    """For a protocol in which what is asked for is what is given. Raises Refused."""
    if value > most:
        raise Refused(422, f"{name} may be {most:g} at the most on this server")


def texts(value: Any, name: str, most: int) -> list[str]:
    if value is None:
        return []
    if type(value) is not list:
        raise Refused(422, f"{name} must be a list of texts")
    if len(value) > most:
        raise Refused(422, f"{name} has more than {most} items")
    for number, one in enumerate(value):
        _text(one, f"{name}[{number}]")
    return value


def required_texts(body: Mapping[str, Any], name: str, most: int) -> list[str]:
    if body.get(name) is None:
        raise Refused(422, f"{name} is missing: it is a list of texts")
    return texts(body[name], name, most)


def words(value: Any, name: str) -> list[str]:
    """What a program finds in sys.argv."""
    found = texts(value, name, 1000)
    if any("\0" in one for one in found):
        raise Refused(422, f"{name} holds a NUL character")
    return found


def path(value: str, name: str) -> str:
    """In its shortest spelling."""
    parts = [part for part in value[:4001].split("/") if part not in ("", ".")]
    wrong = "\0" in value or value.startswith("/") or value.endswith("/") or ".." in parts
    if wrong or not parts or len(parts) > _MOST_PARTS or len(value) > 4000:
        raise Refused(422, f"{name} has {value[:100]!r}, which is not a path below the directory")
    _text(value, name)
    if any(len(part.encode()) > 255 for part in parts):
        raise Refused(422, f"{name} has {value[:100]!r}, which is too long a name")
    return "/".join(parts)


def paths(value: Any, name: str, most: int) -> list[str]:
    """Those of files to fetch, spelled as given."""
    found = texts(value, name, most)
    for one in found:
        path(one, name)
    return found


def apart(names: Iterable[str]) -> None:
    """Raises Refused where one is a directory of another."""
    known = set(names)
    for one in known:
        parts = one.split("/")
        for count in range(1, len(parts)):
            if "/".join(parts[:count]) in known:
                raise Refused(422, f"files has {one[:100]!r} below another of its files")


def files(body: Mapping[str, Any], settings: Settings) -> dict[str, bytes]:
    """`files`: {path: base64}, each below the directory."""
    found: dict[str, bytes] = {}
    for given, content in contents(body.get("files"), "files", settings).items():
        name = path(given, "files")
        if name in found:
            raise Refused(422, f"files has {name[:100]!r} twice")
        found[name] = content
    apart(found)
    return found


def contents(found: Any, name: str, settings: Settings) -> dict[str, bytes]:
    """{path: base64}; one that is null is left out."""
    if found is None:
        return {}
    if type(found) is not dict:
        raise Refused(422, f"{name} must be an object of paths and contents")
    if len(found) > settings.files:
        raise Refused(422, f"{name} has more than {settings.files} names")
    decoded: dict[str, bytes] = {}
    for given, content in found.items():
        if content is None:
            continue
        if type(content) is not str:
            raise Refused(422, f"{name}[{given[:100]!r}] must be a text in base64")
        try:
            decoded[_text(given, name)] = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            raise Refused(422, f"{name}[{given[:100]!r}] is not base64") from None
    return decoded


def known(body: Mapping[str, Any], names: tuple[str, ...], where: str = "the request") -> None:
    """Raises Refused where there is another field."""
    for name in body:
        if name not in names:
            takes = ", ".join(names) or "no fields"
            raise Refused(422, f"{where} has {name[:100]!r}; it takes {takes}")


def flag(body: Mapping[str, Any], name: str, usual: bool = False) -> bool:
    value = body.get(name, usual)
    if type(value) is not bool:
        raise Refused(422, f"{name} must be true or false")
    return value


def exact_seconds(value: Any, name: str, most: float) -> float:
    """For a protocol in which what is asked for is what is given; None is the most."""
    found = seconds(value, name, most)
    if value is not None and not 0 < value <= most:
        raise Refused(422, f"{name} must be above 0, and {most:g} at the most on this server")
    return found


def exact_memory_mb(value: Any, settings: Settings) -> int:
    """Likewise."""
    if type(value) is float and value.is_integer():  # which is a whole number in JSON
        value = int(value)
    sizes = {memory_mb(2**power, "memory_mb", settings.memory_mb) for power in range(6, 40)}
    if value is not None and (type(value) is not int or value not in sizes):
        takes = ", ".join(map(str, sorted(sizes)))
        raise Refused(422, f"memory_mb must be one of {takes} on this server")
    return value or settings.memory_mb
