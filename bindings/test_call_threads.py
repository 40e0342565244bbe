# SPDX-License-Identifier: Apache-2.0
"""Threads that wait for calls."""

from __future__ import annotations

import threading

import pytest

from hutch._calls.threads import CallThreads


def test_work_that_found_no_thread_is_never_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gave it was told that it is not."""
    threads = CallThreads(1)
    done: list[int] = []
    monkeypatch.setattr("threading.Thread.start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threads.start(lambda: done.append(1))
    monkeypatch.undo()
    threads.start(lambda: done.append(2))
    threads.finish()
    assert done == [2]


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
