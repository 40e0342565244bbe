# SPDX-License-Identifier: Apache-2.0
"""`Session`: a cell that stays, with its names and its files, for one piece of code after another.

One call at a time: a second one at once is refused (SessionBusy). A session belongs to the process
that made it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from hutch import _core
from hutch._calls.dialogue import Dialogue, Feed
from hutch._calls.echo import streams_of
from hutch._calls.nested import Printed, Reply, outcome_of as outcome_of_nested
from hutch._calls.outcomes import outcome_of
from hutch._calls.session_call import SessionCall, SessionTarget
from hutch._calls.target import Target
from hutch._carry import arguments
from hutch._connect.connection import Connection, PreparedPool, milliseconds, on_pool
from hutch._errors import AgentUnavailable, SandboxError, SandboxStartupError, SessionBusy
from hutch._faults import from_core
from hutch._namespace import Namespace
from hutch._options.checks import _optional_sec, _text, quoted
from hutch._options.keywords import with_keywords
from hutch._options.options import NORMAL
from hutch._outcome import Outcome
from hutch._session_files import SessionFiles, entries_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hutch._options.keywords import Keywords

# What may be given for one call; everything else holds for the session.
OF_A_CALL = (
    "timeout_sec",
    "cpu_sec",
    "queue_sec",
    "output_mb",
    "result_mb",
    "echo",
    "on_stdout",
    "on_stderr",
)
WRITABLE = ("/work", "/tmp")
_NO_CODE = _core.Function(b"")
_DEEPEST = 16  # calls within one another
_ISOLATION = (
    'a session takes "cell", "container" or "gvisor": "shared" keeps no two of its calls apart'
)


def busy() -> SessionBusy:
    return SessionBusy(
        "the session is running another call",
        hint="wait for it, or use a second session",
        may_have_run=False,
    )


class Session(Namespace):
    """Runs code in one sandbox whose names and files last from one call to the next.

    `files`: put there at the start, by path: str, bytes, or the path of a file or directory of the
    host as a `pathlib.Path`. `cwd`: the working directory inside, to which relative paths refer.
    `idle_sec`: a session that is not used for so long (default 600 s) is ended; None: never.
    `tools`: functions of the host that its code may call, or `Tool`s. Their time counts in
    `timeout_sec`, unless `tool_time="excluded"`. `on_input(prompt)` answers
    `input()`, which otherwise raises EOFError. `on_display(forms)` gets what is shown, as it comes;
    `outcome.display` has it all.
    `keywords`: those of `@sandbox`. `timeout_sec`, `cpu_sec`, `output_mb` and `result_mb` hold for
    each call, the others for the session. Nothing is started before the first call.

    A call that hits a limit, or crashes, ends the interpreter: its names are lost (`lost`), files
    stay, and the next call finds a fresh interpreter (`outcome.restarted`).

    Raises ValueError or TypeError for a wrong keyword.

        with Session(files={"data.csv": "a,b\\n1,2\\n"}) as s:
            s.exec("import csv; rows = list(csv.DictReader(open('data.csv')))")
            assert s.exec("rows[0]['b']").value == "2"
    """

    _awaits = False  # whether tools may be async

    def __init__(
        self,
        *,
        files: Mapping[str, Any] | None = None,
        cwd: str = "/work",
        idle_sec: float | None = 600.0,
        tool_time: Literal["included", "excluded"] = "included",
        on_input: Callable[[str], str] | None = None,
        on_display: Callable[[dict[str, Any]], object] | None = None,
        **keywords: Unpack[Keywords],
    ) -> None:
        super().__init__()
        options = with_keywords(NORMAL, keywords)
        if options.isolation == "shared":
            raise ValueError(f"isolation={quoted(options.isolation)}: {_ISOLATION}")
        if tool_time not in ("included", "excluded"):
            raise ValueError(f'tool_time={quoted(tool_time)}: it is "included" or "excluded"')
        if options.key is not None:
            raise ValueError("key= is for functions: a session's calls are never repeated")
        _text("cwd", cwd)
        inside = {*WRITABLE, *(place for place, mount in options.mounts if mount.writable)}
        if "\0" in cwd or not any(cwd == one or cwd.startswith(one + "/") for one in inside):
            raise ValueError(
                f"cwd={quoted(cwd)}: it is a path inside that may be written to, in "
                f"{' or '.join(sorted(inside))}"
            )
        if files is not None and not isinstance(files, Mapping):
            raise TypeError(
                f"files= takes a dict of paths and contents, not {type(files).__name__}"
            )
        idle = _optional_sec("idle_sec", idle_sec)
        self.id = uuid.uuid4().hex
        self.lost: list[str] = []  # the names that were lost at the last restart
        self._initial = entries_of(files or {})
        self._is_new = True  # its files are still to be put there
        self._is_mounted = not any(cwd == one or cwd.startswith(one + "/") for one in WRITABLE)
        self._cwd = cwd
        self._idle_ms = 0 if idle is None else milliseconds(idle)
        self._tools = {tool.name: tool for tool in options.tools}
        for tool in options.tools:
            if tool.is_async and not self._awaits:
                raise TypeError(
                    f"{tool.name}() cannot be a tool of a Session: its function is async: "
                    "AsyncSession awaits it"
                )
        self._options = options
        self._stops_clock = tool_time == "excluded"
        self._wait_for: Callable[[Any], Any] | None = None  # what runs coroutines of tools
        self._on_input = on_input
        self._on_display = on_display
        self._usual = SessionTarget(options)  # of a call without limits of its own
        most = self._usual.terms.result_bytes
        self.files = SessionFiles(self._files_call, self._files_verb, most)
        self._core: _core.Session | None = None
        self._pool: PreparedPool | None = None
        self._begun = False  # in the present interpreter
        self._interpreter = 0  # its number
        self._talk: Dialogue | None = None  # of the call that runs
        self._protected: set[str] = set()  # tools
        self._child_numbers = itertools.count(1)
        self._ended_children: list[int] = []  # of which the code was not told yet
        self._number = 0
        self._restarts = 0
        self._closed = ""
        self._pid = os.getpid()
        self._busy = threading.Lock()

    def child(self) -> Child:
        return self._make_child(self)

    def protect(self, *names: str) -> None:
        super().protect(*names)
        self._protected.update(name for name in names if name in self._tools)

    def delete(self, name: str) -> None:
        super().delete(name)
        self._protected.discard(name)

    # ---- its life ----

    def interrupt(self) -> None:
        """Has the code that runs raise KeyboardInterrupt, from another thread. Nothing happens
        where none runs.
        """
        core = self._core
        if core is not None and core.started and self._busy.locked():
            core.interrupt()

    def reset(self, files: bool = False) -> None:
        """A fresh interpreter. `files`: with a fresh directory, too, which has the `files` of the
        start.
        """
        with self._one_call():
            if self._core is None:
                return
            if files:
                self._core.close()
                self._core = None
                self._restarts = 0
                self._is_new = True
                self._note_restart()
                return
            if self._core.started and not self._core.restartable:
                raise SandboxStartupError(
                    "this session's interpreter cannot be replaced: its container is its sandbox",
                    hint="reset(files=True) begins anew, without its files",
                    may_have_run=False,
                )
            self._core.restart()
            self._note_end()

    def info(self) -> dict[str, Any]:
        """`id`, `started`, `closed` ("" or why), `restarts`, `execs`, `worker_id`, `cwd`, and
        `restartable`: whether an interpreter that ends is replaced, else its end is the session's
        (None: not started).
        """
        core = self._core
        return {
            "id": self.id,
            "started": core is not None and core.started,
            "closed": self._closed,
            "restarts": 0 if core is None else core.restarts,
            "execs": self._number,
            "worker_id": "" if core is None else core.worker,
            "cwd": self._cwd,
            "restartable": core.restartable if core is not None and core.started else None,
        }

    def close(self) -> None:
        """Ends the session with all that it has. Nothing happens the second time."""
        if not self._closed:
            self._closed = "it was closed"
        if self._pid == os.getpid() and not self._busy.acquire(blocking=False):
            self.interrupt()  # the call that runs closes it at its end
            return
        try:
            self._close_core()
        finally:
            if self._pid == os.getpid():
                self._busy.release()

    def _close_core(self) -> None:
        core, self._core = self._core, None
        if core is None:
            return
        if self._pid != os.getpid():
            core.abandon()
        else:
            core.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        state = self._closed or ("ready" if self._core is not None else "not started")
        return f"<hutch.Session {self.id[:8]}: {state}>"

    # ---- one call ----

    @contextlib.contextmanager
    def _one_call(self) -> Iterator[None]:
        if self._pid != os.getpid():
            raise SandboxStartupError(
                "this session belongs to the parent of this process",
                hint="make another one in the child",
                may_have_run=False,
            )
        if not self._busy.acquire(blocking=False):
            raise busy()
        try:
            if self._closed:
                raise SandboxStartupError(
                    f"the session has ended: {self._closed}",
                    hint="start another one",
                    may_have_run=False,
                )
            yield
        finally:
            if self._closed:
                self._close_core()
            self._busy.release()

    def _do(
        self,
        verb: str,
        code: _core.Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limits: Mapping[str, Any],
        target: Target | None,
    ) -> Outcome[Any]:
        return self._run(self, verb, code, args, kwargs, limits, target)

    def _run(
        self,
        of: Namespace,
        verb: str,
        code: _core.Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limits: Mapping[str, Any],
        target: Target | None,
    ) -> Outcome[Any]:
        """A call in the names of the session or of a child of it."""
        talk = self._talk
        if talk is not None and talk.waits_here():
            if limits:
                raise TypeError(
                    f"{next(iter(limits))}= cannot be given where a tool calls: what runs within "
                    "another call has the limits of that"
                )
            self._number += verb == "exec"
            return self._send_nested(talk, of, verb, code, args, kwargs, target or self._usual)
        with self._one_call():
            self._number += verb == "exec"
            return self._send(verb, code, args, kwargs, limits, target, of)

    def _make_child(self, parent: Session | Child) -> Child:
        number = next(self._child_numbers)
        parent._verb("child", number)
        return Child(parent, self, number)

    @contextlib.contextmanager
    def _files_call(self) -> Iterator[None]:
        """Within the call that waits for a tool, or by itself."""
        if self._talk is not None and self._talk.waits_here():
            yield
            return
        with self._one_call():
            yield

    def _files_verb(self, verb: str, *args: Any) -> Any:
        """Within a _files_call()."""
        talk, verb = self._talk, "files." + verb
        if talk is not None and talk.waits_here():
            return self._send_nested(talk, self, verb, _NO_CODE, args, {}, self._usual).unwrap()
        return self._send(verb, _NO_CODE, args, {}, {}).unwrap()

    def _target(self, limits: Mapping[str, Any]) -> SessionTarget:
        if not limits:
            return self._usual
        for name in limits:
            if name not in OF_A_CALL:
                raise TypeError(
                    f"{name}= cannot be given for one call of a session: "
                    f"{', '.join(OF_A_CALL)} can; what else there is holds for the session"
                )
        return SessionTarget(self._options.changed(limits))

    def _send(
        self,
        verb: str,
        code: _core.Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limits: Mapping[str, Any],
        target: Target | None = None,
        of: Namespace | None = None,
    ) -> Outcome[Any]:
        """The Outcome's value is what the verb gave."""
        begun = time.monotonic()
        of = of or self
        restarted = self._settle()
        if isinstance(of, Child):
            of.require()
        target = target or self._target(limits)
        if self._is_new:
            self._begin_files()
        pickled = _pickled(target, args, kwargs)
        streams = streams_of(target.options, echo=False)
        talk = self._dialogue()
        feed: Feed | None = None if streams is None else streams.feed
        if self._tools or self._on_input is not None:
            feed = talk.feeding(feed)
        fields = self._fields_of_call(verb, of, target)
        call = SessionCall(target, code, pickled, fields, talk, feed, begun)
        result = self._answer_to(call)
        if streams is not None:
            streams.finish()
        assert self._pool is not None
        outcome = outcome_of(target, result, self._pool, args, kwargs)
        _take_names(outcome, of)
        outcome.display = talk.displayed
        outcome.restarted = self._note_end() or restarted
        if talk.raised is not None:
            raise talk.raised
        return outcome

    def _settle(self) -> bool:
        """Before a call: whether the interpreter has ended since the last one."""
        if self._core is None or not self._core.started:
            return False
        self._core.settle()
        return self._note_end()

    def _dialogue(self) -> Dialogue:
        return Dialogue(
            self._tools,
            self._on_input,
            self._on_display,
            self._wait_for,
            stops_clock=self._stops_clock,
        )

    def _fields_of_call(self, verb: str, of: Namespace, target: Target) -> dict[str, Any]:
        """With what the code was not told yet, which this call then tells it."""
        fields = {**self._fields(verb, of), "keep": True}
        if not self._begun:
            stubs = [(one.name, one.stub()) for one in self._tools.values()]
            fields["begin"] = (self._cwd, stubs, sorted(self._protected))
        if self._ended_children:
            fields["ended"] = [self._ended_children.pop() for _ in [*self._ended_children]]
        fields["cpu_ms"] = target.terms.cpu_ms
        fields["result_bytes"] = target.terms.result_bytes
        return fields

    def _answer_to(self, call: SessionCall) -> _core.CallResult:
        """Starts the session with the first call. Raises what the call fails by."""

        def first(connection: Connection, pool: PreparedPool) -> _core.CallResult:
            self._core = connection.client.session(pool.key, self._idle_ms, self.id)
            self._pool = pool
            self._talk = call.talk
            return call.send(self._core)

        try:
            if self._core is None or not self._core.started:
                result = on_pool(self._usual.request, first)
            else:
                self._talk = call.talk
                try:
                    result = call.send(self._core)
                except _core.Error as error:
                    raise from_core(error) from None
        except SandboxError as error:
            if isinstance(error, AgentUnavailable) and self._core is not None and self._core.over:
                self._closed = self._closed or "its agent is gone"
            self._note_end()
            call.note_fault(error)
            raise
        except BaseException:  # of a callback, or Ctrl-C
            self._begun = self._core is not None and self._core.started
            self._note_end()
            raise
        finally:
            self._talk = None
        self._begun = True
        return result

    def _fields(self, verb: str, of: Namespace) -> dict[str, Any]:
        return {"mode": "session", "verb": verb, "number": self._number, "space": of._space}

    def _send_nested(
        self,
        talk: Dialogue,
        of: Namespace,
        verb: str,
        code: _core.Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        target: Target,
    ) -> Outcome[Any]:
        """Within the call that runs, whose code waits for a tool."""
        if talk.depth == _DEEPEST:
            raise SessionBusy(
                f"{_DEEPEST} calls of the session run within one another, which is the most",
                hint="have the tool return, and run the code from outside",
                may_have_run=False,
            )
        data, buffers = _pickled(target, args, kwargs)
        copies = [one if type(one) is bytes else bytearray(one) for one in buffers]
        order = ("run", (self._fields(verb, of), code.data, data, copies))
        printed, shown = Printed(target.terms.output_bytes), len(talk.displayed)
        reply = Reply(talk.nested(pickle.dumps(order, 5), printed))
        outcome = outcome_of_nested(target, reply, args, kwargs, printed, talk.displayed[shown:])
        _take_names(outcome, of)
        return outcome

    def _note_end(self) -> bool:
        """Whether the interpreter has ended since it was last asked."""
        core = self._core
        if core is None:
            return False
        ended = core.restarts != self._restarts
        self._restarts = core.restarts
        if core.over:
            self._closed = self._closed or "its cell is gone"
        if ended or core.over:
            self._note_restart()
        return ended and not core.over

    def _note_restart(self) -> None:
        self.lost = self._known_names
        self._known_names = []
        self._interpreter += 1
        self._begun = False

    def _begin_files(self) -> None:
        self._is_new = False
        try:
            self.files._begin(self._initial, self._is_mounted)
        except BaseException:
            self._is_new = True  # no code runs without them
            raise


class Child(Namespace):
    """Made by `Session.child()`. `session`: whose it is; `parent`: what it was made of. Closing
    it frees its names before the next call of the session; so does its end as an object.
    """

    def __init__(self, parent: Session | Child, session: Session, number: int) -> None:
        super().__init__()
        self.parent = parent
        self.session = session
        self._options = session._options
        self._space = number
        self._known_names = list(parent._known_names)
        self._interpreter = session._interpreter
        # No call here: this may be while another one runs.
        self._end = weakref.finalize(self, session._ended_children.append, number)
        self._end.atexit = False

    @property
    def files(self) -> SessionFiles:
        """Those of the session."""
        return self.session.files

    @property
    def lost(self) -> list[str]:
        """Its names, once the interpreter has ended and with it the child."""
        return list(self._known_names) if self._is_lost() else []

    def child(self) -> Child:
        return self.session._make_child(self)

    def close(self) -> None:
        self._end()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "ready" if self._end.alive else "closed"
        return f"<hutch child {self._space} of {self.session!r}: {state}>"

    def _is_lost(self) -> bool:
        return self._interpreter != self.session._interpreter

    def require(self) -> None:
        """Raises where it has ended."""
        why = "it was closed" if not self._end.alive else ""
        if self._is_lost():
            why = "the interpreter of its session was restarted"
        if why:
            raise SandboxStartupError(
                f"this child of the session has ended: {why}",
                hint="make another one with child()",
                may_have_run=False,
            )

    def _do(
        self,
        verb: str,
        code: _core.Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limits: Mapping[str, Any],
        target: Target | None,
    ) -> Outcome[Any]:
        self.require()
        return self.session._run(self, verb, code, args, kwargs, limits, target)


def _pickled(
    target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bytes, list[Any]]:
    return arguments.pickle_arguments(
        target.function, args, kwargs, target.sandbox_modules, target.outside
    )


def _take_names(outcome: Outcome[Any], of: Namespace) -> None:
    """What the code returned stands in a pair with the names that there are now, or None."""
    if outcome.ok:
        outcome.value, names = _pair(outcome.value)
        of._known_names = of._known_names if names is None else names


def _pair(value: Any) -> tuple[Any, list[str] | None]:
    """The reply of a session is this; a hostile one may be anything."""
    if type(value) is not tuple or len(value) != 2:
        return value, None
    names = value[1]
    if type(names) is not list or not all(type(name) is str for name in names):
        return value[0], None
    return value[0], names
