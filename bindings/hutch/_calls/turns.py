# SPDX-License-Identifier: Apache-2.0
"""A call that an event loop drives: the loop watches the cell's descriptor and the call's clock,
and no thread waits. All of it is for the loop's thread.
"""

from __future__ import annotations

import asyncio

from hutch import _core


class Turns:
    """Of a call that `core.begin` has sent."""

    def __init__(self, core: _core.Turns) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._changed: asyncio.Future[None] | None = None

    async def next(self) -> tuple[bytes, int, int] | None:
        """What the code asks, and its number, which is open until it is answered; None: the call is
        over.
        """
        while True:
            turn = self._core.turn()
            if not isinstance(turn, float):
                if turn is not None:
                    await self._yield()
                return turn
            await self._change(turn)

    def answer(self, number: int, answer: bytes | None) -> None:
        if self._core.answer(number, answer):
            self._wake()

    def cancel(self) -> None:
        if self._core.cancel():
            self._wake()

    def _wake(self) -> None:
        """No more comes of a call that was decided here."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _yield(self) -> None:
        """To the rest of the loop: a cell may ask again and again without a pause."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:  # as in _change
            self._core.cancel()

    async def _change(self, patience: float) -> None:
        changed = self._changed = self._loop.create_future()
        descriptor = self._core.turn_fd
        timer = self._loop.call_later(patience, self._wake)
        self._loop.add_reader(descriptor, self._wake)
        try:
            await changed
        except asyncio.CancelledError:  # the loop ends, and waits for the call's end, which is soon
            self._core.cancel()
        finally:
            self._changed = None
            timer.cancel()
            if not self._loop.is_closed():
                self._loop.remove_reader(descriptor)
