# SPDX-License-Identifier: Apache-2.0
"""map and starmap: many calls, bounded in flight.

Items are taken from the iterables only as calls come free, so an endless one works. Results come in
order, or as they are ready. Each item is a fresh cell; with `chunksize`, that many share one. What
certainly did not run is repeated up to `retries` times, nothing else ever is. An iterator belongs
to the thread that runs it; dropping it cancels what is in flight.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from hutch import _core
from hutch._calls.annotation import check
from hutch._calls.future import SandboxFuture, submit
from hutch._calls.outcomes import conclude, decoded, denied, measured, not_data, raised
from hutch._calls.prepared_call import PreparedCall
from hutch._calls.run import call, prepare as prepare_call, send
from hutch._calls.target import Target
from hutch._calls.threads import CallThreads
from hutch._carry import arguments
from hutch._connect import connection as connections
from hutch._errors import SandboxBusy, SandboxError, SandboxStartupError, SerializationError
from hutch._options.checks import _whole, quoted
from hutch._outcome import Outcome

if TYPE_CHECKING:
    from hutch._connect.connection import PreparedPool

Item = tuple[Any, ...]
# What runs one chunk and gives an Outcome for each of its items; raises SandboxError on a fault.
RunChunk = Callable[[list[Item], _core.Cancel], list[Outcome[Any]]]


class ChunkRunner(NamedTuple):
    """How a chunk is run: on a thread, or by the thread of all calls in flight."""

    on_a_thread: RunChunk
    target: Target | None = None
    prepare: Callable[[list[Item]], PreparedCall] | None = None


_MOST = 10_000
_MOST_BY_ITSELF = 64  # in flight, with concurrency=None


class Plan:
    """Checked settings of one map. `concurrency`: calls in flight at the most. `cells`: how many
    the pool may have at most, where that is set; `concurrency=None` stays within it.
    """

    def __init__(
        self,
        concurrency: int | None,
        ordered: bool,
        chunksize: int,
        on_error: str,
        retries: int,
        cells: int | None = None,
    ) -> None:
        if on_error not in ("raise", "outcome"):
            raise ValueError(f'on_error={quoted(on_error)}: it is "raise" or "outcome"')
        self.follows_pressure = concurrency is None
        if concurrency is None:
            concurrency = _MOST_BY_ITSELF if cells is None else min(_MOST_BY_ITSELF, cells)
        self.concurrency = _whole("concurrency", concurrency, 1, _MOST)
        # How many are in flight at first, and the fewest that it goes back to.
        self.least = self.concurrency
        if self.follows_pressure:
            self.least = min(self.concurrency, 2 * (os.cpu_count() or 1))
        self.ordered = bool(ordered)
        self.chunksize = _whole("chunksize", chunksize, 1, 1_000_000)
        self.raises = on_error == "raise"
        self.retries = _whole("retries", retries, 0, 1000)


class _RunningChunk:
    """One chunk that is in flight."""

    __slots__ = ("items", "future", "repeats")

    def __init__(self, items: list[Item], future: SandboxFuture[Any], repeats: int) -> None:
        self.items = items
        self.future = future
        self.repeats = repeats


def run(plan: Plan, items: Iterable[Item], runner: ChunkRunner) -> Iterator[Any]:
    """Yields values, or Outcomes with on_error="outcome"."""
    threads = CallThreads(plan.concurrency)
    source = iter(items)
    chunks: deque[_RunningChunk] = deque()
    window = plan.least

    def start(chunk: list[Item], repeats: int = 0) -> _RunningChunk:
        make = runner.prepare
        future: SandboxFuture[Any] = submit(
            lambda token: runner.on_a_thread(chunk, token),  # type: ignore[arg-type,return-value]
            unwrap=False,
            threads=threads,
            target=runner.target,
            prepare=None if make is None else lambda: make(chunk),
        )
        return _RunningChunk(chunk, future, repeats)

    try:
        while True:
            while len(chunks) < window:
                chunk = list(islice(source, plan.chunksize))
                if not chunk:
                    break
                chunks.append(start(chunk))
            if not chunks:
                return
            running = chunks[0] if plan.ordered else _first_done(chunks)
            outcomes, busy = _outcomes_of(running, plan, plan.follows_pressure and window > 1)
            place = chunks.index(running)
            if outcomes is None:
                if busy and plan.follows_pressure:
                    window = max(1, window // 2)
                chunks[place] = start(running.items, running.repeats + 1)
                continue
            del chunks[place]
            if plan.follows_pressure:
                timings = outcomes.timings if type(outcomes) is _Values else outcomes[0].timings
                window = _followed(window, plan, timings, _pressure())
            if type(outcomes) is _Values:
                yield from outcomes
                continue
            for outcome in outcomes:
                yield outcome.unwrap() if plan.raises else outcome
    finally:
        for one in chunks:
            one.future.cancel()


def _pressure() -> float:
    connection = connections.ready()
    return 0.0 if connection is None else connection.client.pressure


def _followed(window: int, plan: Plan, timings: dict[str, float], pressure: float) -> int:
    """More are in flight while cells come sooner than calls end, fewer while calls wait for cells
    longer than they take: then the host makes cells as fast as it can. The more the host is
    pressed, by any process, the fewer there may be.
    """
    most = plan.concurrency - round((plan.concurrency - plan.least) * min(1.0, pressure))
    if window > most:
        return window - 1
    if timings["queue"] <= timings["run"]:
        return min(window + 1, most)
    if timings["queue"] > 2 * timings["run"]:
        return max(window - 1, min(window, plan.least))
    return window


def _first_done(chunks: Iterable[_RunningChunk]) -> _RunningChunk:
    from concurrent.futures import FIRST_COMPLETED, wait

    done = wait([one.future for one in chunks], return_when=FIRST_COMPLETED).done
    return next(one for one in chunks if one.future in done)


def _outcomes_of(
    running: _RunningChunk, plan: Plan, may_shrink: bool
) -> tuple[list[Outcome[Any]] | None, bool]:
    """None: the chunk has to be repeated. The second: because no cell was free. `may_shrink`: this
    map may itself have taken too many, so that fewer are tried before it counts as a fault.
    """
    try:
        return running.future.result(), False
    except SandboxError as error:
        not_run = isinstance(error, SandboxStartupError) and not error.may_have_run
        busy = isinstance(error, SandboxBusy)
        if not_run and (running.repeats < plan.retries or (busy and may_shrink)):
            return None, busy
        if plan.raises:
            raise
        return [fault(error) for _ in running.items], False


def fault(error: SandboxError) -> Outcome[Any]:
    """A fault as one item's Outcome."""
    if error.outcome is not None:
        return error.outcome
    if isinstance(error, SerializationError):
        return not_data(Outcome[Any]("raised", may_have_run=False), error)
    ran = isinstance(error, SandboxStartupError) and error.may_have_run
    return Outcome[Any]("fault", may_have_run=ran).fail(error)


class _Values(list[Any]):
    """The values of a chunk, where no Outcomes are wanted: one costs more than a short item."""

    timings: dict[str, float]


def runner_for(target: Target, echo: bool, values: bool = False) -> ChunkRunner:
    """`values`: of each item that returned in a chunk, only the value is wanted."""

    def run_chunk(items: list[Item], token: _core.Cancel) -> list[Outcome[Any]]:
        if len(items) == 1:
            return [call(target, items[0], echo=echo, cancel=token)]
        made = prepare(items)
        result, pool = send(
            target,
            made.code,
            made.arguments,
            made.buffers,
            made.meta,
            echo=echo,
            begun=made.begun,
            cancel=token,
        )
        return _outcomes_of_chunk(target, items, result, pool, values)

    def prepare(items: list[Item]) -> PreparedCall:
        begun = time.monotonic()
        if len(items) == 1:
            made = prepare_call(target, items[0], {}, echo, begun)
            finish = made.finish
            made.finish = lambda result, pool: [finish(result, pool)]
            return made
        code = target.code()
        return PreparedCall(
            target,
            code,
            target.meta(code, "chunk"),
            arguments.pickle_chunk(target.function, items, target.sandbox_modules, target.outside),
            echo,
            begun,
            lambda result, pool: _outcomes_of_chunk(target, items, result, pool, values),
        )

    return ChunkRunner(run_chunk, target, prepare)


def _outcomes_of_chunk(
    target: Target, items: list[Item], result: _core.CallResult, pool: PreparedPool, values: bool
) -> list[Any]:
    """Several items in one cell: what ends the cell is the Outcome of all of them."""
    outcomes = _without_receive_time(target, items, result, pool, values)
    receive = time.monotonic() - result.ended
    if type(outcomes) is _Values:
        outcomes.timings["receive"] = receive
        return outcomes
    for outcome in outcomes:
        outcome.timings["receive"] = receive
    return outcomes


def _without_receive_time(
    target: Target, items: list[Item], result: _core.CallResult, pool: PreparedPool, values: bool
) -> list[Any]:
    first = measured(target, result, pool)
    if result.status != "returned":
        return [denied(conclude(target, result, first), target)] * len(items)
    try:
        reply = decoded(result, target, (items, {}))
        kind, replies = reply if type(reply) is tuple and len(reply) == 2 else ("", None)
        if type(replies) is not list or len(replies) != len(items):
            raise SerializationError("the cell answered another number of items", path="result")
    except SerializationError as error:
        return [not_data(first, error)] * len(items)
    annotation = target.annotation
    if kind == "ok":
        if values and (annotation is Any or all(type(one) is annotation for one in replies)):
            taken = _Values(replies)
            taken.timings = first.timings
            return taken
        replies = [("ok", one) for one in replies]
    # The measurements are those of the whole chunk; each Outcome gets a copy of its own.
    return [_item(target, first, reply) for reply in replies]


def _item(target: Target, first: Outcome[Any], reply: Any) -> Outcome[Any]:
    outcome = first.copy()
    if type(reply) in (tuple, list) and len(reply) == 2:
        kind, value = reply
        if kind == "ok":
            try:
                outcome.value = value
                check(value, target)
            except SerializationError as error:
                return not_data(outcome, error)
            return outcome
        if kind == "error" and type(value) is dict:
            outcome = raised(outcome, value, target)
            # A refusal may have been another item's; a lost network was lost for all.
            return denied(outcome, target) if outcome.network_lost else outcome
    return not_data(outcome, SerializationError("the cell's answer for an item is malformed"))
