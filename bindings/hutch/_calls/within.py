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

# Of tools that run at once, and of what they were asked with unless it is one; worker/answers.py
# waits for them to end.
MOST_OPEN = 16
MOST_BYTES = 8 << 20


class Within:
    """One call of a tool, and the calls of its session that it makes, one after another. `number`:
    of the question that it answers at its end. `depth`: that of the frame that asked. `size`: of
    what it was asked with. `has_place`: it is one of so many. `outer`: the tool that made the call
    which this one belongs to.
    """

    def __init__(
        self, talk: Dialogue, frame: Frame, depth: int, number: int, size: int, has_place: bool
    ) -> None:
        self.outer = _within.get()
        self.size = size
        self.has_place = has_place
        self.talk = talk
        self.frame = frame
        self.depth = depth
        self.number = number
        self.entry: Note | None = None
        self.is_open = True
        self.is_answered = False
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
_within: contextvars.ContextVar[Within | None] = contextvars.ContextVar("within", default=None)


def within(talk: Dialogue | None) -> Within | None:
    """The tool of that call which the task belongs to, also by a call that the tool made."""
    calls = _within.get()
    while calls is not None and calls.talk is not talk:
        calls = calls.outer
    return calls


def is_within_tool() -> bool:
    """Of any call that an event loop drives."""
    return _within.get() is not None


class UnderWay:
    """The tools of one call that run as tasks."""

    def __init__(self) -> None:
        self._tools: dict[asyncio.Task[None], Within] = {}

    def has_room(self, calls: Within, unsent: int) -> bool:
        """For one more. Those that run code, which may call others, and those that have answered
        do not count; `unsent` answers do.
        """
        sizes = [
            one.size
            for one in self._tools.values()
            if one.has_place is calls.has_place and not (one.is_answered or one.waits)
        ]
        count = len(sizes) + (unsent if calls.has_place else 0)
        few_bytes = not count or sum(sizes) + calls.size <= MOST_BYTES
        return count < MOST_OPEN and few_bytes

    def begin(self, calls: Within, work: Coroutine[Any, Any, None]) -> None:
        before = _within.set(calls)
        try:
            task = asyncio.ensure_future(work)
        finally:
            _within.reset(before)
        self._tools[task] = calls
        task.add_done_callback(self._tools.__delitem__)

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
