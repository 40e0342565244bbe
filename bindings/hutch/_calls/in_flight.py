# SPDX-License-Identifier: Apache-2.0
"""Calls that nobody waits for one by one: submitted, awaited, mapped. One thread for all of them.

`fly` starts a call where nothing has to be waited for first: its pool is known, its bytes are made
at once, its large arguments are few. The thread that polls all cells gives each its end. What
cannot fly, and what certainly did not run and is to be repeated, goes to a thread of its own as any
call does. Safe on any thread.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from hutch import _core
from hutch._calls import outcomes
from hutch._calls.echo import Streams
from hutch._calls.prepared_call import PreparedCall
from hutch._calls.target import Target
from hutch._connect import connection as connections
from hutch._connect.connection import Connection, Prepared

_LARGE = 1 << 20  # bytes of arguments: placing more would keep the others waiting
_IDLE_SEC = 10.0


class Flight:
    """A call in flight. One of `done`, `failed` and `retry` is called, once, on the thread
    of all flights; `retry`: it certainly did not run, and may be repeated.
    """

    __slots__ = ("prepared", "pool", "driver", "id", "streams", "done", "failed", "retry")

    def __init__(
        self,
        prepared: PreparedCall,
        pool: Prepared,
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


class Driver:
    """The thread that drives the flights of one connection, while there are any."""

    def __init__(self, client: _core.Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._flights: dict[int, Flight] = {}
        self._thread: threading.Thread | None = None
        _drivers.add(self)

    def start(self, flight: Flight) -> None:
        prepared = flight.prepared
        with self._lock:
            flight.id = self._client.start(
                flight.pool.key,
                prepared.meta,
                prepared.code,
                prepared.arguments,
                prepared.buffers,
                prepared.target.terms,
                flight.streams is not None,
                prepared.begun,
            )
            self._flights[flight.id] = flight
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="hutch-flights", daemon=True
                )
                self._thread.start()

    def cancel(self, flight: Flight) -> None:
        with self._lock:
            if flight.id in self._flights:
                self._client.cancel(flight.id)

    def end(self, timeout: float) -> None:
        thread = self._thread
        if thread is not None:
            self._client.close()
            thread.join(timeout)

    def _serve(self) -> None:
        while True:
            events = self._client.next(_IDLE_SEC)
            if not events:
                with self._lock:
                    if not self._flights:
                        self._thread = None
                        self._client.land()
                        return
            for number, kind, what in events:
                with self._lock:
                    flight = self._flights[number] if kind < 2 else self._flights.pop(number)
                self._tell(flight, kind, what)
                del flight, what
            del events

    def _tell(self, flight: Flight, kind: int, what: Any) -> None:
        if kind == 2:
            flight.finish(what)
        elif kind == 3:
            from hutch._calls.threads import shared_threads

            shared_threads().start(lambda: self._conclude(flight, what))
        elif kind == 4:
            flight.fail(what)
        elif flight.streams is not None:
            flight.streams.feed(kind, what)

    def _conclude(self, flight: Flight, what: _core.OpenCall) -> None:
        """What a limit, a death or a cancellation measured has still to be reported."""
        try:
            result = self._client.conclude(what)
        except BaseException as error:
            flight.fail(error)
            return
        flight.finish(result)


# Of every connection, also of one that was closed or lost: its thread may live on for a moment.
_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


def end_all(timeout: float) -> None:
    """Before the interpreter goes: a thread would come back from its wait to find it gone."""
    for driver in list(_drivers):
        driver.end(timeout)


os.register_at_fork(after_in_child=_drivers.clear)


def driver_of(connection: Connection) -> Driver:
    with connection.driver_lock:
        driver: Driver | None = connection.driver
        if driver is None:
            driver = connection.driver = Driver(connection.client)
        return driver


def fly(
    make: Callable[[], PreparedCall],
    target: Target,
    done: Callable[[Any], None],
    failed: Callable[[BaseException], None],
    retry: Callable[[], None],
) -> Flight | None:
    """None: it has to go the other way, whatever the reason."""
    options = target.options
    if options.key is not None or options.on_stdout is not None or options.on_stderr is not None:
        return None
    connection = connections.ready()
    if connection is None:
        return None
    pool = connection.pools.get(target.request.name)
    if pool is None:
        return None
    try:
        prepared = make()
        if sum(memoryview(buffer).nbytes for buffer in prepared.buffers) > _LARGE:
            return None
        flight = Flight(prepared, pool, driver_of(connection), done, failed, retry)
        flight.driver.start(flight)
    except Exception:
        return None  # the other way it is reported as any call's failure
    return flight
