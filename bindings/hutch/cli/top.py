# SPDX-License-Identifier: Apache-2.0
"""`hutch status` and `hutch top`: pools, their cells and their calls, once or every second.

A table that renews itself on a terminal, plain lines in a pipe, one JSON value a line with --json.
A pool without workers that nobody has used for minutes is in no table. It looks only: an agent that
does not run is waited for, never started. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Literal

from hutch._connect.progress import escape
from hutch._status import PoolStatus, Status, status

PERIOD_SEC = 1.0
_COLUMNS = (
    "environment memory_mb isolation labels workers slots parked leased sessions waiting calls "
    "calls/s hit p50_ms p99_ms last_failure"
).split()
_TEXTS = ("environment", "isolation", "labels", "last_failure")
_WIDEST = 40  # characters of a text in a column


def run(options: argparse.Namespace) -> int:
    watch = options.watch if options.command == "status" else not options.once
    if not watch:
        _show(status(), options.json)
        return 0
    try:
        if options.json or not sys.stdout.isatty() or not _live():
            _lines(options.json)
    except KeyboardInterrupt:
        pass
    return 0


def _lines(as_json: bool) -> None:
    while True:
        _show(status(), as_json)
        sys.stdout.flush()
        time.sleep(PERIOD_SEC)


def _live() -> bool:
    """False where there is nothing to draw with."""
    try:
        from rich.live import Live
    except ImportError:
        return False
    now = status()
    with Live(_drawn(now), refresh_per_second=4, screen=False) as live:
        while True:
            time.sleep(PERIOD_SEC)
            live.update(_drawn(status()))


def _show(now: Status, as_json: bool) -> None:
    if as_json:
        print(json.dumps(now))
        return
    print(headline(now))
    table = rows(now)
    if table:
        widths = [max(map(len, column)) for column in zip(_COLUMNS, *table)]
        for line in ([name.upper() for name in _COLUMNS], *table):
            print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())


def _drawn(now: Status) -> Any:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for name in _COLUMNS:
        justify: Literal["left", "right"] = "left" if name in _TEXTS else "right"
        wraps = name in ("labels", "last_failure")  # a narrow terminal has room for the others then
        table.add_column(name.replace("_", " "), justify=justify, no_wrap=not wraps)
    for row in rows(now):
        table.add_row(*map(Text, row))  # Text: what callers wrote is no markup
    return Group(Text(headline(now)), table)


def headline(now: Status) -> str:
    if not now["running"]:
        return "no agent runs; the first call starts it"
    pools = now.get("pools", [])
    rate = sum(pool["calls_per_sec"] for pool in pools)
    return (
        f"agent {escape(now.get('version', ''))}, up {now.get('uptime_sec', 0):.0f} s, "
        f"{now.get('memory_bytes', 0) / 1e6:.1f} MB; {now.get('calls', 0)} calls, {rate:.1f} a "
        f"second; {now.get('clients', 0)} clients; {open_sessions(now)}; "
        f"{now.get('builds', 0)} environments built"
    )


def open_sessions(now: Status) -> str:
    most = now.get("sessions_max", 0)
    return f"{now.get('sessions', 0)}{f' of {most}' if most else ''} sessions"


def rows(now: Status) -> list[list[str]]:
    """The busiest pool first. Text of callers and of workers is escaped."""
    pools = sorted(now.get("pools", []), key=lambda pool: (-pool["calls_per_sec"], -pool["calls"]))
    return [_row(pool) for pool in pools if _is_used(pool)]


def _is_used(pool: PoolStatus) -> bool:
    """Whether it has workers, callers or recent calls, or its workers do not start."""
    lives = pool["workers"] or pool["waiting"] or pool["start_failures"]
    return bool(lives) or pool["p50_ms"] is not None


def _row(pool: PoolStatus) -> list[str]:
    hit = pool["hit_rate"]
    return [
        _cut(names(pool["requirements"])),
        str(pool["memory_mb"]),
        pool["isolation"],
        _cut(" ".join(f"{name}={x}" for name, x in pool["labels"].items()) or "-"),
        str(len(pool["workers"])),
        str(pool["slots"]),
        str(pool["ready"]),
        str(pool["leased"]),
        str(pool["sessions"]),
        str(pool["waiting"]),
        str(pool["calls"]),
        f"{pool['calls_per_sec']:.1f}",
        "-" if hit is None else f"{100 * hit:.0f}%",
        _milliseconds(pool["p50_ms"]),
        _milliseconds(pool["p99_ms"]),
        _cut(pool["last_failure"] or "-"),
    ]


def names(requirements: list[str]) -> str:
    """Without versions: "pandas" of "pandas>=2"."""
    import re

    found = [re.split(r"[ <>=!~;\[@(]", item, maxsplit=1)[0] for item in requirements]
    return " ".join(found) or "(no packages)"


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _cut(text: str) -> str:
    shown = escape(text)
    return shown if len(shown) <= _WIDEST else shown[: _WIDEST - 1] + "…"
