# SPDX-License-Identifier: Apache-2.0
"""Archives of the format tar, made and read on the host; nothing is unpacked there.

One that is read may be hostile: it has files, directories, hard links to its own files, and links
that stay in it, and is refused for anything else. So is one whose headers are large, before they
are in memory. Users, groups, times and rights other than "executable" are neither kept nor read,
except that a file's time is written. No shared state.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, cast

from hutch._carry import trees
from hutch._carry.trees import Entry, Links, Stream, Tally

_MOST_OF_A_HEADER = 1 << 20  # bytes, with all that extends it
_MOST_SEC = 1 << 33  # what a header of a file has room for


class Packer:
    """Writes an archive, uncompressed."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._tar = tarfile.open(
            fileobj=self._out,
            mode="w",
            format=tarfile.PAX_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        )

    def add(
        self, name: str, kind: str, mtime_ns: int, content: bytes, executable: bool, target: str
    ) -> None:
        info = tarfile.TarInfo(name)
        info.mtime = min(max(mtime_ns // 10**9, 0), _MOST_SEC)
        info.mode = 0o755 if executable or kind == "directory" else 0o644
        if kind == "directory":
            info.type = tarfile.DIRTYPE
        elif kind == "link":
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
        else:
            info.size = len(content)
        self._tar.addfile(info, io.BytesIO(content))

    @property
    def size(self) -> int:
        return self._out.tell()

    def close(self) -> bytes:
        self._tar.close()
        return self._out.getvalue()


def entries_of(archive: BinaryIO, path: str) -> Iterator[Entry]:
    """What is in it, under its paths inside, below `path`. The content of an Entry has to be read
    before the next is asked for. Raises ValueError for an archive that is refused, or damaged, and
    OSError for one that is too large.
    """
    yield trees.directory(path)
    try:
        yield from _entries(_decompressed(archive), path)
    except (tarfile.TarError, EOFError, RecursionError, OverflowError, UnicodeError) as error:
        raise ValueError(f"the archive cannot be read: {error}") from None
    except Exception as error:  # of what decompresses: OSError without a number, and others
        if getattr(error, "errno", 0) is None or type(error).__module__ in ("zlib", "_lzma"):
            raise ValueError(f"the archive cannot be read: {error}") from None
        raise


def _entries(source: _Bounded, path: str) -> Iterator[Entry]:
    links, tally = Links(), Tally("the archive")
    files: set[str] = set()
    source.left = _MOST_OF_A_HEADER
    tar: Any = tarfile.open(
        fileobj=cast(Any, source),
        mode="r:",
        encoding="utf-8",
        errors="surrogateescape",
    )
    member = tar.next()
    while member is not None:
        tar.members = []
        name = _name(member.name)
        tally.add(os.fsencode(name))
        if links.is_crossed(name):
            raise _refused(name, "goes through a link")
        if member.size < 0:
            raise _refused(name, "has a size below zero")
        inside = os.path.join(path, name)
        if member.isdir():
            if name:
                yield trees.directory(inside)
        elif not name:
            raise _refused(member.name, "has no name")
        elif member.issym():
            if not links.add(name, member.linkname):
                raise _refused(name, "is a link that may lead out")
            yield trees.link(inside, member.linkname)
        elif member.islnk():
            first = _name(member.linkname)
            if first not in files:
                raise _refused(name, "is a hard link to none of its files")
            yield trees.link(inside, os.path.join(path, first), "hard link")
        elif member.isreg():
            tally.add_bytes(member.size)
            files.add(name)
            source.left = trees.MOST_BYTES
            executable = member.mode & 0o100 != 0
            yield trees.file(inside, partial(_opened, tar, member), member.size, executable)
        else:
            raise _refused(name, "is a device, a FIFO or of an unknown kind")
        source.left = _MOST_OF_A_HEADER
        member = tar.next()


def _opened(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Stream:
    content = tar.extractfile(member)
    assert content is not None
    return Stream(content, member.size)  # type: ignore[arg-type]


def _name(name: str) -> str:
    steps = [step for step in name.split("/") if step not in ("", ".")]
    if name.startswith("/"):
        raise _refused(name, "is absolute")
    if ".." in steps:
        raise _refused(name, "leads out by ..")
    if "\0" in name:
        raise _refused(name, "has a zero byte")
    return "/".join(steps)


def _refused(name: str, why: str) -> ValueError:
    return ValueError(
        f"the archive is refused: its entry {name[:200]!r} {why}; unpack it with the session's own "
        "code if that is wanted"
    )


class _Bounded:
    """Reads no more than `left` bytes, which skipping does not count for."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.left = 0

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > self.left:
            raise tarfile.ReadError(f"a header has more than {_MOST_OF_A_HEADER:,} bytes")
        data: bytes = self._source.read(size)
        self.left -= len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._source.seek(offset, whence))

    def tell(self) -> int:
        return int(self._source.tell())


def _decompressed(archive: BinaryIO) -> _Bounded:
    archive.seek(0)
    start = archive.read(6)
    archive.seek(0)
    opened: Any = archive
    if start.startswith(b"\x1f\x8b"):
        import gzip

        opened = gzip.GzipFile(fileobj=archive, mode="rb")
    elif start.startswith(b"BZh"):
        import bz2

        opened = bz2.BZ2File(archive)
    elif start == b"\xfd7zXZ\0":
        import lzma

        opened = lzma.LZMAFile(archive)
    return _Bounded(opened)
