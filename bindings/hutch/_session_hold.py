# SPDX-License-Identifier: Apache-2.0
"""Who holds a named session: one process of the user at a time.

It is a lock of a file (flock) in the directory of the storage, which the kernel frees when its
holder ends, however that ends; nobody has to notice. The file says who holds it, and stays where
its holder did not live to take it away. Whoever wants the session writes to the FIFO beside it,
which the holder reads.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

from hutch._errors import SessionBusy, StorageError
from hutch._storage import Storage, as_storage_error
from hutch._storage_directory import DirectoryStorage, own_directory
from hutch._storage_sqlite import SqliteStorage
from hutch._strict_json import parsed

STEAL_SEC = 20.0  # a holder that is asked has so long to save
_HELD, _ASKED = ".held-", ".asked-"  # names that are none of a Storage
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MOST_SAID = 1 << 20  # bytes
_MOST_NAMES = 1000
_MOST_OF_NAME = 200  # characters: a longer one is not written down
_PAUSE_SEC = 0.05


def data_directory() -> str:
    """Where the user's own data is; sessions that name no storage are there."""
    given = os.environ.get("XDG_DATA_HOME", "")
    above = given if given.startswith("/") else os.path.expanduser("~/.local/share")
    return os.path.join(above, "hutch")


def _place_of(storage: Storage) -> tuple[str, str]:
    """The directory of its locks, and how their names begin: the same for all that reach the same
    storage on this machine.
    """
    if isinstance(storage, DirectoryStorage):
        return storage.path, ""
    if isinstance(storage, SqliteStorage):
        above, name = os.path.split(storage.path)
        return above, _digest(name)
    kind, place = type(storage), getattr(storage, "place", None)
    what = place if type(place) is str else f"{kind.__module__}.{kind.__qualname__}"
    return os.path.join(data_directory(), "held"), _digest(what)


def is_one_place(one: Storage, other: Storage) -> bool:
    return _place_of(one) == _place_of(other)


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:16] + "-"


class Hold:
    """The lock, which `release` ends. `left`: what the last holder said and did not take away."""

    def __init__(self, storage: Storage, id: str, steal: bool) -> None:
        """Raises SessionBusy where somebody else has it; with `steal` once that was asked for it
        and has not let go. Raises StorageError.
        """
        place, begin = _place_of(storage)
        self.id = id
        self._held, self._asked = f"{_HELD}{begin}{id}", f"{_ASKED}{begin}{id}"
        self._since = time.time()
        self._lock = threading.RLock()  # of its descriptors
        self._pid = os.getpid()
        self._directory = _opened(place)
        self._file = self.asked = -1
        _all.add(self)
        try:
            with as_storage_error(f"the session {id!r} cannot be opened"):
                self._take(steal)
                self.left = _said(self._file)
                self.asked = self._fifo(make=True)
                self.say([])
        except BaseException:
            self.abandon()
            raise

    def _take(self, steal: bool) -> None:
        begun = time.monotonic()
        asked = False
        while not self._try():
            holder = self._holder()
            # Somebody who only looks has it for a moment, too.
            if time.monotonic() > begun + (STEAL_SEC if steal else _PAUSE_SEC):
                raise _busy(self.id, holder, steal)
            if steal and not asked:
                asked = self._ask()
            time.sleep(_PAUSE_SEC / 5)

    def _try(self) -> bool:
        file = os.open(self._held, _FLAGS | os.O_CREAT, 0o600, dir_fd=self._directory)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            now = os.stat(self._held, dir_fd=self._directory, follow_symlinks=False)
            if (now.st_ino, now.st_dev) == (os.fstat(file).st_ino, os.fstat(file).st_dev):
                self._file = file
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        finally:
            if self._file != file:
                os.close(file)
        return False

    def _holder(self) -> dict[str, Any]:
        try:
            file = os.open(self._held, _FLAGS, dir_fd=self._directory)
        except FileNotFoundError:
            return {}
        try:
            return _said(file)
        finally:
            os.close(file)

    def _fifo(self, make: bool) -> int:
        if make:
            with suppress(FileExistsError):
                os.mkfifo(self._asked, 0o600, dir_fd=self._directory)
        file = os.open(self._asked, _FLAGS, dir_fd=self._directory)
        status = os.fstat(file)
        if not stat.S_ISFIFO(status.st_mode) or status.st_uid != os.geteuid():
            os.close(file)
            raise StorageError(
                f"{self._asked} in the directory of the storage is not ours", hint="remove it"
            )
        return file

    def _ask(self) -> bool:
        try:
            file = self._fifo(make=False)
        except FileNotFoundError:
            return False  # it has only begun, or ends
        try:
            os.write(file, f"{os.getpid()}\n".encode())
        finally:
            os.close(file)
        return True

    def who_asked(self) -> str:
        """The process that wants it; "" where none does."""
        with self._lock:
            if self.asked < 0:
                return ""
            try:
                said = os.read(self.asked, 4096).decode("ascii", "replace")
            except BlockingIOError:
                return ""
        return said.split("\n")[0][:20]

    def say(self, unsaved: list[str]) -> None:
        """Who holds it, and the names that would be lost."""
        names = [name for name in unsaved[:_MOST_NAMES] if len(name) <= _MOST_OF_NAME]
        if len(json.dumps(names)) > _MOST_SAID // 2:  # they come from a sandbox
            names = []
        said = {"pid": self._pid, "since": self._since, "unsaved": names}
        data = json.dumps(said).encode()
        with self._lock:
            if self._file >= 0:
                os.pwrite(self._file, data, 0)
                os.ftruncate(self._file, len(data))

    def release(self, is_saved: bool) -> None:
        """`is_saved`: nothing was lost that has to be reported. Nothing happens the second time."""
        if self._pid != os.getpid():
            self.abandon()
            return
        with self._lock:
            if self._file >= 0:
                # The FIFO first: once the other is gone, somebody else may have both.
                for name in (self._asked, self._held) if is_saved else (self._asked,):
                    with suppress(OSError):
                        os.unlink(name, dir_fd=self._directory)
            self.abandon()

    def abandon(self) -> None:
        """Closes what it has."""
        for file in (self.asked, self._file, self._directory):
            if file >= 0:
                os.close(file)
        self.asked = self._file = self._directory = -1


def holder_of(storage: Storage, id: str) -> dict[str, Any] | None:
    """`pid` and `since` of who holds a session now; None: nobody."""
    place, begin = _place_of(storage)
    directory = _opened(place)
    try:
        file = os.open(f"{_HELD}{begin}{id}", _FLAGS, dir_fd=directory)
    except FileNotFoundError:
        return None
    finally:
        os.close(directory)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return {"pid": 0, "since": 0.0, **_said(file)}
    finally:
        os.close(file)


def _opened(place: str) -> int:
    try:
        return own_directory(place, make=True)
    except OSError as error:
        raise StorageError(f"{place} cannot be opened: {error.strerror}") from error


def _said(file: int) -> dict[str, Any]:
    """What a holder said, or some of it; {} for anything else."""
    try:
        found = parsed(os.pread(file, _MOST_SAID, 0))
    except (OSError, ValueError):
        return {}
    kinds = {"pid": int, "since": float, "unsaved": list}
    return {name: found[name] for name, kind in kinds.items() if type(found.get(name)) is kind}


def _busy(id: str, holder: dict[str, Any], asked: bool) -> SessionBusy:
    pid = holder.get("pid", 0)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.get("since", 0)))
    if pid == os.getpid():
        hint = "it is open in this very process: close() it"
    elif asked:
        hint = f"it was asked to let go, and has not: end it (kill {pid}) and try again"
    else:
        hint = "close it there, or take it with steal=True, which has it saved there first"
    return SessionBusy(
        f"the session {id!r} is held by process {pid} since {since}",
        hint=hint,
        holder={"pid": pid, "since": holder.get("since", 0.0)},
        may_have_run=False,
    )


_all: weakref.WeakSet[Hold] = weakref.WeakSet()


def _after_fork() -> None:
    """The child holds nothing: its parent's locks would last as long as it does."""
    for hold in list(_all):
        hold.abandon()


os.register_at_fork(after_in_child=_after_fork)
