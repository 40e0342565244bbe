# SPDX-License-Identifier: Apache-2.0
"""What becomes of a request's program, turn and room when its client leaves `hutch serve`."""

from __future__ import annotations

import base64
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from leaving_client import asked
from support import until

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]
# It names its process, as the host sees it, and does not let itself be interrupted.
STUBBORN = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"{name}")  # PR_SET_NAME
while True:
    try:
        time.sleep(60)
    except BaseException:
        pass
"""


def metric(client: httpx.Client, name: str) -> int:
    return int(client.get("/metrics").text.split(f"\nhutch_serve_{name} ")[1].split()[0])


def processes(name: str) -> list[str]:
    """Of this machine, of this name."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == name:
                found.append(entry.name)
        except OSError:
            continue
    return found


CELLS = {
    "/run_code": lambda source: {"code": source, "run_timeout": 500},
    "/run_code?": lambda source: {"code": source, "run_timeout": 500, "fetch_files": ["x"]},
    "/api/v2/execute": lambda source: {"language": "python", "files": [{"content": source}]},
    "/v1/run": lambda source: {"source": source},
    "/v1/map": lambda source: {"items": [{"source": source}]},
    "/run_jupyter": lambda source: {"cells": ["1", source, source]},
    "/execute_batch": lambda source: {"scripts": [source] * 3, "languages": ["python"] * 3},
}


@pytest.fixture(scope="module")
def url(serving: Serving) -> Iterator[str]:
    with serving("--concurrency", "1", "--timeout-sec", "600") as (url, _):
        yield url


@pytest.mark.parametrize("path", CELLS)
def test_who_leaves_ends_the_program_and_gives_its_turn_back_then(url: str, path: str) -> None:
    name = f"hq{os.getpid()}{[*CELLS].index(path)}"
    body = {**CELLS[path](STUBBORN.format(name=name))}
    with httpx.Client(base_url=url, timeout=120) as client:
        with asked(url, path, body):
            until(lambda: processes(name) != [])
            assert metric(client, "running") == 1
        until(lambda: metric(client, "running") == 0)
        assert processes(name) == []
        answer = client.post("/run_code", json={"code": "print(1)"})  # the next one's turn
        assert answer.json()["run_result"]["stdout"] == "1\n"
        assert processes(name) == []  # and nothing else of the request has begun


def test_a_program_under_a_key_runs_on_without_its_client(url: str) -> None:
    key = f"runs on {time.monotonic()}"
    body = {"source": "import time, random; time.sleep(5); print(random.random())"}
    with httpx.Client(base_url=url, timeout=120) as client:
        with asked(url, "/v1/run", body, key):
            until(lambda: metric(client, "running") == 1)
        until(lambda: metric(client, "connections") == 1)
        assert metric(client, "running") == 1
        found = client.post("/v1/run", json=body, headers={"Idempotency-Key": key}).json()
        assert found["status"] == "returned"


def test_a_body_takes_its_room_as_long_as_what_it_asked_for_runs(serving: Serving) -> None:
    """Room for two of these: beside one another can be read, which takes three times as much."""
    content = base64.b64encode(bytes(2 << 20)).decode()
    body: dict[str, Any] = {"source": "import time; time.sleep(15)", "files": {"x": content}}
    large = {"code": "print(1)", "files": {"x": content}}
    small = {"code": "print(1)"}
    flags = ("--concurrency", "3", "--set", "bodies_mb=12", "--set", "body_mb=3")
    with serving(*flags) as (url, _), httpx.Client(base_url=url, timeout=120) as client:
        for number, (path, more) in enumerate({"/v1/run": {}, "/v1/map": {"items": [{}]}}.items()):
            assert client.post("/run_code", json=large).status_code == 200
            with asked(url, path, {**body, **more}, key=f"leaves {path} {time.monotonic()}"):
                until(lambda number=number: metric(client, "running") == number + 1)
        until(lambda: metric(client, "connections") == 1)
        assert client.post("/run_code", json=small).status_code == 200
        assert client.post("/run_code", json=large).status_code == 503
        until(lambda: metric(client, "running") == 0)
        assert client.post("/run_code", json=large).status_code == 200
