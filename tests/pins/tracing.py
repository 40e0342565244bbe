# SPDX-License-Identifier: Apache-2.0
"""System calls between two marks, by strace. A mark is a `getppid()`, which nothing else makes."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

MARK = "getppid"
_LINE = re.compile(r"^(?P<pid>\d+)\s+(?:<\.\.\. (?P<resumed>\w+) resumed|(?P<name>\w+)\()")

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def begun(trace: str) -> list[tuple[int, str]]:
    """(thread, name) of each system call, in the order in which they began."""
    found = []
    for line in trace.splitlines():
        matched = _LINE.match(line)
        if matched and matched["name"]:
            found.append((int(matched["pid"]), matched["name"]))
    return found


def between_marks(trace: str) -> list[list[str]]:
    """The names between each pair of marks, of every thread of the process."""
    found: list[list[str]] = []
    inside = False
    for _, name in begun(trace):
        if name == MARK:
            inside = not inside
            if inside:
                found.append([])
        elif inside:
            found[-1].append(name)
    return found


class Attached:
    """strace on a process that runs already; a context manager. `calls` holds the names after."""

    def __init__(self, pid: int, file: Path) -> None:
        self.pid, self.file = pid, file
        self.calls: list[str] = []

    def __enter__(self) -> Attached:
        command = ["strace", "-f", "-o", str(self.file), "-p", str(self.pid)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        said = self._process.stderr.readline()
        if "attached" not in said:
            self._process.wait()
            pytest.skip(f"strace cannot attach to a cell here: {said.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.1)  # what comes after the reply, until it blocks again
        self._process.terminate()
        self._process.communicate()
        self.calls = [name for _, name in begun(self.file.read_text())]
