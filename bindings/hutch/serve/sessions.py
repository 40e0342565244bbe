# SPDX-License-Identifier: Apache-2.0
"""Sessions over HTTP: `POST /v1/sessions`, and what is done to one under its id. A session belongs
to the tenant that opened it, and is in one process of the server, which its id names.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from hutch._async_session import AsyncSession
from hutch._errors import SandboxError, SandboxStartupError, SessionNotFound
from hutch._outcome import Outcome
from hutch._remote import values
from hutch._remote.wire import to_wire
from hutch._text import shown
from hutch.serve import fields
from hutch.serve.gate import Refused
from hutch.serve.own import fault_of
from hutch.serve.public import public
from hutch.serve.queue import FairQueue
from hutch.serve.room import Shares, Unsent
from hutch.serve.runner import MOST_RESULT_MB, keywords_of
from hutch.serve.settings import Client, Settings

T = TypeVar("T")
OPEN_FIELDS = ("files", "timeout_sec", "memory_mb", "idle_sec", "labels")
EXEC_FIELDS = ("code", "timeout_sec", "stream")
BASH_FIELDS = ("code", "stdin", "timeout_sec", "stream")
VERBS = ("exec", "bash", "get", "set", "files", "interrupt", "reset", "info", "close")
_MOST_TEXT = 10_000  # characters of a value that is no data
_NUMBER = re.compile("[0-9a-f]{1,8}")
_LEAVES_SEC = 1.0
_ANY = 1000  # of names and of paths in one request


@dataclass(eq=False)
class _One:
    session: AsyncSession
    client: Client
    timeout_sec: float
    running: asyncio.Task[Any] | None = None


class Sessions:
    """Of this process. Belongs to one event loop."""

    def __init__(self, settings: Settings, queue: FairQueue, answers: Shares) -> None:
        self.settings = settings
        self._queue = queue
        self._answers = answers
        self._all: dict[str, _One] = {}

    async def open(
        self, client: Client, runs_as: Client, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Raises Refused, SandboxError."""
        settings = self.settings
        fields.known(body, OPEN_FIELDS)
        self._forget_ended()
        if sum(one.client is client for one in self._all.values()) >= settings.sessions:
            text = f"this client has {settings.sessions} sessions in this process: close some"
            raise Refused(429, text, {"Retry-After": "1"})
        timeout = fields.exact_seconds(body.get("timeout_sec"), "timeout_sec", settings.timeout_sec)
        idle = fields.exact_seconds(body.get("idle_sec"), "idle_sec", settings.session_idle_sec)
        memory = fields.exact_memory_mb(body.get("memory_mb"), settings)
        keywords = keywords_of(settings, runs_as, memory)
        keywords["result_mb"] = min(settings.body_mb, MOST_RESULT_MB)
        session = AsyncSession(
            files=fields.files(body, settings), idle_sec=idle, timeout_sec=timeout, **keywords
        )
        id = f"{os.getpid():x}-{secrets.token_hex(16)}"
        self._all[id] = _One(session, client, timeout)
        return {"id": id, "timeout_sec": timeout, "idle_sec": idle}

    @property
    def count(self) -> int:
        return len(self._all)

    async def do(self, client: Client | None, id: str, verb: str, body: Mapping[str, Any]) -> Any:
        """Its answer, or lines of one. Raises Refused, SandboxError, and what a queue does."""
        one = self._all.get(id)
        if one is None or one.client is not client:
            raise SessionNotFound("there is no such session, or it has ended")
        if one.session.info()["closed"] and verb != "close":
            del self._all[id]
            raise SessionNotFound(f"the session has ended: {one.session.info()['closed']}")
        run: Callable[[_One, Mapping[str, Any]], Any] = getattr(self, f"_{verb}")
        try:
            return await run(one, body)
        except SandboxStartupError as error:
            if one.session.info()["closed"]:
                raise SessionNotFound(error.message, may_have_run=error.may_have_run) from None
            raise

    async def end(self) -> None:
        for one in self._all.values():
            await one.session.close()

    def _forget_ended(self) -> None:
        for id, one in [*self._all.items()]:
            if one.session.info()["closed"]:
                del self._all[id]

    # ---- the verbs

    async def _exec(self, one: _One, body: Mapping[str, Any]) -> Any:
        fields.known(body, EXEC_FIELDS)
        code = fields.text(body, "code")
        run = self._run(one, body, self._in_turn, lambda limits: one.session.exec(code, **limits))
        return await run

    async def _bash(self, one: _One, body: Mapping[str, Any]) -> Any:
        fields.known(body, BASH_FIELDS)
        code = fields.text(body, "code")
        if "\0" in code:
            raise Refused(422, "code holds a NUL character")
        stdin = fields.text(body, "stdin", "")
        run = self._run(
            one, body, self._beside, lambda limits: one.session.bash(code, input=stdin, **limits)
        )
        return await run

    async def _run(
        self,
        one: _One,
        body: Mapping[str, Any],
        place: Callable[[_One, Callable[[], Awaitable[dict[str, Any]]]], Awaitable[dict[str, Any]]],
        run: Callable[[dict[str, Any]], Awaitable[Outcome[Any]]],
    ) -> Any:
        limits: dict[str, Any] = {"timeout_sec": one.timeout_sec}
        if body.get("timeout_sec") is not None:
            limits["timeout_sec"] = fields.exact_seconds(
                body["timeout_sec"], "timeout_sec", self.settings.timeout_sec
            )

        async def ran() -> dict[str, Any]:
            outcome = await run(limits)
            if outcome.status == "fault":
                outcome.unwrap()
            return _told(outcome)

        if fields.flag(body, "stream"):
            return self._lines(one.client, lambda: place(one, ran), limits)
        return await place(one, ran)

    async def _in_turn(self, one: _One, run: Callable[[], Awaitable[T]]) -> T:
        """Where this is cancelled, the code is ended as at a time limit, and this ends then."""
        engine = one.session._of._engine
        await _end_of_left(one)
        async with self._queue.turn(one.client):
            one.running = asyncio.current_task()
            try:
                return await run()
            except asyncio.CancelledError:
                if engine.task is not None:
                    await asyncio.wait({engine.task})
                raise

    async def _beside(self, one: _One, run: Callable[[], Awaitable[T]]) -> T:
        async with self._queue.turn(one.client):
            return await run()

    async def _lines(
        self, client: Client, run: Callable[[], Awaitable[dict[str, Any]]], limits: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        """What is printed, as it is, and at last the Outcome."""
        waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        with Unsent(self._answers, client) as unsent:

            def put(line: bytes | None) -> None:
                unsent.add(len(line or b""))
                waiting.put_nowait(line)

            def printed(name: str) -> Callable[[str], None]:
                def tell(text: str) -> None:
                    loop.call_soon_threadsafe(put, _line({name: text}))

                return tell

            async def work() -> None:
                try:
                    found = await run()
                    loop.call_soon(put, _line({"outcome": found}))
                except SandboxError as error:
                    fault = fault_of(public(error, self.settings))
                    loop.call_soon(put, _line({"outcome": to_wire(fault)}))
                finally:
                    loop.call_soon(put, None)

            limits |= {"on_stdout": printed("stdout"), "on_stderr": printed("stderr")}
            task = asyncio.ensure_future(work())
            try:
                while (line := await waiting.get()) is not None:
                    yield line
                    unsent.add(-len(line))
                await task
            finally:
                task.cancel()
                await asyncio.wait({task})

    async def _get(self, one: _One, body: Mapping[str, Any]) -> Any:
        fields.known(body, ("name",))
        name, missing = fields.text(body, "name"), object()
        value = await self._in_turn(one, lambda: one.session.get(name, missing))
        if value is missing:
            return {"found": False}
        try:
            return {"found": True, "value": values.to_json(value)}
        except values.NotData as error:
            text = f"{name[:100]!r} does not travel over HTTP: {error}; get a part of it as data"
            raise Refused(422, text) from None

    async def _set(self, one: _One, body: Mapping[str, Any]) -> Any:
        fields.known(body, ("name", "value"))
        name = fields.text(body, "name")
        try:
            value = values.from_json(body.get("value"))
        except ValueError as error:
            raise Refused(422, f"value: {error}") from None
        await self._in_turn(one, lambda: one.session.set(name, value))
        return {}

    async def _files(self, one: _One, body: Mapping[str, Any]) -> Any:
        """Writes, deletes, reads and lists, in this order."""
        fields.known(body, ("write", "delete", "read", "list"))
        write = fields.contents(body.get("write"), "write", self.settings)
        delete = fields.texts(body.get("delete"), "delete", _ANY)
        read = fields.texts(body.get("read"), "read", _ANY)
        listed = None if body.get("list") is None else fields.text(body, "list")
        files = one.session.files

        async def done() -> dict[str, Any]:
            found: dict[str, Any] = {"files": {}}
            room = self.settings.body_mb << 20
            for path, content in write.items():
                await files.write(path, content)
            for path in delete:
                await files.delete(path)
            for path in read:
                content = await files.read_bytes(path)
                room -= len(content)
                if room < 0:
                    text = f"the files have more than {self.settings.body_mb} MiB: read fewer"
                    raise Refused(422, text)
                found["files"][path] = base64.b64encode(content).decode()
            if listed is not None:
                found["names"] = [*await files.list(listed)]
            return found

        try:
            return await self._in_turn(one, done)
        except SandboxError:  # some are an OSError, too
            raise
        except (OSError, ValueError) as error:
            more = {
                "errno": getattr(error, "errno", None),
                "filename": getattr(error, "filename", None),
            }
            text = getattr(error, "strerror", None) or str(error)
            raise Refused(404, text, more=more) from None

    async def _interrupt(self, one: _One, body: Mapping[str, Any]) -> Any:
        fields.known(body, ())
        one.session.interrupt()
        return {}

    async def _reset(self, one: _One, body: Mapping[str, Any]) -> Any:
        fields.known(body, ("files",))
        files = fields.flag(body, "files")
        await self._in_turn(one, lambda: one.session.reset(files=files))
        return {}

    async def _info(self, one: _One, body: Mapping[str, Any]) -> Any:
        fields.known(body, ())
        info = one.session.info()
        known = ("started", "restarts", "execs", "cwd", "restartable")
        return {**{name: info[name] for name in known}, "lost": one.session.lost}

    async def _close(self, one: _One, body: Mapping[str, Any]) -> Any:
        fields.known(body, ())
        self._all = {id: other for id, other in self._all.items() if other is not one}
        await one.session.close()
        return {}


async def _end_of_left(one: _One) -> None:
    """Waits a little for a call whose client may have left: who asks next does not know yet that
    it has not ended.
    """
    if one.running is not None:
        await asyncio.wait({one.running}, timeout=_LEAVES_SEC)


def process_of(id: str) -> int:
    """The process that has the session of this id; 0: none can."""
    number = id.partition("-")[0]
    return int(number, 16) if _NUMBER.fullmatch(number) else 0


def _told(outcome: Outcome[Any]) -> dict[str, Any]:
    """A value that is no data is shown instead, as a session shows what cannot leave it."""
    value, outcome.value = outcome.value, None
    told = to_wire(outcome)
    try:
        told["value"] = values.to_json(value)
    except values.NotData:
        if not any("text/plain" in forms for forms in told["display"]):
            told["display"].append({"text/plain": shown(value, _MOST_TEXT)})
    return told


def _line(found: Any) -> bytes:
    return json.dumps(found).encode() + b"\n"
