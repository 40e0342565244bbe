# SPDX-License-Identifier: Apache-2.0
"""The life of a session whose calls are awaited. On the loop's thread."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING

from hutch._awaited_engine import AwaitedEngine
from hutch._calls import loops
from hutch._calls.dialogue import Dialogue
from hutch._carry.container import Given
from hutch._restored import Restored
from hutch._session_commands import PAUSE_SEC
from hutch._session_life import GIVEN_UP_SEC, Life
from hutch._session_packages import requirements_of
from hutch._session_refusals import loop_is_busy

if TYPE_CHECKING:
    from hutch._session_named import Named


class AwaitedLife(Life):
    """What gives something in a Life gives an awaitable of it."""

    _engine: AwaitedEngine

    def __init__(self, engine: AwaitedEngine) -> None:
        super().__init__(engine)
        self._savers: set[asyncio.Task[None]] = set()

    def interrupt(self) -> None:
        """A task that saves has the turn, and is not meant."""
        engine = self._engine
        if engine.saves.task is None or engine.cell.closed:
            return super().interrupt()
        engine.turn.require_own()
        return engine.beside.interrupt()

    async def install(  # type: ignore[override]
        self, requirements: tuple[str, ...]
    ) -> list[str]:
        engine = self._engine
        wanted = requirements_of(requirements, engine.options)
        with engine.kept.history.of_install(" ".join(wanted)):
            return await engine.files.operate(lambda: engine.contents.packages.install(wanted))

    async def reset(self, files: bool) -> None:  # type: ignore[override]
        async def restart(_: Dialogue | None) -> None:
            with self._engine.turn:
                core = self._to_restart(files)
                if core is not None:
                    await self._engine.restart(core)
                self._engine.told(False)

        await self._engine.in_turn(restart)

    async def snapshot(  # type: ignore[override]
        self, to: str | os.PathLike[str] | None, with_globals: bool
    ) -> bytes | None:
        take = super().snapshot
        return await self._engine.files.operate(lambda: take(to, with_globals))

    async def restore(  # type: ignore[override]
        self, snapshot: Given, with_globals: bool, dispensable: Collection[str]
    ) -> Restored:
        restore = super().restore
        return await self._engine.files.operate(
            lambda: restore(snapshot, with_globals, dispensable)
        )

    # ---- its end

    async def end(self, why: str = "it was closed", keeps: bool = False) -> None:
        """The call that runs is interrupted, and waited for. `keeps`: it goes on where it cannot be
        saved, which is raised.
        """
        failed: Exception | None = None
        await self._engine.saves.by_others()
        try:
            with self._engine.saves.by_this_task(ends=True):
                if self._has_to_be_saved():
                    try:
                        await self._save_on_loop(interrupts=True)
                    except Exception as error:
                        if keeps:
                            raise
                        failed = error
                await self._end_on_loop(why)
        finally:
            if not self._engine.is_awaited():
                self._engine.give(asyncio.get_running_loop())
        if failed is not None:
            raise failed

    async def _end_on_loop(self, why: str) -> None:
        async def close(_: Dialogue | None) -> None:
            self._end(why)

        engine = self._engine
        if not engine.is_awaited() or engine.calls_of_tool() is not None:
            return await engine.in_turn(close)
        task = engine.task
        if task is None or engine.awaited_on is not asyncio.get_running_loop():
            return self._end(why)  # at the call's end
        engine.cell.closed = engine.cell.closed or why
        engine.beside.interrupt()
        engine.cancel()
        await asyncio.wait({task})
        return self._end(why)

    # ---- of a named one

    def let_go(self, why: str) -> None:
        """A named one on a thread: whoever lets it go may be within any line of its loop, which may
        end before it is saved.
        """
        named = self._engine.named
        if named is None or not self._has_to_be_saved():
            return self.close(why)
        return named.end_beside(lambda: self._let_go(why))

    def _let_go(self, why: str) -> None:
        task = self._engine.task
        if self._engine.is_awaited() or (task is not None and not task.done()):
            self.give_up(why)
        else:
            asyncio.run(self._given_up(why, 0.0, keeps=False))

    def _save_before_end(self) -> None:
        pass  # end() does

    async def _save_on_loop(self, interrupts: bool) -> None:
        engine = self._engine
        task = engine.task if engine.is_awaited() and engine.calls_of_tool() is None else None
        if interrupts and task is not None:
            engine.cancel()
            await asyncio.wait({task})
            await asyncio.sleep(0)  # in which its caller leaves
        if interrupts:
            engine.beside.interrupt()
            while engine.beside.any:
                await asyncio.sleep(PAUSE_SEC)
        await loops.on_thread(await engine.files.operate(self._taken))

    def waits_here(self) -> bool:
        loop = self._engine.loop
        return loop is not None and loop is asyncio._get_running_loop()

    def save_idle(self) -> bool:
        loop = self._engine.loop
        if loop is None or self._engine.cell.closed or not loop.is_running():
            return True
        if self._engine.is_awaited():
            return False
        loop.call_soon_threadsafe(self._begin_saving)
        return True

    def _begin_saving(self) -> None:
        engine, named = self._engine, self._engine.named
        if named is None or engine.cell.closed:
            return
        if engine.is_awaited() or engine.saves.task is not None:  # since the loop was asked
            named.put_off()
        else:
            saver = asyncio.ensure_future(self._saved(named))
            self._savers.add(saver)
            saver.add_done_callback(self._savers.discard)

    async def _saved(self, named: Named) -> None:
        if self._engine.is_awaited():  # since this task was made
            return named.put_off()
        try:
            with self._engine.saves.by_this_task(ends=False):
                await self._save_on_loop(interrupts=False)
        except Exception as error:
            named.tell(error)
        else:
            self._save_again_later()
        return None

    def give_up(self, why: str, patience_sec: float = 0.0, keeps: bool = False) -> None:
        loop = self._engine.loop
        if loop is None or not loop.is_running():
            return asyncio.run(self._given_up(why, 0.0, keeps))
        most_sec = max(0.0, patience_sec) + GIVEN_UP_SEC
        until = time.monotonic() + most_sec

        async def work() -> None:
            if time.monotonic() < until:  # nobody waits for it any more
                await self._given_up(why, patience_sec, keeps)

        future = asyncio.run_coroutine_threadsafe(work(), loop)
        try:
            return future.result(most_sec)
        except FutureTimeout:
            future.cancel()
            raise loop_is_busy() from None

    async def _given_up(self, why: str, patience_sec: float, keeps: bool) -> None:
        engine = self._engine
        if engine.task is not None and patience_sec > 0:
            await asyncio.wait({engine.task}, timeout=patience_sec)
        try:
            await self.end(why, keeps)
        except Exception as error:
            assert engine.named is not None
            engine.named.tell(error)
