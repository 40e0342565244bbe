# SPDX-License-Identifier: Apache-2.0
"""Turns of a call that an event loop drives, over a core that says what a hostile cell could."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from hutch._calls.turns import Turns


class Asking:
    """Has a question whenever it is asked for one, until it is cancelled."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.cancelled = False

    def turn(self) -> Any:
        self.left -= 1
        return None if self.cancelled or self.left < 0 else (b"?", 1, 1)

    def answer(self, number: int, answer: bytes | None) -> bool:
        return False

    def cancel(self) -> bool:
        self.cancelled = True
        return True


def turns_of(core: Asking) -> Turns:
    stands_in: Any = core
    return Turns(stands_in)


async def drive(turns: Turns) -> int:
    questions = 0
    while await turns.next() is not None:
        questions += 1
    return questions


def test_a_cell_that_asks_without_a_pause_leaves_the_loop_to_others() -> None:
    async def main() -> tuple[int, int]:
        others = 0

        async def other() -> None:
            nonlocal others
            while True:
                others += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        questions = await drive(turns_of(Asking(1000)))
        beside.cancel()
        return questions, others

    questions, others = asyncio.run(main())
    assert questions == 1000
    assert others >= 1000, "one step for each question"


def test_a_cell_that_asks_without_a_pause_ends_when_it_is_cancelled() -> None:
    async def main() -> Asking:
        core = Asking(1 << 40)
        task = asyncio.create_task(drive(turns_of(core)))
        await asyncio.sleep(0)
        task.cancel()
        await task
        return core

    core = asyncio.run(asyncio.wait_for(main(), 20))
    assert core.cancelled


class Silent(Asking):
    """Has nothing to say, until it is cancelled or answered with nothing."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(0)
        self.turn_fd = descriptor

    def turn(self) -> Any:
        return None if self.cancelled else 3600.0

    def answer(self, number: int, answer: bytes | None) -> bool:
        return self.cancel()


@pytest.mark.parametrize("end", [Turns.cancel, lambda turns: turns.answer(1, None)])
def test_what_is_decided_here_is_no_longer_waited_for(end: Callable[[Turns], None]) -> None:
    async def main(descriptor: int) -> int:
        turns = turns_of(Silent(descriptor))
        task = asyncio.create_task(drive(turns))
        await asyncio.sleep(0)
        assert not task.done()
        end(turns)
        return await asyncio.wait_for(task, 60)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert asyncio.run(main(ours.fileno())) == 0
