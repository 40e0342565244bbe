# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: by the seconds that each client has had places, and soon where it has none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hutch.serve.queue import FairQueue, TooLate
from hutch.serve.settings import Client

LONG, SHORT, TRIPLE = Client("long"), Client("short"), Client("triple", share=3)


class Rig:
    """A queue by a clock that the test sets, and requests that run until the test ends them."""

    def __init__(self, concurrency: int, patience_sec: float = 60) -> None:
        self.now = 0.0
        self.queue = FairQueue(concurrency, 1000, patience_sec, clock=lambda: self.now)
        self.ran: list[Client] = []
        self.most = 0
        self.ends: list[tuple[Client, asyncio.Event]] = []

    async def ask(self, client: Client, count: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.ensure_future(self._request(client)) for _ in range(count)]
        await settle()
        return tasks

    async def end(self, client: Client, count: int = 1) -> None:
        """Those that began first."""
        for _ in range(count):
            found = next(one for one in self.ends if one[0] is client)
            self.ends.remove(found)
            found[1].set()
        await settle()

    def running(self, client: Client) -> int:
        return sum(one is client for one, _ in self.ends)

    async def _request(self, client: Client) -> None:
        async with self.queue.turn(client):
            self.ran.append(client)
            self.most = max(self.most, self.queue.running)
            over = asyncio.Event()
            self.ends.append((client, over))
            await over.wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """One that hangs fails."""
    asyncio.run(asyncio.wait_for(main(), 60))


def test_who_has_no_place_does_not_wait_for_what_another_runs() -> None:
    async def main() -> None:
        rig = Rig(4)
        await rig.ask(LONG, 100)
        for _ in range(20):  # and none of those ends
            rig.now += 0.2
            await rig.ask(SHORT)
            assert rig.running(SHORT) == 1
            rig.now += 0.1
            await rig.end(SHORT)
        assert rig.running(LONG) == 4 and rig.most == 5

    run(main)


def test_beside_long_ones_a_client_has_one_place_more_and_then_those_that_come_free() -> None:
    async def main() -> None:
        rig = Rig(4)
        await rig.ask(LONG, 100)
        rig.now = 5
        await rig.ask(SHORT, 100)
        assert (rig.running(LONG), rig.running(SHORT)) == (4, 1)
        await rig.end(LONG)  # by which there is no place yet: 4 run
        assert (rig.running(LONG), rig.running(SHORT)) == (3, 1)
        await rig.end(LONG)
        assert (rig.running(LONG), rig.running(SHORT)) == (2, 2)

    run(main)


@pytest.mark.parametrize(("one", "other", "ratio"), [(LONG, SHORT, 1), (TRIPLE, SHORT, 3)])
def test_seconds_are_shared_and_not_turns(one: Client, other: Client, ratio: int) -> None:
    async def main() -> None:
        rig = Rig(2)
        held = {one: 0.0, other: 0.0}
        for client in held:
            await rig.ask(client, 900)
        for tick in range(600):
            rig.now += 1
            for client in held:
                held[client] += rig.running(client)
            if rig.running(other):
                await rig.end(other, rig.running(other))  # a second each
            if tick % 10 == 9 and rig.running(one):
                await rig.end(one, rig.running(one))  # ten seconds at the most
        assert held[one] / held[other] == pytest.approx(ratio, rel=0.1)

    run(main)


def test_who_was_away_has_nothing_to_its_credit() -> None:
    async def main() -> None:
        rig = Rig(1)
        for client in (SHORT, LONG):
            await rig.ask(client)
            rig.now += 1
            await rig.end(client)
        await rig.ask(LONG, 50)
        for _ in range(20):
            rig.now += 100
            await rig.end(LONG)
        await rig.ask(SHORT, 50)
        rig.ran.clear()
        for _ in range(10):
            for client in (SHORT, LONG):
                rig.now += 1
                if rig.running(client):
                    await rig.end(client)
        assert rig.ran.count(LONG) >= 5 and rig.ran.count(SHORT) >= 5

    run(main)


def test_who_has_had_more_waits_until_the_others_have_had_as_much() -> None:
    async def main() -> None:
        rig = Rig(1)
        await rig.ask(TRIPLE)
        await rig.ask(SHORT)
        rig.now = 3
        await rig.end(SHORT)  # which by its share has had three times as much
        await rig.ask(SHORT)
        assert rig.running(SHORT) == 0 and rig.queue.waiting == 1
        rig.now = 20  # what runs has not ended
        while not rig.running(SHORT):
            await asyncio.sleep(0.01)
        assert rig.running(TRIPLE) == 1

    run(main)


def test_one_client_alone_has_so_many_places_and_no_more() -> None:
    async def main() -> None:
        rig = Rig(3)
        await rig.ask(LONG, 20)
        for _ in range(10):
            rig.now += 1
            assert (rig.running(LONG), rig.queue.running) == (3, 3)
            await rig.end(LONG)
        assert rig.most == 3

    run(main)


def test_who_leaves_or_waits_too_long_takes_no_place_with_it() -> None:
    async def main() -> None:
        rig = Rig(1, patience_sec=0.05)
        await rig.ask(LONG)
        (late,) = await rig.ask(LONG)
        with pytest.raises(TooLate):
            await late
        leaves, stays = await rig.ask(LONG, 2)
        leaves.cancel()
        await rig.end(LONG)
        assert leaves.cancelled() and rig.running(LONG) == 1 and rig.queue.waiting == 0
        await rig.end(LONG)
        await stays
        assert rig.queue.running == 0

    run(main)


def test_one_that_is_cancelled_as_its_turn_comes_gives_it_on() -> None:
    async def main() -> None:
        rig = Rig(1)
        await rig.ask(LONG)
        first, second = await rig.ask(LONG, 2)
        rig.ends[0][1].set()
        while rig.queue.waiting == 2:
            await asyncio.sleep(0)
        first.cancel()
        await settle()
        assert first.cancelled() and rig.queue.running == 1 and rig.queue.waiting == 0
        second.cancel()
        await settle()
        assert rig.queue.running == 0

    run(main)


def test_at_its_end_who_waits_and_who_comes_is_too_late_and_who_runs_goes_on() -> None:
    async def main() -> None:
        rig = Rig(concurrency=2)
        first, second = await rig.ask(LONG, 2)
        waiting = [*await rig.ask(LONG, 3), *await rig.ask(SHORT, 2)]
        runs = [one for one in waiting if not one.done()]
        rig.queue.end()
        await settle()
        late = [one for one in runs if one.done() and isinstance(one.exception(), TooLate)]
        assert len(late) >= 4 and rig.queue.waiting == 0
        [last] = await rig.ask(SHORT)
        assert isinstance(last.exception(), TooLate)
        assert not first.done() and not second.done()
        while rig.ends:
            await rig.end(rig.ends[0][0])
        assert rig.queue.running == 0 and first.done() and second.done()

    run(main)


def test_a_request_waits_no_longer_than_it_may() -> None:
    async def main() -> None:
        queue = FairQueue(1, 10, 60)
        async with queue.turn(LONG):
            with pytest.raises(TooLate):
                async with queue.turn(LONG, patience_sec=0.01):
                    pass
        assert queue.running == queue.waiting == 0

    run(main)


def test_a_turn_that_is_given_as_the_queue_ends_is_given_back() -> None:
    async def main() -> None:
        rig = Rig(concurrency=1)
        [first] = await rig.ask(LONG)
        [second] = await rig.ask(LONG)
        rig.ends.pop()[1].set()
        await asyncio.sleep(0)  # it leaves: the second one's turn has come, which does not know yet
        await asyncio.sleep(0)
        rig.queue.end()
        await settle()
        if rig.ends:
            rig.ends.pop()[1].set()
            await settle()
        assert first.done() and second.done() and rig.queue.running == rig.queue.waiting == 0

    run(main)
