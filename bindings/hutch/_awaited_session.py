# SPDX-License-Identifier: Apache-2.0
"""A Session whose calls are awaited. No thread waits for them: the event loop drives each
(turns.py), in a task of its own, which goes on to the call's end where its caller is cancelled.

What waits for the agent has a thread for so long: the start of a session, reset(), the end of a
call without a reply. So has what moves trees of files.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from hutch import _core, _session_transfers as transfers
from hutch._awaited_commands import AwaitedCommands, Work, forget
from hutch._calls import loops, node
from hutch._calls.dialogue import Dialogue
from hutch._calls.loop_dialogue import LoopDialogue, Within, within
from hutch._calls.session_call import Operation, SessionCall
from hutch._connect.connection import Connection, PreparedPool, on_pool
from hutch._faults import from_core
from hutch._session_commands import PAUSE_SEC
from hutch._session_files import SessionFiles, checked, path_of
from hutch._session_packages import requirements_of
from hutch._session_refusals import busy
from hutch._session_snapshots import Place, Snapshots

if TYPE_CHECKING:
    from hutch._outcome import Outcome
    from hutch._session_named import Named

T = TypeVar("T")

_GIVEN_UP_SEC = 15.0  # a loop has so long to save and end a session
_LOST = "its event loop ended during a call"


class Awaited(AwaitedCommands):
    """What makes calls gives awaitables of what it gives in a Session. On the loop's thread."""

    _awaits = True
    _talks = LoopDialogue
    files: _AwaitedFiles

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        if self._named is not None:
            self._named.history.is_on_loop = True
        self._awaited_on: asyncio.AbstractEventLoop | None = None  # by a task of the caller's
        self._loop: asyncio.AbstractEventLoop | None = None  # of the latest call
        self._saver: asyncio.Task[None] | None = None  # saves a named session
        self._task: asyncio.Task[Any] | None = None  # of the latest call
        self._coroutine: Coroutine[Any, Any, Any] | None = None  # that it runs
        self._cancels_next = False  # what is sent next, as the task that wants it was cancelled

    def _made_files(self, place: Place) -> tuple[_AwaitedFiles, Snapshots]:
        files = _AwaitedFiles(self, self._usual.terms.result_bytes, place.files_mb)
        # Of what is done on a thread, by `operate`.
        return files, Snapshots(contextlib.nullcontext, files.on_loop, place, files.part)

    # ---- one call

    async def in_turn(self, work: Work[T]) -> T:
        """Does `work`, within the call whose tool asks for it, of which it gets the dialogue, or by
        itself. One that was cancelled, and has not ended yet, is waited for first.
        """
        calls = self._calls_of_tool()
        if calls is not None:
            assert isinstance(calls.talk, LoopDialogue)
            # An interrupt would be for the whole call: this one goes on where it is cancelled.
            return await self._result_of(calls.begin(work(calls.talk)), lambda: None)
        if self._saver is not None and self._saver is not asyncio.current_task():
            await self._end_of_save(self._saver)
        await self._end_of_beginning()
        if self._is_awaited():
            await asyncio.sleep(0)  # in which a task that was cancelled just now leaves
        if self._is_awaited():
            raise busy()
        loop = self._awaited_on = self._loop = asyncio.get_running_loop()
        try:
            await self._end_of_cancelled()
            self._cancels_next = False
            self._coroutine = work(None)
            self._task = asyncio.ensure_future(self._coroutine)
            return await self._result_of(self._task, self._cancel)
        finally:
            if self._awaited_on is loop:
                self._awaited_on = None
            if self._task is not None and self._task.done():
                self._task = self._coroutine = None

    def _calls_of_tool(self) -> Within | None:
        """Where a tool of the call that runs asks."""
        calls = within.get()
        return calls if calls is not None and calls.is_open and calls.talk is self._talk else None

    def _is_awaited(self) -> bool:
        return self._awaited_on is not None and not self._awaited_on.is_closed()

    async def _result_of(self, task: asyncio.Task[T], cancel: Callable[[], None]) -> T:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                task.add_done_callback(forget)
                cancel()
            raise

    async def _end_of_cancelled(self) -> None:
        task, coroutine = self._task, self._coroutine
        if task is None or task.done():
            return
        loop = task.get_loop()
        if loop is asyncio.get_running_loop():
            await asyncio.wait({task})
        elif loop.is_closed() and coroutine is not None:
            coroutine.close()
            self._task = self._coroutine = None
        else:
            raise busy()

    def _cancel(self) -> None:
        """The call that runs, as at a time limit; it goes on to its end."""
        if isinstance(self._talk, LoopDialogue):
            self._talk.cancel()
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
                self._cell.core = None
                self._cell.closed = self._cell.closed or _LOST

    async def _do(  # type: ignore[override]
        self, finish: Callable[[Outcome[Any]], T], operation: Operation
    ) -> T:
        async def call(talk: Dialogue | None) -> Outcome[Any]:
            if talk is not None:
                return await self._send_nested(talk, operation)
            with self._turn:
                return await self._send(operation)

        return finish(await self.in_turn(call))

    async def _send(self, operation: Operation) -> Outcome[Any]:  # type: ignore[override]
        begun = time.monotonic()
        restarted = False
        core = self._cell.core
        if core is not None and core.started:
            if core.unsettled:
                await self._on_thread(core.settle)
            restarted = self._note_end()
        target = self._checked(operation)
        if self._contents.is_new:
            await self._begin_files()
        call = self._call_of(begun, operation, target)
        try:
            result = await self._driven(call, await self._begin(call))
        except BaseException as error:
            self._on_failure(call, error)
            raise
        finally:
            self._talk = None
        return self._outcome_of(call, call.timed(result), restarted)

    async def _begin(self, call: SessionCall) -> _core.Session:
        talk = call.talk
        assert isinstance(talk, LoopDialogue)
        feed = None if call.feed is None else talk.fed(call.feed)

        def begin(core: _core.Session) -> None:
            parts, begun = call.parts()
            core.begin(*parts, feed, begun, talk.answer)

        def first(connection: Connection, pool: PreparedPool) -> tuple[_core.Session, PreparedPool]:
            core = self._cell.new(connection, pool)
            begin(core)
            return core, pool

        cell = self._cell
        if cell.core is None or not cell.core.started:
            core, pool = await self._on_thread(lambda: on_pool(self._usual.request, first))
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
        self._talk = talk
        if self._cancels_next:
            self._cancels_next = False
            talk.cancel()
        is_over = False
        try:
            await talk.drive(turns)
            is_over = True
        finally:
            if not is_over:  # nobody hears its end: the session ends with the call
                self._cell.closed = self._cell.closed or _LOST
        self._talk = None
        try:
            if not core.waits_at_end:
                return core.end()
            with talk.feeds_later(call.feed):
                return await self._on_thread(core.end)
        except _core.Error as error:
            raise from_core(error) from None

    # ---- files and snapshots

    async def verb_within(self, talk: Dialogue | None, verb: str, *args: Any) -> Any:
        """Within a turn."""
        if talk is not None:
            outcome = await self._send_nested(talk, Operation(self, verb, args=args))
        else:
            limits = self._limits_of_save() if verb == "state.take" else {}
            outcome = await self._send(Operation(self, verb, args=args, limits=limits))
        return outcome.unwrap()

    async def _begin_files(self) -> None:  # type: ignore[override]
        with self._beginning_files():
            await self.files.put_at_start(self._put_at_start, self._contents.needs_calls)

    async def node(self, source: str, /, **limits: Any) -> Outcome[Any]:  # type: ignore[override]
        target = self._node_target(source, limits)
        if self._asks_for_node(target.options):
            self._note_node(await self._node_is_shown(limits))
        if not self._has_node(target.options):
            await loops.on_thread(lambda: node.program(target.options))
        outcome: Outcome[Any] = await self._evaluated(source, target, limits)
        return outcome

    async def install(self, *requirements: str) -> list[str]:  # type: ignore[override]
        wanted = requirements_of(requirements, self._options)
        with self._kept.history.of_install(" ".join(wanted)):
            return await self.files.operate(lambda: self._contents.packages.install(wanted))

    # ---- its life

    def interrupt(self) -> None:
        """A task that saves has the turn, and is not meant."""
        if self._saver is None:
            return super().interrupt()
        self._turn.require_own()
        return self._beside.interrupt()

    async def end(self, why: str = "it was closed") -> None:
        """The call that runs is interrupted, and waited for."""

        failed: Exception | None = None
        if self._has_to_be_saved():
            try:
                await self._save_on_loop(interrupts=True)
            except Exception as error:
                failed = error
        await self._end_on_loop(why)
        if failed is not None:
            raise failed

    async def _end_on_loop(self, why: str) -> None:
        async def close(_: Dialogue | None) -> None:
            self._close(why)

        if not self._is_awaited() or self._calls_of_tool() is not None:
            return await self.in_turn(close)
        task = self._task
        if task is None or self._awaited_on is not asyncio.get_running_loop():
            return self._close(why)  # at the call's end
        self._cell.closed = self._cell.closed or why
        self._beside.interrupt()
        self._cancel()
        await asyncio.wait({task})
        return None

    # ---- of a named one

    def _save_before_end(self) -> None:
        pass  # end() does

    async def _save_on_loop(self, interrupts: bool) -> None:
        task = self._task
        if interrupts and self._is_awaited() and self._calls_of_tool() is None and task is not None:
            self._cancel()
            await asyncio.wait({task})
            await asyncio.sleep(0)  # in which its caller leaves
        if interrupts:
            self._beside.interrupt()
            while self._beside.any:
                await asyncio.sleep(PAUSE_SEC)
        contents = self._contents
        save = await self.files.operate(lambda: contents.taken_to_save(self._known_names))
        await loops.on_thread(save)

    async def _end_of_save(self, saver: asyncio.Task[None]) -> None:
        if saver.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({saver})
        if self._saver is saver:
            self._saver = None

    def save_idle(self) -> bool:
        loop = self._loop
        if loop is None or self._cell.closed or not loop.is_running():
            return True
        if self._is_awaited():
            return False
        loop.call_soon_threadsafe(self._begin_saving)
        return True

    def _begin_saving(self) -> None:
        if not self._is_awaited() and self._named is not None:
            self._saver = asyncio.ensure_future(self._saved(self._named))

    async def _saved(self, named: Named) -> None:
        try:
            await self._save_on_loop(interrupts=False)
        except Exception as error:
            named.tell(error)
        else:
            self._save_again_later()

    def give_up(self, why: str, patience_sec: float = 0.0) -> None:
        loop = self._loop
        if loop is not None and loop.is_running():
            work = self._given_up(why, patience_sec)
            most_sec = max(0.0, patience_sec) + _GIVEN_UP_SEC
            asyncio.run_coroutine_threadsafe(work, loop).result(most_sec)
        else:
            asyncio.run(self._given_up(why, 0.0))

    async def _given_up(self, why: str, patience_sec: float) -> None:
        if self._task is not None and patience_sec > 0:
            await asyncio.wait({self._task}, timeout=patience_sec)
        try:
            await self.end(why)
        except Exception as error:
            assert self._named is not None
            self._named.tell(error)

    async def restart(self, files: bool, unanswered: bool = False) -> None:
        """`unanswered`: by a command that runs."""

        async def restart(_: Dialogue | None) -> None:
            with self._turn:
                core = self._cell.core if unanswered else self._to_restart(files)
                if core is not None:
                    await self._on_thread(core.restart)
                    self._note_end()

        await self.in_turn(restart)


# The call whose tool wants files, in what an operation of files does on a thread.
_of_tool: contextvars.ContextVar[Dialogue | None] = contextvars.ContextVar("_of_tool", default=None)


class _AwaitedFiles(SessionFiles):
    """Those that have nothing to do with files of the host give awaitables; `operate` awaits any
    other, on a thread.
    """

    def __init__(self, session: Awaited, most: int, files_mb: float) -> None:
        super().__init__(contextlib.nullcontext, self.on_loop, most, files_mb)
        self._session = session
        self._run_on_loop: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run

    def on_loop(self, verb: str, *args: Any) -> Any:
        return self._run_on_loop(self._session.verb_within(_of_tool.get(), verb, *args))

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
                    reply = await self._session.verb_within(talk, "files." + verb, *args)
                    try:
                        content = checked(reply, path)
                    except OSError as error:
                        raise transfers.failed(error) from None
                    found += reader.take(content)
                    transfers.require_room(found[0].size, path, self._most)
            return found

        return transfers.joined(await self._session.in_turn(read), path, self._most)

    async def _do(  # type: ignore[override]
        self, finish: Callable[[Any], T], verb: str, *args: Any
    ) -> T:
        async def step(talk: Dialogue | None) -> Any:
            with self._held(talk):
                return await self._session.verb_within(talk, "files." + verb, *args)

        return finish(checked(await self._session.in_turn(step), args[0]))

    async def operate(self, work: Callable[[], T]) -> T:
        async def operation(talk: Dialogue | None) -> T:
            with self._held(talk):
                return await self._on_thread(talk, work)

        return await self._session.in_turn(operation)

    def _held(self, talk: Dialogue | None) -> contextlib.AbstractContextManager[None]:
        """Within the call whose tool asks, or by itself."""
        return self._session._turn if talk is None else contextlib.nullcontext()

    async def put_at_start(self, work: Callable[[], None], waits: Any) -> None:
        """Within a turn. `waits`: it has to send something."""
        if not waits:
            return work()
        return await self._on_thread(None, work)

    async def _on_thread(self, talk: Dialogue | None, work: Callable[[], T]) -> T:
        before = _of_tool.set(talk)
        self._run_on_loop = loops.on_loop()
        try:
            return await loops.on_thread(work)
        except (asyncio.CancelledError, GeneratorExit):  # the loop ends, and nothing drives a step
            cell = self._session._cell
            cell.closed = cell.closed or _LOST
            raise
        finally:
            _of_tool.reset(before)
