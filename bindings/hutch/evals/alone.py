# SPDX-License-Identifier: Apache-2.0
"""A program that met its time limit while others had the CPU is run once more, alone, before it is
scored: its verdict must not depend on who else runs.

Safe on any thread. Another process that evaluates is not waited for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hutch._calls.map import Plan, run as run_map, runner_for
from hutch._outcome import Outcome
from hutch._sandbox import SandboxedFunction

_WAITED = 0.05  # of its time a call waited for a CPU: it would have got further without others


def waited(outcome: Outcome[Any]) -> bool:
    """Whether a call was kept from the CPU for a part of its time that counts."""
    return outcome.usage.cpu_wait_sec > _WAITED * outcome.usage.wall_sec


def is_suspect(outcome: Outcome[Any]) -> bool:
    return outcome.limit == "time" and waited(outcome)


def run(
    call: Callable[[], Outcome[Any]], must_repeat: Callable[[Outcome[Any]], bool] = is_suspect
) -> Outcome[Any]:
    """What `call` gives; where it must repeat, what it gives while no other thread is in here."""
    with _calls.shared():
        outcome = call()
    if not must_repeat(outcome):
        return outcome
    with _calls.alone():
        return call()


def map_all(
    function: SandboxedFunction[..., Any], items: Iterable[Any], num_workers: int | None
) -> Iterator[Outcome[Any]]:
    """An Outcome for each item, in order; the suspect ones again while no other of them runs."""
    target = function._resolved()
    plan = Plan(
        num_workers,
        True,
        1,
        "outcome",
        2,
        function._options.pool.max_cells,
        once_more_alone=is_suspect,
    )
    return run_map(plan, ((item,) for item in items), runner_for(target, echo=False))


class _Calls:
    """Calls of several threads: many at once, or one alone, before which no other begins."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._alone = 0  # that run, or wait for the others to end

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._alone == 0)
            self._running += 1
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._alone += 1
            try:
                self._changed.wait_for(lambda: self._running == 0)
            except BaseException:
                self._alone -= 1
                self._changed.notify_all()
                raise
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._alone -= 1
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()


_calls = _Calls()


def _after_fork() -> None:
    global _calls
    _calls = _Calls()


os.register_at_fork(after_in_child=_after_fork)
