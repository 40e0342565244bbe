# SPDX-License-Identifier: Apache-2.0
"""What `hutch serve` refuses: bodies, fields, and who sends or reads slowly."""

from __future__ import annotations

import base64
import json
import resource
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any

import httpx
import pytest
from support import until

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]
JSON = {"content-type": "application/json"}
GOOD = {"code": "print(1)", "language": "python"}


@pytest.fixture(scope="module")
def url(serving: Serving) -> Iterator[str]:
    with serving("--timeout-sec", "20", "--set", "header_sec=5", "--set", "body_sec=5") as (url, _):
        yield url


@pytest.fixture(scope="module")
def impatient(serving: Serving) -> Iterator[str]:
    with serving("--timeout-sec", "3", "--set", "header_sec=1", "--set", "body_sec=1") as (url, _):
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=120) as client:
        yield client


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=120)


def head_of(path: str) -> bytes:
    line = f"POST {path} HTTP/1.1"
    return f"{line}\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()


BAD = [
    ({"code": 3}, "code must be a text"),
    ({}, "code must be a text"),
    ({"code": "\ud800"}, "half of a surrogate pair"),
    ({"code": "1", "run_timeout": "x"}, "run_timeout must be a number"),
    ({"code": "1", "run_timeout": True}, "run_timeout must be a number"),
    ({"code": "1", "memory_limit_MB": []}, "memory_limit_MB must be a number"),
    ({"code": "1", "files": {"../x": ""}}, "not a path below"),
    ({"code": "1", "files": {"a/../../x": ""}}, "not a path below"),
    ({"code": "1", "files": {"/etc/x": ""}}, "not a path below"),
    ({"code": "1", "files": {"a\0b": ""}}, "not a path below"),
    ({"code": "1", "files": {"": ""}}, "not a path below"),
    ({"code": "1", "files": {"a/": ""}}, "not a path below"),
    ({"code": "1", "files": {"./.": ""}}, "not a path below"),
    ({"code": "1", "files": {"/".join("a" * 33): ""}}, "not a path below"),
    ({"code": "1", "files": {"\ud800": ""}}, "half of a surrogate pair"),
    ({"code": "1", "files": {"é" * 128: ""}}, "too long a name"),
    ({"code": "1", "files": {"a": "!"}}, "not base64"),
    ({"code": "1", "files": {"a": "", "./a": ""}}, "twice"),
    ({"code": "1", "files": {"a": "", "a/b": ""}}, "below another"),
    ({"code": "1", "files": {f"f{i}": "" for i in range(100_000)}}, "more than 10000 names"),
    ({"code": "1", "files": [1]}, "files must be an object"),
    ({"code": "1", "fetch_files": ["../../etc/passwd"]}, "not a path below"),
    ({"code": "1", "fetch_files": "x"}, "must be a list of texts"),
]


@pytest.mark.parametrize(("body", "text"), BAD)
def test_a_wrong_field_is_named(client: httpx.Client, body: Any, text: str) -> None:
    content = json.dumps({"language": "python", **body}).encode()
    answer = client.post("/run_code", content=content, headers=JSON)
    assert answer.status_code == 422 and text in answer.json()["message"]
    assert answer.json()["status"] == "SandboxError"


def nested(depth: int) -> bytes:
    return b'{"code": "1", "x": ' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"[1]", 400, "not a JSON object"),
        (b"\xff{}", 400, "not UTF-8, at byte 0"),
        (b'{"code": "\xed\xa0\x80"}', 400, "not UTF-8"),
        ('{"code": "1"}'.encode("utf-16"), 400, "not UTF-8"),
        (nested(100), 400, "more than 32 deep"),
        (nested(200_000), 400, "nested too deep"),
        (b'{"code": "1", "code": "2"}', 400, "twice"),
        (b'{"code": "1", "run_timeout": NaN}', 400, "not a number"),
        (b'{"code": "1", "run_timeout": ' + b"9" * 5000 + b"}", 400, "not JSON"),
        (b'{"code": "1", "x": [' + b"[]," * 1_000_000 + b"[]]}", 400, "more than 250000 values"),
        (b'{"x": "' + b'\\"' * 3_000_000 + b'", "y": "' + b"[," * 3_000_000 + b'"}', 422, "code"),
        (b'{"code": "' + b"x" * (100 << 20) + b'"}', 413, "larger than 64 MiB"),
    ],
)
def test_a_body_that_is_none_is_refused(
    client: httpx.Client, content: bytes, status: int, text: str
) -> None:
    answer = client.post("/run_code", content=content, headers=JSON)
    assert answer.status_code == status and text in answer.json()["message"]
    assert client.post("/run_code", json=GOOD).json()["status"] == "Success"


def test_asked_limits_are_bounded(client: httpx.Client, impatient: str) -> None:
    for memory in (-1, 0, 10**9, 10**400, None):
        body = json.dumps({**GOOD, "memory_limit_MB": memory}).encode()
        found = client.post("/run_code", content=body, headers=JSON).json()
        assert found["status"] == "Success"
    for memory in (-1, 0, 10**9, 100, 64.5, "64"):
        found = client.post("/v1/run", json={"source": "1", "memory_mb": memory})
        assert found.status_code == 422 and "memory_mb must be one of 64, 128" in found.text
    for timeout in (10**9, 1e-9, 5e-324):
        endless = {"code": "import time; time.sleep(99)", "run_timeout": timeout}
        slow = httpx.post(f"{impatient}/run_code", json=endless, timeout=120)
        assert slow.json()["run_result"]["status"] == "TimeLimitExceeded"


def test_a_body_that_says_it_is_too_large_is_not_read(url: str) -> None:
    with connected(url) as one:
        one.sendall(
            b"POST /run_code HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999999999999\r\n\r\n"
        )
        assert one.recv(100).split()[1] in (b"400", b"413")


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (b"X: ", b"x" * 10_000),
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"x" * 10_000),
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n" * 1000),
        (b"Transfer-Encoding: chunked\r\n\r\n2;x=", b"x" * 10_000),
    ],
)
def test_endless_headers_trailers_and_descriptions_are_cut_off(
    url: str, begins: bytes, goes_on: bytes
) -> None:
    with connected(url) as one:
        one.sendall(head_of("/run_code") + begins)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(10_000):
                one.sendall(goes_on)


@pytest.mark.parametrize(("more", "status"), [(b"", b"200"), (b"Host: example.org\r\n", b"421")])
def test_a_request_has_one_host(url: str, more: bytes, status: bytes) -> None:
    with connected(url) as one:
        one.sendall(b"GET /v1/ping HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % more)
        assert one.recv(100).split()[1] == status


def test_a_body_in_many_chunks_is_read_with_its_trailers(url: str) -> None:
    with connected(url) as one:
        one.sendall(
            head_of("/run_code") + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        body = json.dumps(GOOD).encode() + b" " * 20_000
        chunks = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in body)
        one.sendall(chunks + b"0\r\nX: y\r\n\r\n")
        said = b""
        while part := one.recv(10_000):
            said += part
        assert said.startswith(b"HTTP/1.1 200 ") and b'"Success"' in said


def test_many_wrong_requests_are_few_lines_of_the_log_and_counted(serving: Serving) -> None:
    sent = b"\x1b[31mSENT\xff"
    wrong = [
        sent,
        b"GET /" + sent + b" HTTP/1.1\r\n\r\n",
        b"GET /v1/ping HTTP/1.1\r\nHost: " + sent + b"\r\n\r\n",
        b"GET /SENT HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: SENT\r\n\r\n",
        head_of("/run_code") + b"Transfer-Encoding: chunked\r\n\r\nSENT\r\n",
        head_of("/run_code") + b'Content-Length: 8\r\nConnection: close\r\n\r\n["SENT"]',
    ]
    with serving() as (url, server):
        for one in wrong * 50:
            with connected(url) as connection:
                connection.sendall(one)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)
        counted = httpx.get(f"{url}/metrics").text
        server.terminate()
        assert server.stderr is not None
        said = server.stderr.read()
    assert int(counted.split('hutch_serve_answers_total{status="400"} ')[1].split()[0]) >= 200
    assert "Invalid HTTP request received." in said and "SENT" not in said
    assert len(said.split("\n")) < 12 and "\x1b[31mSENT" not in said


def test_slow_senders_are_informed_and_closed(impatient: str) -> None:
    started = [
        b"",
        b"POST /run_code HTT",
        b"POST /run_code HTTP/1.1\r\nHost: localhost\r\nContent-Le",
        b"POST /run_code HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{",
    ]
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(impatient)) for _ in started]
        for one, text in zip(slow, started):
            one.sendall(text)
        for one in slow:
            said = b""
            while part := one.recv(10_000):
                said += part
            assert said.startswith(b"HTTP/1.1 408 ")


def test_a_thousand_slow_senders_do_not_stop_a_thousand_others(url: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, before[1]), before[1]))
    body = json.dumps(GOOD).encode()
    head = b"POST /run_code HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    ask = head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with ExitStack() as stack:
        for number in range(1000):
            slow = stack.enter_context(connected(url))
            slow.sendall((head[: number % 60], head + b"Content-Length: 9\r\n\r\n{")[number % 2])
        others = [stack.enter_context(connected(url)) for _ in range(1000)]
        for one in others:
            one.sendall(ask)
        for one in others:
            said = b""
            while part := one.recv(10_000):
                said += part
            assert said.startswith(b"HTTP/1.1 200 ") and b'"Success"' in said
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_of_too_many_half_open_connections_the_oldest_makes_room(serving: Serving) -> None:
    with serving("--set", "half_open=20", "--set", "header_sec=300") as (url, _):
        httpx.post(f"{url}/run_code", json=GOOD, timeout=120)
        with ExitStack() as stack:
            slow = [stack.enter_context(connected(url)) for _ in range(21)]
            for one in slow:
                one.sendall(b"POST")
            assert slow[0].recv(1) == b""
            assert httpx.post(f"{url}/run_code", json=GOOD, timeout=120).status_code == 200
            slow[-1].setblocking(False)
            with pytest.raises(BlockingIOError):  # the latest is there
                slow[-1].recv(1)


def test_bodies_of_one_client_hold_so_much_memory_and_no_more(serving: Serving) -> None:
    flags = ("--concurrency", "1", "--set", "bodies_mb=4", "--set", "body_mb=3")
    large = {**GOOD, "files": {"x": base64.b64encode(bytes(2 << 20)).decode()}}
    with serving(*flags) as (url, _), httpx.Client(base_url=url, timeout=120) as client:
        assert client.post("/run_code", json=large).status_code == 200
        body = json.dumps({**large, "code": "import time; time.sleep(20)"}).encode()
        with connected(url) as holder:
            head = (
                b"POST /run_code HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            )
            holder.sendall(head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            wait_for(client, "hutch_serve_running 1")
            full = client.post("/run_code", json=large)
            assert full.status_code == 503 and full.headers["retry-after"]
            assert "as much memory as they may" in full.json()["message"]
        wait_for(client, "hutch_serve_running 0")
        assert client.post("/run_code", json=large).status_code == 200


def test_what_is_parsed_of_bodies_takes_room_too(serving: Serving) -> None:
    flags = ("--concurrency", "1", "--set", "bodies_mb=20", "--set", "queue_sec=5")
    wide = {**GOOD, "more": [{"a": 1}] * 110_000}  # 1 MB of text
    with serving(*flags) as (url, _), httpx.Client(base_url=url, timeout=120) as client:
        assert client.post("/run_code", json=wide).json()["status"] == "Success"  # by itself
        body = json.dumps({**wide, "code": "import time; time.sleep(20)"}).encode()
        with connected(url) as holder:
            holder.sendall(
                head_of("/run_code") + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            wait_for(client, "hutch_serve_running 1")
            assert client.post("/run_code", json=wide).status_code == 503
            assert client.post("/run_code", json=GOOD).status_code == 503
        wait_for(client, "hutch_serve_running 0")
        assert client.post("/run_code", json=GOOD).json()["status"] == "Success"


def test_of_requests_sent_at_once_few_are_kept_and_all_are_answered(url: str) -> None:
    slow = json.dumps({"code": "import time; time.sleep(2); print('slow')"}).encode()
    ping = b"GET /v1/ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
    large = json.dumps({**GOOD, "files": {"x": "eHh4" * 100_000}}).encode()
    sent = (
        head_of("/run_code") + b"Content-Length: %d\r\n\r\n%s" % (len(slow), slow)
        + ping * 4000
        + head_of("/run_code") + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s"
        % (len(large), large)
    )  # fmt: skip
    received: list[bytes] = []

    def receive() -> None:
        while part := one.recv(1 << 20):
            received.append(part)

    behind = []
    with connected(url) as one, httpx.Client(base_url=url, timeout=60) as client:
        threads = [threading.Thread(target=one.sendall, args=(sent,)),
                   threading.Thread(target=receive)]  # fmt: skip
        for thread in threads:
            thread.start()
        while threads[1].is_alive():
            text = client.get("/metrics").text
            behind.append(int(text.split("\nhutch_serve_pipelined ")[1].split()[0]))
        threads[0].join()
    assert 0 < max(behind) < 100
    answers = b"".join(received).split(b"HTTP/1.1 200 OK")[1:]
    bodies = [answer.partition(b"\r\n\r\n")[2] for answer in answers]
    assert b'"slow\\n"' in bodies[0] and bodies[1:-1] == [b'"pong"'] * 4000
    assert b'"Success"' in bodies[-1]


def test_who_does_not_read_an_answer_is_let_go(serving: Serving) -> None:
    with serving("--set", "answer_sec=1") as (url, _):
        body = b'{"source": "print(\'x\' * 900000)", "items": [' + b"{}," * 99 + b"{}]}"
        with connected(url) as one, httpx.Client(base_url=url, timeout=60) as client:
            one.sendall(head_of("/v1/map") + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            wait_for(client, "hutch_serve_connections 2")
            wait_for(client, "hutch_serve_connections 1")
            received = b""
            with suppress(ConnectionResetError):
                while part := one.recv(1 << 20):
                    received += part
            assert 0 < received.count(b'"index"') < 100


def wait_for(client: httpx.Client, line: str) -> None:
    until(lambda: f"\n{line}\n" in client.get("/metrics").text)
