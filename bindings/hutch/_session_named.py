# SPDX-License-Identifier: Apache-2.0
"""What makes a session a named one: it is held by this process alone, begins as it was last saved,
and is saved when it is idle, at its end, and when the agent stops.

One thread of the process looks after all of them: those that have not been used for a moment are
saved, and those that another process asks for, or whose agent stops, are ended, each by a thread of
its own meanwhile: a session whose code takes long over that keeps no other one waiting.
"""

from __future__ import annotations

import atexit
import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

from hutch import _core
from hutch._carry.container import Container
from hutch._connect import connection
from hutch._errors import SnapshotError
from hutch._saved_history import StoredHistory
from hutch._saved_states import States, StoredKeyValues
from hutch._session_hold import Hold, data_directory, is_one_place
from hutch._storage import Storage, required_id
from hutch._storage_of import storage_of

_IDLE_SEC = 3.0  # without a call, after which it is saved
_MOST_SEC = 30.0  # after which it is saved between two calls, though it is not idle
_END_SEC = 20.0  # what looks after one has so long at the end of the interpreter
_AGAIN_SEC = 1.0  # one that is in use is looked at again
# The last of what an agent that stops waits: calls that still run are interrupted then.
_TO_SAVE_SEC = 2.5
_AGENT_SEC = 5.0  # at most, before an agent is stopped at once
_MOST_HISTORY = 16 << 20  # bytes

AGENT_STOPPED = "the agent was stopped"


def default_storage() -> Storage:
    return storage_of(os.path.join(data_directory(), "sessions"))


class Kept(Protocol):
    """The session, as it is seen here."""

    def save_idle(self) -> bool:
        """False: it is in use."""

    def waits_here(self) -> bool:
        """Whether it makes no call while this thread is kept."""

    def give_up(self, why: str, patience_sec: float = 0.0, keeps: bool = False) -> None:
        """Saves and ends it. A call that runs is interrupted after `patience_sec`. `keeps`: it goes
        on where it cannot be saved.
        """


class Named:
    """Of one session. `container`: what it begins as; `lost`: the names that this does not have."""

    def __init__(self, storage: Any, id: str, steal: bool) -> None:
        """Raises SessionBusy, StorageError, SnapshotError."""
        self.id = required_id(id)
        self.storage = default_storage() if storage is None else storage_of(storage)
        self._hold = Hold(self.storage, self.id, steal and not self._is_held_here())
        try:
            self.states = States(self.storage, self.id)
            self.kv = StoredKeyValues(self.storage, self.id)
            self.container = self._newest()
            self.history = self._history()
        except BaseException:
            self._hold.say(self._left())
            self._hold.release(is_saved=False)
            raise
        left_out = {} if self.container is None else self.container.notes.left_out
        missing = [name for name in left_out if name.isidentifier()]
        self.lost = [*missing, *(name for name in self._left() if name not in missing)]
        self._pid = os.getpid()
        self._is_closed = False
        self.changes = 0  # calls since it was opened
        self.due: float | None = None
        self.is_quiet = False  # what is called is to save or restore it
        self.is_looked_after = False  # by a thread of the keeper's
        self.calls_until: float | None = None  # its agent stops, and waits so long for calls
        self._saved_changes = 0
        self._dirty_since = 0.0
        self._idle_sec = _IDLE_SEC
        self._saved_names: set[str] = set()
        self._noted: list[str] | None = None
        self._session: weakref.ref[Kept] | None = None

    def _is_held_here(self) -> bool:
        """By a session that cannot be saved while this thread waits for it."""
        for one in _keeper.kept():
            if one.id == self.id and is_one_place(one.storage, self.storage):
                session = None if one._session is None else one._session()
                if session is not None and session.waits_here():
                    return True
        return False

    def _newest(self) -> Container | None:
        """The newest state that is whole. Raises SnapshotError where none is."""
        failed: SnapshotError | None = None
        for data in self.states.read():
            try:
                return Container(data)
            except SnapshotError as error:
                failed = failed or error
        if self.states.version and failed is None:
            failed = SnapshotError("it is not there as a whole")
        if failed is not None:
            raise SnapshotError(
                f"the session {self.id!r} cannot be opened: {failed.message}",
                hint="hutch.sessions.delete() removes it",
            )
        return None

    def _history(self) -> StoredHistory:
        saved = None
        if self.container is not None and "history" in self.container:
            if self.container.size_of("history") <= _MOST_HISTORY:
                saved = self.container.opened("history").read()
        try:
            return StoredHistory(self.storage, self.id, saved, self.tell)
        except ValueError as error:
            raise SnapshotError(f"the history of the session {self.id!r} {error}") from None

    def _left(self) -> list[str]:
        """The names that a holder had not saved when it ended."""
        found = self._hold.left.get("unsaved", [])
        return [name for name in found if type(name) is str and name.isidentifier()]

    @property
    def is_dirty(self) -> bool:
        return self.changes != self._saved_changes

    @contextmanager
    def quiet(self) -> Iterator[None]:
        self.is_quiet = True
        try:
            yield
        finally:
            self.is_quiet = False

    def begin(self, session: Kept, idle_sec: float | None) -> None:
        """`idle_sec`: after so long without use the agent ends it."""
        if idle_sec is not None:
            self._idle_sec = min(_IDLE_SEC, idle_sec / 3)
        self._session = weakref.ref(session)
        _keeper.add(self)

    def touch(self) -> None:
        """Notes, before each call of the session, that it may change what is to be saved."""
        if self.is_quiet:
            return
        now = time.monotonic()
        if not self.is_dirty:
            self._dirty_since = now
        self.changes += 1
        was_due = self.due
        self.due = min(now + self._idle_sec, self._dirty_since + _MOST_SEC)
        if was_due is None or self.due < was_due:  # the keeper waits for that
            _keeper.wake()

    def go_on(self) -> None:
        """After a save, while commands run: they may change what was saved."""
        self.changes += 1
        self._dirty_since = time.monotonic()
        self.due = self._dirty_since + _MOST_SEC
        _keeper.wake()

    def note(self, names: list[str]) -> None:
        """After each call: the names that there are. Those that are not saved are written down, for
        whoever opens the session after this process was killed.
        """
        if names is self._noted:
            return
        if self._noted is None:
            _keeper.wake()  # there is an agent to listen to
        self._noted = names
        if not self.is_quiet:  # those that come back are not lost
            self._say()

    def _say(self) -> None:
        with suppress(OSError):
            unsaved = [name for name in self._noted or () if name not in self._saved_names]
            self._hold.say(unsaved)

    def begun(self, names: list[str]) -> None:
        """Notes, once it is as it was saved, which names that has."""
        self._saved_names = set(names)
        self._say()

    def save(self, data: bytes, changes: int, names: set[str]) -> None:
        """`changes`: what it was when `data` was taken; `names`: those in it."""
        self.states.save(data)
        self._saved_changes, self._saved_names = changes, names
        if not self.is_dirty:
            self.due = None
        self._dirty_since = time.monotonic()
        self._say()

    def close(self) -> None:
        """Others may open it from then on. Nothing happens the second time."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pid == os.getpid():
            _keeper.remove(self)
            self.kv.close()
            self.history.close()
        self._hold.release(is_saved=not self.is_dirty)

    def tell(self, error: BaseException, what: str = "could not be saved") -> None:
        """Prints why a save failed, where nobody waits for that save."""
        with suppress(Exception):
            print(f"hutch: the session {self.id!r} {what}: {error}", file=sys.stderr)

    # ---- for the keeper

    @property
    def asked(self) -> int:
        return self._hold.asked

    @property
    def is_due(self) -> bool:
        return self.due is not None and time.monotonic() >= self.due

    @property
    def has_begun(self) -> bool:
        """It has a cell, which ends with its agent."""
        return self._noted is not None or self.is_dirty

    def look(self, is_asked: bool) -> None:
        who = self._hold.who_asked() if is_asked else ""
        session = None if self._session is None else self._session()
        calls_until, self.calls_until = self.calls_until, None
        if session is None:  # it ends just now
            self.due = None
            return
        if who:
            session.give_up(f"process {who} has taken it", keeps=True)
        elif calls_until is not None:
            session.give_up(AGENT_STOPPED, calls_until - time.monotonic())
        elif self.is_due:
            self.due = None
            try:
                if not session.save_idle():
                    self.put_off()
            except BaseException:
                self._dirty_since = time.monotonic()  # it is tried again, but not after each call
                raise

    def put_off(self) -> None:
        """It is in use: it is looked at again."""
        self.due = time.monotonic() + _AGAIN_SEC
        _keeper.wake()

    def end_beside(self, end: Callable[[], None]) -> None:
        """By `end` alone, on a thread that the end of the process waits for."""
        self._session = None
        _keeper.beside(self, end)

    def end(self, why: str) -> None:
        session = None if self._session is None else self._session()
        if session is not None:
            session.give_up(why)


class _Keeper:
    """The thread that saves named sessions, while there are any. It refers to no session. The
    collector of garbage may end a session within any line: so one thread may take the lock twice.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: list[Named] = []
        self._thread: threading.Thread | None = None
        self._pipe: tuple[int, int] | None = None  # while there is a thread
        self._notice: _core.StopNotice | None = None  # of the agent's end
        self._looks: set[threading.Thread] = set()  # that look after one

    def add(self, named: Named) -> None:
        with self._lock:
            self._kept.append(named)
            if self._thread is None:
                self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
                self._thread = threading.Thread(
                    target=self._run, name="hutch-sessions", daemon=True
                )
                self._thread.start()
        self.wake()

    def remove(self, named: Named) -> None:
        with self._lock, suppress(ValueError):
            self._kept.remove(named)
        self.wake()

    def wake(self) -> None:
        with self._lock, suppress(BlockingIOError):
            if self._pipe is not None:
                os.write(self._pipe[1], b"x")

    def kept(self) -> list[Named]:
        with self._lock:
            return list(self._kept)

    def _run(self) -> None:
        while True:
            with self._lock:
                kept = list(self._kept)
                pipe = self._pipe
                assert pipe is not None
                if not kept:
                    self._thread = self._pipe = None
                    for end in pipe:
                        os.close(end)
                    self._forget_agent()
                    return
            self._listen(kept)
            asked = self._wait(kept, pipe[0])
            self._hear(kept)
            for named in kept:
                is_asked = named.asked in asked
                is_wanted = is_asked or named.is_due or named.calls_until is not None
                if is_wanted and not named.is_looked_after:
                    self.beside(named, partial(named.look, is_asked))

    def beside(self, named: Named, work: Callable[[], None]) -> None:
        """On a thread of its own: what pickles the session runs its code, which may take long."""

        def look() -> None:
            try:
                work()
            except Exception as error:
                named.tell(error)
            finally:
                named.is_looked_after = False
                self.wake()
                with self._lock:
                    self._looks.discard(thread)

        named.is_looked_after = True
        thread = threading.Thread(target=look, name="hutch-session", daemon=True)
        with self._lock:
            self._looks.add(thread)
        try:
            thread.start()
        except RuntimeError:  # there is no room for one more
            look()

    def wait(self) -> None:
        """For the threads that look after a session: the interpreter may not end before them."""
        with self._lock:
            looks = list(self._looks)
        for thread in looks:
            with suppress(RuntimeError):  # it was not started
                thread.join(_END_SEC)

    def _listen(self, kept: list[Named]) -> None:
        """To the agent that has the cells."""
        if self._notice is None and any(named.has_begun for named in kept):
            with suppress(_core.Error):  # it is gone, and so are they
                self._notice = connection.stop_notice()

    def _hear(self, kept: list[Named]) -> None:
        """Whether it stops."""
        try:
            left_ms = None if self._notice is None else self._notice.read()
        except _core.Error:
            self._forget_agent()
            return
        if left_ms is not None:
            until = time.monotonic() + left_ms / 1000 - _TO_SAVE_SEC
            for named in kept:
                if named.has_begun:
                    named.calls_until = until

    def _forget_agent(self) -> None:
        if self._notice is not None:
            self._notice.close()
            self._notice = None

    def abandon(self) -> None:
        """In a forked child: all of it is the parent's."""
        self._forget_agent()

    def _wait(self, kept: list[Named], woken: int) -> set[int]:
        """Waits until a session is due, another process asks for one, or the agent says something.
        The descriptors of what was asked for, and of `woken`.
        """
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        if self._notice is not None:
            poll.register(self._notice.fileno(), select.POLLIN)
        free = [named for named in kept if not named.is_looked_after]
        for named in free:
            if named.asked >= 0:
                poll.register(named.asked, select.POLLIN)
        due = [named.due for named in free if named.due is not None]
        left = None if not due else max(0.0, min(due) - time.monotonic())
        ready = {file for file, _ in poll.poll(None if left is None else left * 1000 + 1)}
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
        return ready


_keeper = _Keeper()


def _end(all_of: list[Named], why: str, most_sec: float | None = None) -> None:
    """Saves and ends all at the same time: what pickles a session runs its code, which may take
    long.
    """

    def end(named: Named) -> None:
        try:
            named.end(why)
        except Exception as error:
            named.tell(error)

    threads = []
    for named in all_of:
        thread = threading.Thread(target=end, args=(named,), name="hutch-session", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there is no room for one more, or Python has none at its end
            end(named)
        else:
            threads.append(thread)
    until = None if most_sec is None else time.monotonic() + most_sec
    for thread in threads:
        thread.join(None if until is None else max(0.0, until - time.monotonic()))


def end_before_agent() -> None:
    """Ends those of this process, whose agent is to be stopped."""
    _end([named for named in _keeper.kept() if named.has_begun], AGENT_STOPPED, _AGENT_SEC)


@atexit.register
def _at_exit() -> None:
    _end(_keeper.kept(), "the process ends")
    _keeper.wait()


def _after_fork() -> None:
    global _keeper
    parents, _keeper = _keeper, _Keeper()
    parents.abandon()


os.register_at_fork(after_in_child=_after_fork)
