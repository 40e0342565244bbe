# SPDX-License-Identifier: Apache-2.0
"""What the processes of a server count, in memory that they share: /metrics of one tells of all.

Each has a row, which it alone writes. The row of a process that ended goes to the next that starts:
what it answered stays counted, what it had open does not. What is open now is written a moment
after it changes.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Mapping

GAUGES = ("running", "waiting", "connections", "half_open", "pipelined", "sessions")
_STATUSES = range(100, 600)
_PROCESS, _FIRST_GAUGE = 0, 1  # places in a row: its process, and 0 where none ever had it
_FIRST_STATUS = _FIRST_GAUGE + len(GAUGES)
_ROW = _FIRST_STATUS + len(_STATUSES)
_ROWS = 128
_SIZE = 8 * _ROW * _ROWS
_LATEST_SEC = 0.05  # until a change is written
_PATH = "HUTCH_SERVE_FIGURES"  # to the other processes


def share() -> None:
    """In the process that starts the others, and outlives them."""
    made = os.memfd_create("hutch-serve-figures", os.MFD_CLOEXEC)
    os.ftruncate(made, _SIZE)
    os.environ[_PATH] = f"/proc/{os.getpid()}/fd/{made}"


class Figures:
    """Of this process. Belongs to one event loop. Without `share()`, it tells of itself alone.
    `now`: what each of GAUGES is.
    """

    def __init__(self, now: Mapping[str, Callable[[], int]]) -> None:
        self._now = [now[name] for name in GAUGES]
        self._pending: asyncio.TimerHandle | None = None
        path = os.environ.get(_PATH)
        if path:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        else:
            fd = os.memfd_create("hutch-serve-figures", os.MFD_CLOEXEC)
            os.ftruncate(fd, _SIZE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._all = memoryview(mmap.mmap(fd, _SIZE)).cast("Q")
            self._own = self._free_row()
            self._own[:_FIRST_STATUS] = memoryview(bytes(8 * _FIRST_STATUS)).cast("Q")
            self._own[_PROCESS] = os.getpid()
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # which closing does not: mmap has a copy
            os.close(fd)

    def changed(self) -> None:
        """A gauge may be another."""
        if self._pending is None:
            loop = asyncio.get_running_loop()
            self._pending = loop.call_later(_LATEST_SEC, self._write)

    def _write(self) -> None:
        self._pending = None
        for place, now in enumerate(self._now, _FIRST_GAUGE):
            self._own[place] = now()

    def count(self, status: int) -> None:
        self._own[_FIRST_STATUS + status - _STATUSES.start] += 1

    def gauges(self) -> dict[str, int]:
        """Of all processes that run."""
        self._write()
        rows = [row for row in self._rows() if _runs(row[_PROCESS])]
        return {
            name: sum(row[_FIRST_GAUGE + place] for row in rows)
            for place, name in enumerate(GAUGES)
        }

    def answers(self) -> dict[int, int]:
        """By status, where there were any."""
        rows = list(self._rows())
        counts = {
            status: sum(row[_FIRST_STATUS + place] for row in rows)
            for place, status in enumerate(_STATUSES)
        }
        return {status: count for status, count in counts.items() if count}

    def _rows(self) -> Iterator[memoryview]:
        """Those that a process has, or had."""
        for start in range(0, _ROW * _ROWS, _ROW):
            if self._all[start + _PROCESS]:
                yield self._all[start : start + _ROW]

    def _free_row(self) -> memoryview:
        for start in range(0, _ROW * _ROWS, _ROW):
            if not _runs(self._all[start + _PROCESS]):
                return self._all[start : start + _ROW]
        raise RuntimeError(f"more than {_ROWS} processes serve: start fewer, with workers=")


def _runs(process: int) -> bool:
    return process != 0 and os.path.exists(f"/proc/{process}")
