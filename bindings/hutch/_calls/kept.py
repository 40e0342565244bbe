# SPDX-License-Identifier: Apache-2.0
"""What a session keeps in its process, whatever becomes of its cell: keys and values, which the
code inside can use, and its history.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from hutch._calls.history import History
from hutch._errors import KeyValueLimit, StorageError
from hutch._key_values import KeyValues

_PER_SEC = 500  # requests of the code inside, after the first ones
_AT_ONCE = 1000
_MOST_ANSWER = 1 << 20  # bytes of items in one answer, or one item


class Kept:
    """Of one session."""

    def __init__(self, kv: KeyValues | None = None, history: History | None = None) -> None:
        self.kv = KeyValues() if kv is None else kv
        self.history = History() if history is None else history
        self.requests = KeyValueRequests(self.kv)


class KeyValueRequests:
    """What code inside asks of keys and values: at most 500 requests a second, 1000 at once."""

    def __init__(self, values: KeyValues, clock: Callable[[], float] = time.monotonic) -> None:
        self._values = values
        self._clock = clock
        self._left = float(_AT_ONCE)
        self._counted = clock()
        self._lock = threading.Lock()

    def waits_for(self, content: list[Any]) -> bool:
        """Whether the answer may wait for a storage."""
        changes = content and type(content[0]) is str and content[0] in ("set", "delete")
        return self._values.waits_to_change and bool(changes)

    def answer(self, content: list[Any]) -> tuple[Any, ...]:
        """("ok", ("ok", what it gave)), ("ok", ("limit", which, text)) or ("error", type, text)."""
        try:
            self._count()
            return "ok", ("ok", self._answer(*content))
        except KeyValueLimit as error:
            return "ok", ("limit", error.limit, error.message)
        except TypeError as error:
            return "error", "TypeError", str(error)
        except StorageError as error:
            return "error", "OSError", error.message

    def _count(self) -> None:
        with self._lock:
            now = self._clock()
            self._left = min(_AT_ONCE, self._left + (now - self._counted) * _PER_SEC)
            self._counted = now
            if self._left < 1:
                raise KeyValueLimit(
                    f"too many requests: at most {_PER_SEC} a second, after {_AT_ONCE:,} at once",
                    limit="rate",
                    allowed=_PER_SEC,
                )
            self._left -= 1

    def _answer(self, verb: Any = None, *args: Any) -> Any:
        values = self._values
        if type(verb) is not str:  # an array is equal to nothing, item by item
            raise TypeError("what is asked of kv is text")
        if verb == "get" and len(args) == 1:
            return values.get(args[0])
        if verb == "set" and len(args) == 2:
            return values.set(args[0], args[1])
        if verb == "delete" and len(args) == 1:
            return values.delete(args[0])
        if verb == "keys" and len(args) == 1:
            return values.keys(args[0])
        if verb == "items" and len(args) == 2 and (args[1] is None or type(args[1]) is str):
            return values.part(args[0], args[1], _MOST_ANSWER)
        raise TypeError("kv has get, set, delete, keys and items")
