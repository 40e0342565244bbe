# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is in a session: it makes one call at a time, in the process that made it."""

from __future__ import annotations

import os
import threading
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
        # By thread, in the order in which they came: each is set when its thread has the turn.
        self._waiting: dict[int, threading.Event] = {}
        self._thread = 0  # that has it
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
        taken = False
        with self._beginning:  # as most calls find it
            if not (self._thread or self._waiting or self._saving_thread or cell.was_interrupted):
                self._thread, self._is_save, taken = thread, False, True
        if not taken:
            self._take(thread)
        if cell.closed:
            self.__exit__()
            raise has_ended(cell.closed)

    def _take(self, thread: int) -> None:
        while True:
            saves = self._saves
            if self._saving_thread not in (0, thread):
                with self._saving:
                    pass
            if self._takes(thread):
                return
            if self._cell.closed:
                raise has_ended(self._cell.closed)
            if self._saving_thread == thread or self._saves == saves:
                raise busy()

    def _takes(self, thread: int) -> bool:
        """Whether it has the turn, for which it may have waited."""
        if thread == self._thread or thread in self._waiting:
            return False  # this very thread would have to end its call first
        try:
            with self._beginning:
                is_free = not self._thread and not self._waiting
                if is_free:
                    self._thread = thread
                    self._begin(thread)
            if is_free:
                return True
            if not self._queues or self._cell.closed or thread == self._saving_thread:
                return False
            self._wait(thread)
        except BaseException:
            self._waiting.pop(thread, None)
            self._leave(thread)
            raise
        return True

    def _wait(self, thread: int) -> None:
        place = threading.Event()
        self._waiting[thread] = place  # first: a signal handler of this thread is refused by then
        with self._beginning:
            if not self._thread:
                self._give()
        place.wait()
        with self._beginning:  # whoever gave it has done so
            del self._waiting[thread]

    def _begin(self, thread: int) -> None:
        """Its turn: an interrupt of before is not meant for it."""
        self._is_save = thread == self._saving_thread
        if self._cell.was_interrupted:
            self._cell.take_back_interrupt()

    def _give(self) -> None:
        """To whoever has waited longest. It may be done again, until `_thread` is another one."""
        for thread in [*self._waiting]:
            place = self._waiting.get(thread)
            if place is not None and thread != self._thread:
                self._begin(thread)
                place.set()
                self._thread = thread
                return
        self._thread = 0

    def _leave(self, thread: int) -> None:
        """Gives the turn of that thread, if it has it, to whoever has waited longest."""
        with self._beginning:
            try:
                if self._thread == thread:
                    self._give()
            except BaseException:  # Ctrl-C
                if self._thread == thread:
                    self._give()
                raise

    def interrupt(self) -> None:
        """Interrupts the call whose turn it is, also one that is only about to be sent, and no
        save, of which whoever interrupts knows nothing.
        """
        with self._beginning:
            if self._thread and not self._is_save:
                self._cell.interrupt()

    def __exit__(self, *_: object) -> None:
        try:
            if self._cell.closed:
                self._cell.close()
        finally:
            thread = self._thread
            with self._beginning:  # as most calls leave it
                if not self._waiting:
                    self._thread = thread = 0
            if thread:
                self._leave(thread)

    @property
    def is_taken(self) -> bool:
        """Whether a call runs."""
        return self._thread != 0

    @property
    def is_taken_here(self) -> bool:
        """Whether a call of this thread runs."""
        return self._thread == threading.get_ident()

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
        if self._cell.pid != os.getpid():
            self._cell.close()
            return True
        with self._beginning:
            if self._thread:
                return False
            self._thread = threading.get_ident()
        try:
            self._cell.close()
        finally:
            self._leave(self._thread)
        return True


class Surely:
    """`with Surely(turn), turn:` leaves the turn wherever Ctrl-C comes, also before its block."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._thread = threading.get_ident()
        self._was_taken = turn._thread == self._thread

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if not self._was_taken and self._turn._thread == self._thread:
            self._turn.__exit__()
