# SPDX-License-Identifier: Apache-2.0
"""One call of a session: its limits, what is sent, and what is heard of it meanwhile. It is used
once, on the thread of its caller.
"""

from __future__ import annotations

import pickle
import time
from typing import Any

from hutch import _core
from hutch._calls.dialogue import Dialogue, Feed
from hutch._calls.outcomes import note_fault
from hutch._calls.target import Target
from hutch._errors import SandboxError
from hutch._options.options import Options


class SessionTarget(Target):
    """A call of a session, with its limits."""

    def __init__(self, options: Options) -> None:
        super().__init__("the session's code", options, "")


class SessionCall:
    """`pickled`: the arguments, and their buffers. `fields`: what the code is told of the call.
    `feed`: gets what it prints. `begun`: when its caller asked for it, by time.monotonic.
    """

    def __init__(
        self,
        target: Target,
        code: _core.Function,
        pickled: tuple[bytes, list[Any]],
        fields: dict[str, Any],
        talk: Dialogue,
        feed: Feed | None,
        begun: float,
    ) -> None:
        self.talk = talk
        self._target = target
        self._code = code
        self._data, self._buffers = pickled
        self._fields = fields
        self._feed = feed
        self._begun = begun
        self._pickled = time.monotonic()
        self._known: float | None = None  # since when the pool is prepared

    def send(self, core: _core.Session) -> _core.CallResult:
        """Waits for the reply."""
        self._known = time.monotonic()
        self.talk.exchange = core.exchange
        environment = self._known - self._pickled
        result = core.call(
            pickle.dumps(self._fields, 5),
            self._code,
            self._data,
            self._buffers,
            self._target.terms,
            None,
            self._feed,
            self._begun + environment,
            self.talk.answer,
        )
        result.environment_sec = environment
        return result

    def note_fault(self, error: SandboxError) -> None:
        note_fault(error, self._begun, self._pickled, self._known)
