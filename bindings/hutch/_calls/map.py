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
from itertools import islice, takewhile
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
from hutch._outcome import Outcome, Usage

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
_LONG_SEC = 0.02  # a call that takes longer is slowed by others that need a CPU meanwhile


class Plan:
    """Checked settings of one map. `concurrency`: calls in flight at the most. `cells`: how many
    the pool may have at most, where that is set; `concurrency=None` stays within it.
    `once_more_alone`: which Outcomes do not count before the call has run once more, while nothing
    else of this map runs.
    """

    def __init__(
        self,
        concurrency: int | None,
        ordered: bool,
        chunksize: int,
        on_error: str,
        retries: int,
        cells: int | None = None,
        once_more_alone: Callable[[Outcome[Any]], bool] | None = None,
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
        self.once_more_alone = once_more_alone


class _Chunk:
    """One chunk: in flight, done, or to be run once more alone."""

    __slots__ = ("items", "future", "repeats", "done", "is_alone")

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.future: SandboxFuture[Any] | None = None  # None: it is not in flight
        self.repeats = 0
        self.done: list[Outcome[Any]] | SandboxError | None = None
        self.is_alone = False  # it runs, or is to run, without others


class _Window:
    """How many chunks are in flight with `concurrency=None`, by what those that are done took."""

    def __init__(self, plan: Plan, cpus: float | None = None, cores: int | None = None) -> None:
        self.size = plan.least
        self.is_long = False  # calls are, as of the last one
        self._plan = plan
        self._cores = cores or os.cpu_count() or 1
        # That one call may use: a cell may report more.
        self._most_of_one = min(self._cores, cpus or self._cores)
        self._need = 0.0  # of a CPU, by a call that waits for none; 0: not known

    def see(self, timings: dict[str, float], usage: Usage, pressure: float) -> None:
        """More are in flight while cells come sooner than calls end, fewer while calls wait for
        cells longer than they take: then the host makes cells as fast as it can. Never more than
        the CPUs have time for, so that a call is not slowed by the others of its map. The more the
        host is pressed, by any process, the fewer there may be.
        """
        plan = self._plan
        most = plan.concurrency - round((plan.concurrency - plan.least) * min(1.0, pressure))
        self.is_long = usage.wall_sec >= _LONG_SEC
        if self.is_long:
            most = min(most, self._most_by_cpu(usage))
        if self.size > most:
            self.size -= 1
        elif timings["queue"] <= timings["run"]:
            self.size = min(self.size + 1, most)
        elif timings["queue"] > 2 * timings["run"]:
            self.size = max(self.size - 1, min(self.size, plan.least))

    def _most_by_cpu(self, usage: Usage) -> int:
        ran = max(usage.wall_sec - usage.cpu_wait_sec, usage.wall_sec / 1000)
        need = min(usage.cpu_sec / ran, self._most_of_one)
        self._need = need if self._need == 0 else 0.75 * self._need + 0.25 * need
        return max(1, int(self._cores / max(self._need, 1e-3) + 0.25))


def run(plan: Plan, items: Iterable[Item], runner: ChunkRunner) -> Iterator[Any]:
    """Yields values, or Outcomes with on_error="outcome"."""
    threads = CallThreads(plan.concurrency)
    source = iter(items)
    chunks: deque[_Chunk] = deque()
    target = runner.target
    window = _Window(plan, None if target is None else target.options.cpus)

    def start(chunk: _Chunk) -> None:
        make = runner.prepare
        chunk.future = submit(
            lambda token: runner.on_a_thread(chunk.items, token),  # type: ignore[arg-type,return-value]
            unwrap=False,
            threads=threads,
            target=target,
            prepare=None if make is None else lambda: make(chunk.items),
        )

    def fill() -> None:
        """Starts what may run now: new chunks, or one that is to run alone."""
        in_flight = len(chunks)
        # Results that wait for those before them leave room for others where calls are long.
        if window.is_long or plan.once_more_alone is not None:
            in_flight = sum(one.future is not None for one in chunks)
        if plan.once_more_alone is not None:
            to_repeat = [one for one in chunks if one.future is None and one.done is None]
            if to_repeat and in_flight == 0:
                start(to_repeat[0])
            if to_repeat:
                return
        while in_flight < window.size and len(chunks) < plan.concurrency:
            chunk = list(islice(source, plan.chunksize))
            if not chunk:
                return
            chunks.append(_Chunk(chunk))
            start(chunks[-1])
            in_flight += 1

    try:
        while True:
            fill()
            if not chunks:
                return
            chunk = _next_done(chunks, plan.ordered and not window.is_long)
            _take(chunk, plan, window)
            if chunk.done is None:
                if not chunk.is_alone:
                    start(chunk)
                continue
            ready = [chunk]
            if plan.ordered:
                ready = list(takewhile(lambda one: one.done is not None, chunks))
            for one in ready:
                chunks.remove(one)
                yield from _results_of(one, plan)
    finally:
        for one in chunks:
            if one.future is not None:
                one.future.cancel()


def _next_done(chunks: deque[_Chunk], in_order: bool) -> _Chunk:
    """One that is in flight, which may be waited for: the first of them, or who is done first."""
    if in_order:
        return next(one for one in chunks if one.future is not None)
    from concurrent.futures import FIRST_COMPLETED, wait

    futures = [one.future for one in chunks if one.future is not None]
    done = wait(futures, return_when=FIRST_COMPLETED).done
    return next(one for one in chunks if one.future in done)


def _take(chunk: _Chunk, plan: Plan, window: _Window) -> None:
    """Waits for a chunk. It is `done`, or has to run again: where it is to run alone, once no other
    does.
    """
    assert chunk.future is not None
    try:
        outcomes = chunk.future.result()
        chunk.future = None
    except SandboxError as error:
        chunk.future = None
        not_run = isinstance(error, SandboxStartupError) and not error.may_have_run
        busy = isinstance(error, SandboxBusy)
        # This map may itself have taken too many: fewer are tried before it counts as a fault.
        may_shrink = busy and plan.follows_pressure and window.size > 1
        if not_run and (chunk.repeats < plan.retries or may_shrink):
            if busy and plan.follows_pressure:
                window.size = max(1, window.size // 2)
            chunk.repeats += 1
            return
        chunk.done = error
        return
    if plan.follows_pressure:
        first = outcomes if type(outcomes) is _Values else outcomes[0]
        window.see(first.timings, first.usage, _pressure())
    if plan.once_more_alone is not None and not chunk.is_alone:
        chunk.is_alone = any(plan.once_more_alone(one) for one in outcomes)
        if chunk.is_alone:
            return
    chunk.done = outcomes


def _results_of(chunk: _Chunk, plan: Plan) -> Iterator[Any]:
    done = chunk.done
    if isinstance(done, SandboxError):
        if plan.raises:
            raise done
        yield from [fault(done) for _ in chunk.items]
    elif type(done) is _Values or not plan.raises:
        yield from done or ()
    else:
        for outcome in done or ():
            if not outcome.ok:
                raise outcome.exception()
            yield outcome.value


def _pressure() -> float:
    connection = connections.ready()
    return 0.0 if connection is None else connection.client.pressure


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
    usage: Usage


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
            taken.usage = first.usage
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
