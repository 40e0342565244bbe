# SPDX-License-Identifier: Apache-2.0
"""The files of a session: what its code can reach, read and written for the host.

Everything is done inside, by the session's own process with its rights: the host opens nothing
there. What comes back is data, and may be anything.
"""

from __future__ import annotations

import errno
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from hutch._errors import SandboxExecutionError

T = TypeVar("T")
Names = list[str]  # `list` is a method below
_MOST = 1 << 34  # bytes of a file that is read; result_mb is met first
_LONGEST = 4096  # bytes of a path
_PART = 16 << 20  # bytes that are sent at once
_MOST_AT_ONCE = 1000  # files that are
_MOST_ENTRIES = 100_000  # of a tree that is downloaded


class SessionFiles:
    """Paths are relative to the session's directory (its `cwd`, wherever its code has gone), or
    absolute inside. Errors are those of the system: FileNotFoundError, IsADirectoryError,
    PermissionError and their kin.

        s.files.write("a/b.txt", "x")
        assert s.files.read("a/b.txt") == "x"
    """

    def __init__(self, send: Callable[..., Any]) -> None:
        self._send = send

    def read(self, path: str, encoding: str = "utf-8") -> str:
        return self.read_bytes(path).decode(encoding)

    def read_bytes(self, path: str) -> bytes:
        return _of(bytes, self._do("read", _path(path), _MOST))

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

    def upload(self, source: str | os.PathLike[str], path: str | None = None) -> None:
        """A file, or a directory with all that is in it, of the host. `path`: where to; by default
        its own name. A link in a directory is made as a link, and never followed.
        """
        source = pathlib.Path(source)
        for part in parts_of(content_of({path or source.name: source})):
            self._do("put", part, of=str(path or source.name))

    def download(self, path: str, to: str | os.PathLike[str]) -> None:
        """A file, to a file of the host, which is replaced as a whole; or a directory, to a new or
        empty one. Links and special files in it are left out.
        """
        if self.stat(path)["type"] == "directory":
            return self._download_tree(path, pathlib.Path(to))
        content = self.read_bytes(path)
        target = pathlib.Path(to)
        fd, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with open(fd, "wb") as file:
                file.write(content)
            os.chmod(part, 0o644)
            os.replace(part, target)
        except BaseException:
            os.unlink(part)
            raise

    def _download_tree(self, path: str, target: pathlib.Path) -> None:
        entries = _of(list, self._do("tree", _path(path), _MOST_ENTRIES))
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise FileExistsError(errno.EEXIST, "the directory is not empty", str(target))
        for entry in entries:
            if type(entry) is not list or [type(one) for one in entry] != [str, str, bool]:
                raise _not_said()
            name, kind, executable = entry
            steps = name.split("/")
            if len(name) > _LONGEST or any(one in ("", ".", "..") or "\0" in one for one in steps):
                raise _not_said()
            # Nothing but what is made here is in there: no step of a path is a link.
            place = target.joinpath(*steps)
            if kind == "directory":
                place.mkdir(parents=True, exist_ok=True)
            elif kind == "file":
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(self.read_bytes(os.path.join(path, name)))
                if executable:
                    place.chmod(0o755)

    def _do(self, verb: str, *args: Any, of: str = "") -> Any:
        return checked(self._send(verb, *args), of or args[0])


def checked(reply: Any, path: str) -> Any:
    """What a verb gave. Raises the system's error where it says that there was one."""
    if type(reply) is tuple and len(reply) == 2:
        if reply[0] == "ok":
            return reply[1]
        failed = reply[1]
        if type(failed) is list and len(failed) == 2 and type(failed[0]) is int:
            number = failed[0] if failed[0] in errno.errorcode else errno.EIO
            named = failed[1] if type(failed[1]) is str and failed[1] else path
            raise OSError(number, os.strerror(number), named[:_LONGEST])
    raise _not_said()


# Path inside, kind ("file", "directory" or "link"), content or target, whether it may be executed.
Entry = tuple[str, str, Any, bool]


def content_of(files: Mapping[str, Any]) -> list[Entry]:
    """Of files= and upload(). A directory's links are links, and are never followed."""
    found: list[Entry] = []
    for name, content in files.items():
        _path(name)
        if not isinstance(content, os.PathLike):
            found.append((name, "file", _bytes(content), False))
            continue
        source = pathlib.Path(content)
        if not source.is_dir():
            found.append((name, "file", source.read_bytes(), os.access(source, os.X_OK)))
            continue
        found.append((name, "directory", b"", False))
        for above, directories, names in os.walk(source):
            for one in (*directories, *names):
                place = pathlib.Path(above, one)
                inside = os.path.join(name, place.relative_to(source))
                if place.is_symlink():
                    found.append((inside, "link", os.readlink(place), False))
                elif place.is_dir():
                    found.append((inside, "directory", b"", False))
                elif place.is_file():
                    found.append((inside, "file", place.read_bytes(), os.access(place, os.X_OK)))
    return found


def parts_of(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """As many at once as is not too much for one message."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and (size > _PART or len(part) == _MOST_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(entry)
        size += len(entry[2])
    if part:
        yield part


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
    if len(os.fsencode(path)) >= _LONGEST:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path[:100])
    return path


def _of(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise _not_said()
    return value


def _texts(value: Any) -> list[str]:
    if type(value) is not list or not all(type(one) is str for one in value):
        raise _not_said()
    return value


def _not_said() -> SandboxExecutionError:
    return SandboxExecutionError(
        "the session's process answered with something else",
        hint="its code may have replaced what answers; reset() makes a fresh one",
    )
