# SPDX-License-Identifier: Apache-2.0
"""What a connection is read of, as requests come faster than answers go."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from hutch.serve.protocol import Protocol
from hutch.serve.settings import Settings

PING = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANSWER = [
    {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]},
    {"type": "http.response.body", "body": b"x"},
]


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.answers = 0

    def write(self, data: Any) -> None:
        self.answers += data == b"x"

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        raise AssertionError("nobody has left")

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class App:
    """Answers when it is asked to, and looks meanwhile whether the client has left."""

    state = SimpleNamespace(
        settings=Settings(), figures=SimpleNamespace(changed=lambda: None, count=print)
    )

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        leaves = asyncio.ensure_future(receive())
        await self.turns.acquire()
        for message in ANSWER:
            await send(message)
        leaves.cancel()


async def pause() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_nothing_is_taken_from_a_connection_while_some_is_unread() -> None:
    async def main() -> None:
        app, transport = App(), Transport()
        config = uvicorn.Config(app, http=Protocol, proxy_headers=False, interface="asgi3")
        protocol = Protocol(config, ServerState(), {}, asyncio.get_running_loop())
        protocol.connection_made(transport)
        protocol.data_received(PING)
        await pause()
        assert not transport.paused  # so that its end is heard of
        protocol.data_received(PING * 1000)
        for answered in range(50):
            await pause()
            assert transport.paused and transport.answers == answered
            assert 0 < len(protocol.pipeline) < 100
            app.turns.release()
        for _ in range(951):
            app.turns.release()
            await pause()
        assert transport.answers == 1001 and not transport.paused
        protocol.connection_lost(OSError())
        await pause()

    asyncio.run(main())
