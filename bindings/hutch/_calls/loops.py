# SPDX-License-Identifier: Apache-2.0
"""Between a caller's event loop and threads: either waits for what the other one does."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import math
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_LOOK_SEC = 0.25  # how often whoever waits looks whether the loop is still there


def forget(task: asyncio.Task[Any]) -> None:
    """Nobody asks for its error."""
    if not task.cancelled():
        task.exception()


async def result_of(task: asyncio.Task[T], cancel: Callable[[], None]) -> T:
    """Where this is cancelled, `cancel` is called, and the task goes on to its end."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            task.add_done_callback(forget)
            cancel()
        raise


def running() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "this is awaited on an event loop of asyncio, and none is running: elsewhere, as under "
            "trio, use the methods that are not awaited, on a thread"
        ) from None


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a call that a thread waits for has awaited something")


class OnLoop:
    """Runs coroutines on the running loop, for another thread that waits for each."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __call__(
        self,
        coroutine: Coroutine[Any, Any, T],
        patience_sec: float = math.inf,
        is_unwanted: Callable[[], bool] = lambda: False,
    ) -> T:
        """Raises RuntimeError where the loop is closed: what was given to that never ends. It is
        cancelled after so long, or once it is unwanted, which is looked at now and then: then this
        raises concurrent.futures.CancelledError.
        """
        loop, until = self._loop, time.monotonic() + patience_sec
        try:
            result: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # it is closed
            coroutine.close()
            raise
        while not wait([result], max(0.0, min(_LOOK_SEC, until - time.monotonic()))).done:
            if loop.is_closed() or not threading.main_thread().is_alive():
                raise RuntimeError("the event loop that was to do this has ended")
            if is_unwanted() or time.monotonic() >= until:
                result.cancel()
        return result.result()


class OnThread(Generic[T]):
    """Work on a thread, in this context."""

    def __init__(
        self,
        work: Callable[[], T],
        daemon: bool = False,
        start: Callable[[Callable[[], None]], None] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> None:
        """`daemon`: the process does not wait for it at its end. `start`: finds it a thread; None:
        one is made. `ended`: called on the loop, whoever still waits.
        """
        self._loop = asyncio.get_running_loop()
        self._changed = self._loop.create_future()
        self._done: list[tuple[Any, BaseException | None]] = []
        self._is_done = False
        self._is_left = False  # nobody wants its result
        self._work = contextvars.copy_context().run, work
        self._ended = ended
        if start is not None:
            start(self._run)
        else:
            threading.Thread(target=self._run, name="hutch-wait", daemon=daemon).start()

    def _run(self) -> None:
        run, work = self._work
        try:
            self._done.append((run(work), None))
        except BaseException as error:
            self._done.append((None, error))
        self._is_done = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set_result(None)
        if self._is_left:
            self._drop()
        if self._ended is not None:
            self._ended()

    def _drop(self) -> None:
        value, _ = self._done.pop()
        if inspect.iscoroutine(value):
            value.close()  # which nobody awaits

    def is_alive(self) -> bool:
        return not self._is_done

    async def wait(self, patience_sec: float | None = None) -> None:
        """Until it is done, or for so long. Where this is cancelled, it goes on."""
        await asyncio.wait({self._changed}, timeout=patience_sec)

    async def result(self) -> T:
        try:
            await self.wait()
        except asyncio.CancelledError:
            self._is_left = True
            if self._changed.done():
                self._drop()
            raise
        value, error = self._done.pop()
        if error is None:
            result: T = value
            return result
        try:
            raise error
        finally:
            del error  # which refers to this frame


async def on_thread(work: Callable[[], T], daemon: bool = False) -> T:
    """What `work` returns, on a thread made for it, in this context. Where this is cancelled, it
    goes on. `daemon`: the process does not wait for it at its end.
    """
    return await OnThread(work, daemon).result()


class OneAtATime:
    """Pieces of work that block, each on a thread, one after another."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """Where this is cancelled, it is waited for, unless this is cancelled again. Those that
        follow do so anyway.
        """
        await self._lock.acquire()
        try:
            thread = OnThread(work, daemon=True, ended=self._lock.release)
        except BaseException:
            self._lock.release()
            raise
        try:
            return await thread.result()
        except asyncio.CancelledError:
            await thread.wait()
            raise
