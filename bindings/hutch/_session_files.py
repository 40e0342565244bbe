# SPDX-License-Identifier: Apache-2.0
"""The files of a session: what its code can reach, read and written for the host.

Everything is done inside, by the session's own process with its rights: the host opens nothing
there. What comes back is data, and may be anything.
"""

from __future__ import annotations

import errno
import io
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, TypeGuard, TypeVar

from hutch import _session_transfers as transfers
from hutch._carry import trees
from hutch._carry.trees import LONGEST_PATH, MOST_ENTRIES, Entry, Tally
from hutch._session_transfers import not_said

T = TypeVar("T")
Names = list[str]  # `list` is a method below
Send = Callable[[str, Sequence[Entry]], None]  # what its progress shows, and what is sent
_State = tuple[int, int, int]  # size, mtime_ns, inode
_FLAT = -1  # the depth of what is asked of a directory without those in it


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What is in a directory. `type`: "file", "directory", "link" or "other". `size`: in bytes.
    `mtime`: when it was last modified, in seconds since 1970. Of a link, all are its own.
    """

    name: str
    type: str
    size: int
    mtime: float


FileEntry.__module__ = "hutch"
Entries = list[FileEntry]


class SessionFiles:
    """Paths are relative to the session's directory (its `cwd`, wherever its code has gone), or
    absolute inside. Errors are those of the system: FileNotFoundError, IsADirectoryError,
    PermissionError and the like.

        s.files.write("a/b.txt", "x")
        assert s.files.read("a/b.txt") == "x"

    A tree has at most 100,000 entries, 16 GiB, directories 100 deep and names of 255 bytes;
    otherwise OSError (EFBIG, ENAMETOOLONG) is raised, and nothing is kept.
    """

    def __init__(
        self,
        hold: Callable[[], AbstractContextManager[None]],
        send: Callable[..., Any],
        most: int,
        files_mb: float,
    ) -> None:
        self._hold = hold  # the session is busy meanwhile
        self._send = send
        self._most = most  # bytes of a result
        self._files_mb = files_mb
        self.part = max(1, min(transfers.PART, most // 2))
        self._known: dict[str, _State] = {}  # the files at the last changed()

    def read(self, path: str, encoding: str = "utf-8") -> str:
        """The text of a file; otherwise as `read_bytes`."""
        return self.read_bytes(path).decode(encoding)

    def read_bytes(self, path: str) -> bytes:
        """At most `result_mb`; otherwise OSError (EFBIG) is raised."""
        path = path_of(path)
        with self._hold():
            return transfers.content_of(self._ask, path, self.part, self._most)

    def write(
        self,
        path: str,
        content: str | bytes | bytearray | memoryview | IO[str] | IO[bytes],
        *,
        append: bool = False,
    ) -> None:
        """Replaces the content of a file, or adds to it; makes the directories above it. `content`:
        also an open file of the host, of text or bytes, which is read from where it is to its end,
        in pieces of 1 MiB. A new content of more than that takes its place once it is whole.
        """
        path = path_of(path)
        if not is_open_file(content):
            return self._do(_nothing, "write", path, _bytes(content), append)
        with self._hold():
            return transfers.write_file(self._ask, path, content, self.part, append)

    def list(self, path: str = ".") -> Names:
        """The names in a directory, sorted."""
        return self._do(_texts, "list", path_of(path))

    def scan(self, path: str = ".") -> Entries:
        """What is in a directory, each a FileEntry with type, size and time, sorted by name. Links
        are not followed.
        """
        path = path_of(path)

        def entries(reply: Any) -> Entries:
            found = transfers.listed(reply, path)
            if any(b"/" in one.name for one in found):
                raise not_said()
            made = (
                FileEntry(os.fsdecode(one.name), one.kind, one.size, one.mtime_ns / 1e9)
                for one in found
            )
            return sorted(made, key=lambda entry: entry.name)

        return self._do(entries, "tree", path, MOST_ENTRIES, _FLAT)

    def walk(self, path: str = ".") -> Iterator[tuple[str, Names, Names]]:
        """Each directory of a tree before those in it, as `os.walk` has it: its path, the names of
        the directories in it, and those of all else, sorted. Links count as files, and are not
        followed. Who takes names out of the second list keeps the walk out of these directories.
        Each step is a call of the session. Raises OSError where `path` cannot be listed; below it,
        what cannot be listed is left out.

            for top, directories, files in s.files.walk():
                print(top, len(files))
        """
        walk = Walk(path_of(path))
        while (top := walk.next()) is not None:
            try:
                found = self.scan(top)
            except OSError as error:
                walk.leave_out(error)
            else:
                yield walk.step(found)

    def glob(self, pattern: str) -> Names:
        """The paths that match; `**` matches any number of directories."""
        return self._do(_texts, "glob", path_of(pattern))

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        return self._do(lambda found: _of(bool, found), "exists", path_of(path))

    def stat(self, path: str) -> dict[str, Any]:
        """`type` ("file", "directory", "link" or "other"), `size` in bytes, `mtime`, `mode`."""
        return self._do(_status, "stat", path_of(path))

    def delete(self, path: str) -> None:
        """Deletes a file, a link, or a directory with all that is in it."""
        return self._do(_nothing, "delete", path_of(path))

    def remove(self, path: str) -> None:
        """Deletes a file or a link."""
        return self._do(_nothing, "remove", path_of(path))

    def mkdir(self, path: str) -> None:
        """Makes a directory with those above it; one that is there already is not an error."""
        return self._do(_nothing, "mkdir", path_of(path))

    def rename(self, source: str, target: str) -> None:
        """Gives a file or directory another path, in the place of a file that has it."""
        return self._do(_nothing, "rename", path_of(source), path_of(target))

    def realpath(self, path: str) -> str:
        """The absolute path inside, with links resolved."""
        return self._do(lambda found: _of(str, found), "realpath", path_of(path))

    def changed(self) -> dict[str, str]:
        """What has happened to the files of the session's directory since the session began (with
        its `files`), or since this was last called: each path that was "added", "modified" or
        "deleted", sorted, whoever did it. Links and special files count as files, directories do
        not. A file is taken for modified if its size, its time or its inode is another one.
        """
        with self._hold():
            now = self._states()
        before, self._known = self._known, now
        found = {path: "added" if path not in before else "modified" for path in now}
        found = {path: what for path, what in found.items() if before.get(path) != now[path]}
        found.update((path, "deleted") for path in before.keys() - now.keys())
        return dict(sorted(found.items()))

    # ---- trees ----

    def upload(self, source: str | os.PathLike[str], path: str | None = None) -> None:
        """A file, or a directory with all that is in it, of the host. `path`: where to; by default
        its own name. A link in a directory is made as a link, and never followed; what is no file,
        directory or link is left out. Shows progress on stderr if it takes long.
        """
        name = os.path.basename(os.path.abspath(source))
        path = path_of(name if path is None else path)
        sizes = [entry.size for entry in trees.entries_of(source, path)]
        with self._hold(), progress_of(f"upload of {name}", "sending", sum(sizes)) as step:
            self._sender(step).send(trees.entries_of(source, path))

    def download(
        self, path: str, to: str | os.PathLike[str], *, limit_mb: float | None = None
    ) -> pathlib.Path:
        """A file, to a file of the host, which is replaced once the new one is whole, as is a link
        in its place; or a directory, to a new or empty one, where nothing is seen before all is
        there. Links and special files in it are left out. The directories above are made. Shows
        progress on stderr if it takes long. Returns the path on the host.

        `limit_mb`: of what is written to the host's disk, holes not counted; otherwise OSError
        (EFBIG) is raised, and nothing is kept. None: the session's `disk_mb`, which is all that its
        own files can have; what it sees of the host by `mounts` may be larger.
        """
        most_mb = self._limit_of(limit_mb)
        path, target = path_of(path), os.fsdecode(to)
        name = os.path.basename(os.path.abspath(target))
        with self._hold():
            received = transfers.Received(path, most_mb)
            status = self._status(path)
            if status["type"] == "directory":
                found = transfers.listing(self._ask, path)
                size = sum(entry.size for entry in found if entry.kind == "file")
                with progress_of(f"download of {name}", "receiving", size) as step:
                    transfers.download_tree(
                        self._ask, path, target, found, self.part, received, step
                    )
                return pathlib.Path(target)
            executable = bool(status["mode"] & 0o100)
            with progress_of(f"download of {name}", "receiving", status["size"]) as step:
                transfers.download_file(
                    self._ask, path, target, executable, self.part, received, step
                )
        return pathlib.Path(target)

    def tar(self, path: str = ".") -> bytes:
        """A directory with all that is in it as an uncompressed archive, in which names are
        relative to it, at most `result_mb`. Owners, groups and rights are not kept, except whether
        a file may be executed; times are, in seconds. Links that lead out of the directory, and
        special files, are left out.
        """
        from hutch._carry.archives import Packer

        path = path_of(path)
        out = io.BytesIO()
        packer = Packer(out.write)
        with self._hold():
            listed = transfers.travelling(transfers.listing(self._ask, path))
            found = [entry for entry, why in listed if not why]
            size = sum(entry.size for entry in found if entry.kind == "file")
            with progress_of("tar", "receiving", size) as step:

                def require_room(total: int) -> None:
                    transfers.require_room(total, path, self._most)

                transfers.pack(self._ask, path, found, self.part, packer, require_room, step)
        packer.close()
        return out.getvalue()

    def untar(
        self,
        archive: bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO,
        path: str = ".",
        *,
        limit_mb: float | None = None,
    ) -> None:
        """Unpacks an archive, plain or compressed by gzip, bzip2 or xz, below `path`, which is
        made. `archive`: its bytes, the path of a file of the host, or an open file that can be read
        twice. Of rights, only "executable" is kept. Raises ValueError for an archive that is
        damaged, or with an entry that is absolute, leads out by `..` or a link, is a device or a
        FIFO, or sparse: nothing of it is unpacked then.

        `limit_mb`: of all its files, once they are decompressed; otherwise OSError (EFBIG) is
        raised, and nothing is unpacked. None: the session's `disk_mb`, which is all that its own
        files can have; `path` may lie in a writable mount with more room.
        """
        from hutch._carry import archives

        path, most_mb = path_of(path), self._limit_of(limit_mb)
        more = "give untar() a larger limit_mb where there is room for them"
        with _opened(archive) as file:
            sizes = [entry.size for entry in archives.entries_of(file, path, most_mb, more)]
            with self._hold(), progress_of("untar", "sending", sum(sizes)) as step:
                self._sender(step).send(archives.entries_of(file, path, most_mb, more))

    def _limit_of(self, limit_mb: float | None) -> float:
        if limit_mb is None:
            return self._files_mb
        if type(limit_mb) not in (int, float) or not limit_mb > 0:
            raise ValueError(f"limit_mb={limit_mb!r}: it is a number of MiB above 0")
        return limit_mb

    # ---- what is sent ----

    def within(self, work: Callable[[transfers.Ask, Send], T]) -> T:
        """What `work(ask, send)` gives, as one call of the session."""
        with self._hold():
            return self.within_call(work)

    def within_call(self, work: Callable[[transfers.Ask, Send], T]) -> T:
        """The same, within a call of parts."""

        def send(what: str, entries: Sequence[Entry]) -> None:
            with progress_of(what, "sending", sum(entry.size for entry in entries)) as step:
                self._sender(step).send(entries)

        return work(self._ask, send)

    def _begin(self, entries: Sequence[Entry], look: bool) -> None:
        """Of a new session: puts its files there. `look`: other files may be there already."""
        self._known = {}
        self._sender(lambda size: None).send(entries)
        if entries or look:
            self._known = self._states()

    def _do(self, finish: Callable[[Any], T], verb: str, *args: Any) -> T:
        """What `finish` makes of it; that of an AsyncSession is to be awaited."""
        with self._hold():
            return finish(self._ask(verb, *args))

    def _ask(self, verb: str, *args: Any) -> Any:
        return checked(self._send("files." + verb, *args), args[0])

    def _status(self, path: str) -> dict[str, Any]:
        return _status(self._ask("stat", path))

    def _states(self) -> dict[str, _State]:
        return {
            os.fsdecode(entry.name): (entry.size, entry.mtime_ns, entry.inode)
            for entry in transfers.listing(self._ask, ".")
            if entry.kind != "directory"
        }

    def _sender(self, step: transfers.Step) -> transfers.Sender:
        return transfers.Sender(self._ask, self.part, step)


class Walk:
    """Which directory of a tree comes next, and what a step gives of it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._waiting = [path]
        self._tally = Tally(path)
        self._top = ""
        self._directories: Names = []  # those that the user has left in the last step

    def next(self) -> str | None:
        """None: there is no other."""
        inner = [os.path.join(self._top, name) for name in self._directories]
        self._waiting += reversed(inner)
        self._directories = []
        if not self._waiting:
            return None
        self._top = self._waiting.pop()
        return self._top

    def leave_out(self, error: OSError) -> None:
        """The directory that comes next. Raises the error where it is the whole tree."""
        if self._top == self._path:
            raise error

    def step(self, found: Entries) -> tuple[str, Names, Names]:
        for entry in found:
            below = os.path.join(self._top, entry.name)[len(self._path) :]
            self._tally.add(os.fsencode(below.strip("/")))
        self._directories = [entry.name for entry in found if entry.type == "directory"]
        files = [entry.name for entry in found if entry.type != "directory"]
        return self._top, self._directories, files


def checked(reply: Any, path: Any) -> Any:
    """What a verb gave. Raises the system's error where it says that there was one."""
    if type(reply) is tuple and len(reply) == 2:
        if type(reply[0]) is str and reply[0] == "ok":
            return reply[1]
        failed = reply[1]
        if type(failed) is list and len(failed) == 2 and type(failed[0]) is int:
            number = failed[0] if failed[0] in errno.errorcode else errno.EIO
            named = failed[1] if type(failed[1]) is str and failed[1] else path
            named = named[:LONGEST_PATH] if type(named) is str else None
            text = os.strerror(number)
            if number == errno.EROFS:
                text += ": the session's directory, /tmp and writable mounts can be written to"
            raise OSError(number, text, named)
    raise not_said()


def entries_of(files: Mapping[str, Any]) -> list[Entry]:
    """Of files=. What they hold is read now, since it is wanted again by reset(files=True)."""
    found = []
    for name, content in files.items():
        path = path_of(name)
        if not isinstance(content, os.PathLike):
            found.append(trees.of_bytes(path, _bytes(content)))
            continue
        for entry in trees.entries_of(content, path):
            found.append(entry if entry.open is None else trees.kept(entry))
    return found


@contextmanager
def progress_of(what: str, stage: str, total: int) -> Iterator[transfers.Step]:
    """Shown on stderr where it takes long; what it yields gets each number of bytes moved."""
    from hutch._connect.progress import Progress

    with Progress(what) as progress:
        done = 0

        def step(size: int) -> None:
            nonlocal done
            done += size
            progress(stage, f"{done / 1e6:.1f} of {total / 1e6:.1f} MB", done, max(total, done))

        yield step


@contextmanager
def _opened(archive: Any) -> Iterator[BinaryIO]:
    if isinstance(archive, (bytes, bytearray, memoryview)):
        yield io.BytesIO(archive)
    elif isinstance(archive, (str, os.PathLike)):
        with open(archive, "rb") as file:
            yield file
    elif callable(getattr(archive, "read", None)):
        if not archive.seekable():
            raise ValueError("the archive is a stream: untar() reads it twice; pass its bytes")
        yield archive
    else:
        raise TypeError(
            f"an archive is bytes, a path or an open file, not {type(archive).__name__}"
        )


def is_open_file(content: Any) -> TypeGuard[IO[str] | IO[bytes]]:
    return callable(getattr(content, "read", None))


def _bytes(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogateescape")
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    raise TypeError(
        f"a file's content is str or bytes, not {type(content).__name__}: write() takes an open "
        "file, too; upload() and files= take a pathlib.Path of the host"
    )


def path_of(path: Any) -> str:
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str):
        raise TypeError(f"a path is text, not {type(path).__name__}")
    if not path or "\0" in path:
        raise ValueError("a path is text without a zero byte, and not empty")
    if len(os.fsencode(path)) >= LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path[:100])
    return path


def _of(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise not_said()
    return value


def _status(value: Any) -> dict[str, Any]:
    status = _of(dict, value)
    fields = {"type": str, "size": int, "mode": int}
    if any(type(status.get(name)) is not kind for name, kind in fields.items()):
        raise not_said()
    return status


def _nothing(_: Any) -> None:
    pass


def _texts(value: Any) -> list[str]:
    if type(value) is not list or not all(type(one) is str for one in value):
        raise not_said()
    return value
