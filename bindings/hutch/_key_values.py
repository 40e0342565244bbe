# SPDX-License-Identifier: Apache-2.0
"""`Session.kv`: keys and values of a session, in the memory of the process that made it, which no
end of a cell touches.

Keys and values may come from a hostile cell: they are data, and each limit bounds what they take
here. Values are kept as they are counted, text as UTF-8. Safe on any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar, Union

from hutch._errors import KeyValueLimit, SandboxStartupError
from hutch._twins import awaits

T = TypeVar("T")
Value = Union[str, bytes]

MOST_KEYS = 10_000
MOST_KEY = 256  # bytes of UTF-8: all keys together fit into one answer to a cell
MOST_VALUE = 1 << 20  # bytes
MOST_TOTAL = 64 << 20  # bytes of keys and values
_HINT = "delete() what is not needed, or keep what is large in a file"


class KeyValues:
    """Keys that are text, each with a value that is text or bytes.

    At most 10,000 keys of 256 bytes each (as UTF-8), values of 1 MiB, 64 MiB in all: beyond,
    KeyValueLimit is raised, whose `limit` says which, and nothing changes. TypeError: a key that is
    no str, a value that is neither str nor bytes. They last as long as the Session, whatever
    becomes of its interpreter or its sandbox, and can still be read once it is closed.

        s.kv.set("user", "42")
        s.kv.get("user")          # "42"
        s.kv.items("us")          # [("user", "42")]
    """

    __module__ = "hutch"

    waits_to_change = False  # for a storage

    def __init__(self) -> None:
        self._values: dict[str, tuple[bytes, bool]] = {}  # as bytes; whether it is text
        self._total = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def get(self, key: str, default: T | None = None) -> Value | T | None:
        """The value, or `default` where there is no such key."""
        self._require(key)
        kept = self._values.get(key)
        return default if kept is None else _value_of(kept)

    def set(self, key: str, value: Value) -> None:
        """Adds a key, or replaces its value."""
        self._require(key)
        if not isinstance(value, (str, bytes)):
            raise TypeError(f"a value is str or bytes, not {type(value).__name__}")
        name = _as_bytes(key)
        if len(name) > MOST_KEY:
            raise _beyond("key_bytes", MOST_KEY, len(name), "a key of {used:,} bytes is too long")
        # Each character takes a byte or more: a monstrous text is not encoded first.
        data = _as_bytes(value) if len(value) <= MOST_VALUE else b""
        size = max(len(data), len(value))
        if size > MOST_VALUE:
            raise _beyond("value_bytes", MOST_VALUE, size, "a value of {used:,} bytes is too large")
        with self._lock:
            before = self._values.get(key)
            if before is None and len(self._values) >= MOST_KEYS:
                raise _beyond("keys", MOST_KEYS, MOST_KEYS + 1, "{used:,} keys are too many")
            total = self._total + len(data)
            total += len(name) if before is None else -len(before[0])
            if total > MOST_TOTAL:
                text = "keys and values of {used:,} bytes in all are too much"
                raise _beyond("total_bytes", MOST_TOTAL, total, text)
            self._values[key] = data, isinstance(value, str)
            self._total = total

    def delete(self, key: str) -> bool:
        """Whether there was such a key."""
        self._require(key)
        with self._lock:
            before = self._values.pop(key, None)
            if before is not None:
                self._total -= len(_as_bytes(key)) + len(before[0])
            return before is not None

    def keys(self, prefix: str = "") -> list[str]:
        """Those that begin with `prefix`, sorted."""
        self._require(prefix, "a prefix")
        with self._lock:
            return sorted(key for key in self._values if key.startswith(prefix))

    def items(self, prefix: str = "") -> list[tuple[str, Value]]:
        """The keys that begin with `prefix`, sorted, with their values."""
        self._require(prefix, "a prefix")
        with self._lock:
            kept = [pair for pair in self._values.items() if pair[0].startswith(prefix)]
        return [(key, _value_of(value)) for key, value in sorted(kept)]

    def part(self, prefix: str, after: str | None, most: int) -> list[tuple[str, Value]]:
        """The items whose keys come after `after`: the first one, and more while all of them take
        up to `most` bytes.
        """
        found: list[tuple[str, Value]] = []
        room = most
        for key in self.keys(prefix):
            kept = self._values.get(key) if after is None or key > after else None
            if kept is None:
                continue
            room -= len(_as_bytes(key)) + len(kept[0])
            if found and room < 0:
                break
            found.append((key, _value_of(kept)))
        return found

    def __repr__(self) -> str:
        return f"<keys and values of a session: {len(self._values):,} keys, {self._total:,} bytes>"

    def _require(self, text: Any, what: str = "a key") -> None:
        if not isinstance(text, str):
            raise TypeError(f"{what} is text, not {type(text).__name__}")
        if self._pid != os.getpid():
            raise SandboxStartupError(
                "this session belongs to the parent of this process",
                hint="make another one in the child",
                may_have_run=False,
            )


class AsyncKeyValues:
    """The methods of KeyValues, awaited."""

    __module__ = "hutch"

    def __init__(self, values: KeyValues) -> None:
        self._of = values

    @awaits(KeyValues.get)
    async def get(self, key: str, default: T | None = None) -> Value | T | None:
        return self._of.get(key, default)

    @awaits(KeyValues.set)
    async def set(self, key: str, value: Value) -> None:
        await _awaited(self._of, self._of.set, key, value)

    @awaits(KeyValues.delete)
    async def delete(self, key: str) -> bool:
        return await _awaited(self._of, self._of.delete, key)

    @awaits(KeyValues.keys)
    async def keys(self, prefix: str = "") -> list[str]:
        return self._of.keys(prefix)

    @awaits(KeyValues.items)
    async def items(self, prefix: str = "") -> list[tuple[str, Value]]:
        return self._of.items(prefix)


async def _awaited(values: KeyValues, change: Callable[..., T], *args: Any) -> T:
    """On a thread, where a storage has to be waited for."""
    if not values.waits_to_change:
        return change(*args)
    import asyncio

    return await asyncio.to_thread(change, *args)


def _as_bytes(value: Value) -> bytes:
    if isinstance(value, bytes):
        return bytes(value)
    return value.encode("utf-8", "surrogatepass")


def _value_of(kept: tuple[bytes, bool]) -> Value:
    data, is_text = kept
    return data.decode("utf-8", "surrogatepass") if is_text else data


def _beyond(limit: str, allowed: int, used: int, text: str) -> KeyValueLimit:
    message = f"{text.format(used=used)}: at most {allowed:,}"
    return KeyValueLimit(message, hint=_HINT, limit=limit, allowed=allowed, used=used)
