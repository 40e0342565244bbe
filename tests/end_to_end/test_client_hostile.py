# SPDX-License-Identifier: Apache-2.0
"""hutch.Client against a server that is hostile: one clear error, in time, and no word of its token
to anybody else.
"""

from __future__ import annotations

import gzip
import socket
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch._remote import answers, servers

sys.path.insert(0, str(Path(__file__).parent))
from test_client import CHUNKED, FINE, Fake, Raw, answer

TOKEN = "t" * 30


def lost(url: str, match: str | None = None, **more: Any) -> hutch.AgentUnavailable:
    """The error of a call of it, which may have run."""
    client = hutch.Client(url, token=TOKEN, **more)
    with client, pytest.raises(hutch.AgentUnavailable, match=match) as error:
        client.run("1")
    said = error.value
    assert said.may_have_run and said.outcome is not None and said.outcome.status == "fault"
    assert TOKEN not in f"{said} {said.hint}" and len(str(said)) < 3000
    assert str(said).replace("\n", " ").isprintable()
    return said


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.parametrize("where", ["{}/v1/run", "//{}/v1/run", "/v1/run", "http://\x7f", ""])
def test_no_redirection_is_followed(status: int, where: str) -> None:
    with Fake(FINE) as other:
        place = where.format(other.url if where[:1] == "{" else other.url.partition("//")[2])
        moved = answer(f"Location: {place}", "Content-Length: 2", status=f"{status} Moved") + b"{}"
        with Raw(lambda: iter([moved])) as server:
            lost(server.url, f"of status {status}, cannot be read")
            assert server.asked == 1 and other.asked == []


BOMB = gzip.compress(bytes(64 << 20))
ODD: dict[str, list[bytes]] = {
    "html": [answer("Content-Type: text/html", "Content-Length: 6"), b"<html>"],
    "gzip": [answer("Content-Encoding: gzip", f"Content-Length: {len(BOMB)}"), BOMB],
    "gzip in chunks": [answer("Transfer-Encoding: gzip, chunked"), b"%x\r\n" % len(BOMB), BOMB],
    "utf-16": [answer("Content-Type: application/json; charset=utf-16", "Content-Length: 4"),
               "{}".encode("utf-16-le")],
    "events": [answer("Content-Type: text/event-stream", "Content-Length: 9"), b"data: {}\n"],
    "lines": [answer("Content-Type: application/x-ndjson", "Content-Length: 6"), b"{}\n{}\n"],
    "upgrade": [answer("Upgrade: websocket", "Connection: Upgrade", status="101 Switching")],
    "nothing": [answer(status="204 No Content")],
    "a terminal's commands": [b"HTTP/1.1 \x1b[2J\x9b" + b"x" * 60_000 + b"\r\n\r\n"],
    "no status": [b"\x1b]0;owned\x07" * 3000 + b"\r\n\r\n"],
    "a header's size": [answer("x: " + "x" * 70_000)],
    "two lengths": [answer("Content-Length: 2", "Content-Length: 70"), b"{}"],
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_one_error_and_takes_little_memory(name: str) -> None:
    with Raw(lambda: iter(ODD[name])) as server:
        tracemalloc.start()
        try:
            lost(server.url)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
        assert server.asked == 1


def drip(*first: bytes, more: bytes = b"x") -> Callable[[], Iterator[bytes]]:
    """As slow as no bound for each read would notice."""

    def slow() -> Iterator[bytes]:
        for piece in chain(first, repeat(more)):
            yield piece
            time.sleep(0.02)

    return slow


SLOW = {
    "a status": drip(b"H", more=b"T"),
    "headers": drip(b"HTTP/1.1 200 OK\r\nx: "),
    "many headers": drip(b"HTTP/1.1 200 OK\r\n", more=b"x"),
    "interim answers": drip(more=answer(status="100 Continue")),
    "a body": drip(answer("Content-Length: 1000000")),
    "a body without end": drip(answer()),
    "lines without end": drip(CHUNKED, more=b"3\r\n{}\n\r\n"),
    "a chunk's size": drip(CHUNKED, more=b"0"),
    "trailers": drip(CHUNKED + b"0\r\n", more=b"x: y\r\n"),
}


@pytest.mark.parametrize("name", SLOW)
def test_an_answer_that_has_begun_is_there_in_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "TRANSFER_SEC", 0.5)
    with Raw(SLOW[name]) as server:
        lost(server.url, "took more than 0.5 s|timed out")


def test_a_request_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "TRANSFER_SEC", 0.5)
    monkeypatch.setattr(servers, "_REFUSAL_SEC", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as deaf, Fake(FINE) as other:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with hutch.Client(url) as client, pytest.raises(hutch.AgentUnavailable) as error:
            client.run("1", files={"x": bytes(20 << 20)})
        assert not error.value.may_have_run
        found = [hutch.Client(url, other.url).run("1", files={"x": bytes(20 << 20)}).ok]
        assert found == [True]


def test_an_answer_that_does_not_begin_is_waited_for_as_long_as_asked() -> None:
    over = threading.Event()

    def silent() -> Iterator[bytes]:
        over.wait(60)
        yield b""

    with Raw(silent) as server:
        lost(server.url, "did not answer: timed out", answer_sec=0.3)
        over.set()
        assert server.asked == 1


def test_a_slow_program_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harmless counterpart: what is bounded is the answer, and not how long it takes."""
    monkeypatch.setattr(answers, "TRANSFER_SEC", 0.2)
    with Fake("hold") as server, hutch.Client(server.url) as client:
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(client.run("1").ok))
        thread.start()
        assert server.waits.wait(60)
        thread.join(0.5)
        server.goes_on.set()
        thread.join(60)
        assert found == [True]


@pytest.mark.parametrize("token", ["a\r\nX: y", "a\n", "é" * 20, "a b", "\0" * 20])
def test_a_token_that_is_none_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="token has characters") as error:
        hutch.Client("http://127.0.0.1:9", token=token)
    assert token not in str(error.value)


@pytest.mark.parametrize("key", ["a\r\nX: y", "é", "k" * 256, "\0"])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    with Fake(FINE) as server, hutch.Client(server.url, token=TOKEN) as client:
        with pytest.raises(ValueError, match="a key has 1 to 255 printable ASCII characters"):
            client.run("1", key=key)
        assert server.asked == [] and client.run("1", key="k" * 255).ok


@pytest.mark.parametrize(
    "url", ["http://:secret@a", "http://u:secret@a", "http://a/b c", "http://a/\xe9"]
)
def test_what_could_become_another_request_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a server") as error:
        hutch.Client(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("status", ["502 Bad Gateway", "503 Unavailable", "504 Gateway Time-out"])
def test_what_a_proxy_gave_up_does_not_run_elsewhere(status: str) -> None:
    proxy = answer("Content-Type: text/html", "Content-Length: 6", status=status) + b"<html>"
    with Raw(lambda: iter([proxy])) as first, Fake(FINE) as other:
        client = hutch.Client(first.url, other.url)
        client._servers.all[1].outstanding = 3  # so the first is asked
        found = list(client.map(["1"] * 2, retries=3, concurrency=1))
        assert [one.may_have_run for one in found if not one.ok] == [True] * 2
        assert (first.asked, other.asked) == (2, [])
