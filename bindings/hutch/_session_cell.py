# SPDX-License-Identifier: Apache-2.0
"""The cell of a session and the interpreter in it: which one it is, and how it ended."""

from __future__ import annotations

import os

from hutch import _core
from hutch._connect.connection import Connection, PreparedPool


class SessionCell:
    """`core`, `pool`: once it is started. `closed`: why the session has ended, or "".
    `interpreter`: the number of the present one; `names`: how often a restore has replaced all
    names; `has_begun`: whether its first call was made.
    `pid`: the process that has it. `was_interrupted`: since that was last taken back.
    """

    def __init__(self, id: str, idle_ms: int) -> None:
        """`idle_ms`: 0 is for ever."""
        self.core: _core.Session | None = None
        self.pool: PreparedPool | None = None
        self.closed = ""
        self.interpreter = 0
        self.names = 0
        self.has_begun = False
        self.pid = os.getpid()
        self.was_interrupted = False
        self._id = id
        self._idle_ms = idle_ms
        self._restarts = 0  # as last heard of

    def new(self, connection: Connection, pool: PreparedPool) -> _core.Session:
        return connection.client.session(pool.key, self._idle_ms, self._id)

    def hold(self, core: _core.Session, pool: PreparedPool) -> None:
        self.core, self.pool = core, pool
        if self.was_interrupted:
            core.interrupt()

    def interrupt(self) -> None:
        """The call that runs, or else the next one, unless that is taken back before."""
        self.was_interrupted = True
        if self.core is not None:
            self.core.interrupt()

    def take_back_interrupt(self) -> None:
        self.was_interrupted = False
        if self.core is not None:
            self.core.take_back_interrupt()

    @property
    def is_begun(self) -> bool:
        """Whether the present interpreter has had its first call, as far as that is known."""
        return self.has_begun and self.core is not None and self.core.restarts == self._restarts

    @property
    def digest(self) -> str:
        """Of its environment; "" before it is started."""
        return "" if self.pool is None else self.pool.digest

    def note_end(self) -> bool:
        """Whether the interpreter has ended since this was last asked, alone or with the cell."""
        core = self.core
        if core is None:
            return False
        ended = core.restarts != self._restarts
        self._restarts = core.restarts
        if core.over:
            self.closed = self.closed or "its cell is gone"
        elif not ended:
            return False
        self.next_interpreter()
        return True

    def next_interpreter(self) -> None:
        self.interpreter += 1
        self.has_begun = False

    def give_up(self) -> None:
        """Closes it, for another one in its place."""
        if self.core is not None:
            self.core.close()
        self.core = None
        self._restarts = 0
        self.next_interpreter()

    def close(self) -> None:
        """In a forked child it stays its parent's. Nothing happens the second time."""
        core, self.core = self.core, None
        if core is None:
            return
        if self.pid != os.getpid():
            core.abandon()
        else:
            core.close()
