# SPDX-License-Identifier: Apache-2.0
"""The container of snapshots: what was written is read, and nothing else is."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings as how, strategies as st

from hutch import SnapshotError
from hutch._carry import container
from hutch._carry.container import Container, Notes, Writer

FILES, NAMES = b"files " * 1000, bytes(range(256)) * 50
NOTES = Notes(
    "3.11", "d1" * 32, 7, {"lock": "cannot pickle", "./é\udcff": "a link"}, ("six==1.16.0",)
)


def made(notes: Notes = NOTES, **sections: bytes) -> bytes:
    out = io.BytesIO()
    writer = Writer(out, notes, len(sections))
    for name, data in sections.items():
        with writer.section(name):
            writer.write(data[:10])
            writer.write(data[10:])
    writer.finish()
    return out.getvalue()


WHOLE = made(files=FILES, globals=NAMES)
HEADER = WHOLE.index(FILES)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(WHOLE)
    for given_as in (WHOLE, bytearray(WHOLE), memoryview(WHOLE), tmp_path / "kept"):
        found = Container(given_as)
        assert found.notes == NOTES and "history" not in found
        assert found.opened("files").read() == FILES and found.size_of("files") == len(FILES)
        assert b"".join(found.chunks("globals", 1000)) == NAMES
        found.close()
    empty = Container(made())
    assert "files" not in empty and empty.notes.execs == 7


@pytest.mark.parametrize("bit", range(8))
def test_one_bit_is_seen_wherever_it_is(bit: int) -> None:
    for at in [*range(HEADER), HEADER, len(WHOLE) - len(NAMES), len(WHOLE) - 1]:
        data = bytearray(WHOLE)
        data[at] ^= 1 << bit
        with pytest.raises(SnapshotError):
            Container(data)


@pytest.mark.parametrize("size", [0, 1, 8, 15, 16, 100, HEADER - 1, HEADER, len(WHOLE) // 2])
def test_what_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(SnapshotError, match=r"cut off|empty"):
        Container(WHOLE[:size])


def test_what_follows_it_is_refused() -> None:
    with pytest.raises(SnapshotError, match="something follows it"):
        Container(WHOLE + b"x")


def test_a_newer_version_is_named() -> None:
    data = bytearray(WHOLE)
    data[8:10] = struct.pack("<H", 2)
    with pytest.raises(SnapshotError, match="version 2") as error:
        Container(data)
    assert "newer" in error.value.hint


def test_what_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="not a snapshot"):
        Container(b"PK\3\4" + bytes(100))
    with pytest.raises(FileNotFoundError):
        Container(tmp_path / "absent")
    os.mkfifo(tmp_path / "fifo")
    for place in (tmp_path / "fifo", tmp_path):
        with pytest.raises((SnapshotError, IsADirectoryError)):
            Container(place)
    with pytest.raises(TypeError, match="bytes or a path"):
        Container(7)  # type: ignore[arg-type]


def headed(head: bytes, table: bytes, notes: bytes, rest: bytes = b"") -> bytes:
    """With the SHA-256 that it should have."""
    data = head + table + notes
    return data + hashlib.sha256(data).digest() + rest


def section(name: bytes, length: int, data: bytes = b"") -> bytes:
    return struct.pack("<16sQ32s", name, length, hashlib.sha256(data).digest())


def head(count: int, notes: int) -> bytes:
    return struct.pack("<8sHHI", b"\x89hutch\r\n", 1, count, notes)


SAID = NOTES.to_bytes()
HOSTILE = {
    "many sections": headed(head(65535, 0), b"", b"", bytes(100)),
    "long notes": headed(head(0, 0xFFFFFFFF), b"", b"", bytes(100)),
    "large section": headed(head(1, len(SAID)), section(b"files", 1 << 63), SAID),
    "largest section": headed(head(1, len(SAID)), section(b"files", 64 << 30), SAID),
    "unknown section": headed(head(1, len(SAID)), section(b"../../etc", 0), SAID),
    "one section twice": headed(head(2, len(SAID)), section(b"files", 0) * 2, SAID),
    "no JSON": headed(head(0, 3), b"", b"\x80\4K"),
    "deep JSON": headed(head(0, 200_000), b"", b"[" * 200_000),
    "a list": headed(head(0, 2), b"", b"[]"),
    "other fields": headed(head(0, 2), b"", b"{}"),
    "more fields": headed(head(0, len(SAID) + 8), b"", SAID[:-1] + b',"x": 1}'),
    "a field of another type": headed(head(0, len(SAID)), b"", SAID.replace(b'"3.11"', b"[3.11]")),
    "a reason that is no text": headed(
        head(0, len(SAID)), b"", SAID.replace(b'"cannot pickle"', b"123456789012345")
    ),
    **{
        f"a package {name}": headed(head(0, len(notes)), b"", notes)
        for name in ("--index-url=x==1", "six @ https://example.org/==1", "six", "six==1\\nx==1")
        if (notes := SAID.replace(b"six==1.16.0", name.encode()))
    },
    "a negative number": headed(head(0, len(SAID) + 1), b"", SAID.replace(b": 7", b": -7")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(SnapshotError):
        Container(HOSTILE[name])


def test_its_harmless_counterpart_is_read() -> None:
    data = headed(head(1, len(SAID)), section(b"files", 3, b"abc"), SAID, b"abc")
    assert Container(data).opened("files").read() == b"abc"


def test_one_that_names_no_packages_is_read() -> None:
    notes = SAID.replace(b', "packages": ["six==1.16.0"]', b"")
    assert Container(headed(head(0, len(notes)), b"", notes)).notes.packages == ()


def test_nothing_is_allocated_for_what_it_only_says() -> None:
    """In a process that may have little memory more than it has."""
    code = """
import resource, sys
from bindings.test_container import HOSTILE, Container, SnapshotError
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20),) * 2)
for data in HOSTILE.values():
    try:
        Container(data)
    except SnapshotError:
        continue
    sys.exit(1)
"""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@how(max_examples=300, deadline=None)
@given(st.binary(max_size=4096))
@example(WHOLE[:HEADER])
def test_any_bytes_give_one_error(data: bytes) -> None:
    with pytest.raises(SnapshotError):
        Container(data)


@how(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, HEADER - 33), st.binary(min_size=1, max_size=9)), max_size=4)
)
def test_a_header_that_says_anything_gives_sections_or_one_error(
    changes: list[tuple[int, bytes]],
) -> None:
    """With the SHA-256 that it should have, so that each field is looked at."""
    data = bytearray(WHOLE)
    for at, new in changes:
        data[at : at + len(new)] = new
    size = struct.unpack_from("<I", data, 12)[0]
    count = struct.unpack_from("<H", data, 10)[0]
    end = 16 + 56 * count + size
    if end + 32 <= len(data):
        data[end : end + 32] = hashlib.sha256(data[:end]).digest()
    try:
        found = Container(data)
    except SnapshotError:
        return
    for name in container.SECTIONS:
        if name in found:
            content = found.opened(name).read()
            assert content in (FILES, NAMES) and len(content) == found.size_of(name)


def test_a_file_that_is_written_to_meanwhile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_bytes(WHOLE)
    found = Container(path)
    with open(path, "r+b") as file:
        file.seek(HEADER)
        file.write(b"XXXX")
    os.utime(path, ns=(1, 1))
    with pytest.raises(SnapshotError, match="written to"):
        found.opened("files")
    found.close()


def test_what_is_left_out_is_bounded() -> None:
    many = {f"name{i}": "x" * 10_000 for i in range(100_000)}
    notes = Container(made(Notes("3.11", left_out=many), files=b"")).notes
    assert len(notes.left_out) == container.MOST_LEFT_OUT + 1
    assert notes.left_out["…"] == f"and {100_000 - container.MOST_LEFT_OUT:,} more"
