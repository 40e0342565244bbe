# SPDX-License-Identifier: Apache-2.0
"""How a session makes its calls: one at a time, in the process that made it, and within one those
that its tools make. What users hold is made on it (_session.py); for an AsyncSession it is
overridden (_awaited_engine.py).
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from hutch import _core
from hutch._calls.dialogue import Callbacks, Dialogue, Feed
from hutch._calls.echo import streams_of
from hutch._calls.kept import Kept
from hutch._calls.loops import at_once
from hutch._calls.nested import Reply, outcome_of as outcome_of_nested
from hutch._calls.outcomes import outcome_of
from hutch._calls.printed import Printed
from hutch._calls.session_call import (
    Operation,
    SessionCall,
    SessionTarget,
    Space,
    require_of_a_call,
    take_names,
    tell_of_its_end,
)
from hutch._calls.target import Target
from hutch._connect.connection import Connection, PreparedPool, on_pool
from hutch._errors import AgentUnavailable, SandboxError
from hutch._faults import from_core
from hutch._options.options import Options
from hutch._outcome import Outcome
from hutch._session_beside import Beside
from hutch._session_cell import SessionCell
from hutch._session_contents import BeginsAs, Contents
from hutch._session_files import SessionFiles
from hutch._session_options import WRITABLE, is_below
from hutch._session_refusals import AGENT_GONE, limit_within, too_deep
from hutch._session_snapshots import Place, Snapshots
from hutch._session_turn import Surely, Turn

T = TypeVar("T")

_SAVE_SEC = 60.0
_DEEPEST = 16  # calls within one another
# What changes nothing that a named session would have to save.
READING = frozenset(
    "get names complete inspect variables node.shown process.list files.get files.list files.stat "
    "files.tree files.glob files.exists files.realpath".split()
)

# What runs the caller's code. Anything else is answered by what the code may have replaced, and has
# no tools, nor what the session shows or asks for.
RUNNING = frozenset({"exec", "call", "program", "node"})


class Engine:
    """`id`: a named one's own, or one that no other session has. `lost`: the names that were lost
    at the last restart, or, of a named one, since it was saved. `space`: the session's own names.
    `talk`: of the call that runs. `ended_children`: their numbers, until the code is told of them.
    `running`: what start() started and is not known to have ended, by number: its text.
    """

    talks: type[Dialogue] = Dialogue
    awaits = False  # whether its calls are awaited, and tools may be async

    def __init__(
        self,
        options: Options,
        files: Mapping[str, Any],
        cwd: str,
        idle_ms: int,
        callbacks: Callbacks,
        begins_as: BeginsAs,
        queue: bool = False,
    ) -> None:
        """`files`: put there before the first call. `idle_ms`: 0 is for ever. `queue`: a call waits
        while another one runs.
        """
        named = self.named = begins_as.named
        self.id = uuid.uuid4().hex if named is None else named.id
        self.lost: list[str] = [] if named is None else named.lost
        self.space = Space()
        self.cwd = cwd
        self.options = options
        self.callbacks = callbacks
        self.kept = Kept() if named is None else Kept(named.kv, named.history)
        self.usual = SessionTarget(options)  # of a call without limits of its own
        self.cell = SessionCell(self.id, idle_ms)
        self.queues = queue
        self.turn = Turn(self.cell, queue and not self.awaits)  # a loop is not kept waiting
        self.beside = Beside()
        self.begins_files = False
        self.is_notebook = False  # whether lines of IPython's are taken
        python = ".".join(self.usual.python_version().split(".")[:2])
        is_mounted = not is_below(cwd, WRITABLE)
        place = Place(python, is_mounted, options.disk_mb, options.memory_mb)
        self.files, snapshots = self._made_files(place)
        parts = (self.files, snapshots)
        self.contents = Contents(begins_as, files, parts, is_mounted, self.cell, options)
        self.talk: Dialogue | None = None
        self.ended_children: list[int] = []
        self.running: dict[tuple[int, int], str] = {}
        self._children = itertools.count(1)
        self._untold = False  # an interpreter has ended, and no Outcome said so

    def _made_files(self, place: Place) -> tuple[SessionFiles, Snapshots]:
        most = self.usual.terms.result_bytes
        files = SessionFiles(self.call_of_parts, self.verb_within, most, place.files_mb)
        return files, Snapshots(self.call_of_parts, self.verb_within, place, files.part)

    def new_child(self) -> int:
        """The number of a child that is to be made."""
        return next(self._children)

    def do(self, finish: Callable[[Outcome[Any]], T], operation: Operation) -> T:
        """One call, and what `finish` makes of its Outcome, whose value is what the verb gave. That
        of an AsyncSession is to be awaited; nothing else needs to know which it is.
        """
        talk = self.talk
        if talk is not None and talk.waits_here():
            return finish(at_once(self._send_nested(talk, operation)))
        with Surely(self.turn), self.turn:
            outcome = self.send(operation)
            if self._untold:
                self._tell(outcome, operation)
        return finish(outcome)

    @contextlib.contextmanager
    def call_of_parts(self) -> Iterator[None]:
        """Within the call that waits for a tool, or by itself."""
        if self.talk is not None and self.talk.waits_here():
            yield
            return
        with Surely(self.turn), self.turn:
            yield

    def verb_within(self, verb: str, *args: Any) -> Any:
        """Within a call_of_parts()."""
        talk = self.talk
        if talk is not None and talk.waits_here():
            nested = Operation(self.space, verb, args=args)
            return at_once(self._send_nested(talk, nested)).unwrap()
        limits = self._limits_of_save() if verb == "state.take" else {}
        return self.send(Operation(self.space, verb, args=args, limits=limits)).unwrap()

    def _limits_of_save(self) -> Mapping[str, Any]:
        """What pickles a named session runs its code, which nobody waits for."""
        usual = self.options.timeout_sec
        if self.named is None or not self.named.is_quiet:
            return {}
        return {} if usual is not None and usual <= _SAVE_SEC else {"timeout_sec": _SAVE_SEC}

    def target(self, limits: Mapping[str, Any]) -> SessionTarget:
        """Of a call with these limits. Raises TypeError for what is not a limit of a call."""
        if not limits:
            return self.usual
        require_of_a_call(limits)
        return SessionTarget(self.options.changed(limits))

    def send(self, operation: Operation) -> Outcome[Any]:
        """The Outcome's value is what the verb gave."""
        begun = time.monotonic()
        restarted = False
        core = self.cell.core
        if core is not None and core.started:
            core.settle()
            restarted = self.note_end()
        target = self._checked(operation)
        if self.contents.is_new:
            self._begin_files()
        call = self._call_of(begun, operation, target)
        return self._outcome_of(call, self._answer_to(call), restarted)

    def _checked(self, operation: Operation) -> Target:
        """The target of a call that may be made."""
        self.contents.execs += operation.verb == "exec"
        if operation.of is not self.space:
            operation.of.require()
        target = operation.target or self.target(operation.limits)
        target.lost = self.lost
        return target

    def _call_of(self, begun: float, operation: Operation, target: Target) -> SessionCall:
        if self.named is not None and operation.verb not in READING:
            self.named.touch()
        streams = streams_of(target.options, echo=False)
        runs_code = operation.verb in RUNNING
        talk = self.talks(self.callbacks, kept=self.kept, runs_code=runs_code)
        feed: Feed | None = None if streams is None else streams.feed
        if self.callbacks.tools or self.callbacks.on_input is not None:
            feed = talk.feeding(feed)
        fields = self._fields_of_call(operation, target)
        heard = (talk, streams, feed, begun, self.kept.history)
        return SessionCall(operation, target, fields, *heard)

    def _outcome_of(
        self, call: SessionCall, result: _core.CallResult, restarted: bool
    ) -> Outcome[Any]:
        # One that was interrupted may not have come so far: the next one says it again.
        if result.status in ("returned", "raised", "unencodable"):
            self.cell.has_begun = True
            del self.ended_children[: len(call.fields.get("ended", ()))]  # it knows these
        if call.streams is not None:
            call.streams.finish()
        assert self.cell.pool is not None
        done = call.operation
        outcome = outcome_of(call.target, result, self.cell.pool, done.args, done.kwargs)
        take_names(outcome, done.of)
        if call.target.conclude is not None:
            call.target.conclude(outcome)
        if self.named is not None:
            self.named.note(self.space.known)
        tell_of_its_end(outcome)
        outcome.display = call.talk.displayed
        outcome.restarted = self.note_end() or restarted or outcome.restarted
        self.kept.history.end(call.note, outcome, result.result_size)
        if call.talk.raised is not None:
            raise call.talk.raised
        return outcome

    def _fields_of_call(self, operation: Operation, target: Target) -> dict[str, Any]:
        """With what is new to the code, of which this call informs it."""
        fields = {**self._fields(operation), "keep": True}
        if not self.cell.has_begun:
            tools = self.callbacks.tools
            stubs = [tool.inside(self.awaits) for tool in tools.values()]
            fields["begin"] = (self.cwd, stubs, sorted(self.space.protected & tools.keys()))
        if self.ended_children:
            fields["ended"] = [*self.ended_children]
        fields["cpu_ms"] = target.terms.cpu_ms
        fields["result_bytes"] = target.terms.result_bytes
        return fields

    def _answer_to(self, call: SessionCall) -> _core.CallResult:
        """Starts the session with the first call. Raises what the call fails by."""
        cell = self.cell

        def first(connection: Connection, pool: PreparedPool) -> _core.CallResult:
            core = cell.new(connection, pool)
            cell.hold(core, pool)
            self.talk = call.talk
            return call.send(core)

        try:
            if cell.core is None or not cell.core.started:
                result = on_pool(self.usual.request, first)
            else:
                self.talk = call.talk
                try:
                    result = call.send(cell.core)
                except _core.Error as error:
                    raise from_core(error) from None
        except BaseException as error:
            self._on_failure(call, error)
            raise
        finally:
            self.talk = None
        return result

    def _on_failure(self, call: SessionCall, error: BaseException) -> None:
        """Notes that a call ended without an Outcome."""
        cell = self.cell
        if isinstance(error, SandboxError):
            call.note_fault(error)
        self.kept.history.fail(call.note, error)
        if not isinstance(error, SandboxError):  # of a callback, or Ctrl-C
            cell.has_begun = False  # perhaps: it is said again
            self.note_end()
            return
        if isinstance(error, AgentUnavailable) and cell.core is not None and cell.core.over:
            cell.closed = cell.closed or AGENT_GONE
        self.note_end()

    def _fields(self, operation: Operation) -> dict[str, Any]:
        verb, space = operation.verb, operation.of.number
        fields = {"mode": "session", "verb": verb, "number": self.contents.execs, "space": space}
        if self.is_notebook:
            fields["notebook"] = True
        return fields

    async def _send_nested(self, talk: Dialogue, operation: Operation) -> Outcome[Any]:
        """Within the call that runs, whose code waits for a tool."""
        operation.of.require()
        if operation.limits:
            raise limit_within(next(iter(operation.limits)))
        self.contents.execs += operation.verb == "exec"
        target = operation.target or self.usual
        target.lost = self.lost
        if talk.depth == _DEEPEST:
            raise too_deep(_DEEPEST)
        data, buffers = operation.pickled(target)
        copies = [one if type(one) is bytes else bytearray(one) for one in buffers]
        code, args, kwargs = operation.code.data, operation.args, operation.kwargs
        order = ("run", (self._fields(operation), code, data, copies))
        printed = Printed(target.terms.output_bytes)
        shown = len(talk.displayed)
        with self.kept.history.of_nested(
            operation.verb, operation.source(target), talk.entry
        ) as end:
            reply = Reply(await talk.nested(pickle.dumps(order, 5), printed))
            display = talk.displayed[shown:]
            outcome = outcome_of_nested(target, reply, args, kwargs, printed, display)
            take_names(outcome, operation.of)
            if target.conclude is not None:
                target.conclude(outcome)
            end(outcome, len(reply.payload or b""))
        return outcome

    def note_end(self) -> bool:
        """Whether the interpreter has ended since it was last asked, and another one is there."""
        if not self.cell.note_end():
            return False
        self.lose_names()
        is_there = self.cell.core is not None and not self.cell.core.over
        self._untold = self._untold or is_there
        return is_there

    def told(self, restarted: bool) -> bool:
        """What an Outcome that somebody gets says of that: also what nobody got the Outcome of, as
        where its caller was cancelled.
        """
        restarted, self._untold = restarted or self._untold, False
        return restarted

    def _tell(self, outcome: Outcome[Any], operation: Operation) -> None:
        is_got = operation.verb == "exec" or not outcome.ok  # as that of an exception
        if is_got and self.talk is None:  # and not within another call
            outcome.restarted = self.told(outcome.restarted)

    def end_names(self) -> None:
        """Others have taken their place: children and programs of before are no more."""
        self.cell.names += 1
        self.running = {}

    def lose_names(self) -> None:
        self.lost = self.space.known
        self.space.known = []
        self.running = {}

    def _begin_files(self) -> None:
        with self._beginning_files():
            self._put_at_start()

    @contextlib.contextmanager
    def _beginning_files(self) -> Iterator[None]:
        self.begins_files, self.contents.is_new = True, False
        try:
            yield
        except BaseException:
            self.contents.is_new = True  # no code runs without them
            raise
        finally:
            self.begins_files = False

    def _put_at_start(self) -> None:
        self.contents.put_at_start()
        if self.named is not None:
            self.named.begun(self.space.known)
