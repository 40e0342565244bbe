# SPDX-License-Identifier: Apache-2.0
"""What a streamed exec sends: all of it to who reads, and so much and no more to who does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hutch._errors import SandboxStartupError, SessionBusy
from hutch.serve.queue import TooLate
from hutch.serve.room import Shares
from hutch.serve.sessions import _MOST_WAITING, _Stream
from hutch.serve.settings import Client, Settings

CLIENT = Client("a")
Run = Callable[[_Stream], Awaitable[dict[str, Any]]]


def stream_of(shares: Shares) -> _Stream:
    return _Stream(shares, CLIENT, Settings())


async def begun(run: Run, shares: Shares) -> _Stream:
    stream = stream_of(shares)
    await stream.begin(lambda: run(stream))
    return stream


async def lines_of(stream: _Stream) -> list[dict[str, Any]]:
    found = [json.loads(line) async for line in stream]
    await stream.aclose()
    return found


def test_who_reads_has_all_of_it() -> None:
    async def run(stream: _Stream) -> dict[str, Any]:
        hear = stream.hears("stdout")
        for _ in range(100):
            hear("x" * 100_000)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return {"value": 1}

    async def main() -> None:
        shares = Shares(1 << 40)
        *printed, last = await lines_of(await begun(run, shares))
        assert [len(one["stdout"]) for one in printed] == [100_000] * 100
        assert last == {"outcome": {"value": 1}} and not shares.taken

    asyncio.run(main())


def test_who_does_not_read_takes_so_much_and_is_told_what_was_left_out() -> None:
    async def run(stream: _Stream) -> dict[str, Any]:
        hear = stream.hears("stdout")
        for _ in range(1000):
            hear("x" * 100_000)
        return {"value": 1}

    async def main() -> None:
        shares = Shares(1 << 40)
        stream = await begun(run, shares)
        await asyncio.sleep(0)
        assert 0 < shares.taken[CLIENT] < _MOST_WAITING + 200_000
        found = await lines_of(stream)
        printed = sum(len(one.get("stdout", "")) for one in found)
        [left_out] = [one["left_out"] for one in found if "left_out" in one]
        assert printed + left_out == 1000 * 100_000 and found[-1] == {"outcome": {"value": 1}}
        assert not shares.taken

    asyncio.run(main())


@pytest.mark.parametrize("error", [TooLate(), SessionBusy("busy"), SandboxStartupError("x")])
def test_what_did_not_begin_is_refused_before_an_answer_is(error: Exception) -> None:
    async def run(stream: _Stream) -> dict[str, Any]:
        raise error

    async def main() -> None:
        shares = Shares(1 << 40)
        with pytest.raises(type(error)):
            await begun(run, shares)
        assert not shares.taken

    asyncio.run(main())


def test_a_fault_after_some_was_printed_is_the_last_line() -> None:
    async def run(stream: _Stream) -> dict[str, Any]:
        stream.hears("stderr")("said")
        await asyncio.sleep(0)
        raise SandboxStartupError("gone", may_have_run=True)

    async def main() -> None:
        first, last = await lines_of(await begun(run, Shares(1 << 40)))
        assert first == {"stderr": "said"}
        assert last["outcome"]["status"] == "fault" and last["outcome"]["may_have_run"]

    asyncio.run(main())


@pytest.mark.parametrize("taken", [0, 1])
def test_one_that_is_closed_ends_its_code(taken: int) -> None:
    """Also if nothing of it was taken."""
    ended = []

    async def run(stream: _Stream) -> dict[str, Any]:
        stream.hears("stdout")("1")
        stream.hears("stdout")("2")
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(True)
        return {}

    async def main() -> None:
        shares = Shares(1 << 40)
        stream = await begun(run, shares)
        closed = []
        stream.closed = lambda: closed.append(True)
        for _ in range(taken):
            await stream.__anext__()
        await stream.aclose()
        assert ended and closed and not shares.taken

    asyncio.run(main())
