# SPDX-License-Identifier: Apache-2.0
"""A request's body: read within its time and its client's room, and parsed as strict JSON."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request

from hutch import _strict_json
from hutch.serve.aside import Aside
from hutch.serve.gate import Refused
from hutch.serve.room import Room, Shares, Total
from hutch.serve.settings import Client, Settings

_MOST_VALUES = 250_000
_MOST_DIGITS = 1000


@dataclass
class Asked:
    """A request that was read: its body, which had `size` bytes, whose it is, its head, its
    room.
    """

    body: dict[str, Any]
    size: int
    client: Client
    request: Request
    room: Room


class Bodies:
    """Reads them. Belongs to one event loop."""

    def __init__(self, settings: Settings, total: Total, aside: Aside) -> None:
        self._most = settings.body_mb << 20
        self._sec = settings.body_sec
        self._shares = Shares(settings.bodies_mb << 20, total)
        self._aside = aside

    def room(self, client: Client) -> Room:
        return Room(self._shares, client)

    async def read(self, request: Request, room: Room) -> tuple[dict[str, Any], int]:
        """A JSON object, and how many bytes it had. Raises Refused."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, "the body must be sent as application/json")
        reading = asyncio.current_task()
        assert reading is not None
        is_late = False

        def end() -> None:
            nonlocal is_late
            is_late = True
            reading.cancel()

        # Not wait_for(), which reads in a task of its own, although most bodies are there already.
        # Whether it is late cannot be seen by the clock: uvloop's timers are up to 1 ms early.
        late = asyncio.get_running_loop().call_later(self._sec, end)
        try:
            body = await self._read(request, room)
        except asyncio.CancelledError:
            if not is_late:
                raise
            raise Refused(408, f"the body was not sent within {self._sec:g} s") from None
        except ClientDisconnect:
            raise Refused(499, "the client has gone") from None
        finally:
            late.cancel()
        size = len(body)
        try:
            memory = await self._aside.do(room.client, size, lambda: _strict_json.memory(body))
            # Its text as characters, and once more what is parsed of that.
            if not room.grow(2 * memory):
                raise _no_room(room)
            found = await self._aside.do(room.client, size, lambda: parsed(body))
            room.shrink(size + memory)
            return found, size
        except MemoryError:
            raise _no_room(room) from None

    async def _read(self, request: Request, room: Room) -> bytes:
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > self._most):
            raise Refused(413, f"the body is larger than {self._most >> 20} MiB")
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > self._most:
                raise Refused(413, f"the body is larger than {self._most >> 20} MiB")
            if not room.grow(len(part)):
                raise _no_room(room)
            parts.append(part)
        return b"".join(parts)


def _no_room(room: Room) -> Refused:
    if room.is_alone:
        return Refused(413, "the body takes more memory than this server has for bodies")
    text = "the requests of this client, or of all, hold as much memory as they may"
    return Refused(503, text, {"Retry-After": "1"})


def parsed(body: bytes) -> dict[str, Any]:
    """Raises Refused."""
    try:
        return _strict_json.parsed(body, _MOST_VALUES, _MOST_DIGITS)
    except ValueError as error:
        raise Refused(400, f"the body {error}") from None
