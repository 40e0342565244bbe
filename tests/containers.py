# SPDX-License-Identifier: Apache-2.0
"""How many containers a run starts, and has at once."""

from __future__ import annotations

from pathlib import Path


class Containers:
    """By the process of conmon that each has. Those that end between two looks are missed."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}  # of each process, the container that it looks after, or ""
        self._before = self._look()
        self.started: set[str] = set()
        self.most = 0

    def look(self) -> None:
        there = self._look() - self._before
        self.started |= there
        self.most = max(self.most, len(there))

    def _look(self) -> set[str]:
        pids = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        self._of = {pid: self._of[pid] if pid in self._of else container(pid) for pid in pids}
        return set(self._of.values()) - {""}

    def __str__(self) -> str:
        return f"{len(self.started)} containers were started, {self.most} ran at once"


def container(pid: str) -> str:
    """The id that conmon was given, also where it looks after a command in that container."""
    try:
        words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    if not words[0].endswith(b"conmon") or b"-c" not in words:
        return ""
    return words[words.index(b"-c") + 1].decode(errors="replace")
