# SPDX-License-Identifier: Apache-2.0
"""A call of a function, or of a program, whose tools wait on the caller's event loop: the loop
drives it, so that async tools run at the same time.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hutch import _core
from hutch._calls import loops
from hutch._calls.dialogue import Callbacks, Dialogue
from hutch._calls.echo import Streams, streams_of
from hutch._calls.loop_dialogue import LoopDialogue
from hutch._calls.outcomes import outcome_of
from hutch._calls.target import Target
from hutch._calls.threads import THREADS, CallThreads
from hutch._calls.times import Times
from hutch._calls.within import is_within_tool
from hutch._connect.connection import Connection, PreparedPool, on_pool
from hutch._errors import SandboxError
from hutch._faults import from_core
from hutch._outcome import Outcome

T = TypeVar("T")

_beginning = CallThreads(THREADS)  # on which calls wait for their cells


def is_needed(target: Target) -> bool:
    """Whether a tool of its calls waits on the loop."""
    return any(tool.needs_loop for tool in target.options.tools)


async def call(
    target: Target,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    echo: bool,
    asked: float,
) -> Outcome[Any]:
    """`echo`, `asked`: as of run.call(). Cancelling the task kills the cell, and its tools are
    cancelled.
    """
    one = _AwaitedCall(target, args, kwargs, asked, streams_of(target.options, echo))
    key = target.options.key
    if key is None:
        return await one.outcome()
    from hutch._calls.idempotency import once

    on_loop = loops.OnLoop()

    def first() -> Outcome[Any]:
        return once(
            key, target, one.token, lambda: on_loop(one.outcome()), lambda: one.may_have_run
        )

    try:
        return await loops.on_thread(first, daemon=True)
    except asyncio.CancelledError:
        one.cancel()
        raise


class _AwaitedCall:
    """On the loop's thread. What may block (its bytes, its pool, its cell, and the end of one that
    did not reply) has a thread for so long.
    """

    def __init__(
        self,
        target: Target,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        asked: float,
        streams: Streams | None,
    ) -> None:
        self.token = _core.Cancel()
        self._target = target
        self._args = args
        self._kwargs = kwargs
        self._asked = asked
        self._streams = streams
        self._times: Times | None = None
        self._talk: LoopDialogue | None = None
        self.may_have_run = False

    async def outcome(self) -> Outcome[Any]:
        return await loops.result_of(asyncio.ensure_future(self._driven()), self.cancel)

    def cancel(self) -> None:
        """The cell is killed, or none is taken."""
        self.token.cancel()
        if self._talk is not None:
            self._talk.cancel()

    async def _driven(self) -> Outcome[Any]:
        target = self._target
        tools = {tool.name: tool for tool in target.options.tools}
        talk = self._talk = LoopDialogue(Callbacks(tools), on_threads=True)
        told = _told_to(talk)
        try:
            core, pool = await self._on_thread(lambda: self._begun(told))
            try:
                result = await self._result(talk, core)
            except _core.Error as error:
                raise from_core(error) from None
        except SandboxError as error:
            if self._times is not None:
                self._times.note_fault(error)
            raise
        finally:
            self._talk = None
        if self._streams is not None:
            self._streams.finish()
        if talk.raised is not None:
            raise talk.raised
        assert self._times is not None
        return outcome_of(target, self._times.note(result, pool), pool, self._args, self._kwargs)

    @staticmethod
    async def _on_thread(begin: Callable[[], T]) -> T:
        """One of so many, which wait for cells. Those whose end such a cell may wait for, as a tool
        makes the call, wait for none of these.
        """
        start = None if is_within_tool() else _beginning.start
        return await loops.OnThread(begin, daemon=True, start=start).result()

    def _begun(self, told: _core.Dialogue) -> tuple[_core.Call, PreparedPool]:
        target, begun = self._target, time.monotonic()
        code = target.code()
        arguments, buffers = target.pickle(self._args, self._kwargs)
        meta = target.meta(code)
        times = self._times = Times(begun, self._asked)
        feed = None if self._streams is None else self._streams.feed

        def begin(connection: Connection, pool: PreparedPool) -> tuple[_core.Call, PreparedPool]:
            since = times.sending()
            core = connection.client.call_in_turns(pool.key)
            parts = (meta, code, arguments, buffers, target.terms)
            core.begin(*parts, feed, since, told, self.token)
            self.may_have_run = True
            return core, pool

        return on_pool(target.request, begin)

    async def _result(self, talk: LoopDialogue, core: _core.Call) -> _core.CallResult:
        has_ended = False

        def end_now() -> _core.CallResult:
            try:
                return core.end()
            finally:
                core.close()  # its descriptors, which are not to wait for a collector of garbage

        async def end() -> _core.CallResult:
            nonlocal has_ended
            has_ended = True
            return await loops.on_thread(end_now) if core.waits_at_end else end_now()

        try:
            turns = talk.sent(core)
            if self.token.cancelled:
                talk.cancel()
            return await talk.drive(turns, end)
        finally:
            if not has_ended:  # nobody hears its end
                core.close()


def _told_to(talk: Dialogue) -> _core.Dialogue:
    """What the call says, which is no reference to whoever hears it: a call that nothing refers to
    any more, as where its loop was closed, is ended.
    """
    answer = weakref.WeakMethod(talk.answer)

    def told(
        asks: bool, data: bytes, body_size: int, stop_clock: Callable[[bool], float]
    ) -> bytes | None:
        hears = answer()
        return None if hears is None else hears(asks, data, body_size, stop_clock)

    return told
