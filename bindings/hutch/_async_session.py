# SPDX-License-Identifier: Apache-2.0
"""`AsyncSession`: a Session whose methods are awaited. Each waits on a thread of its own executor,
one for each session, since a session runs one call at a time.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from hutch._calls import loops
from hutch._session import Child, Session, busy

if TYPE_CHECKING:
    from hutch._outcome import Outcome

T = TypeVar("T")


class _Awaiting(Session):
    _awaits = True


class _Calls:
    """Those that an async tool makes within the one that called it: the thread that waits for the
    tool makes them, one after another.
    """

    def __init__(self, session: AsyncSession) -> None:
        self.session = session
        self.is_open = True  # on the loop's thread
        self.waiting: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )

    async def make(self, work: Callable[[], T]) -> T:
        done: Future[T] = Future()
        self.waiting.put((work, done))
        return await asyncio.wrap_future(done)

    def end(self, _: object) -> None:
        self.is_open = False
        self.waiting.put(None)

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                one = self.waiting.get(timeout=loops.LOOK_SEC)
            except queue.Empty:
                loops.require(loop)
                continue
            if one is None:
                return
            work, done = one
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)


_calls: contextvars.ContextVar[_Calls | None] = contextvars.ContextVar("_calls", default=None)


class AsyncNamespace:
    """The methods of Namespace, awaited."""

    _of: Session | Child
    _root: AsyncSession

    async def exec(self, source: str, **limits: Any) -> Outcome[Any]:
        return await self._do(lambda: self._of.exec(source, **limits))

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self._do(lambda: self._of.call(function, *args, **kwargs))

    async def get(self, name: str, default: Any = None) -> Any:
        return await self._do(lambda: self._of.get(name, default))

    async def set(self, name: str, value: Any) -> None:
        await self._do(lambda: self._of.set(name, value))

    async def delete(self, name: str) -> None:
        await self._do(lambda: self._of.delete(name))

    async def has(self, name: str) -> bool:
        return await self._do(lambda: self._of.has(name))

    async def names(self) -> list[str]:
        return await self._do(self._of.names)

    async def protect(self, *names: str) -> None:
        await self._do(lambda: self._of.protect(*names))

    async def child(self) -> AsyncChild:
        return AsyncChild(self._root, await self._do(self._of.child))

    async def _do(self, work: Callable[[], T]) -> T:
        return await self._root._wait(work)


class AsyncSession(AsyncNamespace):
    """Takes what Session takes, and tools that are async, which run on the loop of the task that
    awaits. Cancelling the task interrupts the code.

    async with AsyncSession() as s:
        await s.exec("x = 1")
        assert await s.get("x") == 1
    """

    def __init__(self, **keywords: Any) -> None:
        self._session = self._of = _Awaiting(**keywords)
        self._root = self
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="hutch-session")
        self._runs = False
        self.files = _Files(self)

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

    async def _wait(self, work: Callable[[], T]) -> T:
        calls = _calls.get()
        if calls is not None and calls.session is self and calls.is_open:
            return await calls.make(work)
        if self._runs:
            raise busy()
        loop = asyncio.get_running_loop()
        self._session._wait_for = lambda coroutine: self._wait_for(coroutine, loop)
        # One that was cancelled and has not ended yet is waited for, on the thread.
        self._runs = True
        try:
            return await loop.run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            self._session.interrupt()
            raise
        finally:
            self._runs = False

    def _wait_for(self, tool: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
        """The result of an async tool, on the thread of the call."""
        calls = _Calls(self)
        before = _calls.set(calls)
        try:
            result = asyncio.run_coroutine_threadsafe(tool, loop)
        finally:
            _calls.reset(before)
        result.add_done_callback(calls.end)
        calls.serve(loop)
        return result.result()


class AsyncChild(AsyncNamespace):
    """A Child whose methods are awaited."""

    def __init__(self, session: AsyncSession, child: Child) -> None:
        self._root = session
        self._of = self._child = child

    @property
    def files(self) -> _Files:
        return self._root.files

    @property
    def lost(self) -> list[str]:
        return self._child.lost

    async def close(self) -> None:
        self._child.close()

    async def __aenter__(self) -> AsyncChild:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._child.close()


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
