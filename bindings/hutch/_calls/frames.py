# SPDX-License-Identifier: Apache-2.0
"""The code that asks, in a call that an event loop drives: that of the call, and what tools run
within it. On the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hutch._calls.dialogue import call_has_ended

if TYPE_CHECKING:
    from hutch._calls.history import Note


class Frame:
    """Of the code that asks: that of the call, or what a tool runs within it. `entry`: its entry in
    the history. `of`: the question that the tool would have answered. `reply`: what it waits for,
    with the number of the question that it is. `begun`: the code says that it is; what is asked
    before is of the code around it.
    """

    def __init__(self, entry: Note | None = None, of: int = 0) -> None:
        self.entry = entry
        self.of = of
        self.standing = 0  # tools that it waits for while its clock stands
        self.stops = 0
        self.begun = False
        self.raised: BaseException | None = None  # by a callback
        self.reply: asyncio.Future[tuple[list[Any], int]] | None = None


class Frames:
    """Of one call. `outer`: its own code; `inner`: the innermost."""

    def __init__(self) -> None:
        self.outer = Frame()
        self._all = [self.outer]  # the innermost last
        self._popped = asyncio.Event()  # one was

    @property
    def inner(self) -> Frame:
        return self._all[-1]

    def asker(self) -> tuple[Frame, int]:
        """Which asks now, and its depth: 1 is the outermost."""
        count = len(self._all)
        depth = next((at for at in range(count, 1, -1) if self._all[at - 1].begun), 1)
        return self._all[depth - 1], depth

    async def room_above(self, depth: int, is_wanted: Callable[[], bool]) -> None:
        """Waits until no other tool's code runs above the one at `depth`, while that is wanted."""
        while len(self._all) > depth and is_wanted():
            self._popped.clear()
            await self._popped.wait()

    def push(self, frame: Frame) -> None:
        frame.reply = asyncio.get_running_loop().create_future()
        self._all.append(frame)

    def pop(self, frame: Frame) -> None:
        self._all.remove(frame)
        self._popped.set()

    def begin(self, of: int | None) -> None:
        for frame in self._all:
            frame.begun = frame.begun or frame.of == of

    def take(self, of: int | None, content: list[Any], number: int) -> bool:
        """What the code replies that was to run instead of an answer to a question. False: there is
        none that waits.
        """
        reply = next((one.reply for one in self._all if one.of == of), None)
        if of is None or reply is None or reply.done():
            return False
        reply.set_result((content, number))
        return True

    def end_all(self) -> None:
        """Within the call; the call itself is over, or its code is."""
        self._end(self._all[1:])

    def end_one(self, of: int | None) -> None:
        """Of a question that nobody waits for any more, unless it has begun."""
        self._end(one for one in self._all[1:] if one.of == of and not one.begun)

    def _end(self, frames: list[Frame] | Iterator[Frame]) -> None:
        self._popped.set()
        for frame in frames:
            if frame.reply is not None and not frame.reply.done():
                frame.reply.set_exception(call_has_ended())
