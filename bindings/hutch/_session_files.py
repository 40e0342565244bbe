# SPDX-License-Identifier: Apache-2.0
"""The files of a session: what its code can reach, read and written for the host.

Everything is done inside, by the session's own process with its rights: the host opens nothing
there. What comes back is data, and may be anything.
"""

from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hutch._errors import SandboxExecutionError

T = TypeVar("T")
Names = list[str]  # `list` is a method below
_MOST = 1 << 34  # bytes of a file that is read; result_mb is met first
_LONGEST = 4096  # bytes of a path


class SessionFiles:
    """Paths are relative to the session's directory, or absolute inside. Errors are those of the
    system: FileNotFoundError, IsADirectoryError, PermissionError and their kin.

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
        """A file or directory of the host. `path`: where to; by default its own name."""
        source = pathlib.Path(source)
        for name, content in content_of({path or source.name: source}).items():
            self.write(name, content)

    def download(self, path: str, to: str | os.PathLike[str]) -> None:
        """One file, to a file of the host, which is replaced as a whole."""
        content = self.read_bytes(path)
        target = pathlib.Path(to)
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_bytes(content)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)

    def _do(self, verb: str, *args: Any) -> Any:
        reply = self._send(verb, *args)
        if type(reply) is tuple and len(reply) == 2:
            if reply[0] == "ok":
                return reply[1]
            failed = reply[1]
            if type(failed) is list and len(failed) == 2 and type(failed[0]) is int:
                number = failed[0] if failed[0] in errno.errorcode else errno.EIO
                raise OSError(number, os.strerror(number), args[0])
        raise _not_said()


def content_of(files: Mapping[str, Any]) -> dict[str, bytes]:
    """Of files= and upload(): by path inside. A link of the host's is not followed into a
    directory; what is no file is left out.
    """
    found: dict[str, bytes] = {}
    for name, content in files.items():
        _path(name)
        if not isinstance(content, os.PathLike):
            found[name] = _bytes(content)
            continue
        source = pathlib.Path(content)
        if not source.is_dir():
            found[name] = source.read_bytes()
            continue
        for above, _, names in os.walk(source):
            for one in names:
                file = pathlib.Path(above, one)
                if file.is_file():
                    found[os.path.join(name, file.relative_to(source))] = file.read_bytes()
    return found


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
