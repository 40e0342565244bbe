# SPDX-License-Identifier: Apache-2.0
"""The commands of one session that run beside its calls and each other: how many, and what their
descendants still print to.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hutch._calls.command_run import CommandRun, Pipe, close_all
from hutch._session_refusals import too_many_commands

MOST_AT_ONCE = 16
_MOST_LEFT = 32  # pipes


class Beside:
    """Any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may interrupt
        self._places: set[object] = set()  # that are taken
        self._running: set[CommandRun] = set()
        self._left: list[Pipe] = []

    @property
    def any(self) -> bool:
        return bool(self._places)

    @contextmanager
    def place(self, is_short: bool = False) -> Iterator[None]:
        """For one command. Raises SessionBusy, but not for one that is over at once."""
        place = object()
        try:
            with self._lock:
                if len(self._places) >= MOST_AT_ONCE and not is_short:
                    raise too_many_commands(MOST_AT_ONCE)
                self._places.add(place)
            yield
        finally:
            with self._lock:
                self._places.discard(place)

    def add(self, run: CommandRun) -> None:
        """It reads what others before it left."""
        with self._lock:
            self._running.add(run)
            left, self._left = self._left, []
            run.inherit(left)

    def end(self, run: CommandRun) -> None:
        """Its descriptors are closed, but for pipes that others may still print to."""
        with self._lock:
            self._running.discard(run)
        left = run.close()
        with self._lock:
            self._left += left
            surplus, self._left = self._left[:-_MOST_LEFT], self._left[-_MOST_LEFT:]
        close_all(surplus)

    def interrupt(self) -> None:
        """All of them."""
        with self._lock:
            running = list(self._running)
        for run in running:
            run.cancel("interrupted")

    def close(self, pid: int) -> None:
        """`pid`: the process that has the session."""
        if os.getpid() == pid:
            self.interrupt()
        with self._lock:
            left, self._left = self._left, []
        close_all(left)
