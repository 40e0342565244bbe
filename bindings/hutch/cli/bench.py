# SPDX-License-Identifier: Apache-2.0
"""`hutch bench`: what calls cost on this host, beside its floors; about ten seconds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from hutch.cli import measure
from hutch.cli.measure import Echo, Forks, Times, by_threads, each, in_turns

_PACE = 200  # calls a second


def measured(dependencies: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of `what`, `floor_is`, and the seconds and rates of both."""
    function = measure.trivial(dependencies)
    function(1)
    measure.parked(function)
    with Echo() as echo:
        paced, paced_echo = in_turns(
            5, lambda: each(function, 80, 1 / _PACE), lambda: each(echo, 80, 1 / _PACE)
        )
        sizes: list[int] = []

        def burst() -> Times:
            sizes.append(measure.parked(function))
            return each(function, sizes[-1])

        at_once, quick_echo = in_turns(4, burst, lambda: each(echo, 20))
    modules = measure.zygote_modules(dependencies)
    with Forks(1, *modules) as one, Forks(measure.cores(), *modules) as all_:
        back, fork = in_turns(2, lambda: by_threads(function, 1, 0.7), lambda: one(0.4))
        callers = 4 * measure.cores()
        busy, forks = in_turns(2, lambda: by_threads(function, callers, 0.8), lambda: all_(0.6))
    return [
        _row(f"paced, {_PACE} calls a second", paced, "echo over a Unix socket", paced_echo),
        _row(f"burst of as many as are parked ({min(sizes)})", at_once, "echo", quick_echo),
        _row("back to back, one caller", back, "fork + exit + wait", fork),
        _row(f"all cores busy, {callers} callers", busy, "forks on every core", forks),
    ]


def _row(what: str, ours: Times, floor_is: str, floor: Times) -> dict[str, Any]:
    return {
        "what": what,
        "p50_sec": ours.p50,
        "p99_sec": ours.p99,
        "per_sec": ours.rate,
        "floor": floor_is,
        "floor_p50_sec": floor.p50,
        "floor_per_sec": floor.rate,
    }


def run(options: argparse.Namespace) -> int:
    from hutch.cli.commands import given_dependencies
    from hutch.cli.output import print_json, print_table

    dependencies = given_dependencies(options)
    load = os.getloadavg()[0] / measure.cores()
    rows = measured(dependencies)
    if options.json:
        print_json({"load_per_core": load, "dependencies": dependencies, "rows": rows})
        return 0
    shown = [
        {
            "": row["what"],
            "p50": _shown(row["p50_sec"]),
            "p99": _shown(row["p99_sec"]),
            "per sec": f"{row['per_sec']:,.0f}",
            "floor": row["floor"],
            "its p50": _shown(row["floor_p50_sec"]),
            "its rate": f"{row['floor_per_sec']:,.0f}",
        }
        for row in rows
    ]
    print_table(shown, list(shown[0]))
    if load > 1:
        print(f"the host was busy: {load:.1f} runnable for each core; only the ratios are reliable")
    return 0


def _shown(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs" if seconds < 0.01 else f"{seconds * 1e3:,.1f} ms"
