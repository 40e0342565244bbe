"""What calls cost here, beside what the machine charges for less: one table, figures of one run.

Each row says how its calls were spaced, since that decides the figure: *paced* (200 a second in
all), *burst* (as many as are parked, at once), *back to back* (bound by making cells). Ratios are
to the echo over a Unix socket. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import hutch
from hutch import sandbox

console = Console(highlight=False, width=max(100, Console().width))


@sandbox
def double(x: int) -> int:
    return 2 * x


def plain(x: int) -> int:
    return 2 * x


def each(
    count: int, action: Callable[[int], object], every: float = 0.0, offset: float = 0.0
) -> list[float]:
    """Seconds of each of `count` actions; `every`: seconds from one's start to the next's."""
    taken = []
    start = time.perf_counter() + offset
    for n in range(count):
        if every and (wait := start + n * every - time.perf_counter()) > 0:
            time.sleep(wait)
        begin = time.perf_counter()
        action(n)
        taken.append(time.perf_counter() - begin)
    return taken


def spread(callers: int, count: int, rate: float = 0.0) -> list[float]:
    """`count` calls by threads of one process, `rate` a second in all (0: as fast as they go)."""
    taken: list[list[float]] = [[] for _ in range(callers)]
    every = callers / rate if rate else 0.0

    def work(n: int) -> None:
        taken[n] = each(count // callers, double, every, n * every / callers)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [seconds for part in taken for seconds in part]


def echo(count: int) -> list[float]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        ours.close()
        while text := theirs.recv(4096):
            theirs.send(text)
        os._exit(0)
    theirs.close()

    def once(_: int) -> None:
        ours.send(b"x" * 200)
        ours.recv(4096)

    taken = each(count, once)
    ours.close()
    os.waitpid(child, 0)
    return taken


def fork(count: int) -> list[float]:
    def once(_: int) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    return each(count, once)


def process_pool(count: int) -> list[float]:
    """Warm processes that are used again and again: no wall, nothing fresh."""
    with ProcessPoolExecutor(1) as pool:
        pool.submit(plain, 1).result()
        return each(count, lambda n: pool.submit(plain, n).result())


class Report:
    def __init__(self) -> None:
        self.table = Table(box=None, header_style="bold", padding=(0, 2))
        self.rows: list[dict[str, Any]] = []
        self.floor = 0.0
        for name in ("what", "calls", "p50 µs", "p99 µs", "calls/s", "× echo"):
            self.table.add_column(name, justify="left" if name == "what" else "right")

    def add(self, what: str, measure: Callable[[], list[float]]) -> None:
        begin = time.perf_counter()
        taken = measure()
        whole = time.perf_counter() - begin
        p50 = statistics.median(taken)
        p99 = statistics.quantiles(taken, n=100, method="inclusive")[98] if len(taken) > 1 else p50
        self.floor = self.floor or p50
        rate = len(taken) / whole
        self.table.add_row(
            what,
            str(len(taken)),
            f"{p50 * 1e6:,.0f}",
            f"{p99 * 1e6:,.0f}",
            f"{rate:,.0f}",
            f"{p50 / self.floor:.1f}",
        )
        self.rows.append(
            {"what": what, "calls": len(taken), "p50_sec": p50, "p99_sec": p99, "per_sec": rate}
        )
        console.print(f"[dim]  measured: {what}[/]")

    def section(self) -> None:
        self.table.add_section()


def cold(repeats: int) -> list[tuple[str, float]]:
    """Seconds of first calls. A setting of its own makes a pool without a worker yet."""
    found = []
    fresh = [sandbox(memory_mb=700 + n)(plain) for n in range(repeats)]
    double(1)
    taken = [each(1, function)[0] for function in fresh]
    found.append(
        (f"first call, agent running, no worker (median of {repeats})", statistics.median(taken))
    )
    hutch.close()
    hutch.agent.stop()
    found.append(("first call, nothing running (agent, worker, cell)", each(1, double)[0]))
    return found


BUILD = """
import json, sys, time
import hutch
from hutch import sandbox
sandbox(lambda: 1)()
def look():
    import os, pandas
    top = os.path.dirname(os.path.dirname(pandas.__file__))
    count = {"py": 0, "pyc": 0}
    for folder, _, names in os.walk(top):
        for name in names:
            kind = name.rpartition(".")[2]
            if kind in count:
                count[kind] += 1
    return count
found = {}
for name, keywords in (("nothing", {}), ("cache", {"disable_cache": True})):
    function = sandbox(dependencies=["pandas"], timeout_sec=60, **keywords)(look)
    begin = time.perf_counter()
    function.warm()
    found[name] = time.perf_counter() - begin
    found["files"] = function()
print(json.dumps(found))
hutch.close()
hutch.agent.stop()
"""


def builds() -> dict[str, Any]:
    """pandas in a state directory of its own, so that the cache is empty at first."""
    parent = Path("/var/lib/hutch") if os.geteuid() == 0 else Path.home() / ".cache"
    home = parent / f"hutch-bench-{os.getpid()}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", BUILD],
            env={**os.environ, "HUTCH_HOME": str(home)},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-2000:])
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def parked() -> int:
    """Waits until the pool has made what it keeps ready, and says how many that is."""
    time.sleep(0.5)
    return int(double.warm())


def hutch_rows(report: Report, callers: int, many: int) -> None:
    name = f"hutch, {callers} caller" + ("s (threads)" if callers > 1 else "")
    parked()
    report.add(f"{name}, paced 200/s", lambda: spread(callers, many, 200))
    count = parked()
    report.add(f"{name}, burst of {count} parked", lambda: spread(callers, max(count, callers)))
    parked()
    report.add(f"{name}, back to back", lambda: spread(callers, many))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the calls, no cold starts and builds"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    given = parser.parse_args()
    many = 200 if given.quick else 2000
    load = os.getloadavg()
    console.print(
        f"{os.cpu_count()} CPUs, Linux {os.uname().release}, Python {sys.version.split()[0]}, "
        f"load average {load[0]:.2f} {load[1]:.2f} {load[2]:.2f} at the start"
    )
    report = Report()
    report.add("floor: echo over a Unix socket, Python", lambda: echo(many))
    report.add("floor: os.fork, _exit, wait", lambda: fork(many // 2))
    report.add("floor: ProcessPoolExecutor, reused, no wall", lambda: process_pool(many))
    report.section()
    double(1)
    for callers in (1, 8):
        hutch_rows(report, callers, many)
    console.print(report.table)
    figures: dict[str, Any] = {"rows": report.rows, "load": load, "load_end": os.getloadavg()}
    if not given.quick:
        table = Table(box=None, header_style="bold", padding=(0, 2))
        table.add_column("what")
        table.add_column("seconds", justify="right")
        built = builds()
        rows = [
            (
                "pandas built from nothing (resolve, download, unpack, import, park)",
                built["nothing"],
            ),
            ("pandas built again from cache (disable_cache=True)", built["cache"]),
            *cold(3),
        ]
        for what, seconds in rows:
            table.add_row(what, f"{seconds:.2f}")
        console.print(table)
        files = built["files"]
        console.print(
            f"environment of pandas: {files['py']} .py, {files['pyc']} compiled (those imported)"
        )
        figures |= {"cold": dict(rows), "files": files}
    end = os.getloadavg()
    written = "not " if sys.dont_write_bytecode else ""
    console.print(
        f"the caller's own bytecode is {written}kept; load average {end[0]:.2f} at the end"
    )
    if given.json:
        Path(given.json).write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
