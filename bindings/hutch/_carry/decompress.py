# SPDX-License-Identifier: Apache-2.0
"""A file of the host that may be compressed, read once from its beginning to its end, in bounded
memory. What is in it may be hostile. Not for two threads at once.
"""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO

_MOST_OF_XZ = 80 << 20  # bytes of memory to decompress in; `xz -9` takes 65 MiB
_MOST_RATIO = 1.05  # packed bytes to bytes of content: what cannot be packed grows by less
_MOST_EMPTY = 1 << 20  # more bytes, some of which are read ahead
_CHUNK = 64 << 10  # bytes that are decompressed at once


def damaged(why: object) -> ValueError:
    return ValueError(f"the archive cannot be read: {why}")


class Forward:
    """Never goes back: that would decompress all that comes before once more."""

    def __init__(self, archive: BinaryIO) -> None:
        self._given = _Given(archive)
        self._source = _decompressed(archive, self._given)
        self._is_plain = self._source is archive
        self.at = 0  # bytes

    def read(self, size: int) -> bytes:
        """As many bytes; fewer only at the end. Raises ValueError for what is damaged, OSError."""
        data = b""
        while len(data) < size:
            got = self._some(size - len(data))
            if not got:
                break
            data = data + got if data else got
        self.at += len(data)
        return data

    def skip(self, size: int) -> None:
        """Raises ValueError where there is less, and as `read` does."""
        if self._is_plain and size:
            self._source.seek(size - 1, os.SEEK_CUR)
            self.at += size - 1
            size = 1
        while size:
            got = len(self.read(min(size, _CHUNK)))
            if not got:
                raise damaged("it is cut off")
            size -= got

    def _some(self, most: int) -> bytes:
        try:
            data: bytes = self._source.read(most)
            self._given.content += len(data)
            return data
        except Exception as error:  # of what decompresses: OSError without a number, and others
            of_a_library = type(error).__module__ in ("zlib", "_lzma")
            if of_a_library or isinstance(error, EOFError) or getattr(error, "errno", 0) is None:
                raise damaged(error) from None
            raise


class _Given:
    """What is decompressed. It may be little larger than what it has in it: parts that are empty
    take time, and there is no end to them.
    """

    def __init__(self, archive: BinaryIO) -> None:
        self._archive = archive
        self._read = 0  # bytes
        self.content = 0  # bytes that came of these

    def read(self, size: int = -1) -> bytes:
        data = self._archive.read(size)
        self._read += len(data)
        if self._read > self.content * _MOST_RATIO + _MOST_EMPTY:
            raise damaged("much of it is empty parts")
        return data

    def readable(self) -> bool:
        return True


def _decompressed(archive: BinaryIO, given: Any) -> Any:
    archive.seek(0)
    start = archive.read(6)
    archive.seek(0)
    if start.startswith(b"\x1f\x8b"):
        import gzip

        return gzip.GzipFile(fileobj=given, mode="rb")
    if start.startswith(b"BZh"):
        import bz2

        return bz2.BZ2File(given)
    if start == b"\xfd7zXZ\0":
        return io.BufferedReader(_Xz(given))
    return archive


class _Xz(io.RawIOBase):
    """Decompresses in bounded memory, as LZMAFile does not."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._new_stream()

    def _new_stream(self) -> None:
        import lzma

        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_OF_XZ)

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        data = self._next(len(room))
        room[: len(data)] = data
        return len(data)

    def _next(self, most: int) -> bytes:
        """Some bytes; none at the end."""
        while True:
            given = b""
            if self._stream.eof:
                given = (self._stream.unused_data or self._source.read(_CHUNK)).lstrip(b"\0")
                if not given:
                    return b""
                self._new_stream()
            elif self._stream.needs_input:
                given = self._source.read(_CHUNK)
                if not given:
                    raise EOFError("it is cut off")
            data = self._decompress(given, most)
            if data:
                return data

    def _decompress(self, given: bytes, most: int) -> bytes:
        try:
            return self._stream.decompress(given, most)
        except Exception as error:
            if "limit" in str(error):
                raise damaged(
                    f"it takes more than {_MOST_OF_XZ >> 20} MiB to decompress: pack it with a "
                    "smaller dictionary, such as that of xz -9"
                ) from None
            raise
