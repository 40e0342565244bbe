# SPDX-License-Identifier: Apache-2.0
"""What a server answers, which may be hostile or broken: no more of it is read than `MOST_BYTES`,
its status and headers with it, and for no longer than `TRANSFER_SEC`; what is no Outcome is one
error. No redirection is followed, and nothing is unpacked. Safe on any thread, each connection on
one at a time.
"""

from __future__ import annotations

import http.client
import io
import time
from collections.abc import Callable
from typing import Any, TypeVar

from hutch import _strict_json
from hutch._errors import AgentUnavailable, SandboxBusy, SandboxError, SandboxStartupError
from hutch._outcome import Outcome
from hutch._remote.wire import failure_from_wire, from_wire
from hutch._text import MOST_TEXT, escape, shortened

MOST_BYTES = 64 << 20
TRANSFER_SEC = 300.0  # for all of a request to be sent; for an answer from its first byte on
_AT_ONCE = 1 << 20  # bytes; the library takes memory for as many as it is asked for

T = TypeVar("T")
Connection = http.client.HTTPConnection


class TooLarge(Exception):
    pass


class _Bounded(io.RawIOBase):
    """Counts what is read of one answer, and the time: the library itself sets no bound to the
    parts of a chunked one, to what stands before and after it, and to interim answers.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._source = sock.makefile("rb", buffering=0)
        self._left = MOST_BYTES
        self._until: float | None = None  # once it has begun

    def restart(self) -> None:
        self._left = MOST_BYTES
        self._until = time.monotonic() + TRANSFER_SEC

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int | None:
        if self._until is not None:
            left = self._until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"its answer took more than {TRANSFER_SEC:g} s")
            self._sock.settimeout(left)
        got: int | None = self._source.readinto(room)
        if self._until is None:
            self._until = time.monotonic() + TRANSFER_SEC
        self._left -= got or 0
        if self._left < 0:
            raise TooLarge
        return got

    def close(self) -> None:
        self._source.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_Bounded(sock))


class _Http(http.client.HTTPConnection):
    response_class = _Response


class _Https(http.client.HTTPSConnection):
    response_class = _Response


def connection_to(scheme: str, host: str, port: int | None, timeout_sec: float) -> Connection:
    """Not connected yet."""
    return (_Https if scheme == "https" else _Http)(host, port, timeout=timeout_sec)


def body_of(answer: http.client.HTTPResponse) -> bytes:
    """Raises OSError, HTTPException, ValueError, TooLarge."""
    with answer:  # which may be all that has the connection
        if (answer.length or 0) > MOST_BYTES:
            raise TooLarge
        pieces = []
        while piece := answer.read(_AT_ONCE):
            pieces.append(piece)
        if answer.length:
            raise http.client.IncompleteRead(b"", answer.length)
        return b"".join(pieces)


def last_line_of(answer: http.client.HTTPResponse, tell: Callable[[bytes], bool]) -> bytes:
    """`tell` gets each line as it comes, and says whether another one follows. A refusal is no line
    of those. Raises as body_of() does, and what `tell` raises.
    """
    if answer.status != 200:
        return body_of(answer)
    with answer:
        last = b""
        while line := answer.readline():
            _restart(answer)
            if not tell(line):
                last = line
        if not last:
            raise http.client.IncompleteRead(b"")
        return last


def _restart(answer: http.client.HTTPResponse) -> None:
    """Its time: it goes on as long as lines come."""
    bounded: Any = answer.fp and answer.fp.raw
    if bounded is not None:
        bounded.restart()


def too_large() -> AgentUnavailable:
    text = f"the server's answer cannot be read: it has more than {MOST_BYTES >> 20} MiB"
    return AgentUnavailable(text, may_have_run=True)


def outcome_of(status: int, body: bytes) -> Outcome[Any]:
    """Raises what a local call would. That a call did not run is believed where 503 says so in the
    words of `hutch serve`, or 504, or 429 in any: a proxy may answer the first two when it has
    passed the request on.
    """
    return _read(status, body, _outcome_from)


def object_of(status: int, body: bytes) -> dict[str, Any]:
    """What a session's server answers that is no Outcome. Raises likewise, and OSError of files."""
    return _read(status, body, lambda found, status: found)


def last_outcome_of(status: int, body: bytes) -> Outcome[Any]:
    """Of the last line of those of an exec."""

    def outcome_in(found: dict[str, Any], status: int) -> Outcome[Any]:
        if type(found.get("outcome")) is not dict:
            raise ValueError("it ends without an Outcome")
        return _outcome_from(found["outcome"], status)

    return _read(status, body, outcome_in)


def _outcome_from(found: dict[str, Any], status: int) -> Outcome[Any]:
    outcome = from_wire(found)
    if outcome.status == "fault":  # with whatever status it is sent: it is never an answer
        raise _fault(status, outcome.exception(), outcome)
    if status != 200:
        text = f"the server sent what a program answered as a fault, of status {status}"
        raise AgentUnavailable(text, may_have_run=True)
    return outcome


def _read(status: int, body: bytes, take: Callable[[dict[str, Any], int], T]) -> T:
    found: dict[str, Any] = {}
    try:
        found = _parsed(body)
        if status == 200 or (status in (500, 503) and "call_id" in found):
            return take(found, status)
        if status in (404, 409, 422, 500, 503) and "failure" in found:
            raise _fault(status, failure_from_wire(found["failure"]))
        text = _shown(found.get("message"))
        if status < 400:
            raise ValueError("it is not an Outcome")
    except ValueError as error:
        text = f"the server's answer, of status {status}, cannot be read: {error}"
    if status < 400:
        raise AgentUnavailable(text, may_have_run=True)
    if status in (404, 405) and not found:
        raise ValueError(f"no hutch serve answers there, but something else: see the URL: {text}")
    is_own = found.get("status") == "SandboxError"
    if status == 404 and is_own and type(found.get("errno")) is int:
        raise OSError(found["errno"], text, _shown(found.get("filename")) or None)
    if status == 429 or (status == 504 and is_own):
        raise SandboxBusy(f"the server has no room: {text}")
    if status in (401, 403, 421):
        raise PermissionError(f"the server refuses: {text}")
    if status < 500 and status != 410:
        raise ValueError(f"the server refuses the request: {text}")
    ran = not (status == 503 and is_own)
    raise SandboxStartupError(f"the server failed: {text}", may_have_run=ran)


def _fault(status: int, error: SandboxError, outcome: Outcome[Any] | None = None) -> SandboxError:
    """Its error, which says that it may have run if anything of the answer does."""
    if isinstance(error, SandboxStartupError):
        said = outcome is not None and outcome.may_have_run
        error.may_have_run = error.may_have_run or said or status not in (503, 404, 409)
    return error


def _shown(text: object) -> str:
    """Of what the server said, harmless to a terminal."""
    return shortened(escape(text), MOST_TEXT) if type(text) is str else ""


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        return _strict_json.parsed(body)
    except ValueError as error:
        raise ValueError(f"it {error}") from None
