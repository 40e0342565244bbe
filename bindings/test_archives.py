# SPDX-License-Identifier: Apache-2.0
"""Archives as they are read on the host: how they are compressed, and what that may cost."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import tarfile
import time
from collections.abc import Callable, Iterator

import pytest

from hutch._carry import archives
from hutch._carry.trees import Entry

Compress = Callable[[bytes], bytes]
FILES = {"a": b"x" * 512, "b": bytes(range(256)) * 4000, "c/d": b"", "e": b"y" * 100_000}


def packed() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def entries_of(archive: io.BytesIO, most_mb: float = 64) -> Iterator[Entry]:
    return archives.entries_of(archive, "in", most_mb, "take a larger one")


def read(archive: bytes, whole: bool = True) -> dict[str, bytes]:
    found = {}
    for entry in entries_of(io.BytesIO(archive)):
        if entry.open is not None:
            content = entry.open()
            room = bytearray(content.size)
            if whole:
                content.read(memoryview(room), 0)
            found[entry.path.removeprefix("in/")] = bytes(room)
    return found


def in_two_streams(data: bytes) -> bytes:
    return lzma.compress(data[:700]) + bytes(8) + lzma.compress(data[700:])


def with_dictionary(data: bytes, size: int) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": size}]
    return lzma.compress(data, lzma.FORMAT_XZ, filters=filters)


@pytest.mark.parametrize(
    "compress",
    [bytes, gzip.compress, bz2.compress, lzma.compress, in_two_streams],
    ids=["plain", "gzip", "bzip2", "xz", "xz in two streams"],
)
def test_an_archive_is_read_however_it_is_compressed(compress: Compress) -> None:
    archive = compress(packed())
    assert read(archive) == FILES
    assert read(archive, whole=False).keys() == FILES.keys()


def test_an_archive_of_xz_decompresses_in_bounded_memory() -> None:
    assert read(lzma.compress(packed(), preset=9 | lzma.PRESET_EXTREME)) == FILES
    assert read(with_dictionary(packed(), 64 << 20)) == FILES
    for size in (96 << 20, 256 << 20):
        with pytest.raises(ValueError, match="more than 80 MiB to decompress"):
            read(with_dictionary(packed(), size))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:400] + bytes(100) + data[500:],
    ],
    ids=["half", "with a hole"],
)
def test_a_damaged_archive_of_xz_is_refused(damage: Compress) -> None:
    with pytest.raises(ValueError, match="the archive cannot be read"):
        read(damage(lzma.compress(packed())), whole=False)


def test_parts_that_are_empty_end_the_reading() -> None:
    one = gzip.compress(packed())
    few, many = gzip.compress(b"") * 1000, gzip.compress(b"") * (8 << 16)
    assert read(few + one) == FILES
    for empty in (many, bz2.compress(b"") * (8 << 17)):
        with pytest.raises(ValueError, match="much of it is empty parts"):
            read(empty + one, whole=False)


def test_what_cannot_be_packed_is_read() -> None:
    content = os.urandom(3 << 20)
    for compress in (gzip.compress, bz2.compress, lzma.compress):
        assert told(compress(archive_of(member("a", content), how=tarfile.PAX_FORMAT))) == [
            ("in/a", "file", len(content), False, "")
        ]


# ---- what a header says


def member(name: str, content: bytes = b"", **more: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in more.items():
        setattr(info, key, value)
    return info, content


def archive_of(*members: tuple[tarfile.TarInfo, bytes], how: int, **more: object) -> bytes:
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=how, encoding="utf-8", errors="surrogateescape", **more
    ) as tar:  # type: ignore[call-overload]
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def told(archive: bytes) -> list[tuple[str, str, int, bool, str]]:
    return [
        (one.path, one.kind, one.size, one.executable, one.target)
        for one in entries_of(io.BytesIO(archive))
    ][1:]


@pytest.mark.parametrize("how", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_each_format_is_read(how: int) -> None:
    deep = "/".join(["d" * 80, "e" * 60, "f" * 90])  # ustar has it in two fields
    far = "t" * (100 if how == tarfile.USTAR_FORMAT else 3000)
    members = [
        member("plain", b"x" * 1000, mode=0o644),
        member(deep, b"y" * 512, mode=0o755),
        member("\udcff-\u00e9", b""),
        member("directory/", type=tarfile.DIRTYPE, mode=0o755),
        member("link", type=tarfile.SYMTYPE, linkname=far),
        member("hard", type=tarfile.LNKTYPE, linkname="plain"),
    ]
    more = {} if how != tarfile.PAX_FORMAT else {"pax_headers": {"comment": "shared"}}
    assert told(archive_of(*members, how=how, **more)) == [
        ("in/plain", "file", 1000, False, ""),
        (f"in/{deep}", "file", 512, True, ""),
        ("in/\udcff-\u00e9", "file", 0, False, ""),
        ("in/directory", "directory", 0, False, ""),
        ("in/link", "link", 0, False, far),
        ("in/hard", "hard link", 0, False, "in/plain"),
    ]


def header(kind: bytes, size: int, name: str = "x", **fields: bytes) -> bytes:
    """`fields`: what stands at an offset, as `at_345=b"…"`."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for at, content in fields.items():
        offset = int(at.removeprefix("at_"))
        block[offset : offset + len(content)] = content
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def extended(kind: bytes, content: bytes) -> bytes:
    return header(kind, len(content)) + padded(content)


def record(name: str, value: bytes) -> bytes:
    rest = b" %s=%s\n" % (name.encode(), value)
    length = len(rest) + 1
    while len(b"%d" % length) + len(rest) != length:
        length += 1
    return b"%d%s" % (length, rest)


def test_what_old_archives_and_all_that_follows_say_is_read() -> None:
    # Unix V7: no magic, a directory is a name that ends so.
    old = {"at_257": bytes(8)}
    v7 = header(b"\0", 1, "f", **old) + padded(b"1") + header(b"\0", 0, "d/", **old)
    assert told(v7) == [("in/f", "file", 1, False, ""), ("in/d", "directory", 0, False, "")]
    # GNU's has times where ustar has more of a name.
    times = header(b"0", 0, "f", at_345=b"14000000000\0")
    assert [one[0] for one in told(times)] == ["in/f"]
    # Some add the bytes of a header up with their signs.
    signed = bytearray(header(b"0", 0, "é"))
    signed[148:156] = b" " * 8
    signed[148:156] = b"%06o\0 " % sum(byte - 256 * (byte > 127) for byte in signed)
    assert [one[0] for one in told(bytes(signed))] == ["in/é"]
    # A name for all that follow, which one of them takes back, and a size that has no room else.
    shared = extended(b"g", record("path", b"shared")) + header(b"0", 0)
    own = (
        extended(b"x", record("path", b"") + record("size", b"3"))
        + header(b"0", 0)
        + padded(b"abc")
    )
    assert [(one[0], one[2]) for one in told(shared + own)] == [("in/shared", 0), ("in/x", 3)]


# ---- what a hostile one costs


class Source(io.BytesIO):
    """Tells how often it was begun anew."""

    begun = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self.begun += whence == 0
        return super().seek(offset, whence)


def sparse(count: int) -> bytes:
    """Of parts that lie before one another."""
    parts = b"".join(b"%011o\0%011o\0" % (512 * (4 - i), 512) for i in range(4))
    return (
        header(b"S", 512 * count, at_386=parts, at_483=b"%011o\0" % (512 * count))
        + bytes(512 * count)
        + bytes(1024)
    )


def pax_sparse(*records: tuple[str, bytes]) -> bytes:
    said = b"".join(record(f"GNU.sparse.{name}", value) for name, value in records)
    return extended(b"x", said) + header(b"0", 1024) + padded(b"1\n0\n512\n") + bytes(512)


SPARSE = {
    "GNU": sparse(40_000),
    "pax 0.0": pax_sparse(
        ("size", b"9"), ("numblocks", b"1"), ("offset", b"0"), ("numbytes", b"9")
    ),
    "pax 0.1": pax_sparse(("size", b"9"), ("numblocks", b"1"), ("map", b"0,9")),
    "pax 1.0": pax_sparse(("major", b"1"), ("minor", b"0"), ("realsize", b"512")),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_sparse_file_is_refused_and_nothing_is_read_twice(name: str, compress: Compress) -> None:
    source = Source(compress(SPARSE[name]))
    with pytest.raises(ValueError, match="is refused: its entry 'x' is a sparse file"):
        drain(entries_of(source))
    assert source.begun <= 2  # one look at how it is compressed


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_an_archive_is_read_forward(compress: Compress) -> None:
    """The harmless counterpart."""
    source = Source(compress(packed()))
    drain(entries_of(source))
    assert source.begun <= 2 and source.tell() > 0


def drain(entries: Iterator[Entry]) -> None:
    for entry in entries:
        if entry.open is not None:
            content = entry.open()
            content.read(memoryview(bytearray(content.size)), 0)


@pytest.mark.parametrize("digits", [b"1" * 1_000_000, b"1 1 " * 250_000, b"5 a=\n" * 200_000])
def test_a_header_costs_what_it_has_bytes(digits: bytes) -> None:
    """The square of them would be half an hour."""
    archive = extended(b"x", digits) + header(b"0", 0)
    if digits.startswith(b"5"):
        assert [one[0] for one in told(archive)] == ["in/x"]
    else:
        with pytest.raises(ValueError, match="cannot be read: a header in it is not whole"):
            told(archive)


def test_an_archive_whose_headers_are_large_in_all_is_refused() -> None:
    one = extended(b"x", record("comment", b"c" * 1_000_000)) + header(b"5", 0)
    assert len(told(gzip.compress(one * 200, 1))) == 200
    with pytest.raises(ValueError, match="its headers have more than 268,435,456 bytes"):
        told(gzip.compress(one * 300, 1))


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_files_that_are_larger_than_may_be_are_never_decompressed(compress: Compress) -> None:
    """What lies behind the header is damaged, which nobody has seen."""
    sound = header(b"0", 1 << 20, "kept") + bytes(1 << 20)
    large = sound + header(b"0", 1 << 20, "large")
    with pytest.raises(OSError, match="its files have more than 1 MiB: take a larger one") as error:
        drain(entries_of(io.BytesIO(compress(large)), most_mb=1))
    assert error.value.errno == errno.EFBIG
    drain(entries_of(io.BytesIO(compress(sound + bytes(1024))), most_mb=1))


DAMAGED = {
    "a checksum": header(b"0", 0)[:-1] + b"x",
    "a later checksum": header(b"0", 0) + header(b"0", 0)[:-1] + b"x",
    "half a header": header(b"0", 0) + header(b"0", 0)[:100],
    "no octal number": header(b"0", 0, at_124=b"9" * 11),
    "no decimal number": extended(b"x", record("size", b"-1")) + header(b"0", 0),
    "no length": extended(b"x", b" path=x\n") + header(b"0", 0),
    "a length of nothing": extended(b"x", b"0 path=x\n") + header(b"0", 0),
    "a length too large": extended(b"x", b"99 path=x\n") + header(b"0", 0),
    "no value": extended(b"x", b"7 path\n") + header(b"0", 0),
    "a zero byte": extended(b"x", record("linkpath", b"a\0b")) + header(b"2", 0),
    "names of nothing": extended(b"L", b"name"),
    "content cut off": header(b"0", 600) + bytes(512),
    "an extension cut off": header(b"x", 600) + bytes(512),
}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_an_archive_that_is_damaged_anywhere_is_refused(name: str, compress: Compress) -> None:
    with pytest.raises(ValueError, match="the archive cannot be read: "):
        told(compress(DAMAGED[name]))


def test_what_all_entries_share_costs_nothing_for_each() -> None:
    shared = extended(b"g", record("linkpath", b"\xff" * 1_000_000))
    entries = b"".join(header(b"0", 0, f"f{number}") for number in range(500))
    begun = time.process_time()
    assert len(told(shared + entries + bytes(1024))) >= 500
    assert time.process_time() - begun < 2  # one by one it was 7 s and more
