# SPDX-License-Identifier: Apache-2.0
"""Threads that wait for calls, a bounded number of them, made when first used. After a fork the
child has threads of its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

THREADS = 64
_IDLE_SEC = 10.0


_made: weakref.WeakSet[CallThreads] = weakref.WeakSet()


class CallThreads:
    """Runs pieces of work on at most `limit` threads, in order; more wait in a queue."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._begin()
        _made.add(self)

    def _begin(self) -> None:
        """Without threads, as it is made and as a forked child has it."""
        lock = threading.Lock()
        self._changed, self._rested = threading.Condition(lock), threading.Condition(lock)
        self._queue: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._count = 0

    def start(self, work: Callable[[], None]) -> None:
        with self._changed:
            self._queue.append(work)
            if self._idle >= len(self._queue) or self._count >= self.limit:
                self._changed.notify()
                return
            self._count += 1
        try:
            threading.Thread(target=self._serve, name="hutch-call", daemon=True).start()
        except RuntimeError:
            with self._changed:
                self._count -= 1
                if work not in self._queue:
                    return  # another one has taken it
                self._queue.remove(work)
            raise

    def finish(self) -> None:
        """Waits until all work is done that was given so far, and by it."""
        with self._rested:
            self._rested.wait_for(lambda: not self._queue and self._idle == self._count)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._rested.notify_all()
                arrived = self._changed.wait_for(lambda: self._queue, _IDLE_SEC)
                self._idle -= 1
                if not arrived:
                    self._count -= 1
                    return
                work = self._queue.popleft()
            work()
            del work


_shared: CallThreads | None = None


def shared_threads() -> CallThreads:
    global _shared
    if _shared is None:
        _shared = CallThreads(THREADS)
    return _shared


def _after_fork() -> None:
    for threads in list(_made):
        threads._begin()


os.register_at_fork(after_in_child=_after_fork)
