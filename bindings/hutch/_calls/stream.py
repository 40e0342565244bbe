# SPDX-License-Identifier: Apache-2.0
"""What a sandboxed generator function yields, as its caller asks for it.

The call has a thread of its own, since the caller may stop asking for as long as it likes: then
the generator waits inside, and its time limit stands still.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from hutch._calls.future import SandboxFuture, submit
from hutch._calls.threads import CallThreads
from hutch._outcome import Outcome

T = TypeVar("T")

_FEW = 4  # items that wait for the caller, above which the cell is let wait
_MOST = 16  # at most: it says so many between two questions
_PATIENCE_SEC = 0.05  # of the call's thread in all, before the time limit stands still
_LOOK_SEC = 0.25
_GRACE_SEC = 1.0  # after close(), for the generator's own clean-up
_END = object()


class Stream:
    """The items between the call's thread, which puts them, and whoever takes them."""

    def __init__(self, call: Callable[[Any, Stream], Outcome[Any]]) -> None:
        self.outcome: Outcome[Any] | None = None  # once it is over
        self._call = call
        self._changed = threading.Condition()
        self._waiters: list[Callable[[], None]] = []
        self._items: deque[Any] = deque()
        self._future: SandboxFuture[Any] | None = None
        self._over = False
        self._closed = False
        self._patience = _PATIENCE_SEC  # that is left; while it lasts, the agent need not be told
        self._error: BaseException | None = None
        self._pid = os.getpid()

    def put(self, item: Any, asks: bool, stop_clock: Callable[[bool], object]) -> bool:
        """Waits while more than a few are there. False: no more are wanted."""
        most = _FEW if asks else _MOST
        stopped = False
        with self._changed:
            if self.ends():
                return False
            self._items.append(item)
            self._wake()
            while len(self._items) > most and not self.ends():
                if not stopped and self._patience <= 0:
                    stopped = True
                    stop_clock(True)
                begun = time.monotonic()
                self._changed.wait(_LOOK_SEC if stopped else self._patience)
                if not stopped:
                    self._patience -= time.monotonic() - begun
            return not self.ends()

    def take(self, wait: bool = True) -> Any:
        """[the next one]; None: there is none yet; `_END`: there are no more. Raises what the call
        failed with, once.
        """
        if self._pid != os.getpid():
            raise RuntimeError(
                "this generator belongs to the parent of this process: make another one here"
            )
        with self._changed:
            if self._future is None and not self._over:
                self._begin()
            while wait and not self._items and not self._over:
                self._changed.wait()
            if self._items:
                item = self._items.popleft()
                if len(self._items) <= _FEW:
                    self._changed.notify_all()
                return [item]
            if not self._over:
                return None
            error, self._error = self._error, None
        if error is not None:
            raise error
        return _END

    def call_when_changed(self, waiter: Callable[[], None]) -> None:
        """Once, on any thread: when `take()` has something to return."""
        with self._changed:
            self._waiters.append(waiter)
            if self._items or self._over:
                self._wake()

    def forget(self, waiter: Callable[[], None]) -> None:
        with self._changed:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        self._changed.notify_all()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def close(self, wait: bool = True) -> None:
        """Has the generator raise GeneratorExit, and kills it after a grace."""
        if self._pid != os.getpid():
            return  # its call is the parent's
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()
            future = self._future
            if future is None:
                self._over = True
                return
            if wait:
                self._changed.wait_for(lambda: self._over, _GRACE_SEC)
            self._error = None
        if not self._over and wait:
            future.cancel()
        elif not self._over:
            timer = threading.Timer(_GRACE_SEC, future.cancel)
            timer.daemon = True
            timer.start()

    def ends(self) -> bool:
        """Whether no more items are wanted."""
        return self._closed or (self._future is not None and self._future.is_cancelling)

    def _begin(self) -> None:
        threads = CallThreads(1)
        self._future = submit(lambda token: self._call(token, self), unwrap=False, threads=threads)
        self._future.add_done_callback(self._done)

    def _done(self, future: Future[Any]) -> None:
        error: BaseException | None = None
        outcome: Outcome[Any] | None = None
        try:
            outcome = future.result()
            error = None if outcome.ok else outcome.exception()
        except BaseException as failed:
            error = failed
        with self._changed:
            self.outcome = outcome
            self._error = None if self._closed else error
            self._over = True
            self._wake()


class _OfStream(Generic[T]):
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def outcome(self) -> Outcome[Any] | None:
        """The call's, once it is over, else None; its value is what the generator returned."""
        return self._stream.outcome

    def __del__(self) -> None:
        self._stream.close(wait=False)


class SandboxedGenerator(_OfStream[T], Iterator[T]):
    """What a sandboxed generator function yields, as it comes. The call begins at the first
    `next()`; a few items are made ahead, and while nobody takes them the generator waits inside,
    its time limit too. What it raises is raised by `next()`.

    `close()`, or a `with` block, raises GeneratorExit inside, and kills the call after a second.
    `outcome`: the call's, once it is over; its value is what the generator returned.
    """

    __module__ = "hutch"

    def __next__(self) -> T:
        taken = self._stream.take()
        if taken is _END:
            raise StopIteration
        item: T = taken[0]
        return item

    def close(self) -> None:
        """Has the generator raise GeneratorExit, and kills its call after a second."""
        self._stream.close()

    def __enter__(self) -> SandboxedGenerator[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncSandboxedGenerator(_OfStream[T], AsyncIterator[T]):
    """What a sandboxed async generator function yields: as SandboxedGenerator, awaited."""

    __module__ = "hutch"

    async def __anext__(self) -> T:
        while (taken := self._stream.take(wait=False)) is None:
            await self._change()
        if taken is _END:
            raise StopAsyncIteration
        item: T = taken[0]
        return item

    async def _change(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        changed = loop.create_future()

        def resume() -> None:
            if not changed.done():
                changed.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(resume)

        self._stream.call_when_changed(wake)
        try:
            await changed
        finally:
            self._stream.forget(wake)

    async def aclose(self) -> None:
        """Has the generator raise GeneratorExit, and kills its call after a second."""
        import asyncio

        await asyncio.to_thread(self._stream.close)

    async def __aenter__(self) -> AsyncSandboxedGenerator[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
