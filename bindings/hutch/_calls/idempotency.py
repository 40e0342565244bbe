# SPDX-License-Identifier: Apache-2.0
"""`key=`: the same key gives the stored Outcome, and never a second run.

A key names one call: using it again, with any arguments, gives that call's Outcome; using it for
another function is an error. This process keeps its latest 1,000 keys. A second caller waits for
the first. A call that certainly did not run is not stored. Safe on any thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hutch._errors import SandboxError, SandboxStartupError
from hutch._outcome import STAGES, Outcome

if TYPE_CHECKING:
    from hutch import _core
    from hutch._calls.target import Target

_LIMIT = 1000
_POLL_SEC = 0.05  # how often a waiting caller checks whether it was cancelled


class _Entry:
    def __init__(self, what: str, name: str) -> None:
        self.what = what
        self.name = name
        self.done = threading.Event()
        self.outcome: Outcome[Any] | None = None
        self.error: SandboxError | None = None


_lock = threading.Lock()
_entries: dict[str, _Entry] = {}


def once(
    key: str,
    target: Target,
    cancel: _core.Cancel | None,
    run: Callable[[], Outcome[Any]],
    may_have_run: Callable[[], bool] = lambda: False,
) -> Outcome[Any]:
    """Raises ValueError where the key is another function's. `may_have_run`: whether the call may,
    where `run` raised what is no error of Hutch.
    """
    begun = time.monotonic()
    what = target.identity
    while True:
        with _lock:
            entry = _entries.get(key)
            mine = entry is None
            if entry is None:
                entry = _entries[key] = _Entry(what, target.name)
                _make_room()
        if mine:
            return _first(key, entry, run, may_have_run)
        if entry.what != what:
            raise ValueError(
                f"key={key!r} names a call of {entry.name}; use another key for {target.name}"
            )
        if not _await(entry, cancel):
            return _given_up(key, begun)
        if entry.error is not None:
            raise entry.error
        if entry.outcome is not None:
            return entry.outcome


def _await(entry: _Entry, cancel: _core.Cancel | None) -> bool:
    """False: cancelled."""
    if cancel is None:
        return entry.done.wait()
    while not entry.done.wait(_POLL_SEC):
        if cancel.cancelled:
            return False
    return True


def _given_up(key: str, begun: float) -> Outcome[Any]:
    from hutch._cancelled import SandboxCancelled

    timings = {**dict.fromkeys(STAGES, 0.0), "queue": time.monotonic() - begun}
    outcome = Outcome[Any]("cancelled", timings=timings, may_have_run=True)
    return outcome.fail(SandboxCancelled(f"stopped waiting for the call with key={key!r}"))


def _first(
    key: str, entry: _Entry, run: Callable[[], Outcome[Any]], may_have_run: Callable[[], bool]
) -> Outcome[Any]:
    try:
        entry.outcome = run()
        return entry.outcome
    except SandboxStartupError as error:
        if error.may_have_run:
            entry.error = error
        raise
    except BaseException as error:
        if not isinstance(error, Exception) or may_have_run():  # those come out of its tools, too
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


def _after_fork() -> None:
    """In the child: calls in flight are the parent's, and their ends would never be seen here."""
    global _lock
    _lock = threading.Lock()
    for key, entry in list(_entries.items()):
        if not entry.done.is_set():
            del _entries[key]


os.register_at_fork(after_in_child=_after_fork)
