# SPDX-License-Identifier: Apache-2.0
"""An engine whose calls are awaited. No thread waits for them: the event loop drives each
(turns.py), in a task of its own, which goes on to the call's end where its caller is cancelled.

What waits for the agent has a thread for so long: the start of a session, reset(), the end of a
call without a reply. So has what moves trees of files.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from hutch import _core, _session_transfers as transfers
from hutch._awaited_saves import Saves
from hutch._calls import loops
from hutch._calls.dialogue import Dialogue
from hutch._calls.loop_dialogue import LoopDialogue
from hutch._calls.session_call import Operation, SessionCall
from hutch._calls.within import Within, within
from hutch._connect.connection import Connection, PreparedPool, on_pool
from hutch._faults import from_core
from hutch._session_engine import Engine
from hutch._session_files import SessionFiles, checked, path_of
from hutch._session_refusals import busy
from hutch._session_snapshots import Place, Snapshots

if TYPE_CHECKING:
    from hutch._outcome import Outcome

T = TypeVar("T")

_LOST = "its event loop ended during a call"


Work = Callable[["LoopDialogue | None"], Coroutine[Any, Any, T]]


async def _nothing() -> None:
    pass


class AwaitedEngine(Engine):
    """What makes calls gives awaitables of what it gives in an Engine. On the loop's thread.

    `loop`, `task`: of the latest call. `awaited_on`: the loop of the task that awaits it, of the
    caller's. `beginner`: begins the session for a command.
    """

    awaits = True
    talks = LoopDialogue
    files: AwaitedFiles

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: deque[asyncio.Future[None]] = deque()  # each is done when it has the turn
        if self.named is not None:
            self.named.history.is_on_loop = True
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task[Any] | None = None
        self.beginner: asyncio.Task[Outcome[Any]] | None = None
        self.saves = Saves()
        self.awaited_on: asyncio.AbstractEventLoop | None = None
        self._coroutine: Coroutine[Any, Any, Any] | None = None  # that the latest call runs
        self._cancels_next = False  # what is sent next, as the task that wants it was cancelled

    def _made_files(self, place: Place) -> tuple[AwaitedFiles, Snapshots]:
        files = AwaitedFiles(self, self.usual.terms.result_bytes, place.files_mb)
        # Of what is done on a thread, by `operate`.
        return files, Snapshots(contextlib.nullcontext, files.on_loop, place, files.part)

    # ---- one call

    async def in_turn(self, work: Work[T]) -> T:
        """Does `work`, within the call whose tool asks for it, of which it gets the dialogue, or by
        itself. One that was cancelled, and has not ended yet, is waited for first.
        """
        calls = self.calls_of_tool()
        if calls is not None:
            assert isinstance(calls.talk, LoopDialogue)
            # An interrupt would be for the whole call: this one goes on where it is cancelled.
            return await loops.result_of(calls.begin(work(calls.talk)), lambda: None)
        await self.saves.by_others()
        await self.end_of_beginning()
        loop = await self._its_turn()
        try:
            await self._end_of_cancelled()
            self._cancels_next = False
            self._coroutine = work(None)
            self.task = asyncio.ensure_future(self._coroutine)
            return await loops.result_of(self.task, self.cancel)
        finally:
            if self.task is not None and self.task.done():
                self.task = self._coroutine = None
            self._leave(loop)

    async def _its_turn(self) -> asyncio.AbstractEventLoop:
        """Takes the turn, or raises SessionBusy. Calls that queue wait for it, and who saves it,
        before these.
        """
        loop = loops.running()
        if self.is_awaited():
            await asyncio.sleep(0)  # in which a task that was cancelled just now leaves
        if not self.is_awaited():
            self.awaited_on = self.loop = loop
            return loop
        saves = self.saves.is_by_this_task
        if not (self.queues or saves) or self.awaited_on is not loop:
            raise busy()
        turn = loop.create_future()
        if saves:
            self.saves.turn = turn
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it has been given the turn
                self._leave(loop)
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise
        return loop

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gives the turn to whoever has waited longest."""
        if self.awaited_on is loop:
            self.awaited_on = None
            self.give(loop)

    def give(self, loop: asyncio.AbstractEventLoop) -> None:
        """The turn, which nobody has, to whoever has waited longest."""
        for turn in [one for one in self._waiting if self.saves.lets(one)]:
            self._waiting.remove(turn)
            if turn.get_loop() is loop and not turn.done():
                self.awaited_on = loop
                turn.set_result(None)
                return

    async def end_of_beginning(self) -> None:
        """Calls wait for it, and are not refused."""
        beginner = self.beginner
        if beginner is None or beginner is asyncio.current_task() or beginner.done():
            return
        if beginner.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({beginner})

    async def restart(self, core: _core.Session) -> None:
        """Within a turn."""
        await self._on_thread(core.restart)
        self.note_end()

    def calls_of_tool(self) -> Within | None:
        """Where a tool of the call that runs asks."""
        calls = within(self.talk)
        return calls if calls is not None and calls.is_open else None

    def is_awaited(self) -> bool:
        return self.awaited_on is not None and not self.awaited_on.is_closed()

    async def _end_of_cancelled(self) -> None:
        task, coroutine = self.task, self._coroutine
        if task is None or task.done():
            return
        loop = task.get_loop()
        if loop is asyncio.get_running_loop():
            await asyncio.wait({task})
        elif loop.is_closed() and coroutine is not None:
            coroutine.close()
            self.task = self._coroutine = None
        else:
            raise busy()

    def cancel(self) -> None:
        """The call that runs, as at a time limit; it goes on to its end."""
        if isinstance(self.talk, LoopDialogue):
            self.talk.cancel()
        else:
            self._cancels_next = True

    async def _on_thread(self, work: Callable[[], T]) -> T:
        """What waits for the agent."""
        done = False
        try:
            result = await loops.on_thread(work)
            done = True
            return result
        except Exception:
            done = True
            raise
        finally:
            if not done:  # the loop ends: the thread has the core, which ends with it
                self.cell.core = None
                self.cell.closed = self.cell.closed or _LOST

    async def do(  # type: ignore[override]
        self, finish: Callable[[Outcome[Any]], T], operation: Operation
    ) -> T:
        async def call(talk: Dialogue | None) -> Outcome[Any]:
            if talk is not None:
                return await self._send_nested(talk, operation)
            with self.turn:
                return await self.send(operation)

        outcome = await self.in_turn(call)
        if self._untold:
            self._tell(outcome, operation)
        return finish(outcome)

    async def send(self, operation: Operation) -> Outcome[Any]:  # type: ignore[override]
        begun = time.monotonic()
        restarted = False
        core = self.cell.core
        if core is not None and core.started:
            if core.unsettled:
                await self._on_thread(core.settle)
            restarted = self.note_end()
        target = self._checked(operation)
        if self.contents.is_new:
            await self._begin_files()
        call = self._call_of(begun, operation, target)
        try:
            result = await self._driven(call, await self._begin(call))
        except BaseException as error:
            self._on_failure(call, error)
            raise
        finally:
            self.talk = None
        return self._outcome_of(call, call.timed(result), restarted)

    async def _begin(self, call: SessionCall) -> _core.Session:
        talk = call.talk
        assert isinstance(talk, LoopDialogue)
        feed = None if call.feed is None else talk.feed.of(call.feed)

        def begin(core: _core.Session) -> None:
            parts, begun = call.parts()
            core.begin(*parts, feed, begun, talk.answer)

        def first(connection: Connection, pool: PreparedPool) -> tuple[_core.Session, PreparedPool]:
            core = self.cell.new(connection, pool)
            begin(core)
            return core, pool

        cell = self.cell
        if cell.core is None or not cell.core.started:
            core, pool = await self._on_thread(lambda: on_pool(self.usual.request, first))
            cell.hold(core, pool)
            return core
        try:
            begin(cell.core)
        except _core.Error as error:
            raise from_core(error) from None
        return cell.core

    async def _driven(self, call: SessionCall, core: _core.Session) -> _core.CallResult:
        talk = call.talk
        assert isinstance(talk, LoopDialogue)
        turns = talk.sent(core)
        self.talk = talk
        if self._cancels_next:
            self._cancels_next = False
            talk.cancel()
        is_over = False
        try:
            await talk.drive(turns, _nothing)
            is_over = True
        finally:
            if not is_over:  # nobody hears its end: the session ends with the call
                self.cell.closed = self.cell.closed or _LOST
        self.talk = None
        try:
            if not core.waits_at_end:
                return core.end()
            with talk.feed.later(call.feed):
                return await self._on_thread(core.end)
        except _core.Error as error:
            raise from_core(error) from None

    # ---- files and snapshots

    async def verb_of(self, talk: Dialogue | None, verb: str, *args: Any) -> Any:
        """Within a turn."""
        if talk is not None:
            outcome = await self._send_nested(talk, Operation(self.space, verb, args=args))
        else:
            limits = self._limits_of_save() if verb == "state.take" else {}
            outcome = await self.send(Operation(self.space, verb, args=args, limits=limits))
        return outcome.unwrap()

    async def _begin_files(self) -> None:  # type: ignore[override]
        with self._beginning_files():
            await self.files.put_at_start(self._put_at_start, self.contents.needs_calls)


# The call whose tool wants files, in what an operation of files does on a thread.
_of_tool: contextvars.ContextVar[Dialogue | None] = contextvars.ContextVar("_of_tool", default=None)


class AwaitedFiles(SessionFiles):
    """Those that have nothing to do with files of the host give awaitables; `operate` awaits any
    other, on a thread.
    """

    def __init__(self, engine: AwaitedEngine, most: int, files_mb: float) -> None:
        super().__init__(contextlib.nullcontext, self.on_loop, most, files_mb)
        self._engine = engine
        self._run_on_loop: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run

    def on_loop(self, verb: str, *args: Any) -> Any:
        return self._run_on_loop(self._engine.verb_of(_of_tool.get(), verb, *args))

    async def read(self, path: str, encoding: str = "utf-8") -> str:  # type: ignore[override]
        return (await self.read_bytes(path)).decode(encoding)

    async def read_bytes(self, path: str) -> bytes:  # type: ignore[override]
        path = path_of(path)
        reader = transfers.Reader(path, [(b"", 0)], self.part)

        async def read(talk: Dialogue | None) -> list[transfers.Piece]:
            found: list[transfers.Piece] = []
            with self._held(talk):
                while not reader.is_over:
                    verb, *args = reader.question()
                    reply = await self._engine.verb_of(talk, "files." + verb, *args)
                    try:
                        content = checked(reply, path)
                    except OSError as error:
                        raise transfers.failed(error) from None
                    found += reader.take(content)
                    transfers.require_room(found[0].size, path, self._most)
            return found

        return transfers.joined(await self._engine.in_turn(read), path, self._most)

    async def _do(  # type: ignore[override]
        self, finish: Callable[[Any], T], verb: str, *args: Any
    ) -> T:
        async def step(talk: Dialogue | None) -> Any:
            with self._held(talk):
                return await self._engine.verb_of(talk, "files." + verb, *args)

        return finish(checked(await self._engine.in_turn(step), args[0]))

    async def operate(self, work: Callable[[], T]) -> T:
        async def operation(talk: Dialogue | None) -> T:
            with self._held(talk):
                return await self._on_thread(talk, work)

        return await self._engine.in_turn(operation)

    def _held(self, talk: Dialogue | None) -> contextlib.AbstractContextManager[None]:
        """Within the call whose tool asks, or by itself."""
        return self._engine.turn if talk is None else contextlib.nullcontext()

    async def put_at_start(self, work: Callable[[], None], waits: Any) -> None:
        """Within a turn. `waits`: it has to send something."""
        if not waits:
            return work()
        return await self._on_thread(None, work)

    async def _on_thread(self, talk: Dialogue | None, work: Callable[[], T]) -> T:
        before = _of_tool.set(talk)
        self._run_on_loop = loops.OnLoop()
        try:
            return await loops.on_thread(work)
        except (asyncio.CancelledError, GeneratorExit):  # the loop ends, and nothing drives a step
            cell = self._engine.cell
            cell.closed = cell.closed or _LOST
            raise
        finally:
            _of_tool.reset(before)
