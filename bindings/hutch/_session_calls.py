# SPDX-License-Identifier: Apache-2.0
"""How a session makes its calls: one at a time, in the process that made it, and within one those
that its tools make. What is awaited in an AsyncSession is overridden there.
"""

from __future__ import annotations

import contextlib
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
from hutch._session_commands import CommandCalls
from hutch._session_contents import BeginsAs, Contents
from hutch._session_files import SessionFiles
from hutch._session_options import WRITABLE, is_below
from hutch._session_refusals import AGENT_GONE, limit_within, too_deep
from hutch._session_snapshots import Place, Snapshots
from hutch._session_turn import Turn

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


class SessionCalls(CommandCalls):
    """`files`: put there before the first call. `idle_ms`: 0 is for ever."""

    _talks: type[Dialogue] = Dialogue
    _awaits = False  # whether tools may be async

    def __init__(
        self,
        options: Options,
        files: Mapping[str, Any],
        cwd: str,
        idle_ms: int,
        callbacks: Callbacks,
        begins_as: BeginsAs,
    ) -> None:
        super().__init__()
        named = self._named = begins_as.named
        self.id = uuid.uuid4().hex if named is None else named.id
        # The names that were lost at the last restart, or, of a named one, since it was saved.
        self.lost: list[str] = [] if named is None else named.lost
        self._cwd = cwd
        self._options = options
        self._callbacks = callbacks
        self._kept = Kept() if named is None else Kept(named.kv, named.history)
        self.kv = self._kept.kv
        self._usual = SessionTarget(options)  # of a call without limits of its own
        self._cell = SessionCell(self.id, idle_ms)
        self._turn = Turn(self._cell)
        self._beside = Beside()
        self._begins_files = False
        python = ".".join(self._usual.python_version().split(".")[:2])
        is_mounted = not is_below(cwd, WRITABLE)
        place = Place(python, is_mounted, options.disk_mb, options.memory_mb)
        self.files, snapshots = self._made_files(place)
        parts = (self.files, snapshots)
        self._contents = Contents(begins_as, files, parts, is_mounted, self._cell, options)
        self._talk: Dialogue | None = None  # of the call that runs
        self._ended_children: list[int] = []  # of which the code is not informed yet

    @property
    def left_out(self) -> dict[str, str]:
        """What the last snapshot does not have, by name, with why."""
        return self._contents.left_out

    def _made_files(self, place: Place) -> tuple[SessionFiles, Snapshots]:
        most = self._usual.terms.result_bytes
        files = SessionFiles(self._call_of_parts, self._verb_within, most, place.files_mb)
        return files, Snapshots(self._call_of_parts, self._verb_within, place, files.part)

    def _require(self) -> None:
        pass  # its turn does

    def _do(self, finish: Callable[[Outcome[Any]], T], operation: Operation) -> T:
        """Of the session itself or of a child of it."""
        talk = self._talk
        if talk is not None and talk.waits_here():
            return finish(at_once(self._send_nested(talk, operation)))
        with self._turn:
            outcome = self._send(operation)
        return finish(outcome)

    @contextlib.contextmanager
    def _call_of_parts(self) -> Iterator[None]:
        """Within the call that waits for a tool, or by itself."""
        if self._talk is not None and self._talk.waits_here():
            yield
            return
        with self._turn:
            yield

    def _verb_within(self, verb: str, *args: Any) -> Any:
        """Within a _call_of_parts()."""
        talk = self._talk
        if talk is not None and talk.waits_here():
            nested = Operation(self, verb, args=args)
            return at_once(self._send_nested(talk, nested)).unwrap()
        limits = self._limits_of_save() if verb == "state.take" else {}
        return self._send(Operation(self, verb, args=args, limits=limits)).unwrap()

    def _limits_of_save(self) -> Mapping[str, Any]:
        """What pickles a named session runs its code, which nobody waits for."""
        usual = self._options.timeout_sec
        if self._named is None or not self._named.is_quiet:
            return {}
        return {} if usual is not None and usual <= _SAVE_SEC else {"timeout_sec": _SAVE_SEC}

    def _target(self, limits: Mapping[str, Any]) -> SessionTarget:
        if not limits:
            return self._usual
        require_of_a_call(limits)
        return SessionTarget(self._options.changed(limits))

    def _send(self, operation: Operation) -> Outcome[Any]:
        """The Outcome's value is what the verb gave."""
        begun = time.monotonic()
        restarted = self._settle()
        target = self._checked(operation)
        if self._contents.is_new:
            self._begin_files()
        call = self._call_of(begun, operation, target)
        return self._outcome_of(call, self._answer_to(call), restarted)

    def _settle(self) -> bool:
        """Before a call: whether the interpreter has ended since the last one."""
        core = self._cell.core
        if core is None or not core.started:
            return False
        core.settle()
        return self._note_end()

    def _checked(self, operation: Operation) -> Target:
        """The target of a call that may be made."""
        self._contents.execs += operation.verb == "exec"
        if operation.of is not self:
            operation.of._require()
        target = operation.target or self._target(operation.limits)
        target.lost = self.lost
        return target

    def _call_of(self, begun: float, operation: Operation, target: Target) -> SessionCall:
        if self._named is not None and operation.verb not in READING:
            self._named.touch()
        streams = streams_of(target.options, echo=False)
        runs_code = operation.verb in RUNNING
        talk = self._talks(self._callbacks, kept=self._kept, runs_code=runs_code)
        feed: Feed | None = None if streams is None else streams.feed
        if self._callbacks.tools or self._callbacks.on_input is not None:
            feed = talk.feeding(feed)
        fields = self._fields_of_call(operation, target)
        heard = (talk, streams, feed, begun, self._kept.history)
        return SessionCall(operation, target, fields, *heard)

    def _outcome_of(
        self, call: SessionCall, result: _core.CallResult, restarted: bool
    ) -> Outcome[Any]:
        # One that was interrupted may not have come so far: the next one says it again.
        if result.status in ("returned", "raised", "unencodable"):
            self._cell.has_begun = True
            del self._ended_children[: len(call.fields.get("ended", ()))]  # it knows these
        if call.streams is not None:
            call.streams.finish()
        assert self._cell.pool is not None
        done = call.operation
        outcome = outcome_of(call.target, result, self._cell.pool, done.args, done.kwargs)
        take_names(outcome, done.of)
        if call.target.conclude is not None:
            call.target.conclude(outcome)
        if self._named is not None:
            self._named.note(self._known_names)
        tell_of_its_end(outcome)
        outcome.display = call.talk.displayed
        outcome.restarted = self._note_end() or restarted or outcome.restarted
        self._kept.history.end(call.note, outcome, result.result_size)
        if call.talk.raised is not None:
            raise call.talk.raised
        return outcome

    def _fields_of_call(self, operation: Operation, target: Target) -> dict[str, Any]:
        """With what is new to the code, of which this call informs it."""
        fields = {**self._fields(operation), "keep": True}
        if not self._cell.has_begun:
            tools = self._callbacks.tools
            stubs = [tool.inside(self._awaits) for tool in tools.values()]
            fields["begin"] = (self._cwd, stubs, sorted(self._protected & tools.keys()))
        if self._ended_children:
            fields["ended"] = [*self._ended_children]
        fields["cpu_ms"] = target.terms.cpu_ms
        fields["result_bytes"] = target.terms.result_bytes
        return fields

    def _answer_to(self, call: SessionCall) -> _core.CallResult:
        """Starts the session with the first call. Raises what the call fails by."""
        cell = self._cell

        def first(connection: Connection, pool: PreparedPool) -> _core.CallResult:
            core = cell.new(connection, pool)
            cell.hold(core, pool)
            self._talk = call.talk
            return call.send(core)

        try:
            if cell.core is None or not cell.core.started:
                result = on_pool(self._usual.request, first)
            else:
                self._talk = call.talk
                try:
                    result = call.send(cell.core)
                except _core.Error as error:
                    raise from_core(error) from None
        except BaseException as error:
            self._on_failure(call, error)
            raise
        finally:
            self._talk = None
        return result

    def _on_failure(self, call: SessionCall, error: BaseException) -> None:
        """Notes that a call ended without an Outcome."""
        cell = self._cell
        if isinstance(error, SandboxError):
            call.note_fault(error)
        self._kept.history.fail(call.note, error)
        if not isinstance(error, SandboxError):  # of a callback, or Ctrl-C
            cell.has_begun = False  # perhaps: it is said again
            self._note_end()
            return
        if isinstance(error, AgentUnavailable) and cell.core is not None and cell.core.over:
            cell.closed = cell.closed or AGENT_GONE
        self._note_end()

    def _fields(self, operation: Operation) -> dict[str, Any]:
        verb, space = operation.verb, operation.of._space
        return {"mode": "session", "verb": verb, "number": self._contents.execs, "space": space}

    async def _send_nested(self, talk: Dialogue, operation: Operation) -> Outcome[Any]:
        """Within the call that runs, whose code waits for a tool."""
        if operation.limits:
            raise limit_within(next(iter(operation.limits)))
        self._contents.execs += operation.verb == "exec"
        target = operation.target or self._usual
        target.lost = self.lost
        if talk.depth == _DEEPEST:
            raise too_deep(_DEEPEST)
        data, buffers = operation.pickled(target)
        copies = [one if type(one) is bytes else bytearray(one) for one in buffers]
        code, args, kwargs = operation.code.data, operation.args, operation.kwargs
        order = ("run", (self._fields(operation), code, data, copies))
        printed = Printed(target.terms.output_bytes)
        shown = len(talk.displayed)
        with self._kept.history.of_nested(
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

    def _note_end(self) -> bool:
        """Whether the interpreter has ended since it was last asked, and another one is there."""
        if not self._cell.note_end():
            return False
        self._lose_names()
        return self._cell.core is not None and not self._cell.core.over

    def _lose_names(self) -> None:
        self.lost = self._known_names
        self._known_names = []
        self._running = {}

    def _begin_files(self) -> None:
        with self._beginning_files():
            self._put_at_start()

    @contextlib.contextmanager
    def _beginning_files(self) -> Iterator[None]:
        self._begins_files, self._contents.is_new = True, False
        try:
            yield
        except BaseException:
            self._contents.is_new = True  # no code runs without them
            raise
        finally:
            self._begins_files = False

    def _put_at_start(self) -> None:
        self._contents.put_at_start()
        if self._named is not None:
            self._named.begun(self._known_names)

    def _save(self) -> None:
        """Raises SessionBusy where another call runs, and what calls and the storage raise."""
        with self._call_of_parts():
            save = self._contents.taken_to_save(self._known_names)
        save()
