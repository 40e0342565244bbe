# SPDX-License-Identifier: Apache-2.0
"""What a user sees while something takes long: a bar on a terminal, plain lines in a pipe.

Nothing is shown for work that ends within half a second, and nothing at all with HUTCH_LOG=off.
Text comes from installers, so control characters in it are escaped. One Progress serves one thread.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

QUIET_SEC = 0.5
LINE_SEC = 5.0  # between two plain lines of one stage


def is_silent() -> bool:
    return os.environ.get("HUTCH_LOG", "").lower() in ("off", "none", "quiet", "0")


def escape(text: str) -> str:
    """The text as one line that a terminal shows and does not obey."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def escape_lines(text: str) -> str:
    """As `escape`; the lines stay."""
    return "\n".join(escape(line) for line in text.expandtabs().split("\n"))


def say(line: str) -> None:
    """Writes one line to stderr. A closed stderr is not an error."""
    stream = sys.stderr
    if is_silent() or stream is None:
        return
    try:
        stream.write(escape(line) + "\n")
        stream.flush()
    except (OSError, ValueError):
        pass


class Progress:
    """Shows the building of one environment; a context manager. Call it with each step."""

    def __init__(self, what: str, terminal: bool | None = None) -> None:
        self._what = what
        self._start = time.monotonic()
        self._silent = is_silent()
        self._bar: Any = None
        self._task: Any = None
        self._said: tuple[str, float] = ("", 0.0)
        stderr = sys.stderr
        self._terminal = (stderr is not None and stderr.isatty()) if terminal is None else terminal

    @property
    def shown(self) -> bool:
        return self._bar is not None or bool(self._said[0])

    def __call__(self, stage: str, text: str, done: float, total: float) -> None:
        if self._silent or time.monotonic() - self._start < QUIET_SEC:
            return
        if self._terminal and self._show_bar(stage, text, done, total):
            return
        self._say_line(stage, text, done, total)

    def _show_bar(self, stage: str, text: str, done: float, total: float) -> bool:
        if self._bar is None:
            try:
                from rich.console import Console
                from rich.progress import BarColumn, Progress as Bar, TextColumn, TimeElapsedColumn
            except ImportError:
                self._terminal = False
                return False
            self._bar = Bar(
                TextColumn("[bold]hutch[/bold] {task.description}", markup=True),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}", markup=False),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=None, text="")
        self._bar.update(
            self._task,
            description=escape(stage).replace("[", "\\["),
            completed=done,
            total=total if total > 0 else None,
            text=escape(text)[:60],
        )
        return True

    def _say_line(self, stage: str, text: str, done: float, total: float) -> None:
        now = time.monotonic()
        if stage == self._said[0] and now - self._said[1] < LINE_SEC:
            return
        part = f" {100 * done / total:.0f}%" if total > 0 else ""
        say(f"hutch: {self._what}: {stage}{part} {text}".rstrip())
        self._said = (stage, now)

    def done(self) -> None:
        """Reports that the work succeeded."""
        shown = self.shown
        self.close()
        if shown:
            say(f"hutch: {self._what}: ready in {time.monotonic() - self._start:.1f} s")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.done()
        else:
            self.close()
