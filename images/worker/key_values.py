# SPDX-License-Identifier: Apache-2.0
"""`from hutch_tools import kv`: keys and values of a session, which its client keeps."""

from __future__ import annotations

from typing import Any

from dialogue import Dialogue, ToolError

# Bytes, as bindings/hutch/_key_values.py has them, which counts: nothing larger is sent.
MOST_KEY = 256
MOST_VALUE = 1 << 20


class KeyValueLimit(ToolError):
    """The client does not take it. `limit`: "key_bytes", "value_bytes", "keys", "total_bytes" or
    "rate".
    """

    __module__ = "hutch_tools"

    def __init__(self, message: str, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class KeyValues:
    """Keys that are text, each with a value that is text or bytes. They stay when the interpreter
    is replaced.
    """

    Limit = KeyValueLimit

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default` where there is no such key."""
        value = self._ask("get", key)
        return default if value is None else value

    def set(self, key: str, value: str | bytes) -> None:
        """Adds a key, or replaces its value."""
        for what, text, most in (("key", key, MOST_KEY), ("value", value, MOST_VALUE)):
            if isinstance(text, (str, bytes)) and len(text) > most:
                size = f"a {what} of {len(text):,} bytes or more is too large: at most {most:,}"
                raise KeyValueLimit(size, f"{what}_bytes")
        self._ask("set", key, value)

    def delete(self, key: str) -> bool:
        """Whether there was such a key."""
        return bool(self._ask("delete", key))

    def keys(self, prefix: str = "") -> list[str]:
        """Those that begin with `prefix`, sorted."""
        return list(self._ask("keys", prefix))

    def items(self, prefix: str = "") -> list[tuple[str, str | bytes]]:
        """The keys that begin with `prefix`, sorted, with their values."""
        found: list[tuple[str, str | bytes]] = []
        while part := self._ask("items", prefix, found[-1][0] if found else None):
            found += part
        return found

    def _ask(self, verb: str, *args: Any) -> Any:
        kind, *rest = self._dialogue.ask("kv", verb, *args)
        if kind == "limit":
            raise KeyValueLimit(rest[1], rest[0])
        return rest[0]
