# SPDX-License-Identifier: Apache-2.0
"""What a request has begun holds its room until it has ended, whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any

import pytest

from hutch._calls.future import SandboxFuture, submit
from hutch._outcome import Outcome
from hutch.serve.queue import FairQueue
from hutch.serve.room import Room, Shares, Total, Unsent
from hutch.serve.settings import Client
from hutch.serve.works import Works, in_flight, outcome_of

CLIENT = Client("one")


def run(main: Coroutine[Any, Any, None]) -> None:
    """One that hangs fails."""
    asyncio.run(asyncio.wait_for(main, 60))


def test_room_is_taken_until_the_last_who_holds_it_leaves() -> None:
    shares = Shares(100)
    with Room(shares, CLIENT) as room, Room(shares, CLIENT) as other:
        assert room.grow(60) and not other.grow(60) and other.grow(40)
        room.hold()
    assert shares.taken == {CLIENT: 60}
    room.leave()
    assert not shares.taken


def test_a_body_larger_than_the_share_is_let_in_alone() -> None:
    shares = Shares(100)
    with Room(shares, CLIENT) as room, Room(shares, CLIENT) as other:
        assert room.grow(60) and room.grow(500) and room.is_alone
        assert not other.grow(1) and not other.is_alone
    assert not shares.taken


def test_whoever_comes_next_finds_room_beside_those_who_take_all_they_may() -> None:
    total = Total(1024)
    bodies, answers = Shares(1000, total), Shares(1000, total)
    had = []
    with ExitStack() as stack:
        for number in range(8):
            client = Client(str(number))
            rooms = [stack.enter_context(Room(bodies, client)) for _ in range(1024)]
            had.append(sum(room.grow(1) for room in rooms))
            assert had[-1] > 0
        assert had[0] == 512 and had[1] == 256 and total.left() > 0
        answer = stack.enter_context(Unsent(answers, Client("reader")))
        answer.add(2000)  # it is there, whatever there is room for
        assert not Room(bodies, Client("last")).grow(1)
    assert total.taken == 0


def test_one_large_body_leaves_a_reserve_for_small_ones() -> None:
    shares = Shares(1000, Total(160))
    with ExitStack() as stack:
        large = stack.enter_context(Room(shares, CLIENT))
        assert large.grow(130) and not large.grow(11) and large.grow(10)
        assert not stack.enter_context(Room(shares, Client("large"))).grow(11)
        for number in range(4):
            assert stack.enter_context(Room(shares, Client(str(number)))).grow(1)
        large.shrink(100)
        assert stack.enter_context(Room(shares, Client("another"))).grow(90)
    assert shares.total.taken == 0


def test_a_client_waits_while_nobody_takes_its_answers_and_others_do_not() -> None:
    async def main() -> None:
        answers = Shares(100, Total(freed=lambda: queue.serve()))
        queue = FairQueue(1, 10, 60, may_run=lambda client: not answers.is_full(client))
        ran: list[str] = []

        async def work(client: Client) -> None:
            async with queue.turn(client):
                ran.append(client.name)

        with Unsent(answers, CLIENT) as unsent:
            unsent.add(60)
            await work(CLIENT)
            unsent.add(60)
            waiting = asyncio.ensure_future(work(CLIENT))
            await asyncio.sleep(0)
            await work(Client("another"))
            assert ran == ["one", "another"] and queue.waiting == 1
            unsent.add(-60)
            await waiting
        assert ran == ["one", "another", "one"] and not answers.taken
        unsent.add(60)  # of what ended after its reader had left
        assert not answers.taken

    run(main())


def test_a_work_that_never_began_leaves_its_room() -> None:
    async def main() -> None:
        shares = Shares(1)
        works = Works()
        with Room(shares, CLIENT) as room:
            room.grow(1)
            works.begin(asyncio.sleep(60), room).cancel()
        assert shares.taken
        await works.end(60)
        assert not shares.taken

    run(main())


def test_a_work_has_its_room_until_its_cell_has_ended() -> None:
    async def main() -> None:
        shares = Shares(1)
        works = Works()
        call: SandboxFuture[Any] = SandboxFuture()
        call.set_running_or_notify_cancel()
        with Room(shares, CLIENT) as room:
            room.grow(1)
            work = works.begin(outcome_of(call), room)
            await asyncio.sleep(0)
            work.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert call.is_cancelling and not work.done() and shares.taken
        call.set_result(None)
        await works.end(60)
        assert work.cancelled() and not shares.taken

    run(main())


def test_the_outcome_of_a_call_that_nobody_cancels() -> None:
    async def main() -> None:
        call = submit(lambda token: Outcome("returned", 3))
        assert (await outcome_of(call)).value == 3
        failed: SandboxFuture[Any] = SandboxFuture()
        failed.set_exception(KeyError("x"))
        with pytest.raises(KeyError):
            await outcome_of(failed)

    run(main())


@pytest.mark.parametrize("ordered", [True, False])
def test_so_many_are_in_flight_and_each_is_given(ordered: bool) -> None:
    running = most = 0

    async def one(index: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - index % 7):
            await asyncio.sleep(0)
        running -= 1
        return index

    async def main() -> None:
        given = in_flight(40, lambda index: asyncio.ensure_future(one(index)), ordered, 3)
        found = [index async for index in given]
        assert sorted(found) == [*range(40)] and most == 3
        assert not ordered or found == [*range(40)]

    run(main())


def test_where_one_fails_those_in_flight_are_cancelled_and_no_other_begins() -> None:
    tasks: list[asyncio.Task[None]] = []

    async def one(index: int) -> None:
        if index == 1:
            raise KeyError
        await asyncio.sleep(60)

    def begin(index: int) -> asyncio.Task[None]:
        tasks.append(asyncio.ensure_future(one(index)))
        return tasks[-1]

    async def main() -> None:
        with pytest.raises(KeyError):
            _ = [found async for found in in_flight(40, begin, False, 3)]
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [True, False, True]

    run(main())
