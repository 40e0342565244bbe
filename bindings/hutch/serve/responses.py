# SPDX-License-Identifier: Apache-2.0
"""What is sent as an answer: whole, or lines as they are made."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from hutch._errors import SandboxBusy, SandboxError, SessionBusy, SessionNotFound
from hutch._program_files import OF_THE_CODE
from hutch._remote.wire import failure_to_wire
from hutch.serve.gate import Refused
from hutch.serve.own import fault_of
from hutch.serve.public import public
from hutch.serve.queue import Full, TooLate
from hutch.serve.room import Room, Unsent
from hutch.serve.settings import Settings

RETRY = {"Retry-After": "1"}
_PART = 256 << 10  # bytes of an answer that are handed over at once


class Lines(StreamingResponse):
    """Lines that are made as they are taken; `room` is held until the last of them."""

    def __init__(self, lines: AsyncGenerator[bytes, None], room: Room) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._lines = lines
        self._room = room
        room.hold()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._room.leave()
            await self._lines.aclose()


class Whole(Response):
    """A body that is sent as fast as it is taken, and holds its room until the last of it."""

    def __init__(self, body: bytes, status: int, headers: dict[str, str], unsent: Unsent) -> None:
        super().__init__(body, status, headers, media_type="application/json")
        self._unsent = unsent
        unsent.add(len(body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        with self._unsent:
            await send({**start, "headers": self.raw_headers})
            for place in range(0, len(self.body), _PART):
                part = self.body[place : place + _PART]
                more = place + _PART < len(self.body)
                await send({"type": "http.response.body", "body": part, "more_body": more})


def response_of(found: tuple[int, bytes], unsent: Unsent) -> Response:
    """Of its status and its bytes."""
    status, body = found
    headers = RETRY if status in (409, 429, 503, 504) else {}
    return Whole(body, status, headers, unsent)


def answer_to(error: Exception, settings: Settings) -> Response:
    """Says what went wrong. There is a time to repeat it after only where it certainly did not
    run.
    """
    if isinstance(error, Full):
        error = Refused(429, "too many requests wait already", RETRY)
    elif isinstance(error, (TooLate, SandboxBusy)):
        error = Refused(504, "there was no room in time", RETRY)
    elif isinstance(error, SandboxError):
        error = _of_failure(public(error, settings))
    elif not isinstance(error, Refused):
        error = Refused(500, "the server has a mistake: see its log; this may have run")
    return JSONResponse({**_refused(error.text), **error.more}, error.status, error.headers)


def _of_failure(error: SandboxError) -> Refused:
    status = 503
    if isinstance(error, OF_THE_CODE):
        status = 422
    elif fault_of(error).may_have_run:
        status = 500
    elif isinstance(error, SessionNotFound):
        status = 404
    elif isinstance(error, SessionBusy):
        status = 409
    headers = RETRY if status in (503, 409) else {}
    return Refused(status, str(error), headers, {"failure": failure_to_wire(error)})


def _refused(text: str) -> dict[str, Any]:
    return {"status": "SandboxError", "message": text, "detail": text}
