# SPDX-License-Identifier: Apache-2.0
"""What `make demo` shows: a real analysis, a program's error explained, latency, three attacks.

The data set is scikit-learn's breast-cancer table. This host need not have scikit-learn: the table
comes out of a first sandboxed call as plain rows, and goes into the second one as rows, as your
own data would.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import hutch
from hutch import sandbox

Row = dict[str, float]
console = Console(highlight=False)
needs = sandbox(dependencies=["pandas", "scikit-learn"], timeout_sec=60)


@needs
def load_table() -> list[Row]:
    from sklearn.datasets import load_breast_cancer

    return load_breast_cancer(as_frame=True).frame.to_dict("records")


@needs
def cross_validate(rows: list[Row]) -> dict[str, list[float]]:
    import pandas as pd
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    frame = pd.DataFrame(rows)
    answers = frame.pop("target")
    models = {
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "decision tree": DecisionTreeClassifier(max_depth=4, random_state=0),
    }
    return {
        name: cross_val_score(model, frame, answers, cv=5).tolist()
        for name, model in models.items()
    }


@sandbox
def double(x: int) -> int:
    return 2 * x


@sandbox
def read_keys(home: str) -> list[str]:
    import os

    return [open(f"{home}/.ssh/{name}").read() for name in os.listdir(f"{home}/.ssh")]


@sandbox
def read_environment() -> dict[str, str]:
    import os

    return dict(os.environ)


@sandbox
def call_home(address: str) -> str:
    import socket

    with socket.create_connection((address, 443), timeout=2) as connection:
        return str(connection.getpeername())


PROGRAM = """\
orders = {"tea": 3, "scones": 0}
for name, count in orders.items():
    print(name, "each:", 12 / count)
"""


def heading(number: int, text: str) -> None:
    console.print(f"\n[bold cyan]{number}  {text}[/]")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def analyse() -> None:
    heading(1, "A real data set, analysed in a process of its own")
    begin = time.perf_counter()
    load_table.warm()
    console.print(f"   pandas and scikit-learn ready after {time.perf_counter() - begin:.1f} s")
    rows = load_table()
    begin = time.perf_counter()
    scores = cross_validate(rows)
    took = time.perf_counter() - begin
    for name, folds in scores.items():
        mean, spread = statistics.fmean(folds), statistics.stdev(folds)
        bar = "█" * round(mean * 30)
        console.print(f"   {name:<20} [green]{bar:<30}[/] {mean:.3f} ± {spread:.3f} (5 folds)")
    console.print(
        f"   {len(rows)} rows × {len(rows[0])} columns went in, scores out: {milliseconds(took)}"
    )


def explain() -> None:
    heading(2, "A program given as text, and its error explained")
    outcome = hutch.run(PROGRAM)
    wrong = outcome.error.line if outcome.error else None
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        mark, style = ("→", "bold red") if number == wrong else (" ", "dim")
        console.print(Text(f"   {mark} {number}  {line}", style=style))
    console.print(Text(f"   printed: {outcome.stdout.strip()}"))
    if outcome.error:
        console.print(
            Text(f"   {outcome.error.type}: {outcome.error.message}", style="bold red"), end=""
        )
        console.print(
            Text(f"  (line {wrong})" + (f" — {outcome.error.hint}" if outcome.error.hint else ""))
        )


def timed(count: int, every: float = 0.0) -> list[float]:
    """Seconds of each of `count` calls; `every`: seconds from one's start to the next's."""
    taken = []
    start = time.perf_counter()
    for n in range(count):
        if every and (wait := start + n * every - time.perf_counter()) > 0:
            time.sleep(wait)
        begin = time.perf_counter()
        double(n)
        taken.append(time.perf_counter() - begin)
    return taken


def latency() -> None:
    heading(3, "What a call costs: each in a fresh process, made ahead, used once")
    double(0)
    time.sleep(1)  # the pool makes cells ahead of demand, late: never between a call and its reply
    parked = double.warm()
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for name in ("  load", "calls", "p50", "p99", "calls/s"):
        table.add_column(name, justify="left" if name == "  load" else "right")

    def row(name: str, measure: Callable[[], list[float]]) -> None:
        begin = time.perf_counter()
        taken = measure()
        whole = time.perf_counter() - begin
        p99 = statistics.quantiles(taken, n=100)[98] if len(taken) > 1 else taken[0]
        p50 = statistics.median(taken)
        cells = [
            f"{len(taken)}",
            f"[green]{milliseconds(p50)}[/]",
            milliseconds(p99),
            f"{len(taken) / whole:.0f}",
        ]
        table.add_row("  " + name, *cells)

    row("paced, 200 a second", lambda: timed(400, 1 / 200))
    time.sleep(1)
    row(f"burst, the {parked} cells parked", lambda: timed(parked))
    time.sleep(1)
    row("back to back", lambda: timed(500))
    console.print(table)
    load = os.getloadavg()[0]
    console.print(
        f"   one caller, {os.cpu_count()} CPUs, load {load:.1f}; back to back waits for cells"
    )


def refused(what: str, attack: Callable[[], object], leaked: Callable[[object], bool]) -> bool:
    """Runs an attack. It failed when it raises, or when nothing of the host is in what it found."""
    try:
        found = attack()
    except hutch.SandboxExecutionError as error:
        answer = f"{error.error_type}: {error.error.message if error.error else error}"
    else:
        if leaked(found):
            console.print(Text(f"   ✗ {what}: LEAKED {found}", style="bold white on red"))
            return False
        names = f"{len(found)} variables" if isinstance(found, dict) else str(found)
        answer = f"found {names}, none of this host's"
    line = Text.assemble(("   ✓ refused  ", "bold green"), (f"{what:<23}", "bold"), (answer, "dim"))
    console.print(line, no_wrap=True, overflow="ellipsis")
    return True


def attacks() -> bool:
    heading(4, "Three attacks on this host, from inside")
    os.environ["DEMO_TOKEN"] = "of-this-host"
    return all(
        [
            refused("read ~/.ssh", lambda: read_keys(str(Path.home())), lambda found: True),
            refused(
                "read the environment", read_environment, lambda found: "of-this-host" in str(found)
            ),
            refused("reach the network", lambda: call_home("1.1.1.1"), lambda found: True),
        ]
    )


def main() -> int:
    console.print(f"[bold]Hutch[/] on Linux {os.uname().release}, Python {sys.version.split()[0]}")
    analyse()
    explain()
    latency()
    held = attacks()
    console.print()
    return 0 if held else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except hutch.PlatformNotSupportedError as error:  # what this host lacks is a sentence
        console.print(f"\n[red]{escape(str(error))}[/]")
        console.print("`.venv/bin/hutch doctor` has the whole list")
        sys.exit(1)
