# SPDX-License-Identifier: Apache-2.0
"""`Session`: a cell that stays, with its names and its files, for one piece of code after another.

It is what users hold: its calls are made by its engine (_session_engine.py), its commands and its
life by what is beside that. One call at a time: a second one at once is refused (SessionBusy), or
waits. A session belongs to the process that made it.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from hutch._calls.dialogue import Callbacks
from hutch._connect.connection import milliseconds
from hutch._javascript import JavaScript
from hutch._not_yet import absent, refuse_keywords
from hutch._options.checks import _optional_sec, quoted
from hutch._options.described import described_without
from hutch._options.keywords import with_keywords
from hutch._options.options import NORMAL
from hutch._session_child import ChildSpace
from hutch._session_commands import CommandCalls
from hutch._session_contents import begins_as_of
from hutch._session_engine import Engine
from hutch._session_life import Life
from hutch._session_look import Looking
from hutch._session_node import NodeCalls
from hutch._session_options import require_for_a_session
from hutch._tool_late import LateCalls

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hutch._calls.history import HistoryEntry
    from hutch._carry.container import Given
    from hutch._key_values import KeyValues
    from hutch._options.described import Keywords
    from hutch._restored import Restored
    from hutch._session_files import SessionFiles
    from hutch._storage import Storage


class Session(JavaScript, Looking):
    """Runs code in one sandbox whose names and files last from one call to the next.

    `files`: put there at the start, by path: str, bytes, or the path of a file or directory of the
    host as a `pathlib.Path`. `cwd`: the working directory inside, to which relative paths refer.
    `idle_sec`: a session that is not used for so long (default 600 s) is ended; None: never.
    `tools`: functions of the host that its code may call, or `Tool`s. Their time counts in
    `timeout_sec`, unless `tool_time="excluded"`. `on_input(prompt)` answers
    `input()`, which otherwise raises EOFError. `on_display(forms)` gets what is shown, as it comes;
    `outcome.display` has it all.
    `on_install(requirements)` is asked where the code has a line `%pip install …` or `!pip install
    …`: if it returns True, they are added as by `install()`. Without it, such lines are errors.
    `snapshot`: what `snapshot()` gave, or the path of a file with it: the session begins as that,
    with `files` put over its own; `globals=False`: with its files alone.
    `id`: a name of letters, digits and `._-`, by which any later process of the user finds it again
    in `storage` (a path, a URL or a Storage; by default the user's own): its files, `kv`, history,
    and the names that can travel. One process has it at a time; `steal` has the present one save
    and end it. It is saved when it has not been used for three seconds, at its end, and when the
    agent stops.
    `queue`: a call that begins while another one runs waits its turn, in the order in which they
    come, in place of SessionBusy.
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

    _made_of: tuple[type[Engine], type[Life], type[CommandCalls], type[NodeCalls]] = (
        Engine,
        Life,
        CommandCalls,
        NodeCalls,
    )

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
        on_install: Callable[[list[str]], bool] | None = None,
        id: str | None = None,
        storage: str | os.PathLike[str] | Storage | None = None,
        steal: bool = False,
        snapshot: Given | None = None,
        globals: bool = True,
        queue: bool = False,
        **keywords: Unpack[Keywords],
    ) -> None:
        refuse_keywords(keywords)
        options = with_keywords(NORMAL, keywords)
        if options.node_dependencies:
            from hutch._calls.node import among_packages

            options = among_packages(options)
        make_engine, *_ = self._made_of
        awaits = make_engine.awaits
        require_for_a_session(options, cwd, tool_time, files, awaits)
        if type(queue) is not bool:
            raise TypeError(f"queue= takes True or False, not {quoted(queue)}")
        idle = _optional_sec("idle_sec", idle_sec)
        idle_ms = 0 if idle is None else milliseconds(idle)
        stops_clock = tool_time == "excluded"
        tools = {tool.name: tool for tool in options.tools}
        if on_install is not None:
            from hutch import _session_pip
            from hutch._session_packages import requirements_of

            def checked(wanted: list[str]) -> list[str]:
                return [*requirements_of(tuple(wanted), options)]

            tool = _session_pip.tool_of(self, checked, on_install, awaits)
            tools[tool.name] = tool
        late = None if awaits else LateCalls()
        callbacks = Callbacks(tools, on_input, on_display, stops_clock, late)
        begins_as = begins_as_of(id, storage, steal, snapshot, globals)
        try:
            engine = make_engine(options, files or {}, cwd, idle_ms, callbacks, begins_as, queue)
            self._take(engine)
            engine.contents.require()
        except BaseException:
            begins_as.close()
            raise
        if engine.named is not None:
            engine.named.begin(self._life, idle)

    def _take(self, engine: Engine) -> None:
        _, make_life, make_commands, make_node = self._made_of
        self._engine, self._space = engine, engine.space
        self._life = make_life(engine)
        self._commands = make_commands(engine)
        self._node = make_node(engine)
        self.id = engine.id
        self.files = engine.files
        self.kv = engine.kept.kv

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise absent(type(self).__name__, name)

    @property
    def lost(self) -> list[str]:
        """The names that were lost at the last restart, or, of a named one, since it was saved."""
        return self._engine.lost

    @property
    def left_out(self) -> dict[str, str]:
        """What the last snapshot does not have, by name, with why."""
        return self._engine.contents.left_out

    def child(self) -> Child:
        return _child_of(self, self)

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
        return self._life.install(requirements)

    # ---- its life ----

    def interrupt(self) -> None:
        """Has the code that runs raise KeyboardInterrupt, from another thread, and kills the
        commands that run. Nothing happens where none do.
        """
        self._life.interrupt()

    def reset(self, files: bool = False) -> None:
        """A fresh interpreter. `files`: with a fresh directory, too, which has the `files` of the
        start. Raises SessionBusy while a call or a command runs.
        """
        return self._life.reset(files)

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
        return self._life.snapshot(to, globals)

    def restore(
        self, snapshot: Given, *, globals: bool = True, dispensable: Collection[str] = ()
    ) -> Restored:
        """Replaces the files of its directory and, with `globals`, its names by those of a
        snapshot, given as bytes or as the path of a file; or raises, and everything stays as it
        was: SnapshotError for one that is damaged, of another Python, or needs a package that this
        session does not have. What came back is returned, by name, size and SHA-256; `left_out`
        then has what did not.

        `dispensable`: names, packages and paths (with "./" before them) that are left out if they
        cannot come back, in place of all. With `globals`, children, programs that `start()` has
        started, and Node end.

            receipt = s.restore(saved, dispensable=["model"])
            assert "model" in receipt.names or "model" in receipt.left_out
        """
        return self._life.restore(snapshot, globals, dispensable)

    def info(self) -> dict[str, Any]:
        """`id`, `started`, `closed` ("" or why), `restarts`, `execs`, `worker_id`, `cwd`,
        `processes` (what `start()` started, by number, and is not known to have ended: that method
        asks), `version` (how often a named one was saved, else None), and `restartable`: whether an
        interpreter that ends is replaced, else its end is the session's (None: not started).
        """
        engine = self._engine
        core, named = engine.cell.core, engine.named
        return {
            "id": self.id,
            "started": core is not None and core.started,
            "closed": engine.cell.closed,
            "restarts": 0 if core is None else core.restarts,
            "execs": engine.contents.execs,
            "version": None if named is None else named.states.version,
            "worker_id": "" if core is None else core.worker,
            "cwd": engine.cwd,
            "processes": {pid: command for (pid, _), command in engine.running.items()},
            "restartable": core.restartable if core is not None and core.started else None,
        }

    def history(self, limit: int = 100) -> list[HistoryEntry]:
        """The last `limit` of what ran, in the order in which it began: each exec and call, and
        each call of a tool. Kept are 1000 entries of what was asked for from outside, and 1000 of
        what ran within that. Also from another thread, and once the session has ended.
        """
        return self._engine.kept.history.entries(limit)

    def close(self) -> None:
        """Ends the session with all that it has, but `kv` and `history()`. Nothing happens the
        second time. A named one is saved first; where that fails, it is ended all the same, and
        what it failed by is raised.
        """
        self._life.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._life.let_go("nothing referred to it any more")

    def __repr__(self) -> str:
        cell = self._engine.cell
        state = cell.closed or ("ready" if cell.core is not None else "not started")
        return f"<hutch.Session {self.id[:8]}: {state}>"


def _child_of(parent: Session | Child, session: Session) -> Child:
    number = session._engine.new_child()
    return parent._verb(lambda _: Child(parent, session, number), "child", number)


class Child(Looking):
    """Made by `Session.child()`, with the methods of a Session that run Python or have to do with
    names. `session`: whose it is; `parent`: what it was made of. Closing it frees its names before
    the next call of the session; so does its end as an object.
    """

    _space: ChildSpace

    def __init__(self, parent: Session | Child, session: Session, number: int) -> None:
        self.parent = parent
        self.session = session
        engine = self._engine = session._engine
        known = parent._space.known
        self._space = ChildSpace(number, known, engine.cell, engine.ended_children)
        self._end = weakref.finalize(self, self._space.close)
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
        return list(self._space.known) if self._space.is_lost else []

    def child(self) -> Child:
        return _child_of(self, self.session)

    def close(self) -> None:
        """Frees its names before the next call of the session."""
        self._end()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._space.is_closed else "ready"
        return f"<hutch child {self._space.number} of {self.session!r}: {state}>"
