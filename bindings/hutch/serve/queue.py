# SPDX-License-Identifier: Apache-2.0
"""Who runs next: so many at once, and of those who wait, clients in turn by their share."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hutch.serve.settings import Client


class Full(Exception):
    """Too many wait already."""


class TooLate(Exception):
    """It waited for as long as it may."""


class FairQueue:
    """Belongs to one event loop."""

    def __init__(self, concurrency: int, most: int, patience_sec: float) -> None:
        self.running = 0
        self._concurrency = concurrency
        self._most = most
        self._patience_sec = patience_sec
        self._waiting: dict[Client, deque[asyncio.Future[None]]] = {}
        self._served: dict[Client, float] = {}  # turns that it had, by its share
        self._turn = 0.0  # of whoever was served last

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def turn(self, client: Client) -> AsyncIterator[float]:
        """Within it, the request runs; gives the seconds that it waited. Raises Full, TooLate."""
        begun = time.monotonic()
        if self.running < self._concurrency and not self._waiting:
            self._take(client)
        else:
            await self._wait(client)
        try:
            yield time.monotonic() - begun
        finally:
            self.running -= 1
            self._serve()

    async def _wait(self, client: Client) -> None:
        queue = self._waiting.setdefault(client, deque())
        if len(queue) >= self._most:
            raise Full
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await asyncio.wait_for(asyncio.shield(turn), self._patience_sec)
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it came at the same time
                self.running -= 1
                self._serve()
            else:
                turn.cancel()
                self._forget(client, turn)
            if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
                raise TooLate from None
            raise

    def _forget(self, client: Client, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(client)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[client]

    def _take(self, client: Client) -> None:
        self.running += 1
        # Who did not ask for long has no more turns to its credit than who just came.
        self._turn = max(self._served.get(client, 0.0), self._turn)
        self._served[client] = self._turn + 1 / client.share

    def _serve(self) -> None:
        while self._waiting and self.running < self._concurrency:
            client = min(self._waiting, key=lambda one: self._served.get(one, 0.0))
            queue = self._waiting[client]
            turn = queue.popleft()
            if not queue:
                del self._waiting[client]
            if turn.done():
                continue
            self._take(client)
            turn.set_result(None)
