# SPDX-License-Identifier: Apache-2.0
"""The commands of a session whose calls are awaited, each driven by the task that wants it. On the
loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from hutch import _core
from hutch._awaited_engine import AwaitedEngine
from hutch._calls import command_loop
from hutch._calls.asking import Asking
from hutch._calls.dialogue import Dialogue
from hutch._calls.loops import forget
from hutch._calls.session_call import Operation
from hutch._errors import SandboxError, SessionBusy
from hutch._session_commands import (
    ATTEMPTS,
    DEAD_SEC,
    PATIENCE_SEC,
    PAUSE_SEC,
    Command,
    CommandCalls,
    End,
)

if TYPE_CHECKING:
    from hutch._outcome import Outcome


class AwaitedCommands(CommandCalls):
    """What gives something in CommandCalls gives an awaitable of it."""

    engine: AwaitedEngine

    async def run(self, operation: Operation) -> Outcome[None]:  # type: ignore[override]
        asking = self._asking()
        if asking is None and self.engine.saves.ends:
            await self.engine.saves.by_others()
        with self._placed(operation, asking) as note:
            for _ in range(ATTEMPTS):
                restarted = await self._make_ready()
                command = self._sent_command(operation, asking, note, restarted)
                try:
                    await command_loop.end_of(command.run)
                finally:
                    self.engine.beside.end(command.run)
                if not command.certainly_did_not_begin:
                    break
            return self._command_outcome(command, await self._why_it_ended(command))

    async def tell(  # type: ignore[override]
        self, verb: str, process: tuple[int, int], command: str, *args: Any
    ) -> None:
        (await self.run(self._told(verb, process, command, *args))).unwrap()

    def _asking(self) -> Asking | None:
        calls, core = self.engine.calls_of_tool(), self.engine.cell.core
        if calls is None or core is None:
            return None
        return Asking(calls.talk, core, calls.entry, lambda: calls.is_open)

    async def _make_ready(self) -> bool:  # type: ignore[override]
        restarted, attempts = False, 0
        self.engine.turn.require()
        while not self._is_ready():
            await self.engine.end_of_beginning()
            if self._is_ready():
                break
            self.engine.beginner = asyncio.ensure_future(self._asked_for_names())
            self.engine.beginner.add_done_callback(forget)
            try:
                outcome = await asyncio.shield(self.engine.beginner)
            except SessionBusy:
                await asyncio.sleep(PAUSE_SEC)
            else:
                restarted = restarted or outcome.restarted
                attempts = self._attempted(attempts, outcome)
            self.engine.turn.require()
        return restarted

    async def _asked_for_names(self) -> Outcome[Any]:
        async def ask(_: Dialogue | None) -> Outcome[Any]:
            with self.engine.turn:
                awaitable: Any = self.engine.send(Operation(self.engine.space, "names"))
                outcome: Outcome[Any] = await awaitable
                return outcome

        return await self.engine.in_turn(ask)

    async def _why_it_ended(self, command: Command) -> End | None:  # type: ignore[override]
        run, core = command.run, command.core
        if command.asking is not None and command.asking.is_open:
            until = time.monotonic() + DEAD_SEC
            while self._is_to_be_dead(command, time.monotonic() < until):
                await asyncio.sleep(PAUSE_SEC)
            return None
        if run.is_stuck:
            with contextlib.suppress(SessionBusy, SandboxError):
                await self._restart(core)
        if not command.is_lost:
            return None
        dead, until = (time.monotonic() + sec for sec in (DEAD_SEC, PATIENCE_SEC))
        while core.restarts == command.restarts and not core.over:
            if self._may_be_dead(core, dead):
                await asyncio.sleep(PAUSE_SEC)
                continue
            try:
                await self._asked_for_names()
                break
            except SessionBusy:
                if time.monotonic() >= until:
                    break
                await asyncio.sleep(PAUSE_SEC)
            except SandboxError:
                break
        return self._end_of_interpreter(command)

    async def _restart(self, core: _core.Session) -> None:
        async def restart(_: Dialogue | None) -> None:
            with self.engine.turn:
                await self.engine.restart(core)

        await self.engine.in_turn(restart)
