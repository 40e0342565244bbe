# SPDX-License-Identifier: Apache-2.0
"""Files of a session: its process says what it likes of them, and an archive holds what it likes.
Nothing is written outside of the target, nothing is left of what failed, and there is one error.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import stat
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import Session, _session_transfers
from hutch._carry import trees

NAMES = [
    b"..",
    b".",
    b"",
    b"/",
    b"/tmp/hutch-attack",
    b"../hutch-attack",
    b"a/../../hutch-attack",
    b"a/..",
    b"a//b",
    b"a/./b",
    b"a\0b",
    b"x" * 256,
    b"/".join([b"x" * 200] * 21),
    b"/".join([b"d"] * 102),
]
FINDS = """
import gc, marshal, struct, time
state = next(o for o in gc.get_objects() if type(o).__name__ == "State")
files = type(state).execute.__globals__["session_files"]
"""


@pytest.fixture
def s() -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=20) as session:
        yield session


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """In a directory of which nothing else may be touched."""
    (tmp_path / "around").mkdir()
    yield tmp_path / "around" / "target"
    assert os.listdir(tmp_path) == ["around"]
    assert set(os.listdir(tmp_path / "around")) <= {"target"}
    assert not os.path.lexists("/tmp/hutch-attack")


def replace(s: Session, verb: str, source: str) -> None:
    """Has the session's process answer a verb by this expression of `a`, the verb's arguments."""
    outcome = s.exec(FINDS + f"files.VERBS[{verb!r}] = lambda *a: {source}")
    assert outcome.ok, outcome


def tree_of(*entries: tuple[bytes, str] | tuple[bytes, str, int]) -> str:
    """What tells of these names, kinds and sizes."""
    kinds = ("file", "directory", "link", "other")
    numbers = [
        struct.pack("=5q", kinds.index(kind), 1, size[0] if size else 1, 0, 1)
        for _, kind, *size in entries
    ]
    names = [entry[0] + b"\0" for entry in entries]
    return repr((b"".join(names), b"first\0" * len(entries), b"".join(numbers)))


def pieces_of(*numbers: int) -> str:
    return f"struct.pack('={len(numbers)}q', *{numbers})"


X_FOR_EACH = f"(lambda n: ({pieces_of(0, 1, 1, 0, 1)} * n, bytearray(b'x' * n)))"
X_FOR_EACH += "(len(marshal.loads(a[1])[1]))"


def nothing_at(target: Path) -> bool:
    return not os.path.lexists(target) or os.listdir(target) == []


# ---- names


@pytest.mark.parametrize("kind", ["file", "directory"])
@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:24])
def test_no_name_that_a_session_tells_leads_out(
    s: Session, target: Path, name: bytes, kind: str
) -> None:
    s.files.mkdir("d")
    replace(s, "tree", tree_of((b"honest", "file"), (name, kind)))
    replace(s, "get", X_FOR_EACH)
    for attempt in (lambda: s.files.download("d", target), lambda: s.files.tar("d")):
        with pytest.raises((hutch.SandboxError, OSError)):
            attempt()
        assert nothing_at(target)


def test_what_a_session_tells_in_the_same_words_is_downloaded(s: Session, target: Path) -> None:
    """The harmless counterpart: the names are the wall, and nothing else of it."""
    s.files.mkdir("d")
    replace(s, "tree", tree_of((b"a", "directory"), (b"a/b", "file"), (b"c", "file")))
    replace(s, "get", X_FOR_EACH)
    s.files.download("d", target)
    assert (target / "a" / "b").read_text() == (target / "c").read_text() == "x"


@pytest.mark.parametrize(
    "tree",
    [
        tree_of((b"a", "file"), (b"a", "file")),
        tree_of((b"a", "file"), (b"a", "directory")),
        tree_of((b"a", "directory"), (b"a", "directory")),
        tree_of((b"a", "file"), (b"a/b", "file")),
        tree_of((b"a/b", "file")),  # in nothing
        tree_of((b"a", "directory", -1)),
        "(b'a', b'\\0', bytes(40))",
        "(b'a\\0', b'\\0', bytes(39))",
        "(b'a\\0', b'\\0', bytes(80))",
        "(b'a\\0', b'', bytes(40))",
        "(b'a\\0', b'\\0', b'\\4' + bytes(39))",  # of no kind
        "(b'a\\0', b'\\0', 'text')",
        "(b'a\\0', b'\\0')",
        "5",
        "None",
        "bytes(1 << 28), bytes(1 << 28), bytes(5)",
        "a[0] * (1 << 30)",
    ],
)
def test_a_tree_that_cannot_be_is_one_error(s: Session, target: Path, tree: str) -> None:
    s.files.mkdir("d")
    replace(s, "tree", tree)
    replace(s, "get", X_FOR_EACH)
    with pytest.raises((hutch.SandboxError, OSError)):
        s.files.download("d", target)
    assert nothing_at(target)


def test_a_tree_of_a_million_entries_is_refused(s: Session, target: Path) -> None:
    s.files.mkdir("d")
    replace(s, "tree", f"tuple(part * 1_000_000 for part in {tree_of((b'a', 'directory'))})")
    for attempt in (lambda: s.files.download("d", target), s.files.changed):
        with pytest.raises(hutch.SandboxError, match="gave an invalid reply"):
            attempt()
    assert nothing_at(target)


def test_a_real_tree_that_is_too_large_is_refused(
    s: Session, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as large as is refused elsewhere: a scratch has fewer inodes."""
    monkeypatch.setattr(trees, "MOST_ENTRIES", 1000)
    monkeypatch.setattr(_session_transfers, "MOST_ENTRIES", 1000)
    s.exec("import os\nos.mkdir('d')\nfor i in range(1000): open(f'd/{i}', 'w').close()")
    s.files.download("d", target)  # the harmless counterpart
    assert len(os.listdir(target)) == 1000
    s.exec("open('d/1000', 'w').close()")
    for attempt in (lambda: s.files.download("d", target / "more"), s.files.changed):
        with pytest.raises(OSError, match="more than 1,000 entries: take its directories"):
            attempt()
    assert not (target / "more").exists()


# ---- content


@pytest.mark.parametrize(
    "reply",
    [
        f"({pieces_of(0, 1, 1, 0, 1)}, bytearray(b'xx'))",  # more bytes than pieces
        f"({pieces_of(0, 2, 2, 0, 1)}, bytearray(b'x'))",  # fewer
        f"({pieces_of(0, 1, 5, 0, 1)}, bytearray(b'x'))",  # a piece that stops early
        f"({pieces_of(-1, 1, 5, 0, 1)}, bytearray(b'x'))",
        f"({pieces_of(0, -1, 5, 0, 1)}, bytearray(b'x'))",
        f"({pieces_of(5, 1, 1, 0, 1)}, bytearray(b'x'))",  # behind the end
        f"({pieces_of(0, 0, 1 << 62, 0, 1)}, bytearray())",
        f"({pieces_of((1 << 62) - 1, 1, 1 << 62, 0, 1)}, bytearray(b'x'))",
        f"({pieces_of(*[0, 1, 1, 0, 1] * 3)}, bytearray(b'xxx'))",  # of files not asked for
        "(b'', bytearray())",
        "(b'', bytearray(b'x'))",
        "(bytes(39), bytearray(b'x'))",
        f"({pieces_of(0, 1, 1, 0, 1)}, 'x')",
        "('text', bytearray(b'x'))",
        "([], bytearray())",
        "5",
        "None",
        # A terabyte, piece by piece; another file each time.
        "(struct.pack('=5q', 0, a[2], 1 << 40, 0, 1), bytearray(a[2]))",
        "(struct.pack('=5q', 0, a[2], a[2] + 1, time.time_ns(), 1), bytearray(a[2]))",
    ],
)
def test_content_that_cannot_be_is_one_error(s: Session, target: Path, reply: str) -> None:
    s.files.write("f", "x")
    s.files.write("d/f", "x")
    replace(s, "get", "reply(a)")
    assert s.exec(f"def reply(a): return {reply}").ok
    attempts: list[Callable[[], Any]] = [
        lambda: s.files.download("f", target),
        lambda: s.files.download("d", target),
        lambda: s.files.read("f"),
        lambda: s.files.tar("d"),
    ]
    for attempt in attempts:
        with pytest.raises((hutch.SandboxError, OSError)):
            attempt()
        assert nothing_at(target)
    s.reset()
    s.files.download("f", target)  # the harmless counterpart
    assert target.read_text() == "x"


def test_an_answer_that_is_no_answer_is_one_error(s: Session, target: Path) -> None:
    for reply in ["5", "{}", "{'type': 'file'}", "{'type': 'file', 'size': 'x', 'mode': 1}"]:
        replace(s, "stat", reply)
        with pytest.raises(hutch.SandboxError):
            s.files.download("f", target)
    s.exec("files.answer = lambda *a: ('error', [10**9, '/etc/' + chr(27)])")
    with pytest.raises(OSError) as caught:
        s.files.download("f", target)
    assert "\x1b" not in str(caught.value)
    assert not target.exists()


def test_a_terabyte_of_holes_does_not_become_one(s: Session, target: Path) -> None:
    s.exec("import os; os.mkdir('d'); open('d/x', 'w').close(); os.truncate('d/x', 1 << 40)")
    for attempt in (
        lambda: s.files.download("d/x", target),
        lambda: s.files.download("d", target),
    ):
        with pytest.raises(OSError, match="larger than 16 GiB, holes included: take them in parts"):
            attempt()
        assert nothing_at(target)
    s.exec("os.truncate('d/x', 1 << 33)")
    s.files.download("d", target)  # the harmless counterpart
    status = os.stat(target / "x")
    assert status.st_size == 1 << 33 and status.st_blocks < 64


def test_a_file_that_changes_while_it_is_read_is_no_copy(s: Session, target: Path) -> None:
    s.exec(
        "import threading, time\n"
        "open('f', 'wb').write(bytes(20 << 20))\n"
        "def grow():\n"
        "    while growing:\n"
        "        open('f', 'ab').write(b'x'); time.sleep(0.0005)\n"
        "growing = True; thread = threading.Thread(target=grow); thread.start()"
    )
    with pytest.raises(OSError, match="it changed while it was read: try again"):
        s.files.download("f", target)
    assert not target.exists()
    s.exec("growing = False; thread.join()")
    s.files.download("f", target)
    assert target.stat().st_size > 20 << 20


def test_a_fifo_reported_as_a_file_blocks_nobody(s: Session, target: Path) -> None:
    s.exec("import os; os.mkdir('d'); os.mkfifo('d/f')")
    s.files.download("d", target)
    assert os.listdir(target) == []
    replace(s, "tree", tree_of((b"f", "file")))
    begun = time.monotonic()
    with pytest.raises(OSError, match="Invalid argument"):
        s.files.download("d", target)
    assert time.monotonic() - begun < 10 and nothing_at(target)


def test_no_right_but_to_execute_comes_out(s: Session, target: Path) -> None:
    s.files.write("d/f", "x")
    s.exec("import os; os.chmod('d/f', 0o7777); os.chmod('d', 0o7777)")
    s.files.download("d", target)
    for path in (target, target / "f"):
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o7022 == 0 or os.umask(0o22) != 0o22
    assert os.access(target / "f", os.X_OK)


# ---- links on the host


def test_a_link_at_the_target_is_not_followed(s: Session, target: Path) -> None:
    victim = target.parent / "victim"
    s.files.write("d/f", "new")
    victim.write_text("old")
    target.symlink_to(victim)
    s.files.download("d/f", target)
    assert victim.read_text() == "old" and target.read_text() == "new" and not target.is_symlink()
    victim.unlink()
    target.unlink()
    victim.mkdir()
    target.symlink_to(victim)
    with pytest.raises(OSError):
        s.files.download("d", target)
    assert os.listdir(victim) == []
    victim.rmdir()


def test_a_link_that_appears_in_the_target_is_not_followed(tmp_path: Path) -> None:
    """Between two files of one tree: by somebody else on the host."""
    from hutch._carry import beneath

    (tmp_path / "victim").mkdir()
    with pytest.raises(OSError), beneath.new_tree(str(tmp_path / "target")) as tree:
        tree.add_directory(b"d")
        (temporary,) = os.listdir(tmp_path / "target")
        place = tmp_path / "target" / temporary
        (place / "d").rmdir()
        (place / "d").symlink_to(tmp_path / "victim")
        tree.add_file(b"d/f", False)
    assert os.listdir(tmp_path) == ["victim"] and os.listdir(tmp_path / "victim") == []


@pytest.mark.parametrize("path", [b"../x", b"/etc/hostname", b"link", b"link/x", b"a\0b"])
def test_nothing_is_opened_that_is_not_beneath(tmp_path: Path, path: bytes) -> None:
    from hutch import _core

    (tmp_path / "x").write_text("outside")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path)
    (tmp_path / "root" / "honest").write_text("inside")
    root = os.open(tmp_path / "root", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises((OSError, ValueError)):
            _core.open_beneath(root, path, os.O_RDONLY)
        os.close(_core.open_beneath(root, b"honest", os.O_RDONLY))
    finally:
        os.close(root)


# ---- archives


def archive(*members: tuple[str, bytes, str], content: bytes = b"x") -> bytes:
    """Of (name, type, where it links to)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, to in (("first", tarfile.REGTYPE, ""), *members):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, to
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


FILE, LINK, HARD = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
DIRECTORY = tarfile.DIRTYPE
HOSTILE = {
    "absolute": archive(("/tmp/attack", FILE, "")),
    "up": archive(("../attack", FILE, "")),
    "up within": archive(("d/../../attack", FILE, "")),
    "directory up": archive(("../attack", DIRECTORY, "")),
    "absolute link": archive(("link", LINK, "/tmp")),
    "link up": archive(("link", LINK, "..")),
    "link up within": archive(("d/link", LINK, "../../attack")),
    "link by a link": archive(
        ("d/e", DIRECTORY, ""), ("d/e/up", LINK, ".."), ("link", LINK, "d/e/up/../../attack")
    ),
    "empty link": archive(("link", LINK, "")),
    "through a link": archive(("d", DIRECTORY, ""), ("l", LINK, "d"), ("l/attack", FILE, "")),
    "over a link": archive(("l", LINK, "first"), ("l", FILE, "")),
    "hard link out": archive(("hard", HARD, "../attack")),
    "absolute hard link": archive(("hard", HARD, "/etc/hostname")),
    "hard link to a link": archive(("l", LINK, "first"), ("hard", HARD, "l")),
    "hard link to nothing": archive(("hard", HARD, "later"), ("later", FILE, "")),
    "device": archive(("device", tarfile.CHRTYPE, "")),
    "block device": archive(("device", tarfile.BLKTYPE, "")),
    "fifo": archive(("fifo", tarfile.FIFOTYPE, "")),
    "unknown": archive(("unknown", b"Z", "")),
    "no name": archive((".", FILE, "")),
    "cut off": archive(content=b"x" * 5000)[:2000],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_before_anything_is_unpacked(s: Session, name: str) -> None:
    with pytest.raises(ValueError, match=r"the archive (is refused|cannot be read)"):
        s.files.untar(HOSTILE[name], "d/target")
    assert s.files.list() == [] and not s.files.exists("/tmp/attack")
    with pytest.raises(ValueError):
        s.files.untar(gzip.compress(HOSTILE[name]), "d/target")
    assert s.files.list() == []


def test_links_that_stay_in_an_archive_are_made(s: Session) -> None:
    """The harmless counterpart."""
    s.files.untar(
        archive(
            ("d/e", DIRECTORY, ""),
            ("d/e/up", LINK, "../../first"),
            ("d/hard", HARD, "first"),
            ("all", LINK, "."),
            ("./d//f", FILE, ""),
        ),
        "target",
    )
    for path in ("d/e/up", "d/hard", "all/d/f", "first"):
        assert s.files.read(f"target/{path}") == "x"


def size_of(data: bytes, size: int) -> bytes:
    """The archive with another size in its first header."""
    first = bytearray(data[:512])
    first[124:136] = (0x80 << 88 | size).to_bytes(12, "big") if size > 0 else b"\xff" * 12
    first[148:156] = b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    return bytes(first) + data[512:]


@pytest.mark.parametrize("size", [-1, 1 << 35, 1 << 62])
def test_a_size_that_cannot_be_is_refused(s: Session, size: int) -> None:
    with pytest.raises((ValueError, OSError)):
        s.files.untar(size_of(archive(), size))
    assert s.files.list() == []


def header(kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_a_header_of_a_gigabyte_is_not_read(s: Session, kind: bytes) -> None:
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=1) as out:
        out.write(header(kind, 1 << 30))
        for _ in range(1 << 5):
            out.write(bytes(1 << 20))
    with pytest.raises(ValueError, match="a header has more than 1,048,576 bytes"):
        s.files.untar(bomb.getvalue())
    many = b"".join(header(kind, 512) + bytes(512) for _ in range(5000))
    with pytest.raises(ValueError, match="the archive cannot be read"):
        s.files.untar(many)
    assert s.files.list() == []


def test_an_archive_of_a_million_entries_is_refused(s: Session) -> None:
    entry = archive()[:1024]
    with pytest.raises(OSError, match=r"more than 100,000 entries"):
        s.files.untar(entry * 100_001)
    assert s.files.list() == []


def test_an_archive_of_a_hostile_tree_has_no_link_that_leads_out(s: Session) -> None:
    s.exec(
        "import os\nos.makedirs('d/e')\n"
        "for i, to in enumerate(['/etc', '..', 'e/../..', '', '../../x']):\n"
        "    if to: os.symlink(to, f'd/{i}')\n"
        "os.symlink('e', 'd/stays')"
    )
    with tarfile.open(fileobj=io.BytesIO(s.files.tar("d"))) as tar:
        assert sorted(tar.getnames()) == ["e", "stays"]
    replace(s, "tree", tree_of((b"l", "link"), (b"l/x", "file")))
    with pytest.raises(hutch.SandboxError):
        s.files.tar("d")


# ---- what is taken of the host


LIES = """
import array
at = 0
def get(path, told, most):
    global at
    start, at = at, at + most
    if at > (1 << 30): raise OSError(5, 'enough')
    return array.array('q', [start, most, 15 << 30, 1, 1]).tobytes(), bytearray(b'x' * most)
files.VERBS['get'] = get
files.VERBS['stat'] = lambda path: {'type': 'file', 'size': 15 << 30, 'mtime': 1.0, 'mode': 0o644}
"""


def test_a_download_takes_no_more_of_the_hosts_disk_than_the_session_has(target: Path) -> None:
    most, over = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.02):
            with contextlib.suppress(OSError):
                most = max([most, *(one.stat().st_blocks >> 11 for one in target.parent.iterdir())])

    thread = threading.Thread(target=watch)
    with Session(memory_mb=256, disk_mb=32, timeout_sec=30) as s:
        s.exec(FINDS + LIES).unwrap()
        thread.start()
        try:
            with pytest.raises(OSError, match=r"more than 32 MiB, without holes.*limit_mb"):
                s.files.download("big", target)
        finally:
            over.set()
            thread.join()
    assert most <= 40, f"{most} MiB"


def test_all_that_a_session_can_have_is_downloaded_and_holes_are_free(target: Path) -> None:
    with Session(memory_mb=256, disk_mb=32) as s:
        s.exec("f = open('big', 'wb'); f.write(b'x' * (30 << 20)); f.truncate(1 << 40); f.close()")
        with pytest.raises(OSError, match="16 GiB, holes included"):
            s.files.download("big", target)
        s.exec("open('big', 'r+b').truncate(1 << 30)")
        s.files.download("big", target)
        assert target.stat().st_size == 1 << 30
        with pytest.raises(OSError, match="more than 10 MiB"):
            s.files.download("big", target, limit_mb=10)


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, lzma.compress])
def test_an_archive_that_grows_is_refused_at_its_header(compress: Callable[..., bytes]) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(2):
            info = tarfile.TarInfo(f"file{number}")
            info.size = 20 << 20
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    archive = compress(out.getvalue())
    assert len(archive) < 1 << 20
    with Session(memory_mb=256, disk_mb=32) as s:
        with pytest.raises(OSError, match=r"more than 32 MiB: give untar\(\) a larger limit_mb"):
            s.files.untar(archive, "there")
        with pytest.raises(OSError, match="more than 10 MiB"):
            s.files.untar(archive, "there", limit_mb=10)
        assert s.files.list() == []
    with Session(memory_mb=256, disk_mb=64) as s:
        s.files.untar(archive, "there")
        assert s.files.stat("there/file1")["size"] == 20 << 20


# Whoever keeps an error in a circle, as asyncio and logging do, leaves it to the collector.
CLIENT = """
import faulthandler, gc, pathlib, tempfile
from hutch import Session
faulthandler.enable()
big = pathlib.Path(tempfile.mkdtemp()) / "big"
big.write_bytes(bytes(8 << 20))
kept = []
with Session(memory_mb=256, timeout_sec=2) as s:
    s.exec({attack!r}).unwrap()
    try:
        {upload}
        print("done")
    except Exception as error:
        print("failed")
        kept.extend([error, kept])
    del kept
    gc.collect()
print("end")
"""


@pytest.mark.parametrize(
    "upload", ['s.files.upload(big, "big")', 's.files.write("big", bytearray(8 << 20))']
)
@pytest.mark.parametrize("answer", ["os._exit(3)", "time.sleep(60)", "bad()", None])
def test_no_answer_to_an_upload_crashes_the_client(upload: str, answer: str | None) -> None:
    """None: the honest one."""
    attack = FINDS + f"import os\nfiles.VERBS['put'] = files.VERBS['write'] = lambda *a: {answer}"
    code = CLIENT.format(attack="1" if answer is None else attack, upload=upload)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done
    assert done.stdout.split() == ["done" if answer is None else "failed", "end"], done
