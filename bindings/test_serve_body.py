# SPDX-License-Identifier: Apache-2.0
"""A body that is not sent in time is answered so, by whichever loop the server runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from starlette.requests import Request

from hutch.serve.aside import Aside
from hutch.serve.body import Bodies
from hutch.serve.gate import Refused
from hutch.serve.room import Total
from hutch.serve.settings import Client, Settings


async def never() -> Any:
    await asyncio.Event().wait()


def silent() -> Request:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"100")]
    return Request({"type": "http", "method": "POST", "headers": headers}, never)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_body_that_is_late_is_said_to_be(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    bodies = Bodies(Settings(body_sec=0.0107), Total(), Aside())

    async def ask() -> int:
        with pytest.raises(Refused) as refused:
            await bodies.read(silent(), bodies.room(Client("anybody")))
        return refused.value.status

    async def many() -> list[int]:
        return [await ask() for _ in range(50)]

    loop = new_loop()
    try:
        assert loop.run_until_complete(many()) == [408] * 50
    finally:
        loop.close()


def test_a_request_that_is_cancelled_is_not_said_to_be_late() -> None:
    bodies = Bodies(Settings(body_sec=60), Total(), Aside())

    async def cancelled() -> None:
        reading = asyncio.ensure_future(bodies.read(silent(), bodies.room(Client("anybody"))))
        await asyncio.sleep(0)
        reading.cancel()
        await reading

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
