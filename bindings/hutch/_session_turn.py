# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is in a session: it makes one call at a time, in the process that made it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from hutch._session_cell import SessionCell
from hutch._session_refusals import busy, has_ended, of_the_parent


class Turn:
    """`with turn:` is one call, meanwhile others are refused, or wait. It raises SessionBusy where
    one runs, and SandboxStartupError where the session has ended or is another process's. A
    session that was closed during a call loses its cell at the end of that.
    """

    def __init__(self, cell: SessionCell, queue: bool = False) -> None:
        """`queue`: calls of other threads wait, and have their turns as they came."""
        self._cell = cell
        self._queues = queue
        self._waiting: deque[threading.Event] = deque()  # each is set when it has the turn
        self._thread = 0  # that has it
        self._taken = threading.Lock()
        # Of one turn, so that an interrupt is of no other one; a signal handler may interrupt, too.
        self._beginning = threading.RLock()
        self._saving_thread = 0  # the thread that saves it, for which calls of other threads wait
        self._is_save = False  # what has the turn
        self._saves = 0  # how often one has begun or ended
        self._saving = threading.RLock()

    def require_own(self) -> None:
        """Raises SandboxStartupError where the session is another process's."""
        if self._cell.pid != os.getpid():
            raise of_the_parent()

    def require(self) -> None:
        """Raises SandboxStartupError where no call can be made any more."""
        self.require_own()
        if self._cell.closed:
            raise has_ended(self._cell.closed)

    def __enter__(self) -> None:
        cell, thread = self._cell, threading.get_ident()
        if cell.pid != os.getpid():
            raise of_the_parent()
        place: threading.Event | None = None
        while True:
            saves = self._saves
            if self._saving_thread not in (0, thread):
                with self._saving:
                    pass
            with self._beginning:
                taken = self._taken.acquire(blocking=False)
                if taken:
                    self._is_save = self._saving_thread == thread
                    if cell.was_interrupted:  # before, which is not meant for this one
                        cell.take_back_interrupt()
                elif self._is_to_wait(thread):
                    place = threading.Event()
                    self._waiting.append(place)
            if taken:
                break
            if place is not None:
                self._wait_at(place)
                break
            if cell.closed:
                raise has_ended(cell.closed)
            if self._saving_thread == thread or self._saves == saves:
                raise busy()
        self._thread = thread
        if cell.closed:
            self.__exit__()
            raise has_ended(cell.closed)

    def _is_to_wait(self, thread: int) -> bool:
        """Not where this very thread would have to end its call first."""
        if not self._queues or self._cell.closed:
            return False
        return thread not in (self._thread, self._saving_thread)

    def _wait_at(self, place: threading.Event) -> None:
        try:
            place.wait()
        except BaseException:
            with self._beginning:
                if place.is_set():
                    self._leave()
                else:
                    self._waiting.remove(place)
            raise

    def _leave(self) -> None:
        """Gives the turn to whoever has waited longest."""
        self._thread = 0
        with self._beginning:
            if not self._waiting:
                self._taken.release()
                return
            self._is_save = False
            if self._cell.was_interrupted:
                self._cell.take_back_interrupt()
            self._waiting.popleft().set()

    def interrupt(self) -> None:
        """Interrupts the call whose turn it is, also one that is only about to be sent, and no
        save, of which whoever interrupts knows nothing.
        """
        with self._beginning:
            if self._taken.locked() and not self._is_save:
                self._cell.interrupt()

    def __exit__(self, *_: object) -> None:
        try:
            if self._cell.closed:
                self._cell.close()
        finally:
            self._leave()

    @property
    def is_taken(self) -> bool:
        """Whether a call runs."""
        return self._taken.locked()

    @contextmanager
    def of_saves(self) -> Iterator[None]:
        """Calls that other threads begin meanwhile wait until it is over."""
        with self._saving:
            before, self._saving_thread = self._saving_thread, threading.get_ident()
            self._saves += 1
            try:
                yield
            finally:
                self._saving_thread = before
                self._saves += 1

    def end(self) -> bool:
        """Closes the cell. False: a call runs, at whose end it is closed."""
        is_own = self._cell.pid == os.getpid()
        if is_own and not self._taken.acquire(blocking=False):
            return False
        try:
            self._cell.close()
        finally:
            if is_own:
                self._leave()
        return True
