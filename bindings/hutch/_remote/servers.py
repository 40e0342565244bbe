# SPDX-License-Identifier: Apache-2.0
"""Requests to one of several servers. What certainly did not run may go to another one; what may
have run is asked for again only under its key, and only where that is known. Safe on any thread.
After a fork the child has connections of its own.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

from hutch._errors import AgentUnavailable, SandboxStartupError
from hutch._options.checks import quoted
from hutch._outcome import Outcome, SandboxError
from hutch._remote.answers import (
    TRANSFER_SEC,
    Connection,
    TooLarge,
    body_of,
    connection_to,
    last_line_of,
    outcome_of,
    too_large,
)
from hutch._text import escape, one_line, shortened

_IDLE_SEC = 3.0  # a server closes a connection that has been idle for 5
_AVOID_SEC = 5.0  # a server that could not be reached
_MOST_KEY = 255  # characters
_REPEATS = 5  # of a request with a key, where its server is there but not its answer
_PAUSE_SEC = 0.2
_REFUSAL_SEC = 5.0  # until one is there, of a server that has stopped to read the request
_MOST_SAID = 300  # characters of the library's text, which may hold what the server sent


Read: TypeAlias = Callable[[int, bytes], Any]


class _NotSent(Exception):
    """The server certainly has not the whole request."""


class _Lost(Exception):
    """It has the request; its answer did not come."""


class Server:
    """One URL, and connections to it that are open and idle."""

    def __init__(self, url: str, connect_sec: float, answer_sec: float | None) -> None:
        self._idle: list[tuple[Connection, float]] = []
        self.url = url
        self.outstanding = 0
        self.avoided_until = 0.0
        self._connect_sec = connect_sec
        self._answer_sec = answer_sec
        parts = urlsplit(url)
        self._scheme, self._host, self._port = parts.scheme, parts.hostname or "", parts.port
        self._path = parts.path.rstrip("/")
        wrong = parts.query or parts.fragment or "@" in parts.netloc
        if parts.scheme == "unix" and parts.path and not parts.netloc and not wrong:
            self._socket, self._path, self._host = parts.path, "", "localhost"
        elif (
            parts.scheme in ("http", "https") and self._host and not wrong and _is_plain(parts.path)
        ):
            self._socket = ""
        else:
            shown = "one with a name or a password" if "@" in parts.netloc else quoted(url)
            raise ValueError(
                f"{shown} is not the URL of a server: http://HOST:PORT, https://… or "
                "unix:///PATH of its socket"
            )

    def take(self) -> Connection:
        """Raises OSError."""
        while True:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                return self._connected()
            if time.monotonic() - since < _IDLE_SEC and not _readable(connection):
                return connection
            connection.close()

    def give_back(self, connection: Connection) -> None:
        self._idle.append((connection, time.monotonic()))

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()

    def __del__(self) -> None:
        self.close()

    def send(
        self,
        connection: Connection,
        path: str,
        body: bytes,
        headers: dict[str, str],
        tell: Callable[[bytes], bool] | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of the answer, of which `tell` gets each line, and says whether another
        one follows. Raises _NotSent, _Lost, AgentUnavailable, and what `tell` does.
        """
        sent = True
        connection.sock.settimeout(TRANSFER_SEC)
        try:
            connection.request("POST", self._path + path, body, headers)
            connection.sock.settimeout(self._answer_sec)
        except OSError as error:
            sent = False  # a refusal may be there all the same
            why: Exception = error
            connection.sock.settimeout(_REFUSAL_SEC)
        try:
            answer = connection.getresponse()
            found = body_of(answer) if tell is None else last_line_of(answer, tell)
        except TooLarge:
            raise too_large() from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            if sent:
                raise _Lost(_said(error)) from None
            raise _NotSent(_said(why)) from None
        if answer.will_close or not sent:
            connection.close()
        return answer.status, found

    def _connected(self) -> Connection:
        connection = connection_to(self._scheme, self._host, self._port, self._connect_sec)
        if self._socket:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(self._connect_sec)
            try:
                connection.sock.connect(self._socket)
            except OSError:
                connection.close()
                raise
        else:
            connection.connect()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        connection.auto_open = 0  # what is closed is not opened again unseen
        return connection


class Servers:
    def __init__(
        self,
        urls: Sequence[str],
        token: str | None,
        connect_sec: float,
        answer_sec: float | None,
    ) -> None:
        self._urls = tuple(urls)
        self._connect_sec = connect_sec
        self._answer_sec = answer_sec
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            if not _is_plain(token):  # and say nothing of it
                raise ValueError("token has characters that no header may have: see for a newline")
            self._headers["Authorization"] = f"Bearer {token}"
        self.begin()
        _of_this_process.add(self)

    def begin(self) -> None:
        """Without connections, and with no call outstanding."""
        self.all = [Server(url, self._connect_sec, self._answer_sec) for url in self._urls]
        self._lock = threading.Lock()

    def ask(self, path: str, body: bytes, key: str, active: set[Connection]) -> Outcome[Any]:
        """`active`: has the connection that waits for the answer. Raises SandboxError, ValueError,
        PermissionError.
        """
        if len(key) > _MOST_KEY or not key.isascii() or not (key.isprintable() or not key):
            raise ValueError(f"a key has 1 to {_MOST_KEY} printable ASCII characters")
        try:
            if key:
                return self._ask_of_key(path, body, key, active)
            _, outcome = self.ask_least_loaded(path, body, outcome_of, active)
            return cast("Outcome[Any]", outcome)
        except SandboxError as error:
            if error.outcome is None:
                ran = isinstance(error, SandboxStartupError) and error.may_have_run
                error.outcome = Outcome[Any]("fault", may_have_run=ran).fail(error)
            raise

    def ask_least_loaded(
        self, path: str, body: bytes, read: Read, active: set[Connection]
    ) -> tuple[str, Any]:
        """The URL of the server that took it, and what `read` makes of the status and the body of
        its answer. Raises SandboxError, and what `read` does.
        """
        tried: set[Server] = set()
        while True:
            server = self._least_loaded(tried)
            tried.add(server)
            try:
                return server.url, self._ask(
                    server, path, body, read, set() if active is None else active
                )
            except SandboxStartupError as error:
                if error.may_have_run or len(tried) == len(self.all):
                    raise

    def ask_one(
        self,
        url: str,
        path: str,
        body: bytes,
        read: Read,
        tell: Callable[[bytes], bool] | None = None,
    ) -> Any:
        """Of this server alone. `tell`: gets each line of an answer that is lines, and says whether
        another one follows; `read` gets the last.
        """
        server = next(one for one in self.all if one.url == url)
        return self._ask(server, path, body, read, set(), tell)

    def _ask(
        self,
        server: Server,
        path: str,
        body: bytes,
        read: Read,
        active: set[Connection],
        tell: Callable[[bytes], bool] | None = None,
    ) -> Any:
        try:
            return read(*self._send(server, path, body, {}, active, tell))
        except _NotSent as error:
            raise _unreachable(server, error) from None
        except _Lost as error:
            raise _lost(server, error) from None

    def close(self) -> None:
        for server in self.all:
            server.close()

    def _ask_of_key(
        self, path: str, body: bytes, key: str, active: set[Connection]
    ) -> Outcome[Any]:
        """By the same server each time, since only that one knows the key."""
        server = max(self.all, key=lambda one: hashlib.sha256(f"{key} {one.url}".encode()).digest())
        lost: _Lost | None = None
        for repeat in range(_REPEATS):
            try:
                return outcome_of(*self._send(server, path, body, {"Idempotency-Key": key}, active))
            except _Lost as error:
                lost = error
            except _NotSent as error:
                if lost is None:
                    raise _unreachable(server, error) from None
            time.sleep(_PAUSE_SEC * 2**repeat)
        assert lost is not None
        raise _lost(server, lost)

    def _least_loaded(self, tried: set[Server]) -> Server:
        now = time.monotonic()
        left = [one for one in self.all if one not in tried]
        return min(left, key=lambda one: (one.avoided_until > now, one.outstanding))

    def _send(
        self,
        server: Server,
        path: str,
        body: bytes,
        more: dict[str, str],
        active: set[Connection],
        tell: Callable[[bytes], bool] | None = None,
    ) -> tuple[int, bytes]:
        """Raises _NotSent, _Lost, AgentUnavailable."""
        with self._lock:
            server.outstanding += 1
        connection = None
        try:
            try:
                connection = server.take()
                active.add(connection)
            except OSError as error:
                server.avoided_until = time.monotonic() + _AVOID_SEC
                raise _NotSent(str(error)) from None
            found = server.send(connection, path, body, {**self._headers, **more}, tell)
            if connection.sock is not None:
                active.discard(connection)
                server.give_back(connection)
                connection = None
            return found
        finally:
            if connection is not None:
                active.discard(connection)
                connection.close()
            with self._lock:
                server.outstanding -= 1


_of_this_process: weakref.WeakSet[Servers] = weakref.WeakSet()


def _after_fork() -> None:
    for servers in list(_of_this_process):
        servers.begin()


os.register_at_fork(after_in_child=_after_fork)


def _readable(connection: Connection) -> bool:
    """Of an idle connection: the server has closed it."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _is_plain(text: str) -> bool:
    """May stand in the first lines of a request."""
    return text.isascii() and text.isprintable() and " " not in text


def _said(error: Exception) -> str:
    text = escape(str(error) or type(error).__name__)
    return shortened(one_line(text), _MOST_SAID)


def _unreachable(server: Server, error: Exception) -> AgentUnavailable:
    hint = "see that `hutch serve` runs there"
    return AgentUnavailable(f"{server.url} cannot be reached: {error}", hint=hint)


def _lost(server: Server, error: Exception) -> AgentUnavailable:
    hint = "the call may have run: repeat it only if that does no harm, or give each call a key="
    text = f"{server.url} did not answer: {error}"
    return AgentUnavailable(text, hint=hint, may_have_run=True)
