# SPDX-License-Identifier: Apache-2.0
"""Tools that run for a call that an event loop drives. On the loop's thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hutch._calls.dialogue import Dialogue
    from hutch._calls.frames import Frame
    from hutch._calls.history import Note

T = TypeVar("T")

MOST_OPEN = 16  # tools at once; worker/answers.py waits for one of them to end
_MOST_BYTES = 8 << 20  # of what they were asked with


class Within:
    """One call of a tool, and the calls of its session that it makes, one after another. `number`:
    of the question that it answers at its end. `depth`: that of the frame that asked.
    """

    def __init__(self, talk: Dialogue, frame: Frame, depth: int, number: int) -> None:
        self.talk = talk
        self.frame = frame
        self.depth = depth
        self.number = number
        self.entry: Note | None = None
        self.is_open = True
        self.is_left = False  # nobody waits for it: the code that it wants run never is
        self.waits = 0  # for what ends with the call: code that it runs within it, and commands
        self.under_way: set[asyncio.Task[Any]] = set()
        self._lock = asyncio.Lock()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(self._one(work))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        return task

    async def _one(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with self._lock:
                return await work
        finally:
            work.close()  # if it never began


# Of the tool that the task belongs to.
within: contextvars.ContextVar[Within | None] = contextvars.ContextVar("within", default=None)


class UnderWay:
    """The tools of one call that run as tasks."""

    def __init__(self) -> None:
        self._tools: dict[asyncio.Task[None], Within] = {}
        self._asked_bytes = 0

    def has_room(self, size: int, unsent: int) -> bool:
        """For one more, asked for with so many bytes. Those that run code, which may call others,
        do not count; `unsent` answers do.
        """
        running = sum(not calls.waits for calls in self._tools.values()) + unsent
        few_bytes = not self._tools or self._asked_bytes + size <= _MOST_BYTES
        return running < MOST_OPEN and few_bytes

    def begin(self, calls: Within, work: Coroutine[Any, Any, None], size: int) -> None:
        before = within.set(calls)
        try:
            task = asyncio.ensure_future(work)
        finally:
            within.reset(before)
        self._tools[task] = calls
        self._asked_bytes += size

        def forget(_: asyncio.Task[None]) -> None:
            del self._tools[task]
            self._asked_bytes -= size

        task.add_done_callback(forget)

    def cancel(self, all_of_them: bool = True) -> None:
        """Or those that wait for nothing that ends with the call."""
        for task, calls in self._tools.items():
            if all_of_them or not calls.waits:
                task.cancel()

    def leave(self, number: int | None) -> None:
        """The one that answers the question of that number: nobody waits for it any more."""
        for task, calls in self._tools.items():
            if calls.number == number:
                calls.is_left = True
                task.cancel()

    def left(self) -> set[asyncio.Task[None]]:
        return {task for task in self._tools if not task.done()}
