# SPDX-License-Identifier: Apache-2.0
"""What takes long for its size is done on a few threads, beside the event loop: others are answered
meanwhile. Of one client one piece is done at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from hutch._calls.threads import CallThreads
from hutch.serve.settings import Client

T = TypeVar("T")
AT_ONCE = 128 << 10  # bytes; what is about smaller ones is done on the loop
_THREADS = 2


class Aside:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._threads = CallThreads(_THREADS)
        self._turns: WeakKeyDictionary[Client, asyncio.Lock] = WeakKeyDictionary()

    async def do(self, client: Client, size: int, work: Callable[[], T]) -> T:
        """What it returns or raises. `size`: bytes that it is about. Where this is cancelled, it
        ends when the work has.
        """
        if size <= AT_ONCE:
            return work()
        async with self._turns.setdefault(client, asyncio.Lock()):
            return await self._on_thread(work)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def tell(set: Callable[[Any], None], found: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(set, found)

        def run() -> None:
            try:
                found = work()
            except BaseException as error:
                tell(done.set_exception, error)
            else:
                tell(done.set_result, found)

        try:
            self._threads.start(run)
        except RuntimeError:  # there is no thread to be had
            return work()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not done.done():
                await asyncio.wait({done})
            done.exception()  # nobody is there to hear of it
            raise
