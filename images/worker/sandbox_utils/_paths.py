# SPDX-License-Identifier: Apache-2.0
"""Which paths may be used, and how their files are opened."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Union

Path = Union[str, "os.PathLike[str]"]
OnError = Union[Callable[[OSError], object], None]

ROOT = os.path.realpath(os.getcwd())
MIB = 1 << 20
TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


def root() -> str:
    """The directory that paths have to be below."""
    return ROOT


def confined(path: Path, outside: bool, *, follow: bool = True) -> str:
    """The path as text, once it is known to be below root(). `follow`: whether what a link at its
    end leads to counts, or the link itself.
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path is a str or a pathlib.Path, not {type(text).__name__}")
    if not text:
        raise ValueError("a path is empty")
    if outside:
        return text
    above, name = os.path.split(text)
    if follow or name in ("", ".", ".."):
        real = os.path.realpath(text)
    else:
        real = os.path.join(os.path.realpath(above or "."), name)
    if not is_below(real, ROOT):
        raise PermissionError(f"{text!r} is outside of {ROOT}: outside=True allows it")
    return text


def is_below(path: str, root: str) -> bool:
    """Whether it is `root` or in it. Both are absolute and without links."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def several(paths: Path | Iterable[Path]) -> list[Path]:
    """One path, or those that are given."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        return [paths]  # confined() refuses bytes
    return list(paths)


def type_of(mode: int) -> str:
    return TYPES.get(stat.S_IFMT(mode), "other")


def error_at(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def open_file(path: str) -> BinaryIO:
    """To read. A FIFO or a device is refused, and blocks nobody."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise error_at(errno.EISDIR, path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def must_be_regular(path: str) -> None:
    """Of a file that is to be written, if it is there."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise error_at(errno.EISDIR, path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


def read_whole(path: str, max_mb: float) -> bytes:
    most = int(max_mb * MIB)
    with open_file(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(
            f"{path!r} has more than {max_mb:g} MiB: give max_mb= to have it all the same, or read "
            "it in parts"
        )
    return data


def report(function: str, error: OSError, on_error: OnError) -> None:
    """Tells of what is passed over."""
    if on_error is not None:
        on_error(error)
        return
    name = "" if error.filename is None else f"{shown(str(error.filename))}: "
    print(f"{function}: {name}{error.strerror or error}", file=sys.stderr)


def shown(name: str) -> str:
    """On one line, and without what a terminal would act on."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in name)


def entries(path: str) -> list[os.DirEntry[str]]:
    """Of a directory, by name."""
    with os.scandir(path) as found:
        return sorted(found, key=lambda entry: entry.name)


def is_directory(entry: os.DirEntry[str]) -> bool:
    """A link to one is none."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def checked_count(name: str, value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}= is a whole number, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name}={value}: it is {least} or more")
    return value
