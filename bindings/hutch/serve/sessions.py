# SPDX-License-Identifier: Apache-2.0
"""Sessions over HTTP: `POST /v1/sessions`, and what is done to one under its id. A session belongs
to the tenant that opened it, and is in one process of the server, which its id names.
"""

from __future__ import annotations

import asyncio
import keyword
import os
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from hutch._async_session import AsyncSession
from hutch._errors import SandboxError, SandboxStartupError, SessionNotFound
from hutch._outcome import Outcome
from hutch._remote import values
from hutch._remote.wire import to_wire
from hutch._text import shown
from hutch.serve import fields
from hutch.serve.aside import AT_ONCE, Aside
from hutch.serve.encode import encoded, size_of
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
_LEAVES_SEC = 1.0  # for a call whose client may have left to end
_MOST_WAITING = 4 << 20  # bytes of a stream that nobody has read
_SMALL = (type(None), bool, int, float)
_ANY = 1000  # of names and of paths in one request


@dataclass(eq=False)
class _One:
    id: str
    session: AsyncSession
    client: Client
    timeout_sec: float
    idle_sec: float
    running: asyncio.Task[Any] | None = None
    uses: int = 0  # under way
    ends: asyncio.TimerHandle | None = None  # where nothing is under way


class Sessions:
    """Of this process. Belongs to one event loop."""

    def __init__(self, settings: Settings, queue: FairQueue, answers: Shares, aside: Aside) -> None:
        self.settings = settings
        self._queue = queue
        self._answers = answers
        self._aside = aside
        self._all: dict[str, _One] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def open(
        self, client: Client, runs_as: Client, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Raises Refused, SandboxError, and what a queue does."""
        settings = self.settings
        fields.known(body, OPEN_FIELDS)
        if sum(one.client.name == client.name for one in self._all.values()) >= settings.sessions:
            text = f"this client has {settings.sessions} sessions in this process: close some"
            raise Refused(429, text, {"Retry-After": "1"})
        timeout = fields.exact_seconds(body.get("timeout_sec"), "timeout_sec", settings.timeout_sec)
        idle = fields.exact_seconds(body.get("idle_sec"), "idle_sec", settings.session_idle_sec)
        memory = fields.exact_memory_mb(body.get("memory_mb"), settings)
        keywords = keywords_of(settings, runs_as, memory)
        keywords["result_mb"] = min(settings.body_mb, MOST_RESULT_MB)
        files = await self._aside.do(
            client, size_of(body.get("files")), lambda: fields.files(body, settings)
        )
        session = AsyncSession(idle_sec=idle, timeout_sec=timeout, **keywords)
        id = f"{os.getpid():x}-{secrets.token_hex(16)}"
        one = self._all[id] = _One(id, session, client, timeout, idle)
        try:
            with self._used(one):
                if files:  # at once, so that they take no memory here
                    await self._in_turn(one, lambda: _put(session, files))
        except BaseException:
            self._drop(one)
            raise
        return {"id": id, "timeout_sec": timeout, "idle_sec": idle}

    @contextmanager
    def _used(self, one: _One) -> Iterator[None]:
        """One that is not used ends, also one that never was: its cell may be gone without that
        anybody hears of it.
        """
        one.uses += 1
        if one.ends is not None:
            one.ends.cancel()
        try:
            yield
        finally:
            one.uses -= 1
            if not one.uses and one.id in self._all:
                loop = asyncio.get_running_loop()
                one.ends = loop.call_later(one.idle_sec, self._drop, one)

    def _drop(self, one: _One) -> None:
        if self._all.pop(one.id, None) is None:
            return
        if one.ends is not None:
            one.ends.cancel()
        task = asyncio.ensure_future(one.session.close())
        self._closing.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled():
            task.exception()  # which nobody is there to hear of

    @property
    def count(self) -> int:
        return len(self._all)

    async def do(self, client: Client | None, id: str, verb: str, body: Mapping[str, Any]) -> Any:
        """Its answer, or lines of one. Raises Refused, SandboxError, and what a queue does."""
        one = self._all.get(id)
        if one is None or client is None or one.client.name != client.name:
            raise SessionNotFound("there is no such session, or it has ended")
        run: Callable[[_One, Mapping[str, Any]], Any] = getattr(self, f"_{verb}")
        with ExitStack() as stack:
            stack.enter_context(self._used(one))
            try:
                found = await run(one, body)
            except SandboxStartupError as error:
                if one.session.info()["closed"]:
                    self._drop(one)
                    raise SessionNotFound(error.message, may_have_run=error.may_have_run) from None
                raise
            if isinstance(found, _Stream):
                found.closed = stack.pop_all().close
        return found

    async def end(self) -> None:
        for one in [*self._all.values()]:
            self._drop(one)
        if self._closing:
            await asyncio.wait(self._closing)

    # ---- the verbs

    async def _exec(self, one: _One, body: Mapping[str, Any]) -> Any:
        fields.known(body, EXEC_FIELDS)
        code = fields.text(body, "code")
        exec = one.session.exec
        return await self._run(one, body, self._in_turn, lambda limits: exec(code, **limits))

    async def _bash(self, one: _One, body: Mapping[str, Any]) -> Any:
        fields.known(body, BASH_FIELDS)
        code = fields.text(body, "code")
        if "\0" in code:
            raise Refused(422, "code holds a NUL character")
        stdin = fields.text(body, "stdin", "")
        bash = one.session.bash
        return await self._run(
            one, body, self._beside, lambda limits: bash(code, input=stdin, **limits)
        )

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
            return await self._told(one, outcome)

        if not fields.flag(body, "stream"):
            return await place(one, ran)
        stream = _Stream(self._answers, one.client, self.settings)
        limits |= {"on_stdout": stream.hears("stdout"), "on_stderr": stream.hears("stderr")}
        await stream.begin(lambda: place(one, ran))
        return stream

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

    async def _get(self, one: _One, body: Mapping[str, Any]) -> Any:
        fields.known(body, ("name",))
        name, missing = _name(body), object()
        value = await self._in_turn(one, lambda: one.session.get(name, missing))
        if value is missing:
            return {"found": False}
        try:
            return {"found": True, "value": await self._as_json(one, value)}
        except values.NotData as error:
            text = f"{name[:100]!r} does not travel over HTTP: {error}; get a part of it as data"
            raise Refused(422, text) from None

    async def _set(self, one: _One, body: Mapping[str, Any]) -> Any:
        fields.known(body, ("name", "value"))
        name = _name(body)
        try:
            given = body.get("value")
            value = await self._aside.do(
                one.client, size_of(given), lambda: values.from_json(given)
            )
        except ValueError as error:
            raise Refused(422, f"value: {error}") from None
        await self._in_turn(one, lambda: one.session.set(name, value))
        return {}

    async def _files(self, one: _One, body: Mapping[str, Any]) -> Any:
        """Writes, deletes, reads and lists, in this order."""
        fields.known(body, ("write", "delete", "read", "list"))
        given, settings = body.get("write"), self.settings
        write = await self._aside.do(
            one.client, size_of(given), lambda: fields.contents(given, "write", settings)
        )
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
                found["files"][path] = content
            if listed is not None:
                found["names"] = [*await files.list(listed)]
            return found

        try:
            return await self._in_turn(one, done)
        except SandboxError:  # some are an OSError, too
            raise
        except (OSError, ValueError) as error:
            more = {name: getattr(error, name, None) for name in ("errno", "filename")}
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
        self._all.pop(one.id, None)
        await one.session.close()
        return {}

    async def _told(self, one: _One, outcome: Outcome[Any]) -> dict[str, Any]:
        """A value that is no data is shown instead, as a session shows what cannot leave it."""
        value, outcome.value = outcome.value, None
        told = to_wire(outcome)
        try:
            told["value"] = await self._as_json(one, value)
        except values.NotData:
            if not any("text/plain" in forms for forms in told["display"]):
                told["display"].append({"text/plain": shown(value, _MOST_TEXT)})
        return told

    async def _as_json(self, one: _One, value: Any) -> Any:
        """Raises NotData."""
        size = 0 if type(value) in _SMALL else AT_ONCE + 1  # as it may be of any
        return await self._aside.do(one.client, size, lambda: values.to_json(value))


class _Stream(AsyncGenerator[bytes, None]):
    """What is printed, as it is, and at last the Outcome. Of what comes faster than it is read so
    much is kept, and the rest left out, with a line that says how much.
    """

    def __init__(self, answers: Shares, client: Client, settings: Settings) -> None:
        self._unsent = Unsent(answers, client)
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._size = 0  # of what waits
        self._left_out = 0  # characters
        self.closed: Callable[[], None] = lambda: None

    def hears(self, name: str) -> Callable[[str], None]:
        def hear(text: str) -> None:
            if self._size > _MOST_WAITING:
                self._left_out += len(text)
                return
            line = _line({name: text})
            self._size += len(line)
            self._loop.call_soon_threadsafe(self._put, line)

        return hear

    def _put(self, line: bytes | None) -> None:
        self._unsent.add(len(line or b""))
        self._waiting.put_nowait(line)

    async def begin(self, run: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Until there is a line, so that what does not run is refused in the usual way. It is to be
        closed from then on.
        """

        async def work() -> dict[str, Any]:
            try:
                return await run()
            finally:
                self._loop.call_soon(self._put, None)

        self._task = asyncio.ensure_future(work())
        try:
            first = await self._waiting.get()
            if first is None and self._task.done():
                self._task.result()
        except BaseException:
            await self._end()
            raise
        self._lines = self._from(first)

    async def _from(self, line: bytes | None) -> AsyncGenerator[bytes, None]:
        while line is not None:
            yield line
            self._size -= len(line)
            self._unsent.add(-len(line))
            if self._left_out and self._size <= _MOST_WAITING:
                left_out, self._left_out = self._left_out, 0
                yield _line({"left_out": left_out})
            line = await self._waiting.get()
        try:
            found = await self._task
        except SandboxError as error:
            found = to_wire(fault_of(public(error, self._settings)))
        yield _line({"outcome": found})

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        self._unsent.__exit__()
        self.closed()

    async def asend(self, value: None) -> bytes:
        return await self._lines.asend(value)

    async def athrow(self, *error: Any) -> bytes:
        return await self._lines.athrow(*error)

    async def aclose(self) -> None:
        """Also of one of which nothing was taken."""
        await self._lines.aclose()
        await self._end()


async def _put(session: AsyncSession, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        await session.files.write(path, content)


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


def _name(body: Mapping[str, Any]) -> str:
    name = fields.text(body, "name")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise Refused(422, f"name is {name[:100]!r}, which no variable can have")
    return name


def _line(found: Any) -> bytes:
    return encoded(found) + b"\n"
