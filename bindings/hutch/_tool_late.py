# SPDX-License-Identifier: Apache-2.0
"""Calls of tools that took longer than the `timeout_sec` of their tool, or that the code stopped
waiting for, and go on.
"""

from __future__ import annotations

from typing import Protocol

_MOST = 16  # of one tool at once, for one session


class Runs(Protocol):
    """A thread, or what has one."""

    def is_alive(self) -> bool: ...


class LateCalls:
    """Those of a session, or of all calls of functions."""

    def __init__(self) -> None:
        self._threads: dict[str, list[Runs]] = {}

    def require_room(self, name: str) -> None:
        live = [one for one in self._threads.get(name, ()) if one.is_alive()]
        self._threads[name] = live
        if len(live) >= _MOST:
            raise RuntimeError(
                f"{name}() is busy: {_MOST} calls of it took longer than their timeout_sec and "
                "still run"
            )

    def add(self, name: str, thread: Runs) -> None:
        self._threads.setdefault(name, []).append(thread)
