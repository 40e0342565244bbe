# SPDX-License-Identifier: Apache-2.0
"""SandboxFuture: a call that its caller does not wait for.

It shares one thread with others where it can (in_flight.py). Where not, it holds a thread (without
the GIL) of a bounded number (threads.py). Threads are daemons: when the interpreter exits, calls
in flight are cancelled, and their cells die.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hutch import _core
from hutch._calls.threads import CallThreads, shared_threads
from hutch._cancelled import SandboxCancelled
from hutch._errors import SandboxError, SandboxStartupError
from hutch._outcome import Outcome

if TYPE_CHECKING:
    from hutch._calls.in_flight import InFlightCall
    from hutch._calls.prepared_call import PreparedCall
    from hutch._calls.target import Target

R = TypeVar("R")

_EXIT_SEC = 5.0


_in_flight: weakref.WeakSet[SandboxFuture[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    global _in_flight
    futures, _in_flight = list(_in_flight), weakref.WeakSet()
    for future in futures:
        future._leave_to_parent()


def _at_exit() -> None:
    """Cancels all calls before the interpreter ends, after which no thread may return from one."""
    waiting = list(_in_flight)
    for future in waiting:
        future.cancel()
    deadline = time.monotonic() + _EXIT_SEC
    for future in waiting:
        try:
            future.exception(max(0.0, deadline - time.monotonic()))
        except BaseException:
            continue  # cancelled, or too late: the agent kills the cells of a process that ended
    if "hutch._calls.in_flight" in sys.modules:
        from hutch._calls import in_flight

        in_flight.end_all(_EXIT_SEC)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


class SandboxFuture(Future[R]):
    """A call's future. `cancel()` works while it runs too: the cell is killed."""

    __module__ = "hutch"

    def __init__(self) -> None:
        super().__init__()
        self._token = _core.Cancel()
        self._in_flight: InFlightCall | None = None
        self._outcome: Outcome[R] | None = None

    def cancel(self) -> bool:
        """Kills the cell where the call runs. False: it is over."""
        if super().cancel():
            return True
        if self.done():
            return self.cancelled()
        self._token.cancel()
        call = self._in_flight
        if call is not None:
            call.cancel()
        return True

    @property
    def is_cancelling(self) -> bool:
        """Whether `cancel()` was called."""
        return self._token.cancelled

    def cancelled(self) -> bool:
        """Whether the call ended so."""
        if super().cancelled():
            return True
        return self._outcome is not None and self._outcome.status == "cancelled"

    def result(self, timeout: float | None = None) -> R:
        """The value, or raises what the call would have raised. `timeout`: seconds to wait."""
        try:
            return super().result(timeout)
        except CancelledError as error:
            if isinstance(error, SandboxCancelled):
                raise
            raise SandboxCancelled("the call was cancelled before it ran") from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What `result` would raise, else None. `timeout`: seconds to wait."""
        try:
            return super().exception(timeout)
        except CancelledError:
            raise SandboxCancelled("the call was cancelled before it ran") from None

    def outcome(self, timeout: float | None = None) -> Outcome[R]:
        """The call's Outcome. Raises what failed before there could be one."""
        try:
            error = self.exception(timeout)
        except SandboxCancelled as cancelled:
            return Outcome[R]("cancelled", may_have_run=False).fail(cancelled)
        if self._outcome is not None:
            return self._outcome
        if isinstance(error, SandboxError) and error.outcome is not None:
            return error.outcome
        assert error is not None
        raise error

    @property
    def call_id(self) -> str:
        """Known once the call is over; "" until then."""
        return "" if self._outcome is None else self._outcome.call_id

    def _leave_to_parent(self) -> None:
        """In a forked child, where nothing will ever come for it: it fails at once, if it is not
        done. Who waits for it, and what is called when it is done, is the parent's.
        """
        self._condition = threading.Condition()  # a thread of the parent may have held the other
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        self._in_flight = None
        if not self.done():
            text = "this future belongs to the parent of this process"
            hint = "make the call in the child, or wait for it in the parent"
            self.set_exception(SandboxStartupError(text, hint=hint, may_have_run=True))

    def _work(self, run: Callable[[_core.Cancel], Outcome[R]], unwrap: bool) -> None:
        if not self.running() and not self.set_running_or_notify_cancel():
            return
        try:
            outcome = run(self._token)
        except BaseException as error:
            self.set_exception(error)
            return
        self._settle(outcome, unwrap)

    def _settle(self, outcome: Outcome[R], unwrap: bool) -> None:
        if isinstance(outcome, Outcome):  # map runs chunks: a list of them
            self._outcome = outcome
        if not unwrap:
            self.set_result(cast(R, outcome))
        elif outcome.ok:
            self.set_result(cast(R, outcome.value))
        else:
            self.set_exception(outcome.exception())


def submit(
    run: Callable[[_core.Cancel], Outcome[R]],
    *,
    unwrap: bool = True,
    threads: CallThreads | None = None,
    target: Target | None = None,
    prepare: Callable[[], PreparedCall] | None = None,
) -> SandboxFuture[R]:
    """`run`: the call as a thread of `threads` makes it. `prepare`: the same call, to be in flight
    without a thread of its own.
    `unwrap=False`: the future's result is the Outcome itself.
    """
    future: SandboxFuture[R] = SandboxFuture()
    _in_flight.add(future)

    def on_a_thread() -> None:
        (threads or shared_threads()).start(lambda: future._work(run, unwrap))

    if target is not None and prepare is not None:
        from hutch._calls import in_flight

        def made() -> PreparedCall:
            ready = prepare()
            future.set_running_or_notify_cancel()
            return ready

        call = in_flight.start(
            made,
            target,
            lambda outcome: future._settle(outcome, unwrap),
            future.set_exception,
            on_a_thread,
        )
        if call is not None:
            future._in_flight = call
            return future
    on_a_thread()
    return future


async def awaited(
    run: Callable[[_core.Cancel], Outcome[R]], target: Target, prepare: Callable[[], PreparedCall]
) -> Outcome[R]:
    """The Outcome, without blocking the event loop. Cancelling the task kills the cell."""
    import asyncio

    future: SandboxFuture[Any] = submit(run, unwrap=False, target=target, prepare=prepare)
    return cast("Outcome[R]", await asyncio.wrap_future(future))
