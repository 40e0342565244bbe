# SPDX-License-Identifier: Apache-2.0
"""`Session.history`: what ran in a session, in the memory of the process that made it (of a named
session also in its storage: hutch/_saved_history.py).

Sources, names of errors and sizes may come from a hostile cell: they are cut, and what the cell
itself starts, by its tools, cannot push out what its caller started. Read on any thread, written on
that of the call.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hutch._errors import SandboxError
from hutch._strict_json import parsed
from hutch._text import MOST_TEXT, brief_repr, escape, one_line, shortened

if TYPE_CHECKING:
    from hutch._outcome import Outcome

MOST_SOURCE = 16 << 10  # bytes
MOST_JSON = 8 << 20  # bytes that outlast the process, with a named session
MOST_KEPT = 1000  # entries of each kind: of the caller, and within its calls
_MOST_NAME = 200  # characters
_MOST_SHOWN = 20  # arguments by name of a tool
_FAR = 1 << 53  # each number is below
Note = dict[str, Any]  # the fields of an entry that can still change; its source is bytes


@dataclass(frozen=True)
class HistoryEntry:
    """One exec, command, call, call of a tool, or install.

    `id`: 1, 2, … in the order in which they began. `within`: the id of the one that it is part of:
    of a tool, the code that called it; of an exec, the tool that made it; None: the caller's own.
    `kind`: "exec", "bash", "command", "node", "call", "tool" or "install". `start`, `end`: seconds
    since 1970; None: it has not ended. `source`: the text, of a command its words as a shell takes
    them, of a call the function's name, of a tool its name and arguments as text, of an install
    what was asked for, up to 16 KiB of `source_size` bytes (of a tool: as they were sent).
    `status`: as of an Outcome, or "running"; of a tool or an install "returned" or "raised". One
    that ran when its process was killed: "fault", without an end.
    `error`: the type of its error, else "".
    `exit_code`: of a command, or an interpreter that ended by itself. `stdout_size`, `stderr_size`,
    `result_size`: bytes. `call_id`: that of the Outcome. `restarted`: whether the interpreter had
    ended. What comes from the sandbox may be anything.
    """

    id: int
    within: int | None
    kind: str
    start: float
    end: float | None
    source: str
    source_size: int
    status: str
    error: str
    exit_code: int | None
    stdout_size: int
    stderr_size: int
    result_size: int
    call_id: str
    restarted: bool

    def to_dict(self) -> dict[str, Any]:
        """All its fields, for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        parts = [f"{self.id} {self.kind}", " ".join((self.status, self.error)).rstrip()]
        if self.end is not None:
            parts.append(f"{self.end - self.start:.3g} s")
        source = shortened(one_line(self.source[:MOST_TEXT]), 80)
        return escape(f"<HistoryEntry {', '.join(parts)}: {source}>")

    __str__ = __repr__


HistoryEntry.__module__ = "hutch"


_OF_CALLS = ("exec", "bash", "command", "node", "call", "tool", "install")
_NONE = type(None)
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "source_size", "stdout_size", "stderr_size", "result_size"), (int,)),
    **dict.fromkeys(("kind", "source", "status", "error", "call_id"), (str,)),
    **dict.fromkeys(("within", "exit_code"), (int, _NONE)),
    "start": (float,),
    "end": (float, _NONE),
    "restarted": (bool,),
}


class History:
    """Of one session. `open`: what runs, the innermost last."""

    def __init__(self) -> None:
        self.open: list[Note] = []
        self._numbers = itertools.count(1)
        self._own: deque[Note] = deque(maxlen=MOST_KEPT)
        self._inner: deque[Note] = deque(maxlen=MOST_KEPT)
        self._lock = threading.Lock()

    def begin(
        self,
        kind: str,
        source: bytes,
        size: int | None = None,
        beside: bool = False,
        of: Note | None = None,
    ) -> Note | None:
        """None of what has no entry, as the reading of a name. `size`: of the source as sent.
        `of`: what it is part of, by default the innermost of what runs. `beside`: it is no part of
        what runs, but of `of`, if any, and nothing is part of it.
        """
        if kind not in _OF_CALLS:
            return None
        if not beside and of is None:
            of = self.open[-1] if self.open else None
        within = None if of is None else of["id"]
        note: Note = {
            "id": next(self._numbers),
            "within": within,
            "kind": kind,
            "start": time.time(),
            "end": None,
            "source": source[:MOST_SOURCE],
            "source_size": len(source) if size is None else size,
            "status": "running",
            "error": "",
            "exit_code": None,
            "stdout_size": 0,
            "stderr_size": 0,
            "result_size": 0,
            "call_id": "",
            "restarted": False,
        }
        with self._lock:
            (self._own if within is None else self._inner).append(note)
        if not beside:
            self.open.append(note)
        return note

    def end(self, note: Note | None, outcome: Outcome[Any], result_size: int) -> None:
        if note is None:
            return
        error = outcome.error
        with self._lock:
            note.update(
                status=outcome.status,
                end=time.time(),
                error="" if error is None else error.type[:_MOST_NAME],
                exit_code=outcome.exit_code,
                stdout_size=outcome.stdout_size,
                stderr_size=outcome.stderr_size,
                result_size=result_size,
                call_id=outcome.call_id,
                restarted=outcome.restarted,
            )
        if note in self.open:
            self.open.remove(note)
        self._keep(note)

    def finish(self, note: Note | None, status: str, error: str = "", result_size: int = 0) -> None:
        """Of what has no Outcome. Nothing happens the second time."""
        if note is None or note["end"] is not None:
            return
        self._close(note, status, error, result_size)
        if note in self.open:
            self.open.remove(note)

    def _close(self, note: Note, status: str, error: str = "", result_size: int = 0) -> None:
        with self._lock:
            note.update(
                status=status, end=time.time(), error=error[:_MOST_NAME], result_size=result_size
            )
        self._keep(note)

    def _keep(self, note: Note) -> None:
        """Once it has ended."""

    def fail(self, note: Note | None, error: BaseException) -> None:
        """Of a call that has no Outcome."""
        outcome = error.outcome if isinstance(error, SandboxError) else None
        status = "cancelled" if outcome is None else outcome.status
        self.finish(note, status, type(error).__name__)

    @contextmanager
    def of_nested(
        self, verb: str, source: bytes, of: Note | None
    ) -> Iterator[Callable[[Outcome[Any], int], None]]:
        """A call within the tool `of`; it is given the Outcome, and the size of the reply."""
        note = self.begin(verb, source, of=of)
        try:
            yield lambda outcome, size: self.end(note, outcome, size)
        except BaseException as error:
            self.fail(note, error)
            raise

    @contextmanager
    def of_tool(
        self, name: Any, args: Any, kwargs: Any, size: int, of: Note | None = None
    ) -> Iterator[Callable[..., None]]:
        """Called by the code `of`. It is given how the tool ended, as `finish` is."""
        note = self.begin("tool", _shown(name, args, kwargs), size, of=of)
        try:
            yield lambda *how: self.finish(note, *how)
        except BaseException as error:
            self.finish(note, "raised", type(error).__name__)
            raise

    def to_json(self) -> bytes:
        """The last entries that take no more than MOST_JSON."""
        kept: list[str] = []
        room = MOST_JSON
        for entry in reversed(self.entries(2 * MOST_KEPT)):
            text = json.dumps(entry.to_dict())
            room -= len(text) + 1
            if room < 0:
                break
            kept.append(text)
        return json_of(reversed(kept))

    def take(self, data: bytes) -> None:
        """What to_json() gave: entries take the place of those with the same id, and ones that
        begin later come after these. Raises ValueError.
        """
        found = parsed(data).get("entries")
        if type(found) is not list:
            raise ValueError("has no entries")
        notes = {note["id"]: note for note in (*self._own, *self._inner)}
        for fields in found:
            if type(fields) is not dict or fields.keys() != _KINDS.keys():
                raise ValueError("has entries of other fields than there are")
            if not all(type(fields[name]) in kinds for name, kinds in _KINDS.items()):
                raise ValueError("has fields of other types than these have")
            if not all(_can_be(one) for name, one in fields.items() if name != "source"):
                raise ValueError("has fields that are too large")
            source = fields["source"].encode("utf-8", "replace")[:MOST_SOURCE]
            notes[fields["id"]] = {**fields, "source": source}
        self._own.clear()
        self._inner.clear()
        for _, note in sorted(notes.items()):
            (self._own if note["within"] is None else self._inner).append(note)
        self._numbers = itertools.count(max(notes, default=0) + 1)

    def give_up_running(self) -> None:
        """Of a process that is gone, which did not tell their end."""
        for note in (*self._own, *self._inner):
            if note["end"] is None:
                note["status"] = "fault"

    @contextmanager
    def of_install(self, wanted: str) -> Iterator[None]:
        note = self.begin("install", wanted.encode())
        assert note is not None
        self.open.remove(note)  # the calls that it makes are not entries
        try:
            yield
        except BaseException as error:
            self._close(note, "raised", type(error).__name__)
            raise
        self._close(note, "returned")

    def entries(self, limit: int) -> list[HistoryEntry]:
        """The last `limit`, in the order in which they began."""
        if not isinstance(limit, int) or isinstance(limit, bool):
            raise TypeError(f"limit= is a number of entries, not {type(limit).__name__}")
        if limit < 0:
            raise ValueError(f"limit={limit} is below 0")
        with self._lock:
            notes = sorted([*self._own, *self._inner], key=lambda note: int(note["id"]))
            return [entry_of(note) for note in notes[len(notes) - min(limit, len(notes)) :]]


def entry_of(note: Note) -> HistoryEntry:
    return HistoryEntry(**{**note, "source": note["source"].decode("utf-8", "replace")})


def json_of(entries: Iterable[str]) -> bytes:
    """Each of them as JSON."""
    return f'{{"entries":[{",".join(entries)}]}}'.encode()


def _can_be(value: Any) -> bool:
    """So that it can be written again, and read."""
    if isinstance(value, (int, float)):
        return -_FAR < value < _FAR
    return type(value) is not str or len(value) <= _MOST_NAME


def _shown(name: Any, args: Any, kwargs: Any) -> bytes:
    """A call of a tool as text. Each part may be anything, and of any size."""
    text = name[:100] if type(name) is str else brief_repr(name)
    inner = [brief_repr(args)[1:-1] if type(args) is list else brief_repr(args)]
    if type(kwargs) is dict:
        for key in list(kwargs)[:_MOST_SHOWN]:
            shown = key[:100] if type(key) is str else brief_repr(key)
            inner.append(f"{shown}={brief_repr(kwargs[key])}")
        if len(kwargs) > _MOST_SHOWN:
            inner.append("…")
    return f"{text}({', '.join(filter(None, inner))})".encode("utf-8", "replace")
