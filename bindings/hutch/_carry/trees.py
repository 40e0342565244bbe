# SPDX-License-Identifier: Apache-2.0
"""Files and trees on their way into a sandbox, and what holds for trees in both directions: how
large they may be, and which names and links are in them. No shared state.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, Protocol

from hutch._carry import scan

MOST_BYTES = 16 << 30  # of all files of one transfer, with the holes of sparse ones
MOST_ENTRIES = 100_000
DEEPEST = 100  # directories in one another
LONGEST_NAME = 255  # bytes
LONGEST_PATH = 4096  # bytes, with the zero at its end
_READ_AT_ONCE = 1 << 20  # bytes
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Content(Protocol):
    """What is read of a file, from its beginning to its end. `size`: bytes."""

    size: int

    def next_data(self, offset: int) -> tuple[int, int]:
        """Where the next bytes that are in no hole begin and end; `size` if there are none."""

    def read(self, view: memoryview, offset: int) -> None:
        """Fills it. Raises OSError where there is less."""

    def check(self) -> None:
        """Raises OSError if the file has changed since it was opened."""

    def close(self) -> None: ...


class Entry(NamedTuple):
    path: str  # inside
    kind: str  # "file", "directory", "link", or "hard link" to a file that came before
    open: Callable[[], Content] | None  # of a file
    size: int  # of a file
    executable: bool
    target: str  # of a link; of a hard link, the path inside


def directory(path: str) -> Entry:
    return Entry(path, "directory", None, 0, False, "")


def link(path: str, target: str, kind: str = "link") -> Entry:
    return Entry(path, kind, None, 0, False, target)


def file(path: str, open_it: Callable[[], Content], size: int, executable: bool = False) -> Entry:
    return Entry(path, "file", open_it, size, executable, "")


class HostFile:
    """A file of the host that is open."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._status = os.fstat(fd)
        if not stat.S_ISREG(self._status.st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "neither a file nor a directory", path)
        self.size = self._status.st_size

    def next_data(self, offset: int) -> tuple[int, int]:
        try:
            start = os.lseek(self._fd, offset, os.SEEK_DATA)
            end = os.lseek(self._fd, start, os.SEEK_HOLE)
        except OSError as error:
            return (self.size if error.errno == errno.ENXIO else offset), self.size
        return min(start, self.size), min(end, self.size)

    def read(self, view: memoryview, offset: int) -> None:
        while view:
            got = os.preadv(self._fd, [view], offset)
            if not got:
                raise changed(self._path)
            view = view[got:]
            offset += got

    def check(self) -> None:
        now = os.fstat(self._fd)
        before = self._status
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise changed(self._path)

    def close(self) -> None:
        os.close(self._fd)


class Stream:
    """Something that is read from its beginning to its end."""

    def __init__(self, source: BinaryIO | io.BufferedIOBase, size: int) -> None:
        self._source = source
        self.size = size

    def next_data(self, offset: int) -> tuple[int, int]:
        return offset, self.size

    def read(self, view: memoryview, _: int) -> None:
        while view:
            got = self._source.readinto(view[:_READ_AT_ONCE])  # type: ignore[union-attr]
            if not got:
                raise OSError(errno.EIO, "the file's content ends too early")
            view = view[got:]

    def check(self) -> None:
        pass

    def close(self) -> None:
        self._source.close()


def of_bytes(path: str, content: bytes, executable: bool = False) -> Entry:
    return file(path, lambda: Stream(io.BytesIO(content), len(content)), len(content), executable)


def kept(entry: Entry) -> Entry:
    """A file with its content in memory."""
    assert entry.open is not None
    content = entry.open()
    data = bytearray(content.size)
    try:
        content.read(memoryview(data), 0)
        content.check()
    finally:
        content.close()
    return of_bytes(entry.path, bytes(data), entry.executable)


def entries_of(source: str | os.PathLike[str], path: str) -> Iterator[Entry]:
    """A file, or a directory with all that is in it, of the host, under its path inside. Links in
    it are links and are never followed; what is no file, directory or link is left out. The file of
    an Entry has to be opened before the next is asked for. Raises OSError.
    """
    root = os.path.realpath(source, strict=True)
    tally = Tally(root)
    for found in scan.walk(root):
        mode = found.status.st_mode
        place = os.path.join(root, found.path) if found.path else root
        inside = os.path.join(path, found.path) if found.path else path
        tally.add(os.fsencode(found.path))
        if stat.S_ISDIR(mode):
            if not os.access(found.name, os.R_OK | os.X_OK, dir_fd=found.parent):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), place)
            yield directory(inside)
        elif stat.S_ISLNK(mode):
            yield link(inside, os.readlink(found.name, dir_fd=found.parent))
        elif stat.S_ISREG(mode):
            tally.add_bytes(found.status.st_size)
            executable = mode & 0o100 != 0
            yield file(inside, _opener(found, place), found.status.st_size, executable)
        elif not found.path:
            raise OSError(errno.EINVAL, "neither a file nor a directory", place)


def _opener(found: scan.Entry, place: str) -> Callable[[], Content]:
    def open_it() -> Content:
        try:
            fd = os.open(found.name, _READING, dir_fd=found.parent)
        except OSError as error:
            raise OSError(error.errno, error.strerror, place) from None
        return HostFile(fd, place)

    return open_it


class Tally:
    """Counts what is in a tree, and holds it to the limits. `whole`: how an error names it."""

    def __init__(self, whole: str) -> None:
        self._whole = whole
        self.entries = 0
        self.bytes = 0

    def add(self, name: bytes) -> None:
        self.entries += 1
        if self.entries > MOST_ENTRIES:
            raise self._too_large(
                f"it has more than {MOST_ENTRIES:,} entries: take its directories one by one, or "
                "pack them into one file"
            )
        if name.count(b"/") > DEEPEST:
            raise self._too_long(
                f"its directories lie more than {DEEPEST} deep: take an inner one, or pack them "
                "into one file"
            )
        longest = max(map(len, name.split(b"/")))
        if longest > LONGEST_NAME or len(name) >= LONGEST_PATH:
            raise self._too_long(
                f"a name in it is longer than {LONGEST_NAME} bytes, or a path than "
                f"{LONGEST_PATH - 1}: give it a shorter one"
            )

    def add_bytes(self, size: int) -> None:
        self.bytes += size
        if self.bytes > MOST_BYTES:
            raise self._too_large(
                f"its files are larger than {MOST_BYTES >> 30} GiB, holes included: take them in "
                "parts"
            )

    def _too_large(self, text: str) -> OSError:
        return OSError(errno.EFBIG, text, self._whole)

    def _too_long(self, text: str) -> OSError:
        return OSError(errno.ENAMETOOLONG, text, self._whole)


class Links:
    """The links of a tree that is packed or unpacked: none leads out of it, and nothing lies
    below one.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()

    def is_crossed(self, name: str) -> bool:
        """Whether a name is a link's, or goes through one."""
        if not self._names:
            return False
        steps = name.split("/")
        return any("/".join(steps[:i]) in self._names for i in range(1, len(steps) + 1))

    def add(self, name: str, target: str) -> bool:
        """False: it may lead out. Only leading `..` are counted: one that comes after a name could
        be one of another link's target.
        """
        steps = [step for step in target.split("/") if step not in ("", ".")]
        up = 0
        while up < len(steps) and steps[up] == "..":
            up += 1
        if not target or target[0] == "/" or ".." in steps[up:] or up > name.count("/"):
            return False
        self._names.add(name)
        return True


def changed(path: str) -> OSError:
    return OSError(errno.EBUSY, "it changed while it was read: try again", path)


def is_a_name(step: bytes) -> bool:
    """Of an entry of a directory."""
    return step not in (b"", b".", b"..") and b"\0" not in step and b"/" not in step
