# SPDX-License-Identifier: Apache-2.0
"""A Storage that is a directory, with a file for each name.

Nothing is believed by its path. The way to the directory is walked by descriptors, and each step
is looked at once it is open: nobody but its owner and root may be able to put another one in its
place. A file is written beside its place, under a name that is none of a Storage, and then renamed:
a process that ends before that leaves such a file, which whoever opens the directory an hour later
removes.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hutch._errors import StorageError
from hutch._storage import (
    Place,
    as_storage_error,
    is_name,
    required_data,
    required_name,
    required_prefix,
)

_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BEGUN = ".begun-"  # names of files that are being written
_FORGOTTEN_SEC = 3600  # one that was begun so long ago is nobody's


class DirectoryStorage:
    """A directory that is the caller's alone: it is made with mode 0700 where there is none, and
    refused (StorageError) where somebody else owns it or may write to it or read it, where it is a
    link, or where somebody else could put another one in its place. So is a file in it that is a
    link, no regular file, or not the caller's.

        storage = DirectoryStorage("/home/me/sessions")
        storage.put("notes", b"kept")
        storage.get("notes")       # b"kept"
    """

    __module__ = "hutch"

    def __init__(self, path: Place) -> None:
        path = os.fspath(path)
        if not isinstance(path, str):
            raise TypeError(f"the path of a storage is text, not {type(path).__name__}")
        if not path or "\0" in path:
            raise ValueError("the path of a storage is empty, or has a zero byte in it")
        self.path = os.path.abspath(os.path.expanduser(path))
        with self._opened(make=True) as directory:
            _remove_forgotten(directory)

    def get(self, name: str) -> bytes | None:
        name = required_name(name)
        with self._opened() as directory, as_storage_error(f"{self.path}/{name} cannot be read"):
            try:
                file = os.open(name, _READ, dir_fd=directory)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO):
                    raise _not_ours(f"{self.path}/{name}", "is not a regular file") from None
                raise
            with os.fdopen(file, "rb") as opened:
                _require_own_file(f"{self.path}/{name}", os.fstat(file))
                return opened.read()

    def put(self, name: str, data: bytes) -> None:
        name, data = required_name(name), required_data(data)
        with (
            self._opened() as directory,
            as_storage_error(f"{self.path}/{name} cannot be written"),
        ):
            begun = _BEGUN + secrets.token_hex(8)
            file = os.open(begun, _NEW, 0o600, dir_fd=directory)
            try:
                with os.fdopen(file, "wb") as opened:
                    opened.write(data)
                    opened.flush()
                    os.fsync(file)
                os.replace(begun, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with suppress(OSError):
                    os.unlink(begun, dir_fd=directory)
                raise
            os.fsync(directory)

    def delete(self, name: str) -> None:
        name = required_name(name)
        with (
            self._opened() as directory,
            as_storage_error(f"{self.path}/{name} cannot be deleted"),
        ):
            try:
                os.unlink(name, dir_fd=directory)
            except FileNotFoundError:
                return
            os.fsync(directory)

    def list(self, prefix: str = "") -> list[str]:
        prefix = required_prefix(prefix)
        with self._opened() as directory, as_storage_error(f"{self.path} cannot be read"):
            return sorted(
                name for name in os.listdir(directory) if name.startswith(prefix) and is_name(name)
            )

    def __repr__(self) -> str:
        return f"DirectoryStorage({self.path!r})"

    @contextmanager
    def _opened(self, make: bool = False) -> Iterator[int]:
        with as_storage_error(f"{self.path} cannot be opened"):
            directory = own_directory(self.path, make)
        try:
            yield directory
        finally:
            os.close(directory)


def own_directory(path: str, make: bool) -> int:
    """A descriptor of the directory, which the caller closes. Above it links are followed, once.
    Raises StorageError where it is not the caller's alone, and OSError.
    """
    above, last = os.path.split(path)
    if not last:
        raise _not_ours(path, "is the root directory")
    if make:
        os.makedirs(above, mode=0o700, exist_ok=True)
    steps = [*filter(None, os.path.realpath(above).split("/")), last]
    walked, here = "", os.open("/", _STEP)
    try:
        for step in steps:
            _require_safe_above(walked or "/", os.fstat(here))
            walked += "/" + step
            if make and step is steps[-1]:
                with suppress(FileExistsError):
                    os.mkdir(step, 0o700, dir_fd=here)
            try:
                below = os.open(step, _STEP, dir_fd=here)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise _not_ours(walked, "is a link, or no directory") from None
                raise
            os.close(here)
            here = below
        _require_own(path, os.fstat(here))
    except BaseException:
        os.close(here)
        raise
    return here


def require_own_place(path: str, make: bool) -> None:
    """Of a file that somebody else opens: its directory, and the file if it is there, are the
    caller's alone. It is not opened here: to close it would end its locks.
    """
    above, name = os.path.split(path)
    with as_storage_error(f"{path} cannot be opened"):
        directory = own_directory(above, make)
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return
        finally:
            os.close(directory)
        _require_own_file(path, status)


def _require_safe_above(path: str, status: os.stat_result) -> None:
    """Whoever may write to a directory may put another one in the place of what is in it, unless it
    is sticky, as /tmp is.
    """
    if status.st_uid not in (0, os.geteuid()):
        raise _not_ours(path, f"belongs to user {status.st_uid}")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise _not_ours(path, f"may be written to by others (mode {status.st_mode & 0o7777:04o})")


def _require_own(path: str, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise _not_ours(path, f"belongs to user {status.st_uid}")
    if status.st_mode & 0o077:
        raise StorageError(
            f"{path} is open to others (mode {status.st_mode & 0o7777:04o})",
            hint=f"chmod 700 {path}, once nobody else needs it",
        )


def _require_own_file(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _not_ours(path, "is not a regular file")
    if status.st_uid != os.geteuid():
        raise _not_ours(path, f"belongs to user {status.st_uid}")
    if status.st_mode & 0o022:
        raise _not_ours(path, f"may be written to by others (mode {status.st_mode & 0o7777:04o})")
    if status.st_nlink > 1:
        raise _not_ours(path, "has another name (a hard link)")


def _not_ours(path: str, why: str) -> StorageError:
    return StorageError(
        f"{path} {why}",
        hint="take a directory for the storage that is yours alone, below ones that only you and "
        "root may write to",
    )


def _remove_forgotten(directory: int) -> None:
    """Files that somebody began to write, and did not live to finish."""
    for name in os.listdir(directory):
        if not name.startswith(_BEGUN):
            continue
        with suppress(OSError):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if status.st_mtime < time.time() - _FORGOTTEN_SEC:
                os.unlink(name, dir_fd=directory)
