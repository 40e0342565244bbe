# SPDX-License-Identifier: Apache-2.0
"""hutch.Client: programs that run where `hutch serve` does. Safe on any thread."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hutch._program import _checked_source, _given
from hutch._remote.servers import Servers

if TYPE_CHECKING:
    from hutch import _core
    from hutch._outcome import Outcome
    from hutch._remote.session import RemoteSession

_IN_FLIGHT = 32  # of `map`, on each server
_OF_ITEMS = ("source", "stdin", "args", "files")


class Client:
    """Runs programs on one or several servers of `hutch serve`, each on the one with the fewest
    calls outstanding.

        client = hutch.Client("http://gpu1:8080", "http://gpu2:8080", token="…")
        for outcome in client.map(programs):
            print(outcome.status)

    URLs are http://, https:// or unix:///path/of/socket. Outcomes and errors are those of local
    calls. A call that certainly did not run goes to another server; one that may have run raises
    AgentUnavailable with `.may_have_run`, unless it has a `key=`: then its server, which the key
    chooses, is asked again and runs it once. An answer that is no Outcome, or has more than 64
    MiB, a million values or 32 levels, is such an AgentUnavailable, too; so is one that goes on
    for more than five minutes. `connect_sec`: seconds to reach a server. `answer_sec`: seconds
    until an answer begins, turn and program included; None: as long as it takes. Raises ValueError
    for what a server refuses, PermissionError for its token.
    """

    __module__ = "hutch"

    def __init__(
        self,
        *urls: str,
        token: str | None = None,
        connect_sec: float = 10.0,
        answer_sec: float | None = None,
    ) -> None:
        if not urls or not all(isinstance(url, str) for url in urls):
            raise TypeError("Client() takes the URL of a server, or several")
        self._servers = Servers(urls, token, connect_sec, answer_sec)

    def run(
        self,
        source: str,
        *,
        stdin: str | bytes | None = None,
        args: Sequence[str] | str = (),
        files: Mapping[str, str | bytes] | None = None,
        timeout_sec: float | None = None,
        memory_mb: int | None = None,
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> Outcome[None]:
        """As `hutch.run`. `timeout_sec`, `memory_mb`: None takes what the server allows."""
        body = {**_program(source, stdin, args, files), **_limits(timeout_sec, memory_mb, labels)}
        return self._run(body, key or "", set())

    def Program(
        self,
        source: str,
        *,
        timeout_sec: float | None = None,
        memory_mb: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> RemoteProgram:
        """A program, to be run many times."""
        return RemoteProgram(self, source, _limits(timeout_sec, memory_mb, labels))

    def map(
        self,
        programs: Iterable[str | Mapping[str, Any]],
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        retries: int = 0,
        timeout_sec: float | None = None,
        memory_mb: int | None = None,
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> Iterator[Outcome[None]]:
        """An Outcome for each program; faults included. A program is its source, or a dict of
        `source`, `stdin`, `args` and `files`. `concurrency=None` is 32 for each server. `retries`:
        of what certainly did not run. `key`: names the whole; each program has one made of it.
        """
        limits = _limits(timeout_sec, memory_mb, labels)
        bodies = ({**_program(**_item(one)), **limits} for one in programs)
        return self._map(bodies, concurrency, ordered, retries, key)

    def Session(
        self,
        *,
        files: Mapping[str, str | bytes] | None = None,
        timeout_sec: float | None = None,
        memory_mb: int | None = None,
        idle_sec: float | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> RemoteSession:
        """Opens a session on the server with the fewest calls outstanding. `timeout_sec`: of each
        exec that names none; `idle_sec`: unused for so long, it ends; None: what the server allows.
        """
        from hutch._remote.session import RemoteSession

        body = _limits(timeout_sec, memory_mb, labels)
        if idle_sec is not None:
            body["idle_sec"] = idle_sec
        if files is not None:
            body["files"] = _encoded(_given((), None, files)["files"])
        return RemoteSession(self._servers, body)

    def close(self) -> None:
        """Closes connections that are idle; the next call opens others."""
        self._servers.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hutch.Client {', '.join(one.url for one in self._servers.all)}>"

    def _run(
        self, body: Mapping[str, Any], key: str, active: set[http.client.HTTPConnection]
    ) -> Outcome[Any]:
        return self._servers.ask("/v1/run", json.dumps(body).encode(), key, active)

    def _map(
        self,
        bodies: Iterable[Mapping[str, Any]],
        concurrency: int | None,
        ordered: bool,
        retries: int,
        key: str | None,
    ) -> Iterator[Outcome[Any]]:
        from hutch._calls.map import ChunkRunner, Plan, run

        if concurrency is None:
            concurrency = _IN_FLIGHT * len(self._servers.all)
        plan = Plan(concurrency, ordered, 1, "outcome", retries)
        active: set[http.client.HTTPConnection] = set()
        pid = os.getpid()

        def run_chunk(items: list[tuple[Any, ...]], token: _core.Cancel) -> list[Outcome[Any]]:
            number, body = items[0]
            return [self._run(body, f"{key}/{number}" if key else "", active)]

        try:
            yield from run(plan, enumerate(bodies), ChunkRunner(run_chunk))
        finally:
            if pid == os.getpid():  # in a forked child, the parent waits for them
                _hang_up(active)


class RemoteProgram:
    """A program of a Client, as `hutch.Program` is one of this host."""

    def __init__(self, client: Client, source: str, limits: Mapping[str, Any]) -> None:
        self._client = client
        self._source = _checked_source(source, "python")
        self._limits = limits

    def run(
        self,
        *,
        stdin: str | bytes | None = None,
        args: Sequence[str] | str = (),
        files: Mapping[str, str | bytes] | None = None,
        key: str | None = None,
    ) -> Outcome[None]:
        body = {**_program(self._source, stdin, args, files), **self._limits}
        return self._client._run(body, key or "", set())

    def map(
        self,
        stdins: Iterable[str | bytes],
        *,
        args: Sequence[str] | str = (),
        files: Mapping[str, str | bytes] | None = None,
        concurrency: int | None = None,
        ordered: bool = True,
        retries: int = 0,
        key: str | None = None,
    ) -> Iterator[Outcome[None]]:
        """An Outcome for each input; see `Client.map`."""
        bodies = ({**_program(self._source, one, args, files), **self._limits} for one in stdins)
        return self._client._map(bodies, concurrency, ordered, retries, key)

    def __repr__(self) -> str:
        return f"<hutch.Client.Program, {len(self._source)} characters>"


def _hang_up(active: set[http.client.HTTPConnection]) -> None:
    """So that the servers end what nobody waits for."""
    for connection in list(active):
        with suppress(OSError, AttributeError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _item(found: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(found, str):
        return {"source": found}
    if not isinstance(found, Mapping):
        kind = type(found).__name__
        raise TypeError(f"a program of map is its source, or a dict, not {kind}")
    unknown = [name for name in found if name not in _OF_ITEMS]
    if unknown or "source" not in found:
        raise ValueError(f"a program of map is its source, or a dict of {', '.join(_OF_ITEMS)}")
    return dict(found)


def _program(
    source: str,
    stdin: str | bytes | None = None,
    args: Sequence[str] | str = (),
    files: Mapping[str, str | bytes] | None = None,
) -> dict[str, Any]:
    """Raises TypeError and ValueError as `hutch.run` does."""
    given = _given(args, stdin, files)
    body: dict[str, Any] = {"source": _checked_source(source, "python")}
    if given["stdin"] is not None:
        try:
            body["stdin"] = given["stdin"].decode()
        except UnicodeDecodeError:
            body["stdin_base64"] = base64.b64encode(given["stdin"]).decode()
    if given["args"]:
        body["args"] = given["args"]
    if given.get("files"):
        body["files"] = _encoded(given["files"])
    return body


def _encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in files.items()}


def _limits(
    timeout_sec: float | None, memory_mb: int | None, labels: Mapping[str, str] | None
) -> dict[str, Any]:
    found = {"timeout_sec": timeout_sec, "memory_mb": memory_mb}
    given: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    if labels:
        given["labels"] = dict(labels)
    return given
