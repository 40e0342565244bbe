# SPDX-License-Identifier: Apache-2.0
"""Lists the entries of a tree of the host (`walk`); inspects one that is to be shown in a sandbox,
and copies it.

Everything is opened from the descriptor of its directory, and no symbolic link is followed: a
process that changes the tree meanwhile cannot redirect the inspection or the copy. No shared state.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from hutch._options.mounts import special

MOST_ENTRIES = 200_000
MOST_SECONDS = 5.0  # of an inspection
MOST_BYTES = 2 << 30  # of a copy
_SHOWN = 3  # names in a message
_HOLDS_CREDENTIALS = frozenset(".ssh .aws .gnupg .netrc .git-credentials".split())
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Entry(NamedTuple):
    path: str  # below the root, "" for the root itself
    status: os.stat_result
    parent: int  # descriptor of the directory it is in
    name: str


class Findings:
    """What an inspection found."""

    def __init__(self) -> None:
        self.device = 0
        self.inode = 0
        self.entries = 0
        self.size = 0  # bytes of all files
        self.digest = ""
        self.whole = True  # False: it was too large to be inspected
        self.specials: list[tuple[str, str]] = []  # path, kind
        self.credentials: list[str] = []
        self.private: list[str] = []  # not readable by others

    def private_text(self) -> str:
        more = len(self.private) - _SHOWN
        names = ", ".join(name or "the directory itself" for name in self.private[:_SHOWN])
        return names + (f" and {more} more" if more > 0 else "")


def open_parent(path: str) -> tuple[int, str]:
    """The descriptor of the directory that `path` is in, and its name there."""
    directory = os.open("/", _DIRECTORY)
    *parents, name = path.strip("/").split("/")
    for part in parents:
        try:
            below = os.open(part, _DIRECTORY, dir_fd=directory)
        finally:
            os.close(directory)
        directory = below
    return directory, name


def walk(root: str) -> Iterator[Entry]:
    """The entries of a tree, the root first, a directory before what is in it, in order of names.
    A directory that cannot be opened has nothing in it.
    """
    parent, name = open_parent(root)
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, "a symbolic link has taken its place")
        yield Entry("", status, parent, name)
        if stat.S_ISDIR(status.st_mode):
            yield from _below(parent, name, "", 0)
    finally:
        os.close(parent)


def _below(parent: int, name: str, path: str, depth: int) -> Iterator[Entry]:
    try:
        directory = os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError:
        return
    try:
        names = sorted(os.listdir(directory))
        for inner in names:
            try:
                status = os.stat(inner, dir_fd=directory, follow_symlinks=False)
            except OSError:
                continue  # it went meanwhile
            below = f"{path}/{inner}" if path else inner
            yield Entry(below, status, directory, inner)
            if stat.S_ISDIR(status.st_mode) and depth < 200:
                yield from _below(directory, inner, below, depth + 1)
    finally:
        os.close(directory)


def examine(root: str, most_sec: float | None = MOST_SECONDS) -> Findings:
    """Inspects every entry, within bounds of number and time. Raises OSError where the root cannot
    be reached.
    """
    found = Findings()
    digest = hashlib.sha256(root.encode("utf-8", "surrogateescape"))
    begun = time.monotonic()
    for entry in walk(root):
        status = entry.status
        if not entry.path:
            found.device, found.inode = status.st_dev, status.st_ino
        found.entries += 1
        if found.entries > MOST_ENTRIES or (most_sec and time.monotonic() - begun > most_sec):
            found.whole = False
            break
        mode = status.st_mode
        if stat.S_ISREG(mode):
            found.size += status.st_size
        digest.update(
            f"\0{entry.path}\0{mode}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}".encode(
                "utf-8", "surrogateescape"
            )
        )
        kind = special(mode)
        if kind:
            found.specials.append((entry.path, kind))
        elif entry.name in _HOLDS_CREDENTIALS and entry.path:
            found.credentials.append(entry.path)
        elif not is_open(mode):
            found.private.append(entry.path)
    found.digest = digest.hexdigest()
    return found


def is_open(mode: int) -> bool:
    """Whether others than owner and group may read it."""
    if stat.S_ISLNK(mode):
        return True
    need = 0o005 if stat.S_ISDIR(mode) else 0o004
    return mode & need == need


def write_archive(root: str, to: IO[bytes], private: bool) -> None:
    """The tree as tar, below `content`, readable by all users. What is in it and others may not
    read is left out unless `private`; so is one that was replaced since the inspection. Raises
    OSError.
    """
    import tarfile

    size = 0
    closed = "\0"  # a directory that is left out, with all that is in it
    with tarfile.open(
        fileobj=to, mode="w|", format=tarfile.GNU_FORMAT, errors="surrogateescape"
    ) as archive:
        for entry in walk(root):
            if entry.path.startswith(closed + "/"):
                continue
            info = tarfile.TarInfo(f"content/{entry.path}" if entry.path else "content")
            info.mtime = int(entry.status.st_mtime)
            mode = entry.status.st_mode
            if stat.S_ISDIR(mode):
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                if private or is_open(mode) or not entry.path:
                    archive.addfile(info)
                else:
                    closed = entry.path
            elif stat.S_ISLNK(mode):
                info.type, info.mode = tarfile.SYMTYPE, 0o777
                info.linkname = os.readlink(entry.name, dir_fd=entry.parent)
                archive.addfile(info)
            elif stat.S_ISREG(mode):
                size += _add_file(archive, info, entry, private)
            if size > MOST_BYTES:
                raise OSError(f"{root} grew beyond {MOST_BYTES >> 20} MiB while it was copied")


def _add_file(archive: Any, info: Any, entry: Entry, private: bool) -> int:
    try:
        file = os.open(entry.name, _FILE, dir_fd=entry.parent)
    except OSError:
        return 0
    with os.fdopen(file, "rb") as content:
        status = os.fstat(content.fileno())
        if not stat.S_ISREG(status.st_mode) or not (private or is_open(status.st_mode)):
            return 0
        info.mode = 0o755 if status.st_mode & 0o100 else 0o644
        info.size = status.st_size
        archive.addfile(info, _Exactly(content, info.size))
        return int(info.size)


class _Exactly:
    """`size` bytes of a file that may grow or shrink meanwhile: the rest is zeros."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        size = self._left if size < 0 else min(size, self._left)
        data = self._file.read(size)
        self._left -= size
        return data + b"\0" * (size - len(data))
