# SPDX-License-Identifier: Apache-2.0
"""What calls cost here, each beside its floor and its target, and beside what one would pick
instead: one table, and with `--json` one file of the same figures.

    python benchmarks/bench.py                    everything; some minutes
    python benchmarks/bench.py --quick            a tenth of the calls, nothing large or cold
    python benchmarks/bench.py --only paced,data  some rows (names of rows or of their groups)
    python benchmarks/bench.py --write-docs       also docs/benchmarks.md and its plot; on a quiet
                                                  machine alone: otherwise exit code 2

A figure and its floor are measured in turns, so that a noisy moment meets both. Nothing is
asserted: what a machine cannot give is to be seen from the floor.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))

import calls
import cold
import crowd
import data
import evaluating
import host
import many
import memory
import network
import page
import rivals
import serving
import sessions
import soak
import table
import workbench
from calls import Bench
from table import Row

GROUPS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    **calls.ROWS,
    **data.ROWS,
    **many.ROWS,
    **crowd.ROWS,
    **network.ROWS,
    **memory.ROWS,
    **cold.ROWS,
    **sessions.ROWS,
    **workbench.ROWS,
    **serving.ROWS,
    **evaluating.ROWS,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls, in a minute")
    parser.add_argument("--only", metavar="ROW,…", help=f"of: {' '.join([*GROUPS, 'rivals'])}")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--from-json", metavar="FILE", help="measure nothing; show that file's")
    parser.add_argument("--write-docs", action="store_true", help="write docs/benchmarks.*")
    parser.add_argument("--rivals", action="store_true", help="install published packages, compare")
    parser.add_argument("--install", action="store_true", help="install Debian's bubblewrap")
    parser.add_argument(
        "--soak", nargs="?", const=10_000, type=int, metavar="CALLS",
        help="instead: so many calls, and what has grown after them",
    )  # fmt: skip
    given = parser.parse_args()
    given.only = set(given.only.split(",")) if given.only else set()
    unknown = given.only - {*GROUPS, "rivals"}
    if unknown:
        parser.error(f"--only: no rows are called {' '.join(sorted(unknown))}")
    return given


def measure(given: argparse.Namespace, console: Console) -> dict[str, Any]:
    watch = host.Watch()
    if given.write_docs:
        page.require_quiet(watch.too_busy_for_page)
    for text in host.warnings(watch):
        console.print(f"[yellow]{text}[/]")
    bench = Bench(given.quick, many=200 if given.quick else 2000, long=0.3 if given.quick else 2.0)
    rows: list[Row] = []
    for name, group in GROUPS.items():
        if given.only and name not in given.only:
            continue
        try:
            for row in group(bench):
                rows.append(row)
                shown = row.skipped or table.shown(row.value, row.unit)
                console.print(f"  {row.what}: {shown}", style="dim", markup=False)
        except Exception as error:  # one row that fails must not cost the others
            rows.append(Row(name, name, skipped=f"{type(error).__name__}: {error}"[:200]))
            console.print(f"  {name}: {type(error).__name__}: {error}", style="red", markup=False)
    others = []
    if not given.only or "rivals" in given.only:
        if given.rivals:
            rivals.install_packages()
        if given.install:
            rivals.install_bubblewrap()
        for rival in rivals.measured(bench):
            others.append(rival)
            shown = rival.skipped or table.shown(rival.p50)
            console.print(f"  {rival.name}: {shown}", style="dim", markup=False)
    facts = {**watch.facts(), "compiled": bench.known.get("compiled")}
    return {
        "host": facts,
        "too_busy": watch.too_busy,
        "too_busy_for_page": watch.too_busy_for_page,
        "rows": [table.as_json(row, watch.too_busy) for row in rows],
        "rivals": [rival.as_json() for rival in others],
    }


def show(figures: dict[str, Any], console: Console) -> None:
    console.print(host.sentence(figures["host"]), highlight=False)
    if figures["too_busy"]:
        console.print(f"[yellow]{host.unjudged(figures['too_busy'])}[/]")
    console.print(table.rich_table(table.COLUMNS, page.row_cells(figures)))
    if figures["rivals"]:
        console.print(table.rich_table(rivals.COLUMNS, page.rival_cells(figures)))


def main() -> int:
    given = arguments()
    console = Console(highlight=False, width=max(150, Console().width))
    if given.soak:
        return soak.main(given.soak)
    try:
        if given.from_json:
            figures = json.loads(Path(given.from_json).read_text())
        else:
            figures = measure(given, console)
        show(figures, console)
        if given.json:
            Path(given.json).write_text(json.dumps(figures, indent=1))
        if given.write_docs:
            page.write(figures)
    except page.NotQuiet as error:
        console.print(f"bench: {error}", style="red", markup=False)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
