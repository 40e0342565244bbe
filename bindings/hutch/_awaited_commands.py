# SPDX-License-Identifier: Apache-2.0
"""The commands of a Session whose calls are awaited, each driven by the task that wants it. On the
loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from hutch._calls import command_loop
from hutch._calls.asking import Asking
from hutch._calls.dialogue import Dialogue
from hutch._calls.session_call import Operation
from hutch._errors import SandboxError, SessionBusy
from hutch._session import Session
from hutch._session_commands import ATTEMPTS, DEAD_SEC, PATIENCE_SEC, PAUSE_SEC, Command, End

if TYPE_CHECKING:
    from hutch._calls.loop_dialogue import LoopDialogue, Within
    from hutch._outcome import Outcome

T = TypeVar("T")
Work = Callable[["LoopDialogue | None"], Coroutine[Any, Any, T]]


def forget(task: asyncio.Task[Any]) -> None:
    """Nobody asks for its error."""
    if not task.cancelled():
        task.exception()


class AwaitedCommands(Session):
    _beginner: asyncio.Task[Outcome[Any]] | None = None  # begins the session for a command

    @abstractmethod
    async def in_turn(self, work: Work[T]) -> T: ...
    @abstractmethod
    async def restart(self, files: bool, unanswered: bool = False) -> None: ...
    @abstractmethod
    def _calls_of_tool(self) -> Within | None: ...

    async def _run_command(self, operation: Operation) -> Outcome[None]:  # type: ignore[override]
        asking = self._asking()
        with self._placed(operation, asking) as note:
            for _ in range(ATTEMPTS):
                restarted = await self._make_ready()
                command = self._sent_command(operation, asking, note, restarted)
                try:
                    await command_loop.end_of(command.run)
                finally:
                    self._beside.end(command.run)
                if not command.certainly_did_not_begin:
                    break
            return self._command_outcome(command, await self._why_it_ended(command))

    async def tell(  # type: ignore[override]
        self, verb: str, process: tuple[int, int], command: str, *args: Any
    ) -> None:
        (await self._run_command(self._told(verb, process, command, *args))).unwrap()

    def _asking(self) -> Asking | None:
        calls, core = self._calls_of_tool(), self._cell.core
        if calls is None or core is None:
            return None
        return Asking(calls.talk, core, calls.entry, lambda: calls.is_open)

    async def _make_ready(self) -> bool:  # type: ignore[override]
        restarted, attempts = False, 0
        self._turn.require()
        while not self._is_ready():
            await self._end_of_beginning()
            if self._is_ready():
                break
            self._beginner = asyncio.ensure_future(self._asked_for_names())
            self._beginner.add_done_callback(forget)
            try:
                outcome = await asyncio.shield(self._beginner)
            except SessionBusy:
                await asyncio.sleep(PAUSE_SEC)
            else:
                restarted = restarted or outcome.restarted
                attempts = self._attempted(attempts, outcome)
            self._turn.require()
        return restarted

    async def _asked_for_names(self) -> Outcome[Any]:
        async def ask(_: Dialogue | None) -> Outcome[Any]:
            with self._turn:
                awaitable: Any = self._send(Operation(self, "names"))
                outcome: Outcome[Any] = await awaitable
                return outcome

        return await self.in_turn(ask)

    async def _end_of_beginning(self) -> None:
        """Calls wait for it, and are not refused."""
        beginner = self._beginner
        if beginner is None or beginner is asyncio.current_task() or beginner.done():
            return
        if beginner.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({beginner})

    async def _why_it_ended(self, command: Command) -> End | None:  # type: ignore[override]
        run, core = command.run, command.core
        if command.asking is not None and command.asking.is_open:
            until = time.monotonic() + DEAD_SEC
            while self._is_to_be_dead(command, time.monotonic() < until):
                await asyncio.sleep(PAUSE_SEC)
            return None
        if run.how == "unanswered":
            with contextlib.suppress(SessionBusy, SandboxError):
                await self.restart(False, unanswered=True)
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
