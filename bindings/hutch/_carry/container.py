# SPDX-License-Identifier: Apache-2.0
"""The container of a snapshot: a header, and sections of bytes, each with its length and SHA-256.

docs/snapshots.md describes it. It may be hostile: what it says of itself is held to limits before
anything of that size is read, a section is given to nobody before all of it was found to be as its
SHA-256 says, and what is in it is not looked at here. Not for two threads at once.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Union

from hutch._errors import SnapshotError
from hutch._strict_json import parsed
from hutch._text import brief_repr

MAGIC = b"\x89hutch\r\n"
VERSION = 1
MOST_NOTES = 1 << 20  # bytes
MOST_LEFT_OUT = 1000  # that are listed by name
MOST_NAME, MOST_REASON = 4200, 500  # characters of each
MOST_PACKAGES = 1000
SECTIONS = ("files", "globals", "history")
MOST_BYTES = 64 << 30  # of all
_MOST_EXECS = 1 << 53
_HEAD = Struct("<8sHHI")  # magic, version, number of sections, length of the notes
_SECTION = Struct("<16sQ32s")  # name, length, SHA-256
_DIGEST = hashlib.sha256().digest_size
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}==[A-Za-z0-9.!+_-]{1,200}", re.ASCII)
_CHUNK = 1 << 20
Given = Union[bytes, bytearray, memoryview, str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Notes:
    """What the header says. `python`: its minor version, as "3.11"; `environment`: the digest of
    the packages; `execs`: how many pieces of code had run; `left_out`: what is not there, with why;
    `packages`: those that were added to it, as "name==version".
    """

    python: str
    environment: str = ""
    execs: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    packages: Sequence[str] = ()

    def to_bytes(self) -> bytes:
        return json.dumps(vars(self)).encode()


class Writer:
    """Writes a container to `out`, from its beginning on."""

    def __init__(self, out: BinaryIO, notes: Notes, sections: int) -> None:
        self._out = out
        self._notes = _bounded(notes).to_bytes()
        self._begin = _HEAD.size + _SECTION.size * sections + len(self._notes) + _DIGEST
        self._count = sections
        self._table: list[bytes] = []
        self._end = out.seek(self._begin)
        self._hash = hashlib.sha256()
        self._length = 0

    @contextmanager
    def section(self, name: str) -> Iterator[Writer]:
        """What is written meanwhile."""
        self._hash, self._length = hashlib.sha256(), 0
        yield self
        digest = self._hash.digest()
        self._table.append(_SECTION.pack(name.encode(), self._length, digest))

    def write(self, data: Any) -> None:
        self._hash.update(data)
        self._length += len(data)
        self._out.write(data)

    def finish(self) -> None:
        assert len(self._table) == self._count
        head = _HEAD.pack(MAGIC, VERSION, self._count, len(self._notes))
        head += b"".join(self._table) + self._notes
        self._out.seek(0)
        self._out.write(head + hashlib.sha256(head).digest())


def _bounded(notes: Notes) -> Notes:
    """`left_out` as it may be, though names and reasons come from a sandbox."""
    kept = {
        name[:MOST_NAME]: why[:MOST_REASON]
        for name, why in list(notes.left_out.items())[:MOST_LEFT_OUT]
    }
    size = 0
    for name, why in list(kept.items()):
        size += len(json.dumps([name, why]))
        if size > MOST_NOTES // 2:
            del kept[name]
    if len(kept) < len(notes.left_out):
        kept["…"] = f"and {len(notes.left_out) - len(kept):,} more"
    return replace(notes, left_out=kept)


class _Source:
    """The bytes of a container."""

    def __init__(self, given: Given) -> None:
        self._file: BinaryIO
        self.name = "the snapshot"
        if isinstance(given, (bytes, bytearray, memoryview)):
            self._file = io.BytesIO(given)
            self.size = self._file.seek(0, os.SEEK_END)
            return
        path = Path(given)
        self.name = f"the snapshot {str(path)[:500]!r}"
        self._file = open(
            path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        )
        self._status = os.fstat(self._file.fileno())
        self.size = self._status.st_size
        if not stat.S_ISREG(self._status.st_mode):
            self._file.close()
            raise SnapshotError(f"{self.name} is not a regular file")

    def read(self, offset: int, size: int) -> bytes:
        """As many bytes. Raises SnapshotError."""
        self._file.seek(offset)
        data = b""
        while len(data) < size:
            got = self._file.read(size - len(data))
            if not got:
                raise damaged("it is cut off")
            data = data + got if data else got
        return data

    def check(self) -> None:
        """Raises SnapshotError where the file has changed since it was opened."""
        if isinstance(self._file, io.BytesIO):
            return
        now, before = os.fstat(self._file.fileno()), self._status
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise SnapshotError(f"{self.name} was written to while it was read", hint="try again")

    def close(self) -> None:
        self._file.close()


class Container:
    """A container that was found to be whole. `given`: bytes, or the path of a file, which is kept
    open. Raises SnapshotError for what is damaged or too new, OSError.
    """

    def __init__(self, given: Given) -> None:
        if not isinstance(given, (bytes, bytearray, memoryview, str, os.PathLike)):
            raise TypeError(f"a snapshot is bytes or a path, not {type(given).__name__}")
        self._source = _Source(given)
        try:
            self.notes = self._read()
        except BaseException:
            self.close()
            raise

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def size_of(self, name: str) -> int:
        return self._places[name][1]

    def opened(self, name: str) -> BinaryIO:
        """A section, to be read from its beginning to its end."""
        self._source.check()
        return io.BufferedReader(_Section(self._source, *self._places[name]), _CHUNK)

    def chunks(self, name: str, size: int = _CHUNK) -> Iterator[bytes]:
        self._source.check()
        offset, length = self._places[name]
        for at in range(0, length, size):
            yield self._source.read(offset + at, min(size, length - at))
        self._source.check()

    def close(self) -> None:
        self._source.close()

    # ---- reading

    def _read(self) -> Notes:
        self._places: dict[str, tuple[int, int]] = {}
        source = self._source
        if source.size < _HEAD.size:
            raise damaged("it is cut off" if source.size else "it is empty")
        first = source.read(0, _HEAD.size)
        magic, version, count, notes_size = _HEAD.unpack(first)
        if magic != MAGIC:
            raise SnapshotError(
                "this is not a snapshot", hint="Session.snapshot() and snapshot(to=path) make some"
            )
        if version != VERSION:
            raise SnapshotError(
                f"the snapshot is of version {version} of its format: this Hutch reads version "
                f"{VERSION}",
                hint="a newer Hutch reads it" if version > VERSION else "",
            )
        if count > len(SECTIONS):
            raise damaged(f"it says that it has {count:,} sections")
        if notes_size > MOST_NOTES:
            raise damaged(f"it says that its notes have {notes_size:,} bytes")
        rest = source.read(_HEAD.size, _SECTION.size * count + notes_size + _DIGEST)
        head = first + rest[:-_DIGEST]
        if hashlib.sha256(head).digest() != rest[-_DIGEST:]:
            raise damaged("its header is not as its SHA-256 says")
        digests = self._take_table(rest[: _SECTION.size * count], len(head) + _DIGEST)
        notes = _notes(rest[_SECTION.size * count : -_DIGEST])
        for name, digest in digests.items():
            self._check(name, digest)
        return notes

    def _take_table(self, table: bytes, end: int) -> dict[str, bytes]:
        digests: dict[str, bytes] = {}
        for padded, length, digest in _SECTION.iter_unpack(table):
            name = padded.rstrip(b"\0").decode("ascii", "replace")
            if name not in SECTIONS or name in digests:
                raise damaged(f"it has a section {brief_repr(name)} that it cannot have")
            if length > MOST_BYTES:
                raise damaged(f"it says that its section {name} has {length:,} bytes")
            self._places[name], digests[name] = (end, length), digest
            end += length
        if end != self._source.size:
            raise damaged("it is cut off" if end > self._source.size else "something follows it")
        return digests

    def _check(self, name: str, digest: bytes) -> None:
        found = hashlib.sha256()
        for chunk in self.chunks(name):
            found.update(chunk)
        if found.digest() != digest:
            raise damaged(f"its section {name} is not as its SHA-256 says")


class _Section(io.RawIOBase):
    def __init__(self, source: _Source, offset: int, length: int) -> None:
        self._source = source
        self._offset, self._length = offset, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = (0, self._at, self._length)[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, room: Any) -> int:
        size = max(0, min(len(room), self._length - self._at))
        room[:size] = self._source.read(self._offset + self._at, size)
        self._at += size
        return size


def damaged(why: str) -> SnapshotError:
    return SnapshotError(f"the snapshot is damaged: {why}", hint="take another copy of it")


def _notes(data: bytes) -> Notes:
    try:
        found = parsed(data)
    except ValueError as error:
        raise damaged(f"its header {error}") from None
    kinds = {"python": str, "environment": str, "execs": int, "left_out": dict, "packages": list}
    found.setdefault("packages", [])
    if found.keys() != kinds.keys() or any(
        type(found[name]) is not kind for name, kind in kinds.items()
    ):
        raise damaged("its header has other fields than it can have")
    left_out = found["left_out"]
    if len(left_out) > MOST_LEFT_OUT + 1 or not all(
        type(why) is str and len(name) <= MOST_NAME and len(why) <= MOST_REASON
        for name, why in left_out.items()
    ):
        raise damaged("what it says is left out cannot be")
    if not 0 <= found["execs"] < _MOST_EXECS:
        raise damaged("its header has other fields than it can have")
    if len(found["packages"]) > MOST_PACKAGES or not all(
        type(one) is str and _PACKAGE.fullmatch(one) for one in found["packages"]
    ):
        raise damaged("the packages that it says were added cannot be")
    return Notes(**{**found, "packages": tuple(found["packages"])})
