# SPDX-License-Identifier: Apache-2.0
"""Rows of figures: as a table for people, as JSON, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

SECONDS, RATE, BYTES, COUNT, RATIO = "seconds", "per second", "bytes", "count", "ratio"


@dataclass
class Row:
    """One measured thing. `met` is the verdict on `value`; `p99_most` (seconds) is judged apart, on
    a quiet host only. `takes_all`: it and its floor take every core, so that on a busy host the one
    with more processes gets more: no verdict there. `skipped`: why there is no value.
    """

    key: str
    what: str
    value: float = 0.0
    unit: str = SECONDS
    p99: float | None = None
    floor: float | None = None
    floor_is: str = ""
    floor_p99: float | None = None
    target: str = ""
    met: bool | None = None
    p99_most: float | None = None
    takes_all: bool = False
    note: str = ""
    skipped: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor and not self.skipped else None

    def verdict(self, too_busy: str) -> str:
        if self.skipped or (self.met is None and self.p99_most is None):
            return ""
        if too_busy and self.takes_all:
            return "not judged"
        words = [] if self.met is None else ["yes" if self.met else "NO"]
        if self.p99_most is not None and self.p99 is not None:
            if too_busy:
                words.append("p99 not judged")
            else:
                words.append("p99 yes" if self.p99 <= self.p99_most else "p99 NO")
        return ", ".join(words)


def shown(value: float | None, unit: str = SECONDS) -> str:
    if value is None:
        return ""
    if unit == RATE:
        return f"{value:,.0f}/s"
    if unit == BYTES:
        return f"{value / 1e6:.1f} MB"
    if unit == COUNT:
        return f"{value:g}"
    if unit == RATIO:
        return f"{value:.2f}"
    if value < 0.0009995:
        return f"{value * 1e6:.0f} µs"
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.2f} s"


COLUMNS = ["what", "measured", "p99", "floor", "× floor", "target", "met"]


def cells(row: Row, too_busy: str) -> list[str]:
    if row.skipped:
        return [row.what, "–", "", "", "", row.target, f"not measured: {row.skipped}"]
    floor = f"{shown(row.floor, row.unit)} {row.floor_is}".strip() if row.floor else ""
    if row.floor_p99 is not None:
        floor += f"; p99 {shown(row.floor_p99)}"
    ratio = (
        "" if row.ratio is None else f"{row.ratio:.2g}" if row.ratio < 10 else f"{row.ratio:.0f}"
    )
    what = f"{row.what} ({row.note})" if row.note else row.what
    return [
        what,
        shown(row.value, row.unit),
        shown(row.p99),
        floor,
        ratio,
        row.target,
        row.verdict(too_busy),
    ]


def rich_table(columns: list[str], rows: Iterable[list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in columns:
        numeric = name in ("measured", "p99", "× floor", "a call", "calls/s")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=numeric)
    for row in rows:
        style = "red" if "NO" in row[-1] and columns == COLUMNS else None
        table.add_row(*map(escape, row), style=style)
    return table


def markdown(columns: list[str], rows: Iterable[list[str]]) -> str:
    def line(items: Iterable[str]) -> str:
        return "| " + " | ".join(item.replace("|", "\\|") for item in items) + " |"

    return "\n".join([line(columns), line("---" for _ in columns), *map(line, rows)])


def as_json(row: Row, too_busy: str) -> dict[str, Any]:
    return {**asdict(row), "ratio": row.ratio, "verdict": row.verdict(too_busy)}
