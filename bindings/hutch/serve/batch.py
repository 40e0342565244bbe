# SPDX-License-Identifier: Apache-2.0
"""The scripts of one `POST /execute_batch`: each has an answer of its own, also where there was no
room for it. The batch is refused as a whole only where none of it has begun.
"""

from __future__ import annotations

from hutch._errors import SandboxBusy
from hutch.serve import notebook
from hutch.serve.aside import Aside
from hutch.serve.encode import encoded, size_of
from hutch.serve.queue import FairQueue, Full, TooLate
from hutch.serve.runner import Job
from hutch.serve.settings import Client, Settings

_LEAST_ROOM = 1 << 20  # bytes for the answer of one


class Batch:
    def __init__(
        self,
        settings: Settings,
        queue: FairQueue,
        aside: Aside,
        client: Client,
        count: int,
        timeout_sec: float,
    ) -> None:
        self._settings = settings
        self._aside = aside
        self._queue = queue
        self._client = client
        self._timeout_sec = timeout_sec
        self._room = settings.body_mb << 20  # of all answers, which are there at once
        self._left = count
        self._has_begun = False

    async def answer(self, script: str, language: str) -> bytes:
        """In JSON. Raises Full, TooLate, SandboxBusy, where none of the batch has begun."""
        room = max(_LEAST_ROOM, self._room // self._left)
        self._left -= 1
        found = await self._found(script, language, room)
        answer = await self._aside.do(self._client, size_of(found), lambda: encoded(found))
        self._room -= len(answer)
        if self._room > 0:
            return answer
        return encoded(notebook.no_room(self._settings))

    async def _found(self, script: str, language: str, room: int) -> dict[str, object]:
        if language != "python":
            return notebook.no_verdict(f"language {language[:100]!r} is not supported: python is")
        if self._room <= 0:
            return notebook.no_room(self._settings)
        job = Job(script, self._timeout_sec, self._settings.memory_mb)
        try:
            async with self._queue.turn(self._client):
                self._has_begun = True
                return await notebook.e2b_answer(
                    job, self._settings, self._aside, self._client, room
                )
        except (Full, TooLate, SandboxBusy):
            if not self._has_begun:
                raise
            return notebook.no_verdict("there was no room in time: this script did not run")
