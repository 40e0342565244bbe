# SPDX-License-Identifier: Apache-2.0
"""Writes files that come out of a sandbox to the host.

A file, or a tree, is made under a name of its own beside its place, and takes its place once it is
whole: what fails leaves nothing. Names in a tree are those that the sandbox chose: every one of
them is opened by openat2() beneath the tree, which follows no symbolic link. Only files and
directories are made, with the rights that the caller's umask leaves, and without setuid bits. No
shared state.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hutch import _core

_DIRECTORY = os.O_PATH | os.O_DIRECTORY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_BLOCK = 64 << 10  # bytes: so many zeros in a row become a hole
_ZEROS = bytes(_BLOCK)


@contextmanager
def new_file(target: str, executable: bool) -> Iterator[int]:
    """A descriptor to write to. The file takes the place of one that is there, or of a link that
    is, which is not followed. The directories above it are made.
    """
    parent, name = _split(target)
    with _new_file_in(_opened(parent), name, target, executable) as file:
        yield file


@contextmanager
def new_file_here(target: str) -> Iterator[int]:
    """The same below the working directory, where a sandbox chose all of the name: a directory
    above it that is a link is not followed, and OSError (ELOOP) is raised.
    """
    *above, name = [step for step in target.split("/") if step not in ("", ".")]
    directory = os.open(".", _DIRECTORY)
    for step in above:
        try:
            with suppress(FileExistsError):
                os.mkdir(step, dir_fd=directory)
            below = _core.open_beneath(directory, os.fsencode(step), _DIRECTORY)
        except OSError as error:
            why = os.strerror(error.errno or errno.EIO)
            if error.errno == errno.ELOOP:
                why = "a directory above it is a link here, which is not followed"
            raise OSError(error.errno, why, target) from None
        finally:
            os.close(directory)
        directory = below
    with _new_file_in(directory, name, target, executable=False) as file:
        yield file


@contextmanager
def _new_file_in(directory: int, name: str, target: str, executable: bool) -> Iterator[int]:
    """Closes the directory."""
    temporary = _temporary()
    try:
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
        file = _file(directory, os.fsencode(temporary), executable)
        try:
            yield file
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.unlink(temporary, dir_fd=directory)
            raise
        finally:
            os.close(file)
    finally:
        os.close(directory)


class Tree:
    """A tree that is being made. Names are relative, with "/" between their steps."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._parent = (b"", root)  # the one that was used last

    def close(self) -> None:
        self._enter(b"")

    def _enter(self, parent: bytes) -> int:
        if self._parent[0] != parent:
            below = _core.open_beneath(self._root, parent, _DIRECTORY) if parent else self._root
            last, self._parent = self._parent, (parent, below)
            if last[0]:
                os.close(last[1])
        return self._parent[1]

    def add_directory(self, name: bytes) -> None:
        parent, _, last = name.rpartition(b"/")
        os.mkdir(last, dir_fd=self._enter(parent))

    def add_file(self, name: bytes, executable: bool) -> int:
        """A descriptor to write to, which the caller closes."""
        parent, _, last = name.rpartition(b"/")
        return _file(self._enter(parent), last, executable)


@contextmanager
def new_tree(target: str) -> Iterator[Tree]:
    """Takes the place of `target`, which must not exist, or be an empty directory and no link.
    The directories above it are made.
    """
    parent, name = _split(target)
    directory = _opened(parent)
    try:
        try:
            os.mkdir(name, dir_fd=directory)
            made = True
        except FileExistsError:
            made = False
        place = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
        try:
            if os.listdir(place):
                raise FileExistsError(errno.EEXIST, "the directory is not empty", target)
            try:
                with _new_tree_in(place) as tree:
                    yield tree
            except BaseException:
                if made:
                    with suppress(OSError):
                        os.rmdir(name, dir_fd=directory)
                raise
        finally:
            os.close(place)
    finally:
        os.close(directory)


@contextmanager
def _new_tree_in(place: int) -> Iterator[Tree]:
    """Its entries are moved there once it is whole: it is then on that file system already."""
    temporary = _temporary()
    os.mkdir(temporary, 0o700, dir_fd=place)
    try:
        root = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
        try:
            tree = Tree(root)
            try:
                yield tree
            finally:
                tree.close()
            for name in os.listdir(root):
                if os.fsencode(name) == os.fsencode(temporary):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
                os.rename(name, name, src_dir_fd=root, dst_dir_fd=place)
        finally:
            os.close(root)
        os.rmdir(temporary, dir_fd=place)
    except BaseException:
        _remove(temporary, place)
        raise


def _remove(name: str, directory: int) -> None:
    shutil.rmtree(f"/proc/self/fd/{directory}/{name}", ignore_errors=True)


def write_at(file: int, offset: int, data: memoryview) -> None:
    """Leaves a hole where there are zeros."""
    start = 0  # of what is to be written
    for block in range(0, len(data), _BLOCK):
        if data[block] == 0 and bytes(data[block : block + _BLOCK]) == _ZEROS:
            _write(file, offset + start, data[start:block])
            start = block + _BLOCK
    _write(file, offset + start, data[start:])


def _write(file: int, offset: int, data: memoryview) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        offset += written
        data = data[written:]


def _split(target: str) -> tuple[str, str]:
    parent, name = os.path.split(os.path.abspath(target))
    if not name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
    return parent, name


def _opened(parent: str) -> int:
    os.makedirs(parent, exist_ok=True)
    return os.open(parent, _DIRECTORY)


def _temporary() -> str:
    return f".hutch-{secrets.token_hex(8)}"


def _file(directory: int, name: bytes, executable: bool) -> int:
    return _core.open_beneath(directory, name, _NEW, 0o777 if executable else 0o666)
