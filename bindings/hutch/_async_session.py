# SPDX-License-Identifier: Apache-2.0
"""`AsyncSession`: a Session whose methods are awaited (_awaited_session.py)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
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
    from hutch._restored import Restored
    from hutch._storage import Storage


class AsyncNamespace(AsyncLooking):
    """The methods of Namespace, awaited."""

    _of: Session | Child  # whose methods give awaitables

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
        on_install: Callable[[list[str]], bool] | None = None,
        id: str | None = None,
        storage: str | os.PathLike[str] | Storage | None = None,
        steal: bool = False,
        snapshot: Given | None = None,
        globals: bool = True,
        queue: bool = False,
        **keywords: Unpack[Keywords],
    ) -> None:
        self._of = Awaited(
            files=files,
            cwd=cwd,
            idle_sec=idle_sec,
            tool_time=tool_time,
            on_input=on_input,
            on_display=on_display,
            on_install=on_install,
            id=id,
            storage=storage,
            steal=steal,
            snapshot=snapshot,
            globals=globals,
            queue=queue,
            **keywords,
        )
        self.files = AsyncSessionFiles(self._of)
        self.kv = AsyncKeyValues(self._of.kv)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise absent("AsyncSession", name)

    @awaits(Session.reset)
    async def reset(self, files: bool = False) -> None:
        await result_of(self._of.reset, files)

    @overload
    async def snapshot(self, to: None = None, *, globals: bool = True) -> bytes: ...
    @overload
    async def snapshot(self, to: str | os.PathLike[str], *, globals: bool = True) -> None: ...
    @awaits(Session.snapshot)
    async def snapshot(
        self, to: str | os.PathLike[str] | None = None, *, globals: bool = True
    ) -> bytes | None:
        return await self._of._life.snapshot(to, globals)

    @awaits(Session.restore)
    async def restore(
        self, snapshot: Given, *, globals: bool = True, dispensable: Collection[str] = ()
    ) -> Restored:
        return await result_of(self._of.restore, snapshot, globals=globals, dispensable=dispensable)

    @awaits(Session.install)
    async def install(self, *requirements: str) -> list[str]:
        return await result_of(self._of.install, *requirements)

    @awaits(Session.history)
    async def history(self, limit: int = 100) -> list[HistoryEntry]:
        return self._of.history(limit)

    async def close(self) -> None:
        """To be awaited. Ends the session with all that it has, but `kv` and `history()`. A call
        that runs is ended, as by cancelling its task, and waited for. Nothing happens the second
        time. A named session is saved first; where that fails, it is ended all the same, and what
        it failed by is raised.
        """
        await self._of.end()

    def interrupt(self) -> Awaitable[None]:
        """Has the code that runs raise KeyboardInterrupt, and kills the commands that run. At once,
        and from any thread: what it gives needs not be awaited. Nothing happens where none do.
        """
        self._of.interrupt()
        return _Done()

    def info(self) -> _Info:
        return _Info(self._of.info())

    info.__doc__ = f"A dict, which may be awaited, too. {Session.info.__doc__}"

    @property
    def id(self) -> str:
        """Its name, or one that no other session has."""
        return self._of.id

    @property
    def lost(self) -> list[str]:
        """The names that were lost at the last restart, or, of a named one, since it was saved."""
        return self._of.lost

    @property
    def left_out(self) -> dict[str, str]:
        """What the last snapshot does not have, by name, with why."""
        return self._of.left_out

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

    _of: Child
    session: AsyncSession

    def __init__(self, parent: AsyncNamespace, child: Child) -> None:
        self.parent = parent
        session = parent.session if isinstance(parent, AsyncChild) else parent
        assert isinstance(session, AsyncSession)
        self.session = session
        self._of = child

    @property
    def files(self) -> AsyncSessionFiles:
        """Those of the session."""
        return self.session.files

    @property
    def kv(self) -> AsyncKeyValues:
        """That of the session."""
        return self.session.kv

    @property
    def lost(self) -> list[str]:
        """Its names, once the interpreter has ended and with it the child."""
        return self._of.lost

    async def close(self) -> None:
        """To be awaited. Frees its names before the next call of the session."""
        self._of.close()

    async def __aenter__(self) -> AsyncChild:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._of.close()
