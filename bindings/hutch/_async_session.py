# SPDX-License-Identifier: Apache-2.0
"""`AsyncSession`: a Session whose methods are awaited (_awaited_session.py)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, overload

from hutch._awaited_session import Awaited
from hutch._commands import AsyncCommands
from hutch._javascript import AsyncJavaScript
from hutch._key_values import AsyncKeyValues
from hutch._not_yet import absent
from hutch._session import Child

if TYPE_CHECKING:
    from hutch._calls.history import HistoryEntry
    from hutch._carry.container import Given
    from hutch._outcome import Outcome

# Of files: those that give awaitables.
_AWAITABLE = (
    "read",
    "read_bytes",
    "write",
    "list",
    "glob",
    "exists",
    "stat",
    "delete",
    "remove",
    "mkdir",
    "rename",
    "realpath",
)


class AsyncNamespace:
    """The methods of Namespace, awaited."""

    _of: Any  # a Session or a Child, whose methods give awaitables
    _root: AsyncSession

    async def exec(self, source: str, **limits: Any) -> Outcome[Any]:
        outcome: Outcome[Any] = await self._of.exec(source, **limits)
        return outcome

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self._of.call(function, *args, **kwargs)

    async def get(self, name: str, default: Any = None) -> Any:
        return await self._of.get(name, default)

    async def set(self, name: str, value: Any) -> None:
        await self._of.set(name, value)

    async def delete(self, name: str) -> None:
        await self._of.delete(name)

    async def has(self, name: str) -> bool:
        found: bool = await self._of.has(name)
        return found

    async def names(self) -> list[str]:
        found: list[str] = await self._of.names()
        return found

    async def protect(self, *names: str) -> None:
        await self._of.protect(*names)

    async def child(self) -> AsyncChild:
        return AsyncChild(self._root, await self._of.child())


class AsyncSession(AsyncCommands, AsyncJavaScript, AsyncNamespace):
    """Takes what Session takes, and tools that are async, which run on the loop of the task that
    awaits, as all others do: those block it meanwhile, unless they have a `timeout_sec`, and so a
    thread. Cancelling the task interrupts the code, and cancels the async tool that it waits for.

    async with AsyncSession() as s:
        await s.exec("x = 1")
        assert await s.get("x") == 1
    """

    def __init__(self, **keywords: Any) -> None:
        self._session = self._of = Awaited(**keywords)
        self._root = self
        self.files = _Files(self)
        self.kv = AsyncKeyValues(self._session.kv)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise absent("AsyncSession", name)

    async def reset(self, files: bool = False) -> None:
        await self._session.restart(files)

    @overload
    async def snapshot(self, to: None = None, *, globals: bool = True) -> bytes: ...
    @overload
    async def snapshot(self, to: str | os.PathLike[str], *, globals: bool = True) -> None: ...
    async def snapshot(
        self, to: str | os.PathLike[str] | None = None, *, globals: bool = True
    ) -> bytes | None:
        session = self._session
        return await session.files.operate(lambda: session._contents.take(to, globals))

    async def restore(self, snapshot: Given, *, globals: bool = True) -> None:
        session = self._session
        await session.files.operate(lambda: session.restore(snapshot, globals=globals))

    async def install(self, *requirements: str) -> list[str]:
        return await self._session.install(*requirements)

    async def history(self, limit: int = 100) -> list[HistoryEntry]:
        return self._session.history(limit)

    async def close(self) -> None:
        await self._session.end()

    def interrupt(self) -> Awaitable[None]:
        """At once, and from any thread: its awaitable needs not be awaited."""
        self._session.interrupt()
        return _Done()

    def info(self) -> _Info:
        """A dict, which may be awaited, too."""
        return _Info(self._session.info())

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def lost(self) -> list[str]:
        return self._session.lost

    @property
    def left_out(self) -> dict[str, str]:
        return self._session.left_out

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Done:
    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class _Info(dict[str, Any]):
    def __await__(self) -> Generator[None, None, dict[str, Any]]:
        yield from ()
        return dict(self)


class AsyncChild(AsyncNamespace):
    """A Child whose methods are awaited."""

    def __init__(self, session: AsyncSession, child: Child) -> None:
        self._root = session
        self._of = self._child = child

    @property
    def files(self) -> _Files:
        return self._root.files

    @property
    def kv(self) -> AsyncKeyValues:
        return self._root.kv

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
        files = self._of._session.files
        method = getattr(files, name)

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            if name in _AWAITABLE:
                return await method(*args, **kwargs)
            return await files.operate(lambda: method(*args, **kwargs))

        return awaited
