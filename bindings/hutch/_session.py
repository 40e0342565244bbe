# SPDX-License-Identifier: Apache-2.0
"""`Session`: a cell that stays, with its names and its files, for one piece of code after another.

One call at a time: a second one at once is refused (SessionBusy). A session belongs to the process
that made it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from hutch import _core
from hutch._calls.dialogue import Callbacks
from hutch._carry.container import Container
from hutch._connect.connection import milliseconds
from hutch._errors import SessionBusy
from hutch._not_yet import absent, refuse_keywords
from hutch._options.checks import _optional_sec
from hutch._options.described import described_without
from hutch._options.keywords import with_keywords
from hutch._options.options import NORMAL
from hutch._session_calls import SessionCalls
from hutch._session_contents import begins_as_of
from hutch._session_look import Looking
from hutch._session_options import require_for_a_session
from hutch._session_packages import requirements_of
from hutch._session_refusals import child_has_ended, commands_run, not_restartable
from hutch._tool_late import LateCalls

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hutch._calls.history import HistoryEntry
    from hutch._calls.session_call import Operation
    from hutch._carry.container import Given
    from hutch._key_values import KeyValues
    from hutch._options.described import Keywords
    from hutch._outcome import Outcome
    from hutch._session_files import SessionFiles
    from hutch._storage import Storage

T = TypeVar("T")
_INTERRUPTED_SEC = 5.0  # at its end, a call that runs has so long to end
_PATIENCE_SEC = 0.2  # until a call ends, where it can be saved later


class Session(SessionCalls, Looking):
    """Runs code in one sandbox whose names and files last from one call to the next.

    `files`: put there at the start, by path: str, bytes, or the path of a file or directory of the
    host as a `pathlib.Path`. `cwd`: the working directory inside, to which relative paths refer.
    `idle_sec`: a session that is not used for so long (default 600 s) is ended; None: never.
    `tools`: functions of the host that its code may call, or `Tool`s. Their time counts in
    `timeout_sec`, unless `tool_time="excluded"`. `on_input(prompt)` answers
    `input()`, which otherwise raises EOFError. `on_display(forms)` gets what is shown, as it comes;
    `outcome.display` has it all.
    `snapshot`: what `snapshot()` gave, or the path of a file with it: the session begins as that,
    with `files` put over its own; `globals=False`: with its files alone.
    `id`: a name of letters, digits and `._-`, by which any later process of the user finds it again
    in `storage` (a path, a URL or a Storage; by default the user's own): its files, `kv`, history,
    and the names that can travel. One process has it at a time; `steal` has the present one save
    and end it. It is saved when it has not been used for three seconds, at its end, and when the
    agent stops.
    `keywords`: those of `@sandbox`. `timeout_sec`, `cpu_sec`, `output_mb` and `result_mb` hold for
    each call, the others for the session. Nothing is started before the first call.

    A call that hits a limit, or crashes, ends the interpreter: its names are lost (`lost`), files
    stay, and the next call finds a fresh interpreter (`outcome.restarted`).

    Raises ValueError or TypeError for a wrong keyword, SnapshotError for a snapshot that cannot be
    restored, SessionBusy where another process has the session of that `id`, StorageError.

        with Session(files={"data.csv": "a,b\\n1,2\\n"}) as s:
            s.exec("import csv; rows = list(csv.DictReader(open('data.csv')))")
            assert s.exec("rows[0]['b']").value == "2"
    """

    @described_without("key")
    def __init__(
        self,
        *,
        files: Mapping[str, Any] | None = None,
        cwd: str = "/work",
        idle_sec: float | None = 600.0,
        tool_time: Literal["included", "excluded"] = "included",
        on_input: Callable[[str], str] | None = None,
        on_display: Callable[[dict[str, Any]], object] | None = None,
        id: str | None = None,
        storage: str | os.PathLike[str] | Storage | None = None,
        steal: bool = False,
        snapshot: Given | None = None,
        globals: bool = True,
        **keywords: Unpack[Keywords],
    ) -> None:
        refuse_keywords(keywords)
        options = with_keywords(NORMAL, keywords)
        if options.node_dependencies:
            from hutch._calls.node import among_packages

            options = among_packages(options)
        require_for_a_session(options, cwd, tool_time, files, self._awaits)
        idle = _optional_sec("idle_sec", idle_sec)
        idle_ms = 0 if idle is None else milliseconds(idle)
        stops_clock = tool_time == "excluded"
        tools = {tool.name: tool for tool in options.tools}
        late = None if self._awaits else LateCalls()
        callbacks = Callbacks(tools, on_input, on_display, stops_clock, late)
        begins_as = begins_as_of(id, storage, steal, snapshot, globals)
        try:
            super().__init__(options, files or {}, cwd, idle_ms, callbacks, begins_as)
            self._child_numbers = itertools.count(1)
            self._contents.require()
        except BaseException:
            begins_as.close()
            raise
        if self._named is not None:
            self._named.begin(self, idle)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise absent(type(self).__name__, name)

    def child(self) -> Child:
        return self._make_child(self)

    def install(self, *requirements: str) -> list[str]:
        """Adds packages to the session, and returns name==version of what was added: of these and
        of what they need, what it has not got. The versions of all that it has stay. They take of
        `disk_mb`, come last in `sys.path` and `PATH`, and are there again after a restart and
        reset(), and in what a snapshot or a name brings back.

        Only the caller can: code inside reaches no index. Raises DependencyInstallError, with the
        resolver's own sentence, where they exclude what is there, cannot be found or have no wheel,
        or where the disk has no room for them: the session is then as it was.

            with Session() as s:
                s.install("six>=1.16")
                assert s.exec("import six; six.PY3").value
        """
        wanted = requirements_of(requirements, self._options)
        with self._kept.history.of_install(" ".join(wanted)):
            return self._contents.packages.install(wanted)

    # ---- its life ----

    def interrupt(self) -> None:
        """Has the code that runs raise KeyboardInterrupt, from another thread, and kills the
        commands that run. Nothing happens where none do.
        """
        self._turn.require_own()
        self._beside.interrupt()
        self._turn.interrupt()

    def reset(self, files: bool = False) -> None:
        """A fresh interpreter. `files`: with a fresh directory, too, which has the `files` of the
        start. Raises SessionBusy while a call or a command runs.
        """
        with self._turn:
            core = self._to_restart(files)
            if core is not None:
                core.restart()
                self._note_end()

    def _to_restart(self, files: bool) -> _core.Session | None:
        """What is to be restarted. With `files`, nothing: the next call begins anew."""
        if self._beside.any:
            raise commands_run()
        core = self._cell.core
        if core is None:
            return None
        if files:
            self._cell.give_up()
            self._contents.is_new = True
            self._lose_names()
            return None
        if core.started and not core.restartable:
            raise not_restartable()
        return core

    @overload
    def snapshot(self, to: None = None, *, globals: bool = True) -> bytes: ...
    @overload
    def snapshot(self, to: str | os.PathLike[str], *, globals: bool = True) -> None: ...
    def snapshot(
        self, to: str | os.PathLike[str] | None = None, *, globals: bool = True
    ) -> bytes | None:
        """The files of its directory and, with `globals`, its names, as bytes, or in the file `to`,
        which is replaced once the new one is whole. What cannot travel is in `left_out`, by name,
        with why: files begin with "./". Raises OSError (EFBIG) where the files have more than
        `disk_mb`, and what calls of the session raise.

            with Session() as s:
                s.exec("x = 1; import threading; lock = threading.Lock()")
                saved = s.snapshot()
                assert list(s.left_out) == ["lock"]
            with Session(snapshot=saved) as s:
                assert s["x"] == 1
        """
        return self._contents.take(to, globals)

    def restore(self, snapshot: Given, *, globals: bool = True) -> None:
        """Replaces the files of its directory and, with `globals`, its names by those of a
        snapshot, given as bytes or as the path of a file; or raises, and everything stays as it
        was: SnapshotError for one that is damaged, of another Python, or needs a package that this
        session does not have. `left_out` then has what the snapshot has not.
        """
        if self._beside.any:
            raise commands_run()
        with contextlib.closing(Container(snapshot)) as container:
            self._contents.restore(container, globals)

    def info(self) -> dict[str, Any]:
        """`id`, `started`, `closed` ("" or why), `restarts`, `execs`, `worker_id`, `cwd`,
        `processes` (what `start()` started, by number, and is not known to have ended: that method
        asks), `version` (how often a named one was saved, else None), and `restartable`: whether an
        interpreter that ends is replaced, else its end is the session's (None: not started).
        """
        core = self._cell.core
        return {
            "id": self.id,
            "started": core is not None and core.started,
            "closed": self._cell.closed,
            "restarts": 0 if core is None else core.restarts,
            "execs": self._contents.execs,
            "version": None if self._named is None else self._named.states.version,
            "worker_id": "" if core is None else core.worker,
            "cwd": self._cwd,
            "processes": {pid: command for (pid, _), command in self._running.items()},
            "restartable": core.restartable if core is not None and core.started else None,
        }

    def history(self, limit: int = 100) -> list[HistoryEntry]:
        """The last `limit` of what ran, in the order in which it began: each exec and call, and
        each call of a tool. Kept are 1000 entries of what was asked for from outside, and 1000 of
        what ran within that. Also from another thread, and once the session has ended.
        """
        return self._kept.history.entries(limit)

    def close(self) -> None:
        """Ends the session with all that it has, but `kv` and `history()`. Nothing happens the
        second time. A named one is saved first; where that fails, it is ended all the same, and
        what it failed by is raised.
        """
        self._close("it was closed")

    def _close(self, why: str) -> None:
        try:
            self._save_before_end()
        finally:
            self._cell.closed = self._cell.closed or why
            self._beside.close(self._cell.pid)
            try:
                if not self._turn.end():
                    self.interrupt()
            finally:
                self._contents.close()

    # ---- of a named one

    def _has_to_be_saved(self) -> bool:
        named = self._named
        if named is None or self._cell.closed or self._cell.pid != os.getpid():
            return False
        return named.is_dirty or bool(self._running)

    def _save_before_end(self) -> None:
        """Interrupts a call that runs on another thread."""
        if self._has_to_be_saved():
            self._save_in_turn(_INTERRUPTED_SEC, interrupts=True)

    def save_idle(self) -> bool:
        """Saves it, on the thread that looks after named sessions. False: it is in use."""
        if self._cell.closed:
            return True
        try:
            self._save_in_turn(_PATIENCE_SEC, interrupts=False)
        except SessionBusy:
            return False
        self._save_again_later()
        return True

    def _save_again_later(self) -> None:
        """What commands that run change is in no save of before their end."""
        if self._beside.any and self._named is not None:
            self._named.go_on()

    def _save_in_turn(self, patience_sec: float, interrupts: bool) -> None:
        """Saves it; calls that begin meanwhile wait until it is saved."""
        until = time.monotonic() + patience_sec
        with self._turn.of_saves():
            while self._is_to_wait(interrupts) and time.monotonic() < until:
                if interrupts and not self._waits_for_tool():
                    self.interrupt()
                elif interrupts:
                    break
                time.sleep(0.005)
            if self._has_to_be_saved():  # also after whoever had the turn before
                self._save()

    def _is_to_wait(self, interrupts: bool) -> bool:
        return self._turn.is_taken or (interrupts and self._beside.any)

    def _waits_for_tool(self) -> bool:
        """Whether a tool of the call that runs is the caller of this."""
        talk = self._talk
        return talk is not None and talk.waits_here()

    def give_up(self, why: str, patience_sec: float = 0.0) -> None:
        """Saves and ends it, on the thread that looks after named sessions. A call that runs is
        interrupted after `patience_sec`.
        """
        until = time.monotonic() + patience_sec
        with self._turn.of_saves():
            while self._turn.is_taken and time.monotonic() < until:
                time.sleep(0.005)
            self._close(why)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        state = self._cell.closed or ("ready" if self._cell.core is not None else "not started")
        return f"<hutch.Session {self.id[:8]}: {state}>"

    def _make_child(self, parent: Session | Child) -> Child:
        number = next(self._child_numbers)
        return parent._verb(lambda _: Child(parent, self, number), "child", number)


class Child(Looking):
    """Made by `Session.child()`, with the methods of a Session that run Python or have to do with
    names. `session`: whose it is; `parent`: what it was made of. Closing it frees its names before
    the next call of the session; so does its end as an object.
    """

    def __init__(self, parent: Session | Child, session: Session, number: int) -> None:
        super().__init__()
        self.parent = parent
        self.session = session
        self._options = session._options
        self._space = number
        self._known_names = list(parent._known_names)
        self._interpreter = session._cell.interpreter
        # No call here: this may be while another one runs.
        self._end = weakref.finalize(self, session._ended_children.append, number)
        self._end.atexit = False

    @property
    def files(self) -> SessionFiles:
        """Those of the session."""
        return self.session.files

    @property
    def kv(self) -> KeyValues:
        """That of the session."""
        return self.session.kv

    @property
    def lost(self) -> list[str]:
        """Its names, once the interpreter has ended and with it the child."""
        return list(self._known_names) if self._is_lost() else []

    def child(self) -> Child:
        return self.session._make_child(self)

    def close(self) -> None:
        """Frees its names before the next call of the session."""
        self._end()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "ready" if self._end.alive else "closed"
        return f"<hutch child {self._space} of {self.session!r}: {state}>"

    def _is_lost(self) -> bool:
        return self._interpreter != self.session._cell.interpreter

    def _require(self) -> None:
        why = "it was closed" if not self._end.alive else ""
        if self._is_lost():
            why = "the interpreter of its session was restarted"
        if why:
            raise child_has_ended(why)

    def _do(self, finish: Callable[[Outcome[Any]], T], operation: Operation) -> T:
        self._require()
        return self.session._do(finish, operation)
