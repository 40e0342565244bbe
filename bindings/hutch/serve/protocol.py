# SPDX-License-Identifier: Apache-2.0
"""uvicorn's reader of HTTP, with bounds for who sends or reads slowly, or sends endless headers.

A connection is half open from its first moment, or from the first byte of a further request, until
that request is there whole. Only so many are; the one that has been for longest makes room. So it
does for a new connection where there are too many of its peer, or in all, and if none is, one that
is idle; if all run a request, the new one is refused.

Of the requests that a connection sends without waiting for answers, some are read, and the rest
when those before them are answered.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hutch.serve.figures import Figures
from hutch.serve.settings import Settings

_MOST_HEADERS = 64 << 10  # bytes; likewise of trailers, and of what describes one chunk of a body
_MOST_LINES = 100  # of headers
_MOST_PIPELINED = 16  # and what else is in the part that is read
_PART = 1 << 10  # bytes of what may be requests
_GRACE_SEC = 5.0  # the application says 408 before the connection is closed
_CLOSED = b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LATE = 408, b"HTTP/1.1 408 Request Timeout" + _CLOSED
_TOO_LARGE = 431, b"HTTP/1.1 431 Request Header Fields Too Large" + _CLOSED
_TOO_MANY = 503, b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1" + _CLOSED
_LEAST_RATE = 128 << 10  # bytes a second, of an answer whose length was told
_KEPT_BACK = 64  # descriptors that no connection takes, beside those of calls
_OF_A_CALL = 8

# Of this process; half-open ones with the oldest first.
connections: set[Protocol] = set()
half_open: dict[Protocol, None] = {}
_idle: dict[Protocol, None] = {}  # whose requests have been answered
_peers: dict[str, _Peer] = {}


class _Peer:
    """One address, or all of a Unix socket. Its connections of each kind, with the oldest first."""

    def __init__(self) -> None:
        self.connections = 0
        self.half_open: dict[Protocol, None] = {}
        self.idle: dict[Protocol, None] = {}


def pipelined() -> int:
    """Requests behind another one of their connection."""
    return sum(len(one.pipeline) for one in connections)


class Protocol(HttpToolsProtocol):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._settings: Settings = self.config.loaded_app.state.settings
        figures: Figures = self.config.loaded_app.state.figures
        self._changed = figures.changed
        self._count = figures.count
        self._most = most_connections(self._settings)
        self._most_half_open = max(1, min(self._settings.half_open, 3 * self._most // 4))
        self._peer: _Peer | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._reader_deadline: asyncio.TimerHandle | None = None
        self._answer_ends = 0.0  # by the clock of the loop, once its client is slow to read it
        self._header_bytes = 0  # since the last byte of a body
        self._in_headers = False
        self._has_too_many_lines = False
        self._unread = bytearray()
        self._body_left = 0  # bytes of the body that comes, if its length was given

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self._unread)
        address = self.client[0] if self.client else ""
        self._peer = _peers.setdefault(address, _Peer())
        self._peer.connections += 1
        connections.add(self)
        self._changed()
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        connections.discard(self)
        self._changed()
        self._whole()
        self._set_idle(False)
        if self._peer is not None:
            self._peer.connections -= 1
            if not self._peer.connections:
                _peers.pop(self.client[0] if self.client else "", None)
        self.resume_writing()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self.config.loaded_app.state.end_soon()
        super().shutdown()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._changed()
        self._read_on()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._answer_ends = 0.0
        self._changed()
        self._read_on()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._set_idle(not self.pipeline and self._deadline is None)

    def _read_on(self) -> None:
        while (
            self._unread
            and len(self.pipeline) < _MOST_PIPELINED
            and not self.transport.is_closing()
        ):
            size = max(_PART, self._body_left)
            part = bytes(self._unread[:size])
            del self._unread[:size]
            self._read(part)
        if self._unread:
            self.flow.pause_reading()

    def _read(self, data: bytes) -> None:
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._begin()
        self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes > _MOST_HEADERS:
            self._refuse(*_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._in_headers = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # and no trailer, which nobody reads
            if len(self.headers) == _MOST_LINES:
                self._has_too_many_lines = True
                raise ValueError  # which ends the parser
            super().on_header(name, value)
            if name.lower() == b"content-length" and value.isdigit():
                self._body_left = int(value[:18])

    def on_body(self, body: bytes) -> None:
        self._body_left = max(0, self._body_left - len(body))
        self._header_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        self._arm(self._settings.body_sec + _GRACE_SEC)
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not None and self.cycle is not before:
            joined: Any = _Joined(self.transport, self.loop)
            self.cycle.transport = joined

    def on_message_complete(self) -> None:
        self._body_left = 0
        self._header_bytes = 0
        self._whole()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        wait = self._settings.answer_sec
        left = 0 if self.cycle is None else self.cycle.expected_content_length
        if left:  # of lines nobody knows
            now = self.loop.time()
            self._answer_ends = self._answer_ends or now + wait + left / _LEAST_RATE
            wait = min(wait, max(0.0, self._answer_ends - now))
        self._reader_deadline = self.loop.call_later(wait, self._abort)

    def resume_writing(self) -> None:
        if self._reader_deadline is not None:
            self._reader_deadline.cancel()
            self._reader_deadline = None
        super().resume_writing()

    def _begin(self) -> None:
        self._in_headers = True
        self._header_bytes = 0
        self._set_idle(False)
        half_open[self] = None
        if self._peer is not None:
            self._peer.half_open[self] = None
        self._arm(self._settings.header_sec)
        if self._peer is not None and self._peer.connections > max(1, self._most // 2):
            self._make_room(self._peer.half_open, self._peer.idle)
        elif len(connections) > self._most or len(half_open) > self._most_half_open:
            self._make_room(half_open, _idle)

    def _make_room(self, others: dict[Protocol, None], idle: dict[Protocol, None]) -> None:
        """By the oldest of these, which may be this one."""
        oldest = next(iter(others))
        if oldest is self:
            oldest = next(iter(idle), self)
        if oldest is self:
            self._refuse(*_TOO_MANY)
        else:
            oldest._abort()

    def _set_idle(self, is_idle: bool) -> None:
        for place in (_idle, *([] if self._peer is None else [self._peer.idle])):
            if is_idle:
                place[self] = None
            else:
                place.pop(self, None)

    def _whole(self) -> None:
        half_open.pop(self, None)
        if self._peer is not None:
            self._peer.half_open.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _arm(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._refuse, *_TOO_LATE)

    def send_400_response(self, msg: str) -> None:
        if self._has_too_many_lines:
            self._refuse(*_TOO_LARGE)
        else:
            self._count(400)
            super().send_400_response(msg)

    def _refuse(self, status: int, answer: bytes) -> None:
        started = self.cycle is not None and not self.cycle.response_complete
        if self._in_headers and not started and not self.transport.is_closing():
            self._count(status)
            self.transport.write(answer)
        self._whole()
        self.transport.close()

    def _abort(self) -> None:
        self._whole()
        self.transport.abort()


class _Joined:
    """A transport of one answer. Its first part, the head, is sent with the second one where that
    comes at once: each part that is sent by itself wakes the client.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self._has_begun = False

    def write(self, data: bytes) -> None:
        if self._has_begun:
            self._transport.write(self._head + data if self._head else data)
            self._head = b""
        else:
            self._has_begun = True
            self._head = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""


class _Flow(FlowControl):
    """Takes nothing more from the connection while some of it is unread."""

    def __init__(self, transport: asyncio.Transport, unread: bytearray) -> None:
        super().__init__(transport)
        self._unread = unread

    def resume_reading(self) -> None:
        if not self._unread:
            super().resume_reading()


def most_connections(settings: Settings) -> int:
    """As many descriptors are left for what its calls need."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = most - _KEPT_BACK - _OF_A_CALL * settings.concurrency
    return min(settings.connections, max(1, left, most // 2))


def raise_descriptors() -> None:
    """To what this process may have: each connection takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
