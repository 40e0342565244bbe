# SPDX-License-Identifier: Apache-2.0
"""A client that leaves, or a server that ends, at whatever step of a request: nothing of it stays.

The application runs in this process, on real cells. A step is one round of the event loop: there is
one between any two places at which a request waits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette

from hutch.serve.app import Server
from hutch.serve.settings import Settings

EACH = 60  # steps one by one; from then on some
SETTINGS = Settings(concurrency=2, timeout_sec=20)
LARGE = "#" + "x" * 200_000  # is read and written on a thread
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "run_code": ("/run_code", {"code": "print(1)"}),
    "files": (
        "/run_code",
        {"code": "open('x', 'w').write('a' * 300_000)", "files": {"y": ""}, "fetch_files": ["x"]},
    ),
    "large": ("/run_code", {"code": LARGE + "\nprint('y' * 300_000)"}),
    "run": ("/v1/run", {"source": "print(1)"}),
    "map": ("/v1/map", {"items": [{"source": f"print({number})"} for number in range(3)]}),
    "piston": (
        "/api/v2/execute",
        {"language": "python", "version": "3", "files": [{"content": "print(1)"}]},
    ),
    "notebook": ("/run_jupyter", {"cells": ["x = 1", "print(x)"], "fetch_files": ["x"]}),
    "batch": ("/execute_batch", {"scripts": ["print(1)"] * 3, "languages": ["python"] * 3}),
    "session": ("/v1/sessions", {"files": {"x": "eHh4"}}),
}


class Request:
    """One request, and its client."""

    def __init__(self, app: Starlette, path: str, body: dict[str, Any], key: str = "") -> None:
        text = json.dumps(body).encode()
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        if key:
            headers.append((b"idempotency-key", key.encode()))
        self._scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1),
            "state": {},
        }  # fmt: skip
        self._unread = [text]
        self._gone = asyncio.Event()
        self.status = 0
        self.body = b""
        self.task = asyncio.ensure_future(app(self._scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._unread:
            return {"type": "http.request", "body": self._unread.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await asyncio.sleep(0)  # it may leave while it is answered
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message["body"]

    async def goes_on(self, steps: int) -> bool:
        """False: it has ended before."""
        for _ in range(steps):
            if self.task.done():
                return False
            await asyncio.sleep(0)
        return not self.task.done()

    async def ends(self, by: str) -> None:
        if by == "its client":
            self._gone.set()
        else:
            self.task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(self.task, 60)


async def is_clean(server: Server) -> None:
    """Nothing runs, waits or holds memory, at the latest when what was killed has ended."""
    await server._works.end(60)
    await asyncio.sleep(0)
    assert (server._queue.running, server._queue.waiting) == (0, 0)
    assert not server._works._under_way
    assert not server._bodies._shares.taken and not server._answers.taken
    assert server._answers.total.taken == 0
    assert server._sessions.count == 0


def steps(last: int) -> Iterator[int]:
    """Each of the first, and then fewer."""
    step = 0
    while step < last:
        yield step
        step += 1 + max(0, step - EACH) // 4


async def tried(server: Server, name: str, by: str) -> int:
    app = Starlette(routes=server.routes())
    path, body = REQUESTS[name]
    count = left = 0
    for step in steps(20_000):
        key = f"{name} {by} {step}" if name in ("run", "map") else ""
        request = Request(app, path, body, key)
        if not await request.goes_on(step):
            assert request.status == 200, request.body
            count += 1
        else:
            left += 1
        await request.ends(by)
        if name == "session" and request.status == 200 and request.body:
            id = json.loads(request.body)["id"]
            closing = Request(app, f"/v1/sessions/{id}/close", {})
            await asyncio.wait_for(closing.task, 60)
        elif name == "session":
            await unknown_sessions_end(server)
        await is_clean(server)
        if count == 2:
            break
    whole = Request(app, path, body)
    await asyncio.wait_for(whole.task, 60)
    assert whole.status == 200
    return left


async def unknown_sessions_end(server: Server) -> None:
    """Those that were opened, of which nobody has heard, end as unused ones do."""
    for one in [*server._sessions._all.values()]:
        assert one.ends is not None
        server._sessions._drop(one)
    if server._sessions._closing:
        await asyncio.wait(server._sessions._closing)


@pytest.mark.parametrize("by", ["its client", "the server"])
@pytest.mark.parametrize("name", REQUESTS)
def test_nothing_stays_of_a_request_that_ends_at_any_step(name: str, by: str) -> None:
    async def main() -> int:
        server = Server(SETTINGS)
        await server.begin()
        try:
            return await tried(server, name, by)
        finally:
            await server.end()

    assert asyncio.run(main()) > 5
