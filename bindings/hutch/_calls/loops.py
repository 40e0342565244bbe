# SPDX-License-Identifier: Apache-2.0
"""Between a caller's event loop and threads: either waits for what the other one does."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

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


def on_loop() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """What runs a coroutine on the running loop, for another thread that waits for it. It raises
    RuntimeError where the loop is closed: what was given to that never ends.
    """
    loop = asyncio.get_running_loop()

    def result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            result: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # it is closed
            coroutine.close()
            raise
        while not wait([result], _LOOK_SEC).done:
            if loop.is_closed() or not threading.main_thread().is_alive():
                raise RuntimeError("the event loop that was to do this has ended")
        return result.result()

    return result_of


async def on_thread(work: Callable[[], T], daemon: bool = False) -> T:
    """What `work` returns, on a thread made for it, in this context. Where this is cancelled, it
    goes on. `daemon`: the process does not wait for it at its end.
    """
    loop = asyncio.get_running_loop()
    changed = loop.create_future()
    done: list[tuple[Any, BaseException | None]] = []
    context = contextvars.copy_context()

    def wake() -> None:
        if not changed.done():
            changed.set_result(None)

    def run() -> None:
        try:
            done.append((context.run(work), None))
        except BaseException as error:
            done.append((None, error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(wake)

    threading.Thread(target=run, name="hutch-wait", daemon=daemon).start()
    await changed
    value, error = done.pop()
    if error is None:
        result: T = value
        return result
    try:
        raise error
    finally:
        del error  # which refers to this frame
