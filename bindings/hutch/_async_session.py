# SPDX-License-Identifier: Apache-2.0
"""`AsyncSession`: a Session whose methods are awaited (_awaited_session.py)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from hutch._async_session_files import AsyncSessionFiles
from hutch._awaited_session import Awaited
from hutch._commands import AsyncCommands
from hutch._javascript import AsyncJavaScript
from hutch._key_values import AsyncKeyValues
from hutch._namespace import Namespace
from hutch._not_yet import absent
from hutch._options.described import described_without
from hutch._session import Child, Session
from hutch._session_look import AsyncLooking
from hutch._twins import awaits, result_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hutch._calls.history import HistoryEntry
    from hutch._carry.container import Given
    from hutch._options.described import Keywords
    from hutch._options.keyword_types import CallKeywords
    from hutch._outcome import Outcome
    from hutch._storage import Storage


class AsyncNamespace(AsyncLooking):
    """The methods of Namespace, awaited."""

    _of: Session | Child  # whose methods give awaitables
    _root: AsyncSession

    @awaits(Namespace.exec)
    async def exec(self, source: str, **limits: Unpack[CallKeywords]) -> Outcome[Any]:
        return await result_of(self._of.exec, source, **limits)

    @awaits(Namespace.call)
    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self._of.call(function, *args, **kwargs)

    @awaits(Namespace.get)
    async def get(self, name: str, default: Any = None) -> Any:
        return await self._of.get(name, default)

    @awaits(Namespace.set)
    async def set(self, name: str, value: Any) -> None:
        await result_of(self._of.set, name, value)

    @awaits(Namespace.delete)
    async def delete(self, name: str) -> None:
        await result_of(self._of.delete, name)

    @awaits(Namespace.has)
    async def has(self, name: str) -> bool:
        return await result_of(self._of.has, name)

    @awaits(Namespace.names)
    async def names(self) -> list[str]:
        return await result_of(self._of.names)

    @awaits(Namespace.protect)
    async def protect(self, *names: str) -> None:
        await result_of(self._of.protect, *names)

    @awaits(Namespace.child)
    async def child(self) -> AsyncChild:
        return AsyncChild(self, await result_of(self._of.child))


class AsyncSession(AsyncCommands, AsyncJavaScript, AsyncNamespace):
    """A Session whose methods are awaited; `interrupt()` and `info()` need not be. It has no
    `s["name"]`: `await s.get("name")` and `await s.set("name", value)` are there for that.

    Tools may be async, too, and run on the loop of the task that awaits, as all others do: those
    block it meanwhile, unless they have a `timeout_sec`, and so a thread. Cancelling the task
    interrupts the code, and cancels the async tool that it waits for.

        async with AsyncSession() as s:
            await s.exec("x = 1")
            assert await s.get("x") == 1

    It takes what a Session takes, of which that says:
    """

    _of: Awaited

    @described_without("key")
    def __init__(
        self,
        *,
        files: Mapping[str, Any] | None = None,
        cwd: str = "/work",
        idle_sec: float | None = 600.0,
        tool_time: Literal["included", "excluded"] = "included",
        on_input: Callable[[str], str] | None = None,
        on_display: Callable[[dict[str, Any]], object] | None = None,
        id: str | None = None,
        storage: str | os.PathLike[str] | Storage | None = None,
        steal: bool = False,
        snapshot: Given | None = None,
        globals: bool = True,
        **keywords: Unpack[Keywords],
    ) -> None:
        self._session = self._of = Awaited(
            files=files,
            cwd=cwd,
            idle_sec=idle_sec,
            tool_time=tool_time,
            on_input=on_input,
            on_display=on_display,
            id=id,
            storage=storage,
            steal=steal,
            snapshot=snapshot,
            globals=globals,
            **keywords,
        )
        self._root = self
        self.files = AsyncSessionFiles(self._session)
        self.kv = AsyncKeyValues(self._session.kv)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise absent("AsyncSession", name)

    @awaits(Session.reset)
    async def reset(self, files: bool = False) -> None:
        await self._session.restart(files)

    @overload
    async def snapshot(self, to: None = None, *, globals: bool = True) -> bytes: ...
    @overload
    async def snapshot(self, to: str | os.PathLike[str], *, globals: bool = True) -> None: ...
    @awaits(Session.snapshot)
    async def snapshot(
        self, to: str | os.PathLike[str] | None = None, *, globals: bool = True
    ) -> bytes | None:
        session = self._session
        return await session.files.operate(lambda: session._contents.take(to, globals))

    @awaits(Session.restore)
    async def restore(self, snapshot: Given, *, globals: bool = True) -> None:
        session = self._session
        await session.files.operate(lambda: session.restore(snapshot, globals=globals))

    @awaits(Session.install)
    async def install(self, *requirements: str) -> list[str]:
        return await self._session.install(*requirements)

    @awaits(Session.history)
    async def history(self, limit: int = 100) -> list[HistoryEntry]:
        return self._session.history(limit)

    async def close(self) -> None:
        """To be awaited. Ends the session with all that it has, but `kv` and `history()`. A call
        that runs is ended, as by cancelling its task, and waited for. Nothing happens the second
        time. A named session is saved first; where that fails, it is ended all the same, and what
        it failed by is raised.
        """
        await self._session.end()

    def interrupt(self) -> Awaitable[None]:
        """Has the code that runs raise KeyboardInterrupt, and kills the commands that run. At once,
        and from any thread: what it gives needs not be awaited. Nothing happens where none do.
        """
        self._session.interrupt()
        return _Done()

    def info(self) -> _Info:
        return _Info(self._session.info())

    info.__doc__ = f"A dict, which may be awaited, too. {Session.info.__doc__}"

    @property
    def id(self) -> str:
        """Its name, or one that no other session has."""
        return self._session.id

    @property
    def lost(self) -> list[str]:
        """The names that were lost at the last restart, or, of a named one, since it was saved."""
        return self._session.lost

    @property
    def left_out(self) -> dict[str, str]:
        """What the last snapshot does not have, by name, with why."""
        return self._session.left_out

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


AsyncSession.__doc__ = f"{AsyncSession.__doc__}{(Session.__doc__ or '').partition(chr(10))[2]}"


class _Done:
    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class _Info(dict[str, Any]):
    def __await__(self) -> Generator[None, None, dict[str, Any]]:
        yield from ()
        return dict(self)


class AsyncChild(AsyncNamespace):
    """A Child whose methods are awaited. `session`: whose it is; `parent`: what it was made of."""

    def __init__(self, parent: AsyncNamespace, child: Child) -> None:
        self.parent = parent
        self._root = self.session = parent._root
        self._of = self._child = child

    @property
    def files(self) -> AsyncSessionFiles:
        """Those of the session."""
        return self._root.files

    @property
    def kv(self) -> AsyncKeyValues:
        """That of the session."""
        return self._root.kv

    @property
    def lost(self) -> list[str]:
        """Its names, once the interpreter has ended and with it the child."""
        return self._child.lost

    async def close(self) -> None:
        """To be awaited. Frees its names before the next call of the session."""
        self._child.close()

    async def __aenter__(self) -> AsyncChild:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._child.close()
