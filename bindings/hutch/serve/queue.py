# SPDX-License-Identifier: Apache-2.0
"""Who runs next: so many at once, and of those who wait the client that has had the least, which is
the seconds that its requests have held places, each for as long as it ran, by its share.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hutch.serve.settings import Client

_AGAIN_SEC = 0.1  # in which those who run may have had more than one who waits


class Full(Exception):
    """Too many wait already."""


class TooLate(Exception):
    """It waited for as long as it may."""


@dataclass(eq=False)
class _Line:
    """One client's requests: how many run, those that wait, and the seconds that it has had, until
    `since`, by its share.
    """

    client: Client
    running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    had: float = 0.0
    since: float = 0.0

    def had_by(self, now: float) -> float:
        return self.had + self.running * (now - self.since) / self.client.share

    def run(self, more: int, now: float) -> None:
        self.had, self.since = self.had_by(now), now
        self.running += more


class Turn:
    """Of one request."""

    def __init__(self, queue: FairQueue, client: Client, patience_sec: float) -> None:
        self._queue = queue
        self._client = client
        self._patience_sec = patience_sec

    async def __aenter__(self) -> None:
        self._line = await self._queue.enter(self._client, self._patience_sec)

    async def __aexit__(self, *_: object) -> None:
        self._queue.leave(self._line)


class FairQueue:
    """Belongs to one event loop. `changed` is called when another number runs or waits.
    `may_run`: a client waits for as long as it gives False, and until serve() is called after that.

    No request is ended for another one's sake. So that a client does not wait for what others run
    for long, one that runs nothing has a place beyond `concurrency` where it has had less than
    another that runs.
    """

    def __init__(
        self,
        concurrency: int,
        most: int,
        patience_sec: float,
        changed: Callable[[], None] = lambda: None,
        may_run: Callable[[Client], bool] = lambda client: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._changed = changed
        self._may_run = may_run
        self._clock = clock
        self.running = 0
        self.waiting = 0
        self._concurrency = concurrency
        self._most = most
        self._patience_sec = patience_sec
        self._active: dict[Client, _Line] = {}  # those of which something runs or waits
        self._had: dict[Client, float] = {}  # by the others
        self._least = 0.0  # that an active one has had
        self._again: asyncio.TimerHandle | None = None
        self._is_ended = False

    def turn(self, client: Client, patience_sec: float = math.inf) -> Turn:
        """Within it, the request runs. It waits for so long at the most, and no longer than all do.
        Entering it raises Full, TooLate.
        """
        return Turn(self, client, patience_sec)

    def end(self) -> None:
        """Who waits is too late, and who comes."""
        self._is_ended = True
        for line in self._active.values():
            for turn in line.waiting:
                turn.cancel()

    async def enter(self, client: Client, patience_sec: float) -> _Line:
        if self._is_ended:
            raise TooLate
        line = self._line_of(client)
        if not self.waiting and self.running < self._concurrency and self._may_run(client):
            self._take(line, self._clock())
        else:
            await self._wait(line, min(patience_sec, self._patience_sec))
        return line

    def _line_of(self, client: Client) -> _Line:
        """Who did not ask for long has no more to its credit than who has been served since."""
        line = self._active.get(client)
        if line is None:
            now = self._clock()
            self._look(now)
            had = max(self._had.pop(client, 0.0), self._least)
            line = self._active[client] = _Line(client, had=had, since=now)
        return line

    async def _wait(self, line: _Line, patience_sec: float) -> None:
        if len(line.waiting) >= self._most:
            raise Full
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        self.waiting += 1
        self.serve()
        self._changed()
        try:
            # Not wait_for(), which on Pythons before 3.12 may lose a cancellation.
            await asyncio.wait({turn}, timeout=patience_sec)
        except BaseException:
            self._give_up(line, turn)
            raise
        if not turn.done() or turn.cancelled():
            self._give_up(line, turn)
            raise TooLate

    def _give_up(self, line: _Line, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():  # it came at the same time
            self.leave(line)
            return
        line.waiting.remove(turn)
        self.waiting -= 1
        self._rest(line)

    def serve(self) -> None:
        """Whoever may run, as far as there is room."""
        if not self.waiting or self._is_ended:
            return
        now = self._clock()
        while self.waiting:
            ready = [one for one in self._active.values() if one.waiting]
            ready = [one for one in ready if self._may_run(one.client)]
            if not ready:
                return
            line = min(ready, key=lambda one: (one.had_by(now), one.running))
            if not self._has_place(line, now):
                break
            self.waiting -= 1
            turn = line.waiting.popleft()
            self._take(line, now)
            turn.set_result(None)
        if self.waiting and self._again is None:
            self._again = asyncio.get_running_loop().call_later(_AGAIN_SEC, self._serve_again)

    def _serve_again(self) -> None:
        self._again = None
        self.serve()

    def _has_place(self, line: _Line, now: float) -> bool:
        if self.running < self._concurrency:
            return True
        had = line.had_by(now)
        others = (one for one in self._active.values() if one.running)
        return not line.running and any(one.had_by(now) >= had for one in others)

    def _take(self, line: _Line, now: float) -> None:
        line.run(1, now)
        self.running += 1
        self._changed()

    def leave(self, line: _Line) -> None:
        line.run(-1, self._clock())
        self.running -= 1
        self.serve()
        self._rest(line)
        self._changed()

    def _rest(self, line: _Line) -> None:
        """Notes what a client has had of which nothing runs or waits any more."""
        if not line.running and not line.waiting:
            now = self._clock()
            self._look(now)
            self._had[line.client] = line.had_by(now)
            del self._active[line.client]

    def _look(self, now: float) -> None:
        least = min((one.had_by(now) for one in self._active.values()), default=0.0)
        self._least = max(self._least, least)
