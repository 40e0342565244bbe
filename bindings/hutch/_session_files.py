# SPDX-License-Identifier: Apache-2.0
"""The files of a session: what its code can reach, read and written for the host.

Everything is done inside, by the session's own process with its rights: the host opens nothing
there. What comes back is data, and may be anything.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO, TypeVar

from hutch import _session_transfers as transfers
from hutch._carry import trees
from hutch._carry.trees import LONGEST_PATH, Entry
from hutch._session_transfers import not_said

T = TypeVar("T")
Names = list[str]  # `list` is a method below
_State = tuple[int, int, int]  # size, mtime_ns, inode


class SessionFiles:
    """Paths are relative to the session's directory (its `cwd`, wherever its code has gone), or
    absolute inside. Errors are those of the system: FileNotFoundError, IsADirectoryError,
    PermissionError and their kin.

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
    ) -> None:
        self._hold = hold  # the session is busy meanwhile
        self._send = send
        self._most = most  # bytes of a result
        self._part = max(1, min(transfers.PART, most // 2))
        self._known: dict[str, _State] = {}  # the files at the last changed()

    def read(self, path: str, encoding: str = "utf-8") -> str:
        return self.read_bytes(path).decode(encoding)

    def read_bytes(self, path: str) -> bytes:
        """At most `result_mb`; otherwise OSError (EFBIG) is raised."""
        path = _path(path)
        with self._hold():
            return transfers.content_of(self._ask, path, self._part, self._most)

    def write(
        self, path: str, content: str | bytes | bytearray | memoryview, *, append: bool = False
    ) -> None:
        """Makes the directories above it."""
        self._do("write", _path(path), _bytes(content), append)

    def list(self, path: str = ".") -> Names:
        """The names in a directory, sorted."""
        return _texts(self._do("list", _path(path)))

    def glob(self, pattern: str) -> Names:
        """The paths that match; `**` matches any number of directories."""
        return _texts(self._do("glob", _path(pattern)))

    def exists(self, path: str) -> bool:
        return _of(bool, self._do("exists", _path(path)))

    def stat(self, path: str) -> dict[str, Any]:
        """`type` ("file", "directory", "link" or "other"), `size` in bytes, `mtime`, `mode`."""
        return _of(dict, self._do("stat", _path(path)))

    def delete(self, path: str) -> None:
        """A file, a link, or a directory with all that is in it."""
        self._do("delete", _path(path))

    def remove(self, path: str) -> None:
        """A file or a link."""
        self._do("remove", _path(path))

    def mkdir(self, path: str) -> None:
        """With those above it; one that is there already is no error."""
        self._do("mkdir", _path(path))

    def rename(self, source: str, target: str) -> None:
        self._do("rename", _path(source), _path(target))

    def realpath(self, path: str) -> str:
        return _of(str, self._do("realpath", _path(path)))

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
        path = _path(name if path is None else path)
        sizes = [entry.size for entry in trees.entries_of(source, path)]
        with self._hold(), _progress(f"upload of {name}", "sending", sum(sizes)) as step:
            self._sender(step).send(trees.entries_of(source, path))

    def download(self, path: str, to: str | os.PathLike[str]) -> None:
        """A file, to a file of the host, which is replaced once the new one is whole, as is a link
        in its place; or a directory, to a new or empty one, where nothing is seen before all is
        there. Links and special files in it are left out. The directories above are made. Shows
        progress on stderr if it takes long.
        """
        path, target = _path(path), os.fsdecode(to)
        name = os.path.basename(os.path.abspath(target))
        with self._hold():
            status = self._status(path)
            if status["type"] == "directory":
                found = transfers.listing(self._ask, path)
                size = sum(entry.size for entry in found if entry.kind == "file")
                with _progress(f"download of {name}", "receiving", size) as step:
                    transfers.download_tree(self._ask, path, target, found, self._part, step)
                return
            executable = bool(status["mode"] & 0o100)
            with _progress(f"download of {name}", "receiving", status["size"]) as step:
                transfers.download_file(self._ask, path, target, executable, self._part, step)

    def tar(self, path: str = ".") -> bytes:
        """A directory with all that is in it as an uncompressed archive, in which names are
        relative to it, at most `result_mb`. Owners, groups and rights are not kept, except whether
        a file may be executed; times are, in seconds. Links that lead out of the directory, and
        special files, are left out.
        """
        from hutch._carry.archives import Packer

        path = _path(path)
        packer, links = Packer(), trees.Links()
        with self._hold():
            found = transfers.listing(self._ask, path)
            files = [entry for entry in found if entry.kind == "file"]
            for entry in found:
                name, target = os.fsdecode(entry.name), os.fsdecode(entry.target)
                if links.is_crossed(name):
                    raise not_said()
                if entry.kind == "directory" or (entry.kind == "link" and links.add(name, target)):
                    packer.add(name, entry.kind, entry.mtime_ns, b"", False, target)
            wanted = [(entry.name, entry.size) for entry in files]
            with _progress("tar", "receiving", sum(entry.size for entry in files)) as step:
                content = transfers.contents_of(self._ask, path, wanted, self._part, self._most)
                for number, data in content:
                    entry = files[number]
                    name = os.fsdecode(entry.name)
                    packer.add(name, "file", entry.mtime_ns, data, entry.executable, "")
                    step(len(data))
        return packer.close()

    def untar(
        self,
        archive: bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO,
        path: str = ".",
    ) -> None:
        """Unpacks an archive, plain or compressed by gzip, bzip2 or xz, below `path`, which is
        made. `archive`: its bytes, the path of a file of the host, or an open file that can be read
        twice. Of rights, only "executable" is kept. Raises ValueError for an archive that is
        damaged, or with an entry that is absolute, leads out by `..` or a link, or is a device or a
        FIFO: nothing of it is unpacked then.
        """
        from hutch._carry import archives

        path = _path(path)
        with _opened(archive) as file:
            sizes = [entry.size for entry in archives.entries_of(file, path)]
            with self._hold(), _progress("untar", "sending", sum(sizes)) as step:
                self._sender(step).send(archives.entries_of(file, path))

    # ---- what is sent ----

    def _begin(self, entries: Sequence[Entry], look: bool) -> None:
        """Of a new session: puts its files there. `look`: other files may be there already."""
        self._known = {}
        self._sender(lambda size: None).send(entries)
        if entries or look:
            self._known = self._states()

    def _do(self, verb: str, *args: Any) -> Any:
        with self._hold():
            return self._ask(verb, *args)

    def _ask(self, verb: str, *args: Any) -> Any:
        return _checked(self._send(verb, *args), args[0])

    def _status(self, path: str) -> dict[str, Any]:
        status = self._ask("stat", path)
        fields = {"type": str, "size": int, "mode": int}
        if type(status) is not dict or any(
            type(status.get(name)) is not kind for name, kind in fields.items()
        ):
            raise not_said()
        return status

    def _states(self) -> dict[str, _State]:
        return {
            os.fsdecode(entry.name): (entry.size, entry.mtime_ns, entry.inode)
            for entry in transfers.listing(self._ask, ".")
            if entry.kind != "directory"
        }

    def _sender(self, step: transfers.Step) -> transfers.Sender:
        return transfers.Sender(self._ask, self._part, step)


def _checked(reply: Any, path: Any) -> Any:
    """What a verb gave. Raises the system's error where it says that there was one."""
    if type(reply) is tuple and len(reply) == 2:
        if reply[0] == "ok":
            return reply[1]
        failed = reply[1]
        if type(failed) is list and len(failed) == 2 and type(failed[0]) is int:
            number = failed[0] if failed[0] in errno.errorcode else errno.EIO
            named = failed[1] if type(failed[1]) is str and failed[1] else path
            named = named[:LONGEST_PATH] if type(named) is str else None
            raise OSError(number, os.strerror(number), named)
    raise not_said()


def entries_of(files: Mapping[str, Any]) -> list[Entry]:
    """Of files=. What they hold is read now, since it is wanted again by reset(files=True)."""
    found = []
    for name, content in files.items():
        path = _path(name)
        if not isinstance(content, os.PathLike):
            found.append(trees.of_bytes(path, _bytes(content)))
            continue
        for entry in trees.entries_of(content, path):
            found.append(entry if entry.open is None else trees.kept(entry))
    return found


@contextmanager
def _progress(what: str, stage: str, total: int) -> Iterator[transfers.Step]:
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


def _bytes(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogateescape")
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    raise TypeError(
        f"a file's content is str, bytes or a pathlib.Path, not {type(content).__name__}"
    )


def _path(path: Any) -> str:
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


def _texts(value: Any) -> list[str]:
    if type(value) is not list or not all(type(one) is str for one in value):
        raise not_said()
    return value
