# SPDX-License-Identifier: Apache-2.0
"""Coroutines of a caller's event loop, which another thread waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any

LOOK_SEC = 0.25  # how often whoever waits looks whether the loop is still there


def require(loop: asyncio.AbstractEventLoop) -> None:
    """Raises RuntimeError where the loop is closed: what was given to it never ends."""
    if loop.is_closed():
        raise RuntimeError("the event loop that the tool ran on is closed")


def on_loop() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """What runs a coroutine on the running loop, for another thread that waits for it."""
    loop = asyncio.get_running_loop()

    def result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
        result: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, loop)
        while not wait([result], LOOK_SEC).done:
            require(loop)
        return result.result()

    return result_of
