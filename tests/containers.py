# SPDX-License-Identifier: Apache-2.0
"""How many containers a run starts, and has at once."""

from __future__ import annotations

from pathlib import Path


class Containers:
    """By the process of conmon that each has. Those that end between two looks are missed."""

    def __init__(self) -> None:
        self.started = 0
        self.most = 0
        self._there = dict.fromkeys(self._conmons({}), -1)  # none of them is the run's

    def look(self) -> None:
        before = self._there
        self._there = self._conmons(before)
        running = 0
        for pid, looks in self._there.items():
            running += looks > 0
            self.started += looks == 1 and before.get(pid) == 0  # not its parent, which is gone
        self.most = max(self.most, running)

    @staticmethod
    def _conmons(before: dict[str, int]) -> dict[str, int]:
        """At how many looks before this one each was there; of any other process, -1."""
        found = {}
        for entry in Path("/proc").iterdir():
            pid = entry.name
            if not pid.isdigit():
                continue
            if pid in before:
                found[pid] = before[pid] + (before[pid] >= 0)
                continue
            try:
                name = (entry / "comm").read_text()
            except OSError:
                continue
            found[pid] = 0 if name == "conmon\n" else -1
        return found

    def __str__(self) -> str:
        return f"{self.started} containers were started, {self.most} ran at once"
