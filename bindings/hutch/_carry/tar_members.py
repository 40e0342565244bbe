# SPDX-License-Identifier: Apache-2.0
"""What an archive of the format tar says of its entries. The archive may be hostile: it is read
forward only, and what it costs grows with its bytes, each of which is a header's, of which there
are so many at most, or a file's. The library's own reader goes back for sparse files, and its time
grows with the square of a header.

Formats: that of Unix V7, ustar, GNU's and pax. Not for two threads at once.
"""

from __future__ import annotations

import io
import re
from typing import Any, NamedTuple

from hutch._carry.decompress import Forward, damaged

_BLOCK = 512  # bytes
_MOST_OF_A_HEADER = 1 << 20  # bytes, with all that extends it
_MOST_OF_HEADERS = 256 << 20  # bytes, of one archive: 100,000 of 2.6 kB
_MOST_OF_NAME = 64 << 10  # bytes: no path has as many
_KINDS = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hard link",
    b"2": "link",
    b"5": "directory",
    b"S": "sparse file",
}
_OCTAL = re.compile(rb" *([0-7]*) *", re.DOTALL)
_DECIMAL = re.compile(rb"[0-9]{1,20}")


class Member(NamedTuple):
    name: str
    kind: str  # "file", "directory", "link", "hard link", "sparse file"; "" is any other
    size: int  # of a file: bytes
    executable: bool
    target: str  # of a link


class Members:
    def __init__(self, source: Forward) -> None:
        self._source = source
        self._end = 0  # of the last one's content
        self._shared: dict[str, bytes] = {}  # what the archive says of all that follows
        self._headers = 0  # bytes

    def next(self) -> Member | None:
        """The next one; None at the end. What was not read of the last one's content is skipped.
        Raises ValueError for an archive that is damaged or has too large headers, OSError.
        """
        self._source.skip(self._end - self._source.at)
        begin = self._headers
        own: dict[str, bytes] = {}
        while True:
            header = self._header()
            if header is None:
                if own:
                    raise damaged("it is cut off")
                return None
            kind = header[156:157]
            if kind == b"g":
                self._shared.update(_records(self._extension(header, begin)))
            elif kind in (b"x", b"X"):
                own.update(_records(self._extension(header, begin)))
            elif kind in (b"L", b"K"):
                name = "path" if kind == b"L" else "linkpath"
                own[name] = _text(self._extension(header, begin))
            else:
                return self._member(header, {**self._shared, **own})

    def content(self) -> Any:
        """That of the last one, which is a file."""
        return _Content(self._source, self._end)

    def _header(self) -> bytes | None:
        at = self._source.at
        header = self._source.read(_BLOCK)
        if not header.strip(b"\0") and at:
            return None  # of zeros, or nothing: some end so
        if len(header) != _BLOCK:
            raise damaged("it is cut off" if header else "it is empty")
        if not header.strip(b"\0"):
            return None
        self._headers += _BLOCK
        wrong = sum(header) - sum(header[148:156]) + 8 * ord(" ") - _number(header[148:156])
        # Some add the bytes up with their signs.
        if wrong and wrong != 256 * sum(byte > 127 for byte in header):
            raise damaged("a header in it is not whole")
        return header

    def _extension(self, header: bytes, begin: int) -> bytes:
        size = _size(header[124:136])
        self._headers += _padded(size)
        if self._headers - begin > _MOST_OF_A_HEADER:
            raise damaged(f"a header has more than {_MOST_OF_A_HEADER:,} bytes")
        if self._headers > _MOST_OF_HEADERS:
            raise damaged(f"its headers have more than {_MOST_OF_HEADERS:,} bytes")
        data = self._source.read(_padded(size))
        if len(data) != _padded(size):
            raise damaged("it is cut off")
        return data[:size]

    def _member(self, header: bytes, said: dict[str, bytes]) -> Member:
        """`said`: by what extends the header; an empty text takes back what is shared."""
        name, prefix = _text(header[:100]), _text(header[345:500])
        if prefix and header[257:263] == b"ustar\0":
            name = prefix + b"/" + name
        kind = _KINDS.get(header[156:157], "")
        if header[156:157] == b"\0" and name.endswith(b"/"):
            kind = "directory"
        if kind == "file" and said.get("sparse"):
            kind = "sparse file"
        size = 0
        if kind == "file":
            size = _decimal(said["size"]) if said.get("size") else _size(header[124:136])
        self._end = self._source.at + _padded(size)
        name = said.get("path") or name
        target = b""  # of anything else it may be shared by all that follow
        if kind in ("link", "hard link"):
            target = said.get("linkpath") or _text(header[157:257])
        if len(name) > _MOST_OF_NAME or len(target) > _MOST_OF_NAME:
            raise damaged(f"a name in it has more than {_MOST_OF_NAME:,} bytes")
        return Member(
            name.decode("utf-8", "surrogateescape"),
            kind,
            size,
            _number(header[100:108]) & 0o100 != 0,
            target.decode("utf-8", "surrogateescape"),
        )


class _Content(io.RawIOBase):
    def __init__(self, source: Forward, end: int) -> None:
        self._source = source
        self._end = end

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        data = self._source.read(min(len(room), self._end - self._source.at))
        room[: len(data)] = data
        return len(data)


def _records(data: bytes) -> dict[str, bytes]:
    """What is used of those of pax, each of which is `LENGTH KEYWORD=VALUE` and a line's end."""
    found: dict[str, bytes] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 20)
        length = _decimal(data[at:space]) if space > at else 0
        end = at + length
        equals = data.find(b"=", space, end)
        if equals < 0 or end > len(data) or data[end - 1 : end] != b"\n":
            raise damaged("a header in it is not whole")
        name, value = data[space + 1 : equals], data[equals + 1 : end - 1]
        if name in (b"path", b"linkpath", b"size"):
            if b"\0" in value:
                raise damaged("a name in it has a zero byte")
            found[name.decode()] = value
        elif name.startswith(b"GNU.sparse."):
            found["sparse"] = b"1"
        at = end
    return found


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    """One that a header has: octal digits, or bytes where these have no room for it."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (field[0] == 0xFF) * (1 << 8 * (len(field) - 1))
    digits = _OCTAL.fullmatch(_text(field))
    if digits is None:
        raise damaged("a header in it is not whole")
    return int(digits[1] or b"0", 8)


def _size(field: bytes) -> int:
    size = _number(field)
    if size < 0:
        raise damaged("an entry in it has a size below zero")
    return size


def _decimal(digits: bytes) -> int:
    if not _DECIMAL.fullmatch(digits):
        raise damaged("a header in it is not whole")
    return int(digits)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
