# SPDX-License-Identifier: Apache-2.0
"""How subcommands print what they found: as JSON, or as a table for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hutch._connect.progress import escape


def print_json(value: Any) -> None:
    print(as_json_line(value), end="")


def as_json_line(value: Any) -> str:
    """ASCII, with the end of the line."""
    return json.dumps(value, default=repr) + "\n"


def print_table(rows: Sequence[Mapping[str, Any]], columns: list[str]) -> None:
    """Text of the agent's, which in part comes from callers: escaped."""
    cells = [[escape(_cell(name, row.get(name, ""))) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells)]
    for line in ([name.upper() for name in columns], *cells):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())


def _cell(name: str, value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    if name == "digest":
        return str(value)[:12]
    if name == "bytes" and isinstance(value, int):
        return f"{value / 1e6:.1f} MB"
    if name in ("created", "last_used") and isinstance(value, (int, float)):
        import time

        return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
    return str(value) if value != "" else "-"
