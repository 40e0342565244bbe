"""`key=`: the same key gives the stored Outcome, and never a second run.

Kept by this process, for its latest 1,000 keys. A second caller waits for the first. What certainly
did not run is not stored. Safe on any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hutch._errors import SandboxError, SandboxStartupError
from hutch._outcome import Outcome

_LIMIT = 1000


class _Entry:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.outcome: Outcome[Any] | None = None
        self.error: SandboxError | None = None


_lock = threading.Lock()
_entries: dict[str, _Entry] = {}


def once(key: str, run: Callable[[], Outcome[Any]]) -> Outcome[Any]:
    while True:
        with _lock:
            entry = _entries.get(key)
            mine = entry is None
            if entry is None:
                entry = _entries[key] = _Entry()
                _make_room()
        if mine:
            return _first(key, entry, run)
        entry.done.wait()
        if entry.error is not None:
            raise entry.error
        if entry.outcome is not None:
            return entry.outcome


def _first(key: str, entry: _Entry, run: Callable[[], Outcome[Any]]) -> Outcome[Any]:
    try:
        entry.outcome = run()
        return entry.outcome
    except SandboxStartupError as error:
        if error.may_have_run:
            entry.error = error
        raise
    except KeyboardInterrupt:
        entry.error = SandboxError(f"the call with key={key!r} was interrupted while it ran")
        raise
    finally:
        if entry.outcome is None and entry.error is None:
            with _lock:
                _entries.pop(key, None)
        entry.done.set()


def _make_room() -> None:
    for key, entry in list(_entries.items()):
        if len(_entries) <= _LIMIT:
            return
        if entry.done.is_set():
            del _entries[key]
