# SPDX-License-Identifier: Apache-2.0
"""One call of a session: what is asked for, its limits, what is sent, and what is heard of it
meanwhile. It is used once, on the thread of its caller.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hutch import _core
from hutch._calls.dialogue import Dialogue, Feed
from hutch._calls.echo import Streams
from hutch._calls.history import History
from hutch._calls.outcomes import note_fault
from hutch._calls.target import Target
from hutch._carry import arguments
from hutch._errors import SandboxError
from hutch._options.checks import nearest, unknown
from hutch._options.keyword_types import OF_A_CALL
from hutch._options.options import ALIASES, FIELDS, INSTEAD, Options
from hutch._outcome import ErrorInfo, Outcome


def require_of_a_call(names: Iterable[str]) -> None:
    """Raises TypeError for what holds for a whole session."""
    for name in names:
        if name in OF_A_CALL:
            continue
        if nearest(name, OF_A_CALL, ALIASES):
            raise TypeError(unknown("keyword", name, OF_A_CALL, ALIASES))
        if name not in FIELDS and (name in INSTEAD or nearest(name, FIELDS, ALIASES)):
            raise TypeError(unknown("keyword", name, FIELDS, ALIASES, INSTEAD))
        raise TypeError(
            f"{name}= cannot be given for one call of a session: {', '.join(OF_A_CALL)} can; "
            "all others hold for the session"
        )


class SessionTarget(Target):
    """A call of a session, with its limits."""

    is_session = True
    runs_node = True

    def __init__(self, options: Options) -> None:
        super().__init__("the session's code", options, "")

    def with_keywords(self, keywords: str) -> str:
        if keywords.partition("=")[0] in OF_A_CALL:
            return f"exec(…, {keywords})"
        return f"Session({keywords})"


NO_CODE = _core.Function(b"")


class Space:
    """Whose names a call uses: those of the session, or of a child of it, as the host knows them.
    `number`: that inside; 0 is the session's own. `known`: its names, as last heard of.
    `protected`: those that `protect()` was given.
    """

    def __init__(self, number: int = 0, known: Iterable[str] = ()) -> None:
        self.number = number
        self.known: list[str] = [*known]
        self.protected: set[str] = set()

    def require(self) -> None:
        """Raises where it has ended; the session's own does so with the session."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a session's process is asked to do, in the names of `of`. `target`: what is called, with
    its limits; None: what `limits` say.
    """

    of: Space
    verb: str
    code: _core.Function = NO_CODE
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    target: Target | None = None

    def pickled(self, target: Target) -> tuple[bytes, list[Any]]:
        """Its arguments, and their buffers."""
        if not self.args and not self.kwargs and self.verb != "program":
            return arguments.NONE, []
        return target.pickle(self.args, self.kwargs)

    def source(self, target: Target) -> bytes:
        """What the history has of it."""
        if self.verb == "call":
            return target.identity.encode("utf-8", "replace")
        return self.code.data


# As _core.Session.call() takes them, up to the terms.
Parts: TypeAlias = tuple[bytes, _core.Function, bytes, Sequence[Any], _core.Terms]


class SessionCall:
    """`fields`: what the code is given of the call. `feed`: gets what it prints, as `streams` does,
    if any. `begun`: when its caller asked for it, by time.monotonic. `note`: its entry in the
    history, if it has one.
    """

    def __init__(
        self,
        operation: Operation,
        target: Target,
        fields: dict[str, Any],
        talk: Dialogue,
        streams: Streams | None,
        feed: Feed | None,
        begun: float,
        history: History,
    ) -> None:
        self.operation = operation
        self.target = target
        self.talk = talk
        self.streams = streams
        self.feed = feed
        self.cancel: _core.Cancel | None = None  # of its thread, by another one
        self._data, self._buffers = operation.pickled(target)
        self.fields = fields
        self._begun = begun
        self._pickled = time.monotonic()
        self._known: float | None = None  # since when the pool is prepared
        history.open.clear()  # those whose end was never reported
        self.note = history.begin(operation.verb, operation.source(target))

    def send(self, core: _core.Session) -> _core.CallResult:
        """Waits for the reply."""
        parts, begun = self.parts()
        self.talk.exchange = core.exchange
        return self.timed(core.call(*parts, self.cancel, self.feed, begun, self.talk.answer))

    def parts(self) -> tuple[Parts, float]:
        """What is sent, now that the pool is prepared, and since when its time counts."""
        self._known = time.monotonic()
        meta = pickle.dumps(self.fields, 5)
        sent = (meta, self.operation.code, self._data, self._buffers, self.target.terms)
        return sent, self._begun + (self._known - self._pickled)

    def timed(self, result: _core.CallResult) -> _core.CallResult:
        if self._known is not None:
            result.environment_sec = self._known - self._pickled
        return result

    def note_fault(self, error: SandboxError) -> None:
        note_fault(error, self._begun, self._pickled, self._known)


def tell_of_its_end(outcome: Outcome[Any]) -> None:
    """As its error, where the code could not: who shows errors to a model shows this one, too."""
    if outcome.status not in ("limit", "died"):
        return
    failure, error = outcome.exception(), outcome.error
    if error is None:
        outcome.error = ErrorInfo(type(failure).__name__, failure.message, hint=failure.hint)
    else:
        error.hint = error.hint or failure.hint


def take_names(outcome: Outcome[Any], of: Space) -> None:
    """What the code returned stands in a pair with the names that there are now, or None."""
    if outcome.ok:
        outcome.value, names = _pair(outcome.value)
        of.known = of.known if names is None else names


def _pair(value: Any) -> tuple[Any, list[str] | None]:
    """The reply of a session is this; a hostile one may be anything."""
    if type(value) is not tuple or len(value) != 2:
        return value, None
    names = value[1]
    if type(names) is not list or not all(type(name) is str for name in names):
        return value[0], None
    return value[0], names
