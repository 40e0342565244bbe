# SPDX-License-Identifier: Apache-2.0
"""What a connection is read of, as requests come faster than answers go."""

from __future__ import annotations

import asyncio
import resource
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from hutch.serve import protocol
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
        self.answers += data.endswith(b"x")

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
        one = Protocol(config, ServerState(), {}, asyncio.get_running_loop())
        one.connection_made(transport)
        one.data_received(PING)
        await pause()
        assert not transport.paused  # so that its end is heard of
        one.data_received(PING * 1000)
        for answered in range(50):
            await pause()
            assert transport.paused and transport.answers == answered
            assert 0 < len(one.pipeline) < 100
            app.turns.release()
        for _ in range(951):
            app.turns.release()
            await pause()
        assert transport.answers == 1001 and not transport.paused
        one.connection_lost(OSError())
        await pause()

    asyncio.run(main())


class Peer(Transport):
    """A connection of this address, closed or not."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.ended = ""
        self.written = b""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.address, 5) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = self.ended or "aborted"


def test_an_answer_is_sent_with_its_head_but_its_head_waits_for_nothing() -> None:
    async def main() -> None:
        written: list[bytes] = []
        transport = Peer("10.0.0.1")
        transport.write = written.append  # type: ignore[method-assign]
        joined = protocol._Joined(transport, asyncio.get_running_loop())
        for part in (b"head", b"body", b"more"):
            joined.write(part)
        await pause()
        assert written == [b"headbody", b"more"]
        written.clear()
        joined = protocol._Joined(transport, asyncio.get_running_loop())
        joined.write(b"head")
        await pause()
        assert written == [b"head"]
        joined.write(b"body")
        assert written == [b"head", b"body"]
        written.clear()
        joined = protocol._Joined(transport, asyncio.get_running_loop())
        joined.write(b"head")
        joined.close()
        assert written == [b"head"] and transport.ended == "closed"
        await pause()
        assert written == [b"head"]

    asyncio.run(main())


@pytest.mark.parametrize(("left", "ends_after"), [(6 << 20, 10 + 48), (0, None)])
def test_an_answer_of_known_length_is_to_be_read_at_some_rate(
    left: int, ends_after: float | None
) -> None:
    """And lines, of which nobody knows how many come, a part in each so many seconds."""

    async def main() -> None:
        loop, clock = asyncio.get_running_loop(), 1000.0
        loop.time = lambda: clock  # type: ignore[method-assign]
        app = App()
        app.state = SimpleNamespace(settings=Settings(answer_sec=10), figures=App.state.figures)
        config = uvicorn.Config(app, http=Protocol, proxy_headers=False, interface="asgi3")
        one = Protocol(config, ServerState(), {}, loop)
        one.connection_made(Peer("10.0.0.1"))
        one.cycle = SimpleNamespace(  # type: ignore[assignment]
            expected_content_length=left, response_complete=False, disconnected=False,
            message_event=asyncio.Event(),
        )  # fmt: skip
        waits = []
        for _ in range(7):
            one.pause_writing()
            assert one._reader_deadline is not None
            waits.append(one._reader_deadline.when() - clock)
            clock += 9
            one.resume_writing()
        if ends_after is None:
            assert waits == [10] * 7
        else:
            assert waits == [min(10, ends_after - 9 * number) for number in range(7)]
        one.connection_lost(None)

    asyncio.run(main())


def served(settings: Settings, play: Any) -> None:
    """`play(connect)`; `connect(address)`: a new connection, and what is at its end."""

    async def main() -> None:
        app = App()
        app.state = SimpleNamespace(settings=settings, figures=App.state.figures)
        config = uvicorn.Config(app, http=Protocol, proxy_headers=False, interface="asgi3")
        made = []

        def connect(address: str) -> tuple[Protocol, Peer]:
            transport = Peer(address)
            one = Protocol(config, ServerState(), {}, asyncio.get_running_loop())
            one.connection_made(transport)
            made.append(one)
            return one, transport

        try:
            await (play(connect) or pause())
        finally:
            for one in made:
                if one in protocol.connections:
                    one.connection_lost(None)
        assert not protocol.connections and not protocol.half_open and not protocol._peers
        assert not protocol._idle
        await pause()

    asyncio.run(main())


def test_the_oldest_silent_connection_of_a_peer_makes_room_for_its_next() -> None:
    def play(connect: Any) -> None:
        _, other = connect("10.0.0.1")
        silent = [connect("10.0.0.2")[1] for _ in range(4)]
        assert not any(one.ended for one in silent)
        connect("10.0.0.2")
        assert [one.ended for one in silent] == ["aborted", "", "", ""] and not other.ended

    served(Settings(connections=8), play)


def test_of_a_peer_whose_requests_all_run_the_next_connection_is_refused() -> None:
    def play(connect: Any) -> None:
        busy = [connect("10.0.0.2") for _ in range(4)]
        for one, _ in busy:
            one.data_received(PING)
        last, refused = connect("10.0.0.2")
        assert refused.ended and refused.written.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after" in refused.written and not any(one.ended for _, one in busy)
        _, other = connect("10.0.0.1")
        assert not other.ended
        last.connection_lost(None)
        busy[0][0].connection_lost(None)
        assert not connect("10.0.0.2")[1].ended

    served(Settings(connections=8), play)


def test_of_a_peer_whose_connections_are_idle_the_oldest_makes_room() -> None:
    async def play(connect: Any) -> None:
        idle = [connect("10.0.0.2") for _ in range(4)]
        for one, transport in idle:
            one.data_received(PING)
            await answered(one)
            assert transport.written.endswith(b"x")
        idle[0][0].data_received(PING)  # and is not idle any more
        connect("10.0.0.2")
        assert [one.ended for _, one in idle] == ["", "aborted", "", ""]

    async def answered(one: Protocol) -> None:
        one.app.turns.release()
        await pause()

    served(Settings(connections=8), play)


def test_so_many_connections_in_all() -> None:
    def play(connect: Any) -> None:
        busy = []
        for number in range(7):
            busy.append(connect(f"10.0.0.{number}"))
            busy[-1][0].data_received(PING)
        _, silent = connect("10.0.0.98")
        assert not silent.ended
        _, last = connect("10.0.0.99")
        assert silent.ended == "aborted" and not last.ended
        assert not any(transport.ended for _, transport in busy)

    served(Settings(connections=8), play)


def test_so_many_silent_connections_in_all() -> None:
    def play(connect: Any) -> None:
        silent = [connect(f"10.0.0.{number}")[1] for number in range(7)]
        assert [one.ended for one in silent] == ["aborted", *[""] * 6]

    served(Settings(connections=8), play)


@pytest.mark.parametrize(
    ("descriptors", "settings", "most"),
    [
        (524288, Settings(), 8192),
        (524288, Settings(connections=5), 5),
        (256, Settings(concurrency=4), 160),
        (256, Settings(concurrency=40), 128),
    ],
)
def test_connections_leave_descriptors_for_calls(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, settings: Settings, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (descriptors, descriptors))
    assert protocol.most_connections(settings) == most


@pytest.mark.parametrize(("lines", "status"), [(100, b""), (101, b"431")])
def test_lines_of_headers_are_few(lines: int, status: bytes) -> None:
    def play(connect: Any) -> None:
        one, transport = connect("10.0.0.2")
        one.data_received(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * lines + b"\r\n")
        assert transport.written[9:12] == status and bool(transport.ended) == bool(status)

    served(Settings(), play)
