# SPDX-License-Identifier: Apache-2.0
"""Rows of warm calls: paced, in bursts, back to back, on all cores, many to a cell, whole programs.

How calls are spaced decides the figure. Paced and burst calls find a cell that is made already;
back to back, a call waits for the making of its cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from floors import CHUNK, PARKED, PROGRAM, Parked
from table import COUNT, RATE, Row, shown

import hutch
from hutch.cli import measure
from hutch.cli.measure import Echo, Forks, by_threads, each, in_turns

PACE = 200  # calls a second


@dataclass
class Bench:
    """`many`: calls in a row of warm ones; `long`: seconds of one back to back measurement."""

    quick: bool
    many: int
    long: float
    known: dict[str, Any] = field(default_factory=dict)  # what a row leaves for later ones
    _functions: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def function(self, *dependencies: str) -> Any:
        """The trivial function where these are imported, with its pool full."""
        made = self._functions.get(dependencies)
        if made is None:
            made = self._functions[dependencies] = measure.trivial(dependencies)
            made(1)
        measure.parked(made)
        return made

    def forget(self) -> None:
        """The agent was stopped, and its pools with it."""
        self._functions.clear()

    def forks(self, processes: int, *dependencies: str) -> Forks:
        return Forks(processes, *self.modules(*dependencies))

    def parked(self, *dependencies: str, **keywords: Any) -> Parked:
        return Parked(*self.modules(*dependencies), **keywords)

    def modules(self, *dependencies: str) -> tuple[list[str], list[str]]:
        """What its zygote has imported, and where its packages lie here."""
        key = f"modules of {dependencies}"
        if key not in self.known:
            self.known[key] = measure.zygote_modules(dependencies)
        modules: tuple[list[str], list[str]] = self.known[key]
        return modules


def plain(x: int) -> int:
    return 2 * x


def paced(bench: Bench) -> Iterator[Row]:
    part = bench.many // 10
    function = bench.function()
    with bench.parked() as parked, Echo() as echo, ProcessPoolExecutor(1) as pool:
        pool.submit(plain, 1).result()
        ours, floor, echoed, reused = in_turns(
            10,
            lambda: each(function, part, 1 / PACE),
            lambda: each(parked, part, 1 / PACE),
            lambda: each(echo, part, 1 / PACE),
            lambda: each(lambda n: pool.submit(plain, n).result(), part, 1 / PACE),
        )
    bench.known["paced"] = ours.p50
    bench.known["process pool"] = reused
    against_echo, against_pool = ours.p50 / echoed.p50, ours.p50 / reused.p50
    yield Row(
        "paced",
        f"warm call, {PACE} a second",
        ours.p50,
        p99=ours.p99,
        floor=floor.p50,
        floor_is=PARKED,
        floor_p99=floor.p99,
        target="≤ 4 × echo, ≤ 0.4 × ProcessPoolExecutor; p99 ≤ 0.5 ms",
        met=against_echo <= 4 and against_pool <= 0.4,
        p99_most=0.0005,
        note=f"{against_echo:.1f} × echo's {shown(echoed.p50)}, {against_pool:.2f} × "
        f"ProcessPoolExecutor's {shown(reused.p50)}",
        more={"echo_p50": echoed.p50, "echo_p99": echoed.p99, "process_pool_p50": reused.p50},
    )


def paced_pandas(bench: Bench) -> Iterator[Row]:
    part = bench.many // 10
    function = bench.function("pandas")
    with bench.parked("pandas") as parked:
        ours, floor = in_turns(
            10, lambda: each(function, part, 1 / PACE), lambda: each(parked, part, 1 / PACE)
        )
    yield Row(
        "paced-pandas",
        f"the same with pandas imported, {PACE} a second",
        ours.p50,
        p99=ours.p99,
        floor=floor.p50,
        floor_is=PARKED,
        floor_p99=floor.p99,
        target="≤ 0.2 ms; p99 ≤ 2 ms",
        met=ours.p50 <= 0.0002,
        p99_most=0.002,
        more={"modules_missing_in_floor": parked.missing},
    )


USED = """
import pandas
def called(x):
    return int(pandas.Series([x, 2, 3]).sum())
"""


def paced_pandas_used(bench: Bench) -> Iterator[Row]:
    part = bench.many // 10
    unused = bench.function("pandas")

    @hutch.sandbox(dependencies=["pandas"])
    def used(x: int) -> int:
        import pandas

        return int(pandas.Series([x, 2, 3]).sum())

    used(1)
    with bench.parked("pandas", function=USED) as parked:
        ours, without, floor = in_turns(
            10,
            lambda: each(used, part, 1 / PACE),
            lambda: each(unused, part, 1 / PACE),
            lambda: each(parked, part, 1 / PACE),
        )
    yield Row(
        "paced-pandas-used",
        f"the same, pandas used: Series(…).sum(), {PACE} a second",
        ours.p50,
        p99=ours.p99,
        floor=floor.p50,
        floor_is=f"{PARKED}, rehearsed with that call",
        floor_p99=floor.p99,
        target="≤ 0.5 ms",
        met=ours.p50 <= 0.0005,
        note=f"{shown(without.p50)} where it is not used",
        more={"unused_p50": without.p50},
    )


def burst(bench: Bench) -> Iterator[Row]:
    function = bench.function()
    sizes = []

    def once() -> measure.Times:
        sizes.append(measure.parked(function))
        return each(function, sizes[-1])

    with bench.parked(ahead=measure.parked(function)) as parked:
        ours, floor = in_turns(10, once, lambda: each(parked, parked.parked()))
    usual = bench.known.get("paced")
    yield Row(
        "burst",
        f"burst of as many as are parked ({min(sizes)})",
        ours.p50,
        p99=ours.p99,
        floor=floor.p50,
        floor_is=f"{PARKED}, as many",
        floor_p99=floor.p99,
        target="as paced",
        met=None if usual is None else ours.p50 <= 1.2 * usual,
    )


def back(bench: Bench) -> Iterator[Row]:
    function = bench.function()
    with bench.forks(1) as forks:
        ours, floor = in_turns(
            3, lambda: by_threads(function, 1, bench.long), lambda: forks(bench.long / 2)
        )
    yield Row(
        "back-to-back",
        "back to back, 1 caller",
        ours.p50,
        p99=ours.p99,
        floor=floor.p50,
        floor_is="fork + exit + wait",
        target="≤ 2 × the fork",
        met=ours.p50 <= 2 * floor.p50,
        more={"per_sec": ours.rate},
    )


def threads(bench: Bench) -> Iterator[Row]:
    function = bench.function()
    with bench.forks(measure.cores()) as forks:
        ours, floor = in_turns(
            3, lambda: by_threads(function, 8, bench.long), lambda: forks(bench.long / 2)
        )
    yield Row(
        "8-callers",
        "back to back, 8 callers (threads): one call",
        ours.p50,
        p99=ours.p99,
        floor=floor.p50,
        floor_is="fork on every core",
        more={"per_sec": ours.rate},
    )


def _throughput(bench: Bench, key: str, what: str, least: float, *names: str) -> Iterator[Row]:
    function = bench.function(*names)
    with bench.forks(measure.cores(), *names) as forks:
        # More callers than cores: while one's cell is made, another one's call runs.
        ours, floor = in_turns(
            4,
            lambda: by_threads(function, 4 * measure.cores(), bench.long),
            lambda: forks(bench.long),
        )
    bench.known[key] = ours.rate
    yield Row(
        key,
        what,
        ours.rate,
        RATE,
        floor=floor.rate,
        floor_is="forks",
        target=f"≥ {least} × the forks",
        met=ours.rate >= least * floor.rate,
        takes_all=True,
        more={"modules_missing_in_floor": forks.missing},
    )


def throughput(bench: Bench) -> Iterator[Row]:
    return _throughput(bench, "throughput", "fresh processes with every wall, all cores", 0.4)


def throughput_pandas(bench: Bench) -> Iterator[Row]:
    return _throughput(bench, "throughput-pandas", "the same with pandas imported", 0.8, "pandas")


def chunks(bench: Bench) -> Iterator[Row]:
    function, count = bench.function(), 100 * bench.many // 2

    def once() -> measure.Times:
        taken = each(lambda _: sum(function.map(range(count), chunksize=50)), 1)
        return measure.Times([taken.whole / count] * count, taken.whole)

    items, cores = list(range(50)), measure.cores()
    free: SimpleQueue[Parked] = SimpleQueue()

    def parked(_: int) -> None:
        one = free.get()
        one(items)
        free.put(one)

    with ExitStack() as stack:
        # Not rehearsed: there is no time ahead of a call.
        for _ in range(cores):
            made = bench.parked(function=CHUNK, dummy=items, rehearsals=0)
            free.put(stack.enter_context(made))
        once()
        ours, floor = in_turns(3, once, lambda: by_threads(parked, cores, bench.long))
    yield Row(
        "map-50",
        "map(chunksize=50), items",
        ours.rate,
        RATE,
        floor=50 * floor.rate,
        floor_is=f"{PARKED}, on every core, of 50 items each",
        target="≥ 30,000/s",
        met=ours.rate >= 30_000,
    )


def shared(bench: Bench) -> Iterator[Row]:
    row = Row("shared", 'isolation="shared", calls', unit=RATE, target="≥ 8,000/s")
    try:
        function = measure.trivial(isolation="shared")
        function(1)
    except (TypeError, ValueError, hutch.SandboxError) as error:
        row.skipped = f"refused: {str(error).splitlines()[0][:80]}"
        yield row
        return
    with Echo() as echo:
        ours, floor = in_turns(
            5, lambda: by_threads(function, 1, bench.long / 2), lambda: each(echo, bench.many)
        )
    row.value, row.floor, row.floor_is = ours.rate, floor.rate, "echoes"
    row.met = ours.rate >= 8000
    yield row


def program(bench: Bench) -> Iterator[Row]:
    part = bench.many // 10
    hutch.run("pass")
    with bench.parked(function=PROGRAM, dummy="pass") as parked:
        ours, floor = in_turns(
            10,
            lambda: each(lambda _: hutch.run("pass"), part, 1 / PACE),
            lambda: each(lambda _: parked("pass"), part, 1 / PACE),
        )
    yield Row(
        "program",
        f'hutch.run("pass"), {PACE} a second',
        ours.p50,
        p99=ours.p99,
        floor=floor.p50,
        floor_is=PARKED,
        floor_p99=floor.p99,
        target="≤ 0.2 ms",
        met=ours.p50 <= 0.0002,
    )


def _faults_of_calls(function: Any, count: int) -> list[int]:
    """As the cells count them, which an Outcome leaves out; tests/pins counts from outside too."""
    from hutch._calls import run

    told: list[int] = []
    send = run.send

    def noted(*args: Any, **named: Any) -> Any:
        result, pool = send(*args, **named)
        told.append(int(result.usage["minor_faults"]))
        return result, pool

    run.send = noted
    try:
        target = function._resolved()
        # By the client's long way, in cells that had the time to rehearse.
        each(lambda n: run.call(target, (n,)), count, 0.1)
    finally:
        run.send = send
    assert len(told) == count
    return sorted(told)


def faults(bench: Bench) -> Iterator[Row]:
    for key, names in (("faults", ()), ("faults-pandas", ("pandas",))):
        function = bench.function(*names)
        row = Row(key, f"page faults in a warm call{', pandas' if names else ''}", unit=COUNT)
        row.target = "≤ 10"
        met = _faults_of_calls(function, 20)
        row.value, row.met, row.note = met[10], met[-1] <= 10, f"at most {met[-1]}"
        yield row


ROWS = {
    "paced": paced,
    "paced-pandas": paced_pandas,
    "paced-pandas-used": paced_pandas_used,
    "burst": burst,
    "back-to-back": back,
    "8-callers": threads,
    "throughput": throughput,
    "throughput-pandas": throughput_pandas,
    "map-50": chunks,
    "shared": shared,
    "program": program,
    "faults": faults,
}
