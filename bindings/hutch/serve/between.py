# SPDX-License-Identifier: Apache-2.0
"""Between the processes of a server: one that is asked for what another process has hands it on, by
a Unix socket in a directory that only this user can open. Whoever hands it on has checked the key;
that it leaves ends what it asked for.

A message is its length, 8 bytes, and so many bytes. What is asked is one, in JSON; the answer is
its status, and its bytes: one message, or with the status 0 as many as there are lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

from starlette.responses import Response

from hutch._errors import SessionNotFound
from hutch.serve.aside import Aside
from hutch.serve.encode import encoded, size_of
from hutch.serve.settings import Client

_PATH = "HUTCH_SERVE_BETWEEN"  # the directory, to the other processes
_LINES = 0  # in place of a status
_ALL = Client()  # who are asked for by other processes
Found = tuple[int, bytes] | AsyncGenerator[bytes, None]
Asked = dict[str, Any]


@contextlib.contextmanager
def share() -> Any:
    """In the process that starts the others, and outlives them."""
    with tempfile.TemporaryDirectory(prefix="hutch-serve-") as place:
        os.environ[_PATH] = place
        yield


def _socket_of(process: int) -> str | None:
    place = os.environ.get(_PATH)
    return None if place is None else os.path.join(place, str(process))


class Between:
    """`do`: does what is asked here; `refused`: what its error is answered by. Belongs to one event
    loop.
    """

    def __init__(
        self,
        do: Callable[[Asked], Awaitable[Any]],
        refused: Callable[[Exception], Response],
        aside: Aside,
    ) -> None:
        self._do = do
        self._aside = aside
        self._refused = refused
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        path = _socket_of(os.getpid())
        if path is not None:
            self._server = await asyncio.start_unix_server(self._serve, path)

    def end(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            message = await _received(reader)
            asked = await self._aside.do(_ALL, len(message), partial(json.loads, message))
            work = asyncio.ensure_future(self._answer(asked, writer))
            leaves = asyncio.ensure_future(reader.read(1))
            leaves.add_done_callback(lambda _: work.cancel())
            try:
                await work
            finally:
                leaves.cancel()
        except (OSError, EOFError, RuntimeError, asyncio.CancelledError):
            pass  # it has left
        finally:
            writer.close()

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        try:
            found = await self._do(asked)
            if isinstance(found, AsyncGenerator):
                async with contextlib.aclosing(found) as lines:
                    await _send(writer, b"%d" % _LINES)
                    async for line in lines:
                        await _send(writer, line)
                return
            status = 200
            body = await self._aside.do(_ALL, size_of(found), partial(encoded, found))
        except Exception as error:
            response = self._refused(error)
            status, body = response.status_code, bytes(response.body)
        await _send(writer, b"%d" % status)
        await _send(writer, body)


async def asked_of(process: int, asked: bytes) -> Found:
    """The answer of the process that has it. `asked`: what is asked, encoded. Raises
    SessionNotFound where that process is no more, also while it answers.
    """
    path = _socket_of(process)
    try:
        if path is None:
            raise FileNotFoundError
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError:
        raise SessionNotFound("there is no such session, or it has ended") from None
    is_line = False
    try:
        await _send(writer, asked)
        status = int(await _received(reader))
        is_line = status == _LINES
        return _lines(reader, writer) if is_line else (status, await _received(reader))
    except (OSError, EOFError):
        gone = "the process of the server that had the session has ended"
        raise SessionNotFound(gone, may_have_run=True) from None
    finally:
        if not is_line:
            writer.close()


async def _lines(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AsyncGenerator[bytes, None]:
    try:
        with contextlib.suppress(OSError, EOFError):
            while True:
                yield await _received(reader)
    finally:
        writer.close()


async def _send(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(len(message).to_bytes(8, "big") + message)
    await writer.drain()


async def _received(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(8), "big"))
