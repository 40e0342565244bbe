# SPDX-License-Identifier: Apache-2.0
"""Calls in flight that no thread waits for one by one: submitted, awaited, mapped. One thread polls
for all of them.

`start` starts a call where nothing has to be waited for first: its pool is known, its bytes are
made at once, its large arguments are few. The thread that polls all cells then reports how each
ended. Other calls, and those that certainly did not run and are to be repeated, are made by a
thread of their own, which waits. Safe on any thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from hutch import _core
from hutch._calls import outcomes
from hutch._calls.echo import Streams
from hutch._calls.prepared_call import PreparedCall
from hutch._calls.target import Target
from hutch._connect import connection as connections
from hutch._connect.connection import Connection, PreparedPool

_LARGE = 1 << 20  # bytes of arguments: placing more would keep the others waiting
_IDLE_SEC = 10.0
_POLL_SEC = 0.002


class InFlightCall:
    """One of `done`, `failed` and `retry` is called, once, on the driver's thread; `retry`: the
    call certainly did not run, and may be repeated.
    """

    __slots__ = ("prepared", "pool", "driver", "id", "streams", "done", "failed", "retry")

    def __init__(
        self,
        prepared: PreparedCall,
        pool: PreparedPool,
        driver: Driver,
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
        retry: Callable[[], None],
    ) -> None:
        self.prepared = prepared
        self.pool = pool
        self.driver = driver
        self.done = done
        self.failed = failed
        self.retry = retry
        self.id = 0
        options = prepared.target.options
        echo = prepared.echo if options.echo is None else options.echo
        self.streams = Streams(options, echo) if echo else None

    def cancel(self) -> None:
        self.driver.cancel(self)

    def finish(self, result: _core.CallResult) -> None:
        try:
            if self.streams is not None:
                self.streams.finish()
            outcome = self.prepared.finish(result, self.pool)
        except BaseException as error:
            self.failed(error)
            return
        self.done(outcome)

    def fail(self, error: BaseException) -> None:
        if not isinstance(error, _core.Error):
            self.failed(error)
        elif error.code in connections.SAFE_TO_REPEAT and not error.may_have_run:
            self.retry()
        else:
            self.failed(outcomes.failure(error, self.prepared.target, self.prepared.begun))


def is_greenlet() -> bool:
    """Whether gevent has made greenlets of what `threading` starts."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


class Driver:
    """The thread that drives the calls in flight of one connection, while there are any."""

    def __init__(self, client: _core.Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._in_flight: dict[int, InFlightCall] = {}
        self._thread: threading.Thread | None = None
        self._ends = False
        _drivers.add(self)

    def start(self, call: InFlightCall) -> None:
        """Where it raises, nothing was sent."""
        prepared = call.prepared
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="hutch-in-flight", daemon=True)
                thread.start()  # there may be none to be had
                self._thread = thread
            call.id = self._client.start(
                call.pool.key,
                prepared.meta,
                prepared.code,
                prepared.arguments,
                prepared.buffers,
                prepared.target.terms,
                call.streams is not None,
                prepared.begun,
            )
            self._in_flight[call.id] = call

    def cancel(self, call: InFlightCall) -> None:
        with self._lock:
            if call.id in self._in_flight:
                self._client.cancel(call.id)

    def end(self, timeout: float) -> None:
        thread = self._thread
        if thread is not None:
            self._ends = True
            self._client.close()
            thread.join(timeout)

    def _serve(self) -> None:
        events_within: Callable[[float], Sequence[tuple[int, int, Any]]] = (
            self._polled_within if is_greenlet() else self._client.next
        )
        while True:
            events = events_within(_IDLE_SEC)
            if not events:
                with self._lock:
                    if not self._in_flight:
                        self._thread = None
                        self._client.end_background_calls()
                        return
            for number, kind, what in events:
                with self._lock:
                    call = self._in_flight[number] if kind < 2 else self._in_flight.pop(number)
                self._tell(call, kind, what)
                del call, what
            del events

    def _polled_within(self, seconds: float) -> Sequence[tuple[int, int, Any]]:
        """As `next`, where that would keep all other greenlets of the thread waiting. They go on in
        what belongs to `threading`, also where gevent has not patched `time`.
        """
        pause = threading.Event()
        end = time.monotonic() + seconds
        while True:
            events = self._client.next(0.0)
            if events or self._ends or time.monotonic() >= end:
                return events
            pause.wait(_POLL_SEC)

    def _tell(self, call: InFlightCall, kind: int, what: Any) -> None:
        if kind == 2:
            call.finish(what)
        elif kind == 3:
            from hutch._calls.threads import shared_threads

            try:
                shared_threads().start(lambda: self._conclude(call, what))
            except RuntimeError:  # there is no thread to be had: the others wait a little
                self._conclude(call, what)
        elif kind == 4:
            call.fail(what)
        elif call.streams is not None:
            call.streams.feed(kind, what)

    def _conclude(self, call: InFlightCall, what: _core.OpenCall) -> None:
        """Waits for the report of a call that a limit, a death or a cancellation ended."""
        try:
            result = self._client.conclude(what)
        except BaseException as error:
            call.fail(error)
            return
        call.finish(result)


# Those of all connections. The thread of one that was closed or lost may run on for a moment.
_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


def end_all(timeout: float) -> None:
    """To be called before the interpreter ends, after which no thread may return from its wait."""
    for driver in list(_drivers):
        driver.end(timeout)


os.register_at_fork(after_in_child=_drivers.clear)


def driver_of(connection: Connection) -> Driver:
    with connection.driver_lock:
        driver: Driver | None = connection.driver
        if driver is None:
            driver = connection.driver = Driver(connection.client)
        return driver


def start(
    make: Callable[[], PreparedCall],
    target: Target,
    done: Callable[[Any], None],
    failed: Callable[[BaseException], None],
    retry: Callable[[], None],
) -> InFlightCall | None:
    """None, for any reason: a thread has to make the call and wait for it."""
    options = target.options
    if options.key is not None or options.on_stdout is not None or options.on_stderr is not None:
        return None
    if options.tools:  # which may take their time
        return None
    connection = connections.ready()
    if connection is None:
        return None
    pool = connection.pools.get(target.request.name)
    if pool is None:
        return None
    try:
        prepared = make()
        size = sum(memoryview(buffer).nbytes for buffer in prepared.buffers)
        if size + len(prepared.arguments) > _LARGE:
            return None
        call = InFlightCall(prepared, pool, driver_of(connection), done, failed, retry)
        call.driver.start(call)
    except Exception:
        return None  # the thread that makes the call reports it
    return call
