# SPDX-License-Identifier: Apache-2.0
"""Writes the measured part of docs/benchmarks.md, and docs/benchmarks.svg."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import host
import rivals
import table
from rivals import Rival
from table import Row

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- measured: written by benchmarks/bench.py --write-docs -->", "<!-- end -->"


def row_cells(figures: dict[str, Any]) -> list[list[str]]:
    found = []
    for told in figures["rows"]:
        fields = {name: told[name] for name in Row.__dataclass_fields__ if name in told}
        found.append(table.cells(Row(**fields), figures["too_busy"]))
    return found


def rival_cells(figures: dict[str, Any]) -> list[list[str]]:
    return [Rival(**told).cells() for told in figures["rivals"]]


_READY = "the floor's containers are not waited for: what runs in ours imports, reports and forks"
# Why a target is missed that the machine alone does not explain, by the row's key.
WHY: dict[str, str] = {
    "paced": "an echo comes from a process that has run before; one that has not, without a wall, "
    "takes most of it (the floor)",
    "paced-pandas": "a call in a hundred waits for the making of another cell, on one of two cores",
    "paced-pandas-used": "the floor has made that call once before it is asked; Hutch runs nothing "
    "of a caller's ahead, so the call is the first to touch those pages",
    "throughput-pandas": "a cell is also given namespaces, limits and a scratch, which the kernel "
    "takes down again",
    "crowd": "what is beside it forks and fills memory until it meets a limit, which the kernel "
    "undoes on the same cores; beside the floor others only spin",
    "program": "a program also has its namespace made and its output collected",
    "memory-zygote": "modules that most calls need are imported in it already",
    "first": _READY,
    "first-spare": _READY,
    "first-pandas": _READY,
    "nothing": _READY,
    "exec-paced": "after 5 ms of sleep lines of Python take twice as long as back to back (64 and "
    "34 µs for the same ones, without Hutch); an exec is Python on both sides, a call is C++",
    "session-start": "names, tools and streams of a session are made in its process when it begins "
    "(1.6 ms of CPU); the floor makes none",
    "idle-sessions": "each worker looks at the memory of its sessions several times a second",
    "serve-1": "a client, the server's Python and the making of the next cell share two cores; the "
    "bare call has neither of the first",
}


def reasons(figures: dict[str, Any]) -> Iterator[str]:
    """A line for each row whose figure, or p99, is above its target."""
    above = ""  # the row that "the same" means
    for told in figures["rows"]:
        is_same = told["what"].startswith(("the same", "their ", "its "))
        what = f"{above}; {told['what']}" if is_same else told["what"]
        above = above if is_same else what
        if "NO" not in told["verdict"]:
            continue
        ratio = told["ratio"]
        if told["key"] in WHY:
            why = WHY[told["key"]]
        elif ratio is not None and 0.75 <= ratio <= 1.33:
            why = f"it is the machine's: its floor, {told['floor_is']}, is as slow here"
        else:
            why = "not explained yet"
        yield f"- {what}: {why}."


class NotQuiet(Exception):
    """Why the page is left as it is."""


def require_quiet(too_busy: str) -> None:
    if too_busy:
        raise NotQuiet(f"docs/benchmarks.md is written on a quiet machine only: {too_busy}")


def write(figures: dict[str, Any]) -> None:
    """Raises NotQuiet: figures of a busy machine are not kept."""
    require_quiet(figures["too_busy_for_page"])
    path = DOCS / "benchmarks.md"
    before, _, rest = path.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    parts = [host.sentence(figures["host"])]
    parts.append(table.markdown(table.COLUMNS, row_cells(figures)))
    if missed := list(reasons(figures)):
        parts.append("Targets that were missed, and why:\n\n" + "\n".join(missed))
    if figures["rivals"]:
        parts.append(table.markdown(rivals.COLUMNS, rival_cells(figures)))
    path.write_text(before + BEGIN + "\n" + "\n\n".join(parts) + "\n" + END + after)
    (DOCS / "benchmarks.svg").write_text(plot(dots(figures)))


FLOOR, OURS, THEIRS = "floor", "ours", "theirs"


def dots(figures: dict[str, Any]) -> list[tuple[str, float, str]]:
    """(label, seconds, kind), the quickest first."""
    rows = {row["key"]: row for row in figures["rows"] if not row["skipped"]}
    found: list[tuple[str, float, str]] = []
    ours = {
        "paced": "Hutch, 200 a second",
        "paced-pandas": "Hutch, 200 a second, pandas imported",
        "back-to-back": "Hutch, back to back",
        "program": 'hutch.run("pass")',
        "first-spare": "Hutch, first result of a spare worker",
        "first": "Hutch, first result without a worker",
        "nothing": "Hutch, first result without an agent",
    }
    for key, label in ours.items():
        if key in rows:
            found.append((label, rows[key]["value"], OURS))
    floors = {"paced": "parked fork, no walls", "back-to-back": "bare fork + exit + wait"}
    for key, label in floors.items():
        if key in rows:
            found.append((label, rows[key]["floor"], FLOOR))
    found += [(r["name"], r["p50"], THEIRS) for r in figures["rivals"] if not r["skipped"]]
    return sorted(found, key=lambda dot: dot[1])


STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .quiet { fill: #59636e; font-size: 12px }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  .line { stroke-width: 2; stroke-linecap: round; opacity: .35 }
  .floor { fill: #6e7781; stroke: #6e7781 }
  .ours { fill: #0b7a5c; stroke: #0b7a5c }
  .theirs { fill: #b35900; stroke: #b35900 }
  .strong { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .quiet { fill: #9198a1 }
    .grid { stroke: #3d444d }
    .floor { fill: #9198a1; stroke: #9198a1 }
    .ours { fill: #3fb68b; stroke: #3fb68b }
    .theirs { fill: #e09b4c; stroke: #e09b4c }
  }
"""
LEFT, RIGHT, WIDTH, STEP, TOP = 300, 80, 850, 26, 64


def plot(found: list[tuple[str, float, str]]) -> str:
    """Dots on a logarithmic axis. No background, and colours for a light and a dark page."""
    if not found:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>\n'
    low = math.floor(math.log10(min(seconds for _, seconds, _ in found)))
    high = math.ceil(math.log10(max(seconds for _, seconds, _ in found)) + 1e-9)
    height = TOP + STEP * len(found) + 12

    def x(seconds: float) -> float:
        return LEFT + (math.log10(seconds) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="title">',
        '<title id="title">Time of one trivial call, on a logarithmic scale</title>',
        f"<style>{STYLE}</style>",
        '<text x="0" y="16" class="strong">Time of one trivial call (median, log scale)</text>',
    ]
    at = LEFT
    for kind, label in ((OURS, "Hutch"), (THEIRS, "instead"), (FLOOR, "floor")):
        parts.append(f'<circle cx="{at}" cy="34" r="5" class="{kind}"/>')
        parts.append(f'<text x="{at + 10}" y="38" class="quiet">{label}</text>')
        at += 90
    for power in range(low, high + 1):
        place = x(10.0**power)
        parts.append(
            f'<line x1="{place:.0f}" x2="{place:.0f}" y1="{TOP - 2}" y2="{height - 8}" '
            'class="grid"/>'
        )
        parts.append(
            f'<text x="{place:.0f}" y="{TOP - 8}" text-anchor="middle" class="quiet">'
            f"{table.shown(10.0**power)}</text>"
        )
    for n, (label, seconds, kind) in enumerate(found):
        y, place = TOP + STEP * n + 14, x(seconds)
        weight = ' class="strong"' if kind == OURS else ""
        parts += [
            f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end"{weight}>{escape(label)}</text>',
            f'<line x1="{LEFT}" x2="{place:.1f}" y1="{y}" y2="{y}" class="line {kind}"/>',
            f'<circle cx="{place:.1f}" cy="{y}" r="5" class="{kind}"/>',
            f'<text x="{place + 10:.1f}" y="{y + 4}" class="quiet">{table.shown(seconds)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
