# SPDX-License-Identifier: Apache-2.0
"""Each script of a batch has an answer of its own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hutch._errors import SandboxBusy
from hutch.serve import batch, notebook
from hutch.serve.aside import Aside
from hutch.serve.batch import Batch
from hutch.serve.queue import FairQueue, TooLate
from hutch.serve.settings import Client, Settings

CLIENT = Client("a")


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """That scripts were given, of which each answers with itself; "busy" finds no cell."""
    found: list[int] = []

    async def answer(
        job: Any, settings: Settings, aside: Aside, client: Client, room: int
    ) -> dict[str, Any]:
        found.append(room)
        if job.source == "busy":
            raise SandboxBusy("no cell")
        return {"execution": job.source, "exception_str": None}

    monkeypatch.setattr(notebook, "e2b_answer", answer)
    return found


def of(count: int, patience_sec: float = 60, body_mb: int = 8) -> Batch:
    settings = Settings(body_mb=body_mb)
    queue = FairQueue(1, 10, patience_sec)
    return Batch(settings, queue, Aside(), CLIENT, count, 5)


def test_a_batch_of_which_nothing_has_begun_is_refused_as_a_whole(rooms: list[int]) -> None:
    async def main() -> None:
        one = of(2, patience_sec=0.01)
        async with one._queue.turn(CLIENT):
            with pytest.raises(TooLate):
                await one.answer("1", "python")
        assert not rooms

    asyncio.run(main())


@pytest.mark.parametrize("why", ["late", "busy"])
def test_once_one_has_begun_the_others_have_answers(rooms: list[int], why: str) -> None:
    async def main() -> None:
        one = of(3, patience_sec=0.01)
        assert json.loads(await one.answer("1", "python"))["execution"] == "1"
        if why == "late":
            async with one._queue.turn(CLIENT):
                found = json.loads(await one.answer("2", "python"))
        else:
            found = json.loads(await one.answer("busy", "python"))
        assert found["execution"] is None and "did not run" in found["exception_str"]
        assert json.loads(await one.answer("3", "python"))["execution"] == "3"

    asyncio.run(main())


def test_what_one_leaves_is_the_others(rooms: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_LEAST_ROOM", 1)

    async def main() -> None:
        one = of(4)
        for script in ("x" * (1 << 20), "", "", ""):
            await one.answer(script, "python")
        assert rooms[0] == 2 << 20 and rooms == sorted(set(rooms))
        full = of(2, body_mb=1)
        await full.answer("x" * (1 << 20), "python")
        found = json.loads(await full.answer("1", "python"))
        assert found["execution"] is None and "send fewer" in found["exception_str"]

    asyncio.run(main())
