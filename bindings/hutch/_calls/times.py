# SPDX-License-Identifier: Apache-2.0
"""When a call was begun, pickled and its pool prepared."""

from __future__ import annotations

import time

from hutch import _core
from hutch._calls.outcomes import note_fault
from hutch._connect.connection import PreparedPool
from hutch._errors import SandboxError


class Times:
    """`asked`: when the caller asked for it, where that was earlier. `begun`: when the pickling
    began. `pickled`: when it was over. All by time.monotonic.
    """

    def __init__(self, begun: float, asked: float | None) -> None:
        self.begun = begun
        self.asked = asked
        self.pickled = time.monotonic()
        self.known: float | None = None  # since when the pool is prepared

    def sending(self) -> float:
        """The pool is prepared. Gives since when the sending counts."""
        self.known = time.monotonic()
        return self.begun + (self.known - self.pickled)

    def note(self, result: _core.CallResult, pool: PreparedPool) -> _core.CallResult:
        assert self.known is not None
        environment = self.known - self.pickled
        # If this call waited for the preparation: its part that started the first worker.
        worker = pool.worker_sec if environment > pool.worker_sec else 0.0
        result.environment_sec = environment - worker
        result.worker_sec = worker
        if self.asked is not None:
            result.queued_sec = self.begun - self.asked
        return result

    def note_fault(self, error: SandboxError) -> None:
        note_fault(error, self.begun, self.pickled, self.known, self.asked)
