# SPDX-License-Identifier: Apache-2.0
"""What requests have begun. Each work goes on to its own end, which may be later than its client
leaves, and holds its request's room until then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from hutch.serve.room import Room

if TYPE_CHECKING:
    from hutch._calls.future import SandboxFuture
    from hutch._outcome import Outcome

T = TypeVar("T")
_MOST_WAITING = 8  # times what runs, that has ended and waits for an earlier one


class Works:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, T], room: Room) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        room.hold()
        self._under_way.add(task)

        def end(task: asyncio.Task[T]) -> None:
            self._under_way.discard(task)
            room.leave()
            if not task.cancelled():
                task.exception()  # nobody may be there any more to hear of it

        task.add_done_callback(end)
        return task

    async def end(self, seconds: float) -> None:
        """Waits for what is under way, for so long at the most."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)


async def in_flight(
    count: int, begin: Callable[[int], asyncio.Task[T]], ordered: bool, window: int
) -> AsyncGenerator[T, None]:
    """What each of `count` gives, with `window` of them at once. What is not taken is cancelled."""
    tasks: deque[asyncio.Task[T]] = deque()
    running: set[asyncio.Task[T]] = set()
    started = 0
    try:
        while started < count or tasks:
            while started < count and len(running) < window and len(tasks) < _MOST_WAITING * window:
                tasks.append(begin(started))
                running.add(tasks[-1])
                started += 1
            if not (ordered and tasks[0].done()):
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if not ordered:
                    for task in done:
                        tasks.remove(task)
                        yield task.result()
                    continue
            while tasks and tasks[0].done():
                running.discard(tasks[0])
                yield tasks.popleft().result()
    finally:
        for task in tasks:
            task.cancel()


async def outcome_of(future: SandboxFuture[Any]) -> Outcome[Any]:
    """Where this is cancelled, the call's cell is killed, and this ends when the call has. Raises
    what failed before there could be an Outcome.
    """
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def end(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(over.set)

    future.add_done_callback(end)
    try:
        await over.wait()
    except asyncio.CancelledError:
        future.cancel()
        await over.wait()
        raise
    return future.outcome()
