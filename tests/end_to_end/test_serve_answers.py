# SPDX-License-Identifier: Apache-2.0
"""What answers of `hutch serve` take of its memory, where nobody reads them or they are many."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import until

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]
MUCH = "import sys; sys.stdout.write('\\0' * (1 << 20)); sys.stderr.write('\\0' * (1 << 20))"
FILE = "open('x', 'wb').write(bytes(4 << 20))"


@pytest.fixture
def server(serving: Serving) -> Iterator[Any]:
    """One client's answers may take 24 MiB."""
    flags = ["body_mb=8", "bodies_mb=24", "answer_sec=300", "queue_sec=1"]
    with serving(*(word for flag in flags for word in ("--set", flag))) as (url, process):
        yield url, process


def unread(url: str, path: str, body: dict[str, Any]) -> socket.socket:
    """Whose answer stays where it is."""
    host, port = url.removeprefix("http://").split(":")
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect((host, int(port)))
    text = json.dumps(body).encode()
    one.sendall(
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (path.encode(), len(text), text)
    )
    return one


def answered(client: httpx.Client) -> int:
    text = client.get("/metrics").text
    return sum(map(int, re.findall(r"^hutch_serve_answers_total{.*} (\d+)", text, re.MULTILINE)))


def peak_mb(process: Any) -> int:
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) >> 10


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        ("/run_code", {"code": MUCH}, 60),
        ("/run_code", {"code": FILE, "fetch_files": ["x"]}, 60),
        ("/v1/run", {"source": MUCH}, 60),
        ("/v1/map", {"source": MUCH, "items": [{}] * 60}, 2),
    ],
)
def test_answers_that_nobody_reads_are_few(
    server: Any, path: str, body: dict[str, Any], count: int
) -> None:
    url, process = server
    with httpx.Client(base_url=url, timeout=120) as client, ExitStack() as stack:
        assert client.post("/v1/run", json={"source": MUCH}).json()["status"] == "returned"
        before, earlier = peak_mb(process), answered(client)
        for _ in range(count):
            stack.enter_context(closing(unread(url, path, body)))

        def asked() -> httpx.Response:
            return client.post("/v1/run", json={"source": ""})

        until(lambda: answered(client) >= earlier + count, "some have no answer")
        full = until(lambda: (answer := asked()).status_code != 200 and answer)
        assert full.status_code in (503, 504) and full.headers["retry-after"]
        assert peak_mb(process) - before < 200
        stack.close()
        until(lambda: asked().status_code == 200)


def test_a_map_of_much_is_answered_to_who_reads(server: Any) -> None:
    url, _ = server
    body = {"source": MUCH, "items": [{}] * 20}
    with httpx.stream("POST", f"{url}/v1/map", json=body, timeout=120) as answer:
        outcomes = [json.loads(line)["outcome"] for line in answer.iter_lines()]
    assert [one["stdout_size"] for one in outcomes] == [1 << 20] * 20
    assert all(len(one["stdout"]) > 1 << 19 for one in outcomes)


def test_scripts_whose_answers_have_no_room_have_no_verdict(server: Any) -> None:
    url, process = server
    with httpx.Client(base_url=url, timeout=120) as client:
        few, many = ({"scripts": [MUCH] * count, "languages": []} for count in (1, 40))
        [alone] = client.post("/execute_batch", json=few).json()
        assert len(alone["execution"]["logs"]["stdout"][0]) > 1 << 19
        answers = client.post("/execute_batch", json={**many, "scripts": ["print(1)"] * 40}).json()
        assert all(one["execution"]["logs"]["stdout"] == ["1\n"] for one in answers)
        before = peak_mb(process)
        answers = client.post("/execute_batch", json=many).json()
        assert len(answers) == 40 and answers[-1]["execution"] is None
        assert "send fewer scripts" in answers[-1]["exception_str"]
        assert peak_mb(process) - before < 200
