# SPDX-License-Identifier: Apache-2.0
"""`AsyncSession`: a Session whose methods are awaited. Each waits on a thread of its own executor,
one for each session, since a session runs one call at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from hutch._session import Session, busy

if TYPE_CHECKING:
    from hutch._outcome import Outcome

T = TypeVar("T")


class _Awaiting(Session):
    _awaits = True


class AsyncSession:
    """Takes what Session takes, and tools that are async, which run on the loop of the task that
    awaits. Cancelling the task interrupts the code.

    async with AsyncSession() as s:
        await s.exec("x = 1")
        assert await s.get("x") == 1
    """

    def __init__(self, **keywords: Any) -> None:
        self._session = _Awaiting(**keywords)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="hutch-session")
        self._runs = False
        self.files = _Files(self)

    async def exec(self, source: str, **limits: Any) -> Outcome[Any]:
        return await self._do(lambda: self._session.exec(source, **limits))

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self._do(lambda: self._session.call(function, *args, **kwargs))

    async def get(self, name: str, default: Any = None) -> Any:
        return await self._do(lambda: self._session.get(name, default))

    async def set(self, name: str, value: Any) -> None:
        await self._do(lambda: self._session.set(name, value))

    async def delete(self, name: str) -> None:
        await self._do(lambda: self._session.delete(name))

    async def has(self, name: str) -> bool:
        return await self._do(lambda: self._session.has(name))

    async def names(self) -> list[str]:
        return await self._do(self._session.names)

    async def reset(self, files: bool = False) -> None:
        await self._do(lambda: self._session.reset(files))

    async def close(self) -> None:
        await self._do(self._session.close)
        self._threads.shutdown(wait=False)

    def interrupt(self) -> None:
        self._session.interrupt()

    def info(self) -> dict[str, Any]:
        return self._session.info()

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def lost(self) -> list[str]:
        return self._session.lost

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _do(self, work: Callable[[], T]) -> T:
        if self._runs:
            raise busy()
        loop = asyncio.get_running_loop()
        self._session._wait_for = lambda coroutine: asyncio.run_coroutine_threadsafe(
            coroutine, loop
        ).result()
        # One that was cancelled and has not ended yet is waited for, on the thread.
        self._runs = True
        try:
            return await loop.run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            self._session.interrupt()
            raise
        finally:
            self._runs = False


class _Files:
    """The methods of `Session.files`, awaited."""

    def __init__(self, session: AsyncSession) -> None:
        self._of = session

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        method = getattr(self._of._session.files, name)

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await self._of._do(lambda: method(*args, **kwargs))

        return awaited
