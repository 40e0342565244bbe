# SPDX-License-Identifier: Apache-2.0
"""Which task of an event loop saves a session, while all others wait with what they begin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Saves:
    """Of one session. `task`: the one that saves it, or None; `ends`: and ends it; `turn`: by which
    it waits for its turn.
    """

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.ends = False
        self.turn: asyncio.Future[None] | None = None
        self._over: asyncio.Future[None] | None = None

    @contextmanager
    def by_this_task(self, ends: bool) -> Iterator[None]:
        """Calls that others begin meanwhile wait until it is over; where it `ends` the session,
        commands, too.
        """
        over = asyncio.get_running_loop().create_future()
        self.task, self.ends, self._over = asyncio.current_task(), ends, over
        try:
            yield
        finally:
            self.task, self.ends, self.turn, self._over = None, False, None, None
            over.cancel()

    @property
    def is_by_this_task(self) -> bool:
        return self.task is not None and self.task is asyncio.current_task()

    def lets(self, turn: asyncio.Future[None]) -> bool:
        """Whether what waits by that may go on: while the session is saved to be ended, nothing
        else does.
        """
        return not self.ends or turn is self.turn

    async def by_others(self) -> None:
        """Waits until no other task of this loop does."""
        while self._over is not None and not self.is_by_this_task:
            if self._over.get_loop() is not asyncio.get_running_loop():
                return
            await asyncio.wait({self._over})
