# SPDX-License-Identifier: Apache-2.0
"""Blocking iterators on an event loop: each step waits in a thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

T = TypeVar("T")
_END = object()


async def iterate(iterator: Iterator[T]) -> AsyncIterator[T]:
    """Closes the iterator when it is left early, which cancels what is in flight."""
    import asyncio

    try:
        while True:
            item = await asyncio.to_thread(next, iterator, _END)
            if item is _END:
                return
            yield item  # type: ignore[misc]
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            try:
                close()
            except ValueError:
                pass  # a step still waits in its thread: it ends with its call
