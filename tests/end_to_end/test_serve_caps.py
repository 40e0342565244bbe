# SPDX-License-Identifier: Apache-2.0
"""A server that may have 512 MiB of address space and 256 descriptors: whatever some tenants send,
the server lives, and another tenant's programs are run beside it.
"""

from __future__ import annotations

import json
import re
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import until

import hutch

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]
HOSTILE = [f"hostile{number}" for number in range(4)]
KEY = {name: f"{name:-<20}" for name in ("honest", *HOSTILE)}
TENANTS = "".join(
    f'[tenants.{name}]\nkey = "{key}"\nlabels = {{ team = "{name}" }}\n'
    for name, key in KEY.items()
)
CAPS = ("prlimit", f"--as={512 << 20}", "--nofile=256")
MIB = 1 << 20
SLEEPS = {"code": "import time; time.sleep(20)"}
PRINTS = {"code": "print('\\x01' * 1_000_000)"}
SHOWS = {"cells": ["display({'text/html': 'x' * 30_000_000}, raw=True)"] * 5}


_turns = cycle(HOSTILE)


class Hostile:
    """Connections of hostile tenants, on threads, which end with `with`."""

    def __init__(self, url: str) -> None:
        self.address = url.removeprefix("http://").split(":")
        self.is_over = False
        self._threads: list[threading.Thread] = []
        self.stack = ExitStack()

    def connect(self, **options: int) -> socket.socket:
        one = socket.socket()
        one.settimeout(30)
        for name, value in options.items():
            one.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        one.connect((self.address[0], int(self.address[1])))
        self.stack.enter_context(closing(one))
        return one

    def again(self, what: Callable[[], object], threads: int = 4) -> None:
        """Does it over and over, on so many threads."""

        def run() -> None:
            while not self.is_over:
                with suppress(OSError):
                    what()

        for _ in range(threads):
            self._threads.append(threading.Thread(target=run))
            self._threads[-1].start()

    def close(self) -> None:
        self.is_over = True
        for thread in self._threads:
            thread.join()
        self.stack.close()


def head(path: str, size: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEY[next(_turns)]}\r\nContent-Length: {size}\r\n\r\n"
    ).encode()


def sent(one: socket.socket, path: str, body: bytes, part: int | None = None) -> socket.socket:
    one.sendall(head(path, len(body)))
    one.sendall(body[:part])
    return one


def asked(hostile: Hostile, path: str, body: bytes) -> None:
    """Its answer is read."""
    with closing(hostile.connect()) as one:
        sent(one, path, body)
        while one.recv(MIB):
            one.settimeout(1)


def silent(hostile: Hostile) -> None:
    hostile.again(lambda: hostile.connect(), 1)


def endless_headers(hostile: Hostile) -> None:
    def send() -> None:
        with closing(hostile.connect()) as one:
            one.sendall(b"POST /run_code HTTP/1.1\r\n")
            while not hostile.is_over:
                one.sendall(b"a: " + b"b" * 1000 + b"\r\n")

    hostile.again(send, 8)


def unfinished_bodies(hostile: Hostile) -> None:
    body = bytes(60 * MIB)

    def send() -> None:
        one = sent(hostile.connect(), "/run_code", body, -1)
        one.recv(1000)  # why it is refused, or nothing

    hostile.again(send, 14)


def bodies_of(text: bytes) -> Callable[[Hostile], None]:
    body = b'{"code": "1", "more": [' + text + b"]}"

    def attack(hostile: Hostile) -> None:
        hostile.again(lambda: asked(hostile, "/run_code", body))

    return attack


def large_code(hostile: Hostile) -> None:
    body = b'{"code": "#' + b"x" * (40 * MIB) + b'"}'
    hostile.again(lambda: asked(hostile, "/run_code", body))


def nobody_reads(hostile: Hostile) -> None:
    def send() -> None:
        for path, body in (("/run_code", PRINTS), ("/run_jupyter", SHOWS)):
            sent(hostile.connect(SO_RCVBUF=4096), path, json.dumps(body).encode())
        time.sleep(0.2)

    hostile.again(send, 2)


def leaves(hostile: Hostile) -> None:
    body = json.dumps(SLEEPS).encode()

    def send() -> None:
        for path in ("/run_code", "/v1/run", "/api/v2/execute"):
            with closing(hostile.connect()) as one:
                sent(one, path, body)

    hostile.again(send)


def batches(hostile: Hostile) -> None:
    body = json.dumps({"scripts": ["print('x' * 100_000)"] * 1000}).encode()
    hostile.again(lambda: asked(hostile, "/execute_batch", body))


def notebooks(hostile: Hostile) -> None:
    hostile.again(lambda: asked(hostile, "/run_jupyter", json.dumps(SHOWS).encode()))


def sessions(hostile: Hostile) -> None:
    opened = json.dumps({"files": {"x": "eHh4" * 1_000_000}}).encode()
    hostile.again(lambda: asked(hostile, "/v1/sessions", opened))


ATTACKS: dict[str, Callable[[Hostile], None]] = {
    "silent connections": silent,
    "endless headers": endless_headers,
    "unfinished bodies": unfinished_bodies,
    "many values": bodies_of(b"{}," * 15_000_000 + b"1"),
    "as many values as there may be": bodies_of(b"{}," * 120_000 + b"1"),
    "one long text": bodies_of(b'"' + b"x" * (60 * MIB) + b'"'),
    "a long text of wide characters": bodies_of(b'"' + "€".encode() * (20 * MIB) + b'"'),
    "long numbers": bodies_of(b"1" * 900 + b", 1" * 100 + b", 1" + b"0" * 60_000_000),
    "large code": large_code,
    "answers that nobody reads": nobody_reads,
    "clients that leave": leaves,
    "batches": batches,
    "notebooks that show much": notebooks,
    "sessions with files": sessions,
}


@pytest.fixture(scope="module")
def server(serving: Serving, configuring: Any) -> Iterator[tuple[str, Any]]:
    with configuring() as write:
        write(TENANTS)
        hutch.run("1").unwrap()  # its agent is this process's child, without the caps
        flags = ("--timeout-sec", "20", "--set", "answer_sec=10", "--set", "queue_sec=10")
        with serving(*flags, before=CAPS) as (url, process):
            yield url, process


@contextmanager
def under(attack: Callable[[Hostile], None], url: str) -> Iterator[None]:
    with closing(Hostile(url)) as hostile:
        attack(hostile)
        yield


@pytest.mark.parametrize("name", ATTACKS)
def test_beside_any_attack_another_tenant_is_served(server: tuple[str, Any], name: str) -> None:
    url, process = server
    key = {"Authorization": f"Bearer {KEY['honest']}"}
    took = []
    with under(ATTACKS[name], url):
        until(lambda: is_busy(url), 30)
        for number in range(10):
            with httpx.Client(base_url=url, timeout=60, headers=key) as client:
                begun = time.monotonic()
                answer = client.post("/run_code", json={"code": f"print({number})"})
                took.append(time.monotonic() - begun)
                assert answer.status_code == 200, answer.text
                assert answer.json()["run_result"]["stdout"] == f"{number}\n"
    status = Path(f"/proc/{process.pid}/status").read_text()
    peak = int(re.findall(r"VmHWM:\s*(\d+)", status)[0]) >> 10
    print(f"| {name} | {statistics.median(took):.2f} | {max(took):.2f} | {peak} |")
    assert process.poll() is None
    with httpx.Client(base_url=url, timeout=60, headers=key) as client:
        until(lambda: "hutch_serve_running 0" in client.get("/metrics").text, 60)
        assert client.post("/run_code", json={"code": "print(1)"}).json()["status"] == "Success"


def is_busy(url: str) -> bool:
    """The server has heard of it."""
    key = {"Authorization": f"Bearer {KEY['honest']}"}
    with suppress(httpx.TransportError), httpx.Client(base_url=url, headers=key) as client:
        text = client.get("/metrics", timeout=30).text
        figures = {name: int(n) for name, n in re.findall(r"^(hutch_serve_\w+) (\d+)$", text, re.M)}
        return figures.get("hutch_serve_connections", 0) > 1
    return False
