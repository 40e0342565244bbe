# SPDX-License-Identifier: Apache-2.0
"""Archives of the format tar, made and read on the host; nothing is unpacked there.

One that is read may be hostile: it has files, directories, hard links to its own files, and links
that stay in it, and is refused for anything else. Users, groups, times and rights other than
"executable" are neither kept nor read, except that a file's time is written. No shared state.
"""

from __future__ import annotations

import errno
import os
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO

from hutch._carry import trees
from hutch._carry.decompress import Forward
from hutch._carry.tar_members import Members
from hutch._carry.trees import Entry, Links, Stream, Tally

_MOST_SEC = 1 << 33  # what a header of a file has room for


class Packer:
    """Writes an archive, uncompressed. `write` takes its bytes, one piece after another."""

    def __init__(self, write: Callable[[Any], object]) -> None:
        self._write = write
        self._size = 0

    def add(
        self, name: str, kind: str, mtime_ns: int, content: bytes, executable: bool, target: str
    ) -> None:
        if kind == "file":
            self.begin_file(name, mtime_ns, len(content), executable)
            self.write(content)
            self.end_file()
            return
        info = _info(name, mtime_ns, kind == "directory")
        if kind == "directory":
            info.type = tarfile.DIRTYPE
        else:
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
        self._add_header(info)

    def begin_file(self, name: str, mtime_ns: int, size: int, executable: bool) -> None:
        """`write` takes its content, up to `end_file`."""
        info = _info(name, mtime_ns, executable)
        info.size = size
        self._add_header(info)

    def write(self, data: Any) -> None:
        self._write(data)
        self._size += len(data)

    def end_file(self) -> None:
        self._pad(tarfile.BLOCKSIZE)

    def close(self) -> None:
        self.write(bytes(2 * tarfile.BLOCKSIZE))
        self._pad(tarfile.RECORDSIZE)

    def _add_header(self, info: tarfile.TarInfo) -> None:
        self.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _pad(self, size: int) -> None:
        self.write(bytes(-self._size % size))


def _info(name: str, mtime_ns: int, executable: bool) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mtime = min(max(mtime_ns // 10**9, 0), _MOST_SEC)
    info.mode = 0o755 if executable else 0o644
    return info


def entries_of(
    archive: BinaryIO,
    path: str,
    most_mb: float,
    more: str,
    is_unwanted: Callable[[str], bool] = lambda name: False,
) -> Iterator[Entry]:
    """What is in it, under its paths inside, below `path`. The content of an Entry has to be read
    before the next is asked for. Raises ValueError for an archive that is refused, or damaged, and
    OSError for one that is too large, as by files of more than `most_mb` MiB in all: none of it is
    decompressed that lies behind the header which says so. `more`: what allows more, for the error.
    What is unwanted, by its name in the archive, is passed over.
    """
    yield trees.directory(path)
    links, tally = Links(), Tally("the archive")
    files: set[str] = set()
    members = Members(Forward(archive))
    while (member := members.next()) is not None:
        name = _name(member.name)
        tally.add(os.fsencode(name))
        if links.is_crossed(name):
            raise _refused(name, "goes through a link")
        if name and is_unwanted(name):
            continue
        inside = os.path.join(path, name)
        if member.kind == "directory":
            if name:
                yield trees.directory(inside)
        elif not name:
            raise _refused(member.name, "has no name")
        elif member.kind == "link":
            if not links.add(name, member.target):
                raise _refused(name, "is a link that may lead out")
            yield trees.link(inside, member.target)
        elif member.kind == "hard link":
            first = _name(member.target)
            if first not in files:
                raise _refused(name, "is a hard link to none of its files")
            yield trees.link(inside, os.path.join(path, first), "hard link")
        elif member.kind == "file":
            tally.add_bytes(member.size)
            if tally.bytes > most_mb * (1 << 20):
                raise OSError(
                    errno.EFBIG, f"its files have more than {most_mb:g} MiB: {more}", "the archive"
                )
            files.add(name)
            opened = partial(_opened, members, member.size)
            yield trees.file(inside, opened, member.size, member.executable)
        elif member.kind == "sparse file":
            raise _refused(name, "is a sparse file, as tar --sparse packs it")
        else:
            raise _refused(name, "is a device, a FIFO or of an unknown kind")


def _opened(members: Members, size: int) -> Stream:
    return Stream(members.content(), size)


def _name(name: str) -> str:
    steps = [step for step in name.split("/") if step not in ("", ".")]
    if name.startswith("/"):
        raise _refused(name, "is absolute")
    if ".." in steps:
        raise _refused(name, "leads out by ..")
    return "/".join(steps)


def _refused(name: str, why: str) -> ValueError:
    return ValueError(
        f"the archive is refused: its entry {name[:200]!r} {why}; unpack it with the session's own "
        "code if that is wanted"
    )
