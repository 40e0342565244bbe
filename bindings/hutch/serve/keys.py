# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys: what was answered under each, for all processes of the server.

A key is claimed before anything runs, in a file that they share, so that nothing runs twice: not
when its client asks again while it runs, and not when the process that ran it has ended. The answer
is kept for a while; where answers take too much room the oldest are let go, and their keys stay.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hutch.serve.gate import Refused
from hutch.serve.kept import Answer, Kept, Name, Row
from hutch.serve.queue import Full
from hutch.serve.settings import Client, Settings

_MOST_TEXT = 255  # characters of a key
_FIRST_LOOK_SEC, _LONGEST_LOOK_SEC = 0.01, 0.25  # for what another process answers


@dataclass(eq=False)
class _End:
    """Of what runs under a key, for those who wait for it. `answered`: its answer; None: there is
    none, and who asks again learns why.
    """

    answered: asyncio.Future[Answer | None]
    watcher: asyncio.Task[None] | None = None
    waiting: int = 0


class Keys:
    """Belongs to one event loop."""

    def __init__(self, settings: Settings, path: Path | None = None) -> None:
        self._settings = settings
        self._kept = Kept(settings, path)
        self._owner = _process(os.getpid())
        self._running: set[Name] = set()  # in this process
        self._ends: dict[Name, _End] = {}
        self._waiting: Counter[Client] = Counter()

    def claim(
        self, client: Client, key: str, request: bytes, answer: Answer | None = None
    ) -> Answer | bool:
        """True: whoever asks is to run it, and then calls `keep` or `release`. False: it runs.
        `request`: a hash of what was asked. `answer`: is kept at once. Raises Refused.
        """
        name = self._name(client, key)
        try:
            found = self._kept.row(name)
            if found is None:
                row = Row(request, self._owner, *(answer or ()))
                found = self._kept.claim(name, row)
        except sqlite3.Error as error:
            raise Refused(503, f"its key cannot be kept: {error}", {"Retry-After": "1"}) from None
        if found is None:
            if answer is None:
                self._running.add(name)
            return True
        if found.request != request:
            raise Refused(422, "this Idempotency-Key names another request")
        if found.whole is not None:
            return found.whole
        if found.status is not None:
            raise Refused(410, "it ran; its answer took too much room to be kept for this long")
        if self._runs(name, found):
            return False
        raise Refused(500, "the server ended while it ran this request, which may have run")

    async def wait(self, client: Client, key: str, request: bytes) -> Answer | None:
        """The answer of whoever runs it; None: it is the caller's to run. Raises Refused, and Full
        where too many of the client's requests wait.
        """
        while True:
            found = self.claim(client, key, request)
            if found is True:
                return None
            answer = await self._end(client, key) if found is False else found
            if answer is not None:
                return answer

    def keep(self, client: Client, key: str, answer: Answer) -> None:
        """Where it cannot be kept, the answer to a later request says that it may have run."""
        name = self._name(client, key)
        self._running.discard(name)
        with suppress(sqlite3.Error):
            self._kept.keep(name, *answer)
        self._tell(name, answer)

    def release(self, client: Client, key: str) -> None:
        """It certainly did not run: the next to ask may."""
        name = self._name(client, key)
        self._running.discard(name)
        with suppress(sqlite3.Error):
            self._kept.release(name)
        self._tell(name, None)

    def close(self) -> None:
        self._kept.close()

    async def _end(self, client: Client, key: str) -> Answer | None:
        """Of what runs: its answer; None: there is none."""
        if self._waiting[client] >= self._settings.queue:
            raise Full
        name = self._name(client, key)
        end = self._ends.get(name)
        if end is None:
            end = self._ends[name] = _End(asyncio.get_running_loop().create_future())
            if name not in self._running:
                end.watcher = asyncio.ensure_future(self._watch(name))
        end.waiting += 1
        self._waiting[client] += 1
        try:
            return await asyncio.shield(end.answered)
        finally:
            self._waiting[client] -= 1
            end.waiting -= 1
            if not end.waiting and self._ends.get(name) is end:
                del self._ends[name]
                if end.watcher is not None:
                    end.watcher.cancel()

    def _tell(self, name: Name, answer: Answer | None) -> None:
        end = self._ends.pop(name, None)
        if end is not None:
            end.answered.set_result(answer)
            if end.watcher is not None:
                end.watcher.cancel()

    async def _watch(self, name: Name) -> None:
        """Tells those who wait what another process answers."""
        pause = _FIRST_LOOK_SEC
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_SEC)
            try:
                found = self._kept.row(name)
            except sqlite3.Error:
                found = None
            if found is None or found.status is not None or not self._runs(name, found):
                return self._tell(name, None if found is None else found.whole)

    def _runs(self, name: Name, row: Row) -> bool:
        if row.owner == self._owner:
            return name in self._running
        return _process(int(row.owner.partition(":")[0])) == row.owner

    def _name(self, client: Client, key: str) -> Name:
        return f"{self._settings.address} {client.name}", hashlib.sha256(key.encode()).digest()


def checked(key: str) -> str:
    """Raises Refused."""
    if not key or len(key) > _MOST_TEXT or not key.isascii() or not key.isprintable():
        raise Refused(400, f"an Idempotency-Key has 1 to {_MOST_TEXT} printable ASCII characters")
    return key


def _process(pid: int) -> str:
    """Names a process that runs, and no later one of the same number; "" where there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{pid}:{fields[19]}"
