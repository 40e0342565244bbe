# SPDX-License-Identifier: Apache-2.0
"""Files of sessions: the verbs, trees in both directions, archives, and what has changed."""

from __future__ import annotations

import asyncio
import errno
import gzip
import io
import os
import pathlib
import socket
import tarfile
import tempfile
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from support import grows_by_less_than

import hutch
from hutch import AsyncSession, Session
from hutch._carry import trees


@pytest.fixture
def s() -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=20) as session:
        yield session


def test_files_are_read_and_written(s: Session, tmp_path: pathlib.Path) -> None:
    s.files.write("a/b.txt", "text")
    s.files.write("a/b.txt", b" more", append=True)
    assert s.files.read("a/b.txt") == "text more"
    assert s.exec("open('a/b.txt').read()").value == "text more"
    assert s.files.list() == ["a"] and s.files.list("a") == ["b.txt"]
    assert s.files.glob("**/*.txt") == ["a/b.txt"]
    assert s.files.stat("a/b.txt")["size"] == 9 and s.files.stat("a")["type"] == "directory"
    s.files.rename("a/b.txt", "c")
    s.files.mkdir("d/e")
    s.files.delete("a")
    assert not s.files.exists("a") and s.files.realpath("c") == f"{s.info()['cwd']}/c"
    (tmp_path / "up").write_bytes(b"\0" * 5_000_000)
    s.files.upload(tmp_path / "up")
    assert s.files.download("up", str(tmp_path / "down")) == tmp_path / "down"
    assert (tmp_path / "down").read_bytes() == b"\0" * 5_000_000
    assert s.files.download("d", tmp_path / "tree") == tmp_path / "tree"
    s.files.remove("c")
    with pytest.raises(FileNotFoundError):
        s.files.read("c")
    with pytest.raises(IsADirectoryError):
        s.files.read("d")
    with pytest.raises(OSError, match="Read-only"):
        s.files.write("/usr/x", b"")


def test_trees_go_both_ways_and_no_link_leads_out(s: Session, tmp_path: pathlib.Path) -> None:
    up = tmp_path / "up"
    (up / "empty").mkdir(parents=True)
    (up / "run.sh").write_text("#!/bin/sh\necho ran")
    (up / "run.sh").chmod(0o755)
    (up / "evil").symlink_to("/etc/hostname")
    (up / "up").symlink_to(tmp_path)
    s.files.upload(up, "tree")
    assert s.exec("import os, subprocess; sorted(os.listdir('tree'))").value == [
        "empty",
        "evil",
        "run.sh",
        "up",
    ]
    assert s.exec("subprocess.run(['./tree/run.sh'], capture_output=True).stdout").value == b"ran\n"
    with pytest.raises(FileNotFoundError):
        s.files.read("tree/evil")
    s.exec("os.symlink('/etc', 'tree/empty/out'); os.mkfifo('tree/fifo')")
    s.files.download("tree", tmp_path / "down")
    found = {str(one.relative_to(tmp_path / "down")) for one in (tmp_path / "down").rglob("*")}
    assert found == {"empty", "run.sh"}
    assert os.access(tmp_path / "down" / "run.sh", os.X_OK)
    with pytest.raises(FileExistsError):
        s.files.download("tree", tmp_path / "down")


def test_a_directory_is_listed_with_sizes_and_times(s: Session) -> None:
    s.exec(
        "import os\nos.makedirs('tree/b')\nopen('tree/a', 'w').write('12345')\n"
        "os.utime('tree/a', (7, 1.5))\nos.symlink('/etc', 'tree/c')\nos.mkfifo('tree/d')\n"
        "open('tree/b/inner', 'w').close()"
    ).unwrap()
    a, b, c, d = s.files.scan("tree")
    assert a == hutch.FileEntry("a", "file", 5, 1.5)
    assert [(one.name, one.type) for one in (b, c, d)] == [
        ("b", "directory"),
        ("c", "link"),
        ("d", "other"),
    ]
    assert abs(b.mtime - s.files.stat("tree/b")["mtime"]) < 1e-6
    with pytest.raises(NotADirectoryError):
        s.files.scan("tree/a")
    with pytest.raises(FileNotFoundError):
        s.files.scan("none")


def test_a_tree_is_walked_and_no_link_followed(s: Session) -> None:
    s.exec(
        "import os\nos.makedirs('tree/b/deep')\nos.makedirs('tree/a')\n"
        "os.symlink('..', 'tree/a/up')\nopen('tree/z', 'w').close()\n"
        "os.makedirs('tree/gone')"
    ).unwrap()
    steps = s.files.walk("tree")
    assert next(steps) == ("tree", ["a", "b", "gone"], ["z"])
    s.files.delete("tree/gone")
    assert [*steps] == [
        ("tree/a", [], ["up"]),
        ("tree/b", ["deep"], []),
        ("tree/b/deep", [], []),
    ]
    kept_out = []
    for top, directories, _ in s.files.walk(f"{s.info()['cwd']}/tree/"):
        kept_out.append(top.rpartition("/tree/")[2])
        directories[:] = [name for name in directories if name != "b"]
    assert kept_out == ["", "a"]
    with pytest.raises(FileNotFoundError):
        next(s.files.walk("none"))


class Long(io.RawIOBase):
    """A file that is as long as one wants, and gives an odd number of bytes at once."""

    def __init__(self, size: int, fails_at: int | None = None) -> None:
        self.left = size
        self.fails_at = fails_at
        self.most = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self.most = max(self.most, size if size >= 0 else 1 << 60)
        if self.fails_at is not None and self.left <= self.fails_at:
            raise OSError("the disk of the host is broken")
        got = min(self.left, size, 777_777)
        self.left -= got
        return b"x" * got


def test_an_open_file_is_written(s: Session, tmp_path: pathlib.Path) -> None:
    place = tmp_path / "up"
    place.write_bytes(b"not read, read")
    with open(place, "rb") as file:
        file.seek(10)
        s.files.write("a/b", file)
    with open(place) as text:
        s.files.write("a/b", text, append=True)
    assert s.files.read("a/b") == "readnot read, read"
    s.files.write("text", io.StringIO("é\n" * 10))
    s.files.write("empty", io.BytesIO())
    assert s.files.read("text") == "é\n" * 10 and s.files.read_bytes("empty") == b""
    large = Long(10_000_001)
    s.files.write("large", large)  # type: ignore[arg-type]
    s.files.write("large", Long(5 << 20), append=True)  # type: ignore[arg-type]
    assert s.files.stat("large")["size"] == 10_000_001 + (5 << 20)
    assert s.exec("{*open('large', 'rb').read()}").value == {ord("x")}
    assert s.files.list() == ["a", "empty", "large", "text"] and large.most <= 1 << 20
    with pytest.raises(TypeError):
        s.files.write("x", object())  # type: ignore[arg-type]


def test_an_open_file_is_never_all_in_memory(s: Session) -> None:
    with grows_by_less_than(24):
        s.files.write("large", Long(150 << 20))  # type: ignore[arg-type]
    assert s.files.stat("large")["size"] == 150 << 20


def test_an_open_file_that_cannot_be_read_leaves_what_was_there(s: Session) -> None:
    s.files.write("kept", "old")
    with pytest.raises(OSError, match="of the host is broken"):
        s.files.write("kept", Long(20 << 20, fails_at=1 << 20))  # type: ignore[arg-type]
    assert s.files.read("kept") == "old" and s.files.list() == ["kept"]
    with pytest.raises(TypeError, match="gives text or bytes"):
        s.files.write("kept", type("None", (), {"read": lambda *_: None})())
    assert s.files.read("kept") == "old"


class Response:
    def read(self) -> bytes:
        return b"all of it"


class Upload:
    async def read(self, size: int = -1) -> bytes:
        return b"a part"


@pytest.mark.parametrize(
    ("content", "said"),
    [(Response(), "Response.read() takes no size"), (Upload(), "Upload.read() is async")],
)
def test_what_is_read_in_another_way_says_so(s: Session, content: Any, said: str) -> None:
    s.files.write("kept", "old")
    with pytest.raises(TypeError) as caught:
        s.files.write("kept", content)
    assert said in str(caught.value) and s.files.read("kept") == "old"


def test_what_others_open_is_written(s: Session, tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(tmp_path / "z.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m", "member" * 500_000)
    with zipfile.ZipFile(tmp_path / "z.zip") as archive, archive.open("m") as member:
        s.files.write("m", member)
    with gzip.open(tmp_path / "g.gz", "wt", encoding="utf-16") as text:
        text.write("é" * 1_000_000)
    with gzip.open(tmp_path / "g.gz", "rt", encoding="utf-16") as text:
        s.files.write("g", text)
    with tempfile.SpooledTemporaryFile() as spooled:
        spooled.write(b"spooled")
        spooled.seek(0)
        s.files.write("s", spooled)
    ours, theirs = os.pipe()
    os.write(theirs, b"piped")
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        s.files.write("p", pipe)
    with urllib.request.urlopen("data:text/plain,answered") as answer:
        s.files.write("u", answer)
    assert {one.name: one.size for one in s.files.scan()} == {
        "m": 3_000_000,
        "g": 2_000_000,
        "s": 7,
        "p": 5,
        "u": 8,
    }


def test_an_open_file_is_written_where_it_is_awaited() -> None:
    async def main() -> None:
        async with AsyncSession(memory_mb=256, timeout_sec=20) as s:
            await s.files.write("large", Long(9_000_000))  # type: ignore[arg-type]
            await s.files.write("text", io.StringIO("é"))
            assert [one.size for one in await s.files.scan()] == [9_000_000, 2]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_paths_do_not_follow_the_codes_directory(s: Session) -> None:
    s.exec("import os; os.chdir('/tmp')")
    s.files.write("r.csv", "1")
    assert s.files.glob("*") == ["r.csv"] and s.files.exists(f"{s.info()['cwd']}/r.csv")


@pytest.mark.parametrize("path", ["/etc/x", "../y"])
def test_files_that_cannot_be_put_there_are_an_error(path: str) -> None:
    with Session(files={path: "1"}, memory_mb=256) as s:
        for _ in range(2):
            with pytest.raises(OSError):
                s.exec("1")


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "/x"])
def test_a_place_that_cannot_be_written_says_which_can(s: Session, path: str) -> None:
    with pytest.raises(OSError, match="Read-only file system: the session's directory, /tmp") as no:
        s.files.write(path, "1")
    assert no.value.errno == errno.EROFS and str(no.value.filename).endswith("x")
    s.files.write("/tmp/x", "1")
    s.files.write("a/../x", "1")


def test_content_that_is_none_says_what_takes_it(s: Session, tmp_path: pathlib.Path) -> None:
    with pytest.raises(TypeError, match=r"not PosixPath: write\(\) takes an open file, too"):
        s.files.write("x", tmp_path)  # type: ignore[arg-type]


def test_a_fifo_blocks_nobody(s: Session) -> None:
    s.exec("import os; os.mkfifo('fifo')")
    with pytest.raises(OSError):
        s.files.read("fifo")
    with pytest.raises(OSError):
        s.files.write("fifo", b"x")


@pytest.mark.parametrize("path", ["a\0b", "", "x" * 5000])
def test_a_path_that_is_none_is_refused(s: Session, path: str) -> None:
    with pytest.raises((ValueError, OSError)):
        s.files.read(path)


def test_files_are_there_at_the_start(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x").write_text("of the host")
    with Session(files={"a.txt": "a", "b/c": b"c", "tree": tmp_path}, memory_mb=256) as s:
        assert s.exec("open('a.txt').read() + open('b/c').read()").value == "ac"
        assert s.files.read("tree/sub/x") == "of the host"
        s.exec("import os; os.unlink('a.txt')")
        s.reset(files=True)
        assert s.files.list() == ["a.txt", "b", "tree"]


def found_in(place: pathlib.Path) -> dict[str, bytes | None]:
    return {
        str(one.relative_to(place)): one.read_bytes() if one.is_file() else None
        for one in place.rglob("*")
    }


# ---- one file


@pytest.mark.parametrize("size", [0, 1, 65_536, 4 << 20, (4 << 20) + 1, 20_000_000])
def test_files_of_any_size_go_both_ways(s: Session, tmp_path: pathlib.Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "up").write_bytes(content)
    s.files.upload(tmp_path / "up", "there")
    assert s.files.read_bytes("there") == content
    assert s.exec("import hashlib; hashlib.sha256(open('there', 'rb').read()).hexdigest()").ok
    s.files.download("there", tmp_path / "new" / "down")
    assert (tmp_path / "new" / "down").read_bytes() == content
    assert os.listdir(tmp_path / "new") == ["down"]


def test_a_large_file_needs_no_memory_for_all_of_it(tmp_path: pathlib.Path) -> None:
    """In the session it is in the scratch alone, and no result is as large."""
    with Session(memory_mb=128, disk_mb=96, result_mb=1) as s:
        (tmp_path / "up").write_bytes(b"ab" * (40 << 20))
        s.files.upload(tmp_path / "up")
        s.files.download("up", tmp_path / "down")
        assert (tmp_path / "down").read_bytes() == b"ab" * (40 << 20)
        with pytest.raises(OSError, match=r"result_mb \(1 MiB\): download"):
            s.files.read("up")
        with pytest.raises(OSError, match="result_mb"):
            s.files.tar()
        assert s.exec("1").value == 1


def test_holes_stay_holes(s: Session, tmp_path: pathlib.Path) -> None:
    gib = 1 << 30
    with open(tmp_path / "up", "wb") as file:
        file.truncate(gib)
        file.seek(gib // 2)
        file.write(b"x")
    s.files.upload(tmp_path / "up")
    assert s.exec("import os; os.stat('up').st_blocks * 512 < 1 << 20").value is True
    s.files.download("up", tmp_path / "down")
    status = os.stat(tmp_path / "down")
    assert status.st_size == gib and status.st_blocks * 512 < 9 << 20
    with open(tmp_path / "down", "rb") as file:
        file.seek(gib // 2 - 1)
        assert file.read(3) == b"\0x\0"


def test_a_download_replaces_a_file_as_a_whole(s: Session, tmp_path: pathlib.Path) -> None:
    (tmp_path / "plot").write_text("old")
    with pytest.raises(FileNotFoundError):
        s.files.download("plot", tmp_path / "plot")
    assert found_in(tmp_path) == {"plot": b"old"}
    s.files.write("plot", "new")
    s.exec("import os; os.chmod('plot', 0o4755)")
    s.files.download("plot", tmp_path / "plot")
    assert found_in(tmp_path) == {"plot": b"new"}
    assert os.stat(tmp_path / "plot").st_mode & 0o7100 == 0o100
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        s.files.download("plot", tmp_path / "directory")


def test_a_full_disk_is_the_systems_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "up").write_bytes(bytes(1000) + b"x" * (40 << 20))
    with Session(memory_mb=128, disk_mb=16) as s:
        with pytest.raises(OSError, match="No space left"):
            s.files.upload(tmp_path / "up")
        assert s.files.list() == []


def test_a_file_that_cannot_be_uploaded_is_an_error(s: Session, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        s.files.upload(tmp_path / "nothing")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="neither a file nor a directory"):
        s.files.upload(tmp_path / "fifo")


# ---- trees


ODD_NAMES = [b"new\nline", b"bytes\xff\xfe", b"\x1b[31m", b"x" * 255, b" ", b"~", b"...", b"\\"]


def test_trees_come_back_as_they_were(s: Session, tmp_path: pathlib.Path) -> None:
    up = tmp_path / "up"
    for i in range(3):
        (up / f"d{i}" / "inner").mkdir(parents=True)
        for j in range(700):
            (up / f"d{i}" / "inner" / f"{j}").write_bytes(b"%d" % j * (j % 50))
    (up / "large").write_bytes(os.urandom(9_000_000))
    for name in ODD_NAMES:
        with open(os.fsencode(up) + b"/" + name, "wb") as file:
            file.write(name)
    s.files.upload(up, "tree")
    assert s.files.list("tree/d1/inner")[:3] == ["0", "1", "10"]
    (tmp_path / "down").mkdir()
    s.files.download("tree", tmp_path / "down")
    assert found_in(tmp_path / "down") == found_in(up)


def test_special_files_and_loops_of_links_are_left_out(s: Session, tmp_path: pathlib.Path) -> None:
    up = tmp_path / "up"
    (up / "d").mkdir(parents=True)
    (up / "d" / "loop").symlink_to("..")
    os.mkfifo(up / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(up / "socket"))
    s.files.upload(up, "tree")
    assert s.exec("import os; sorted(os.walk('tree'))").value == [
        ("tree", ["d"], []),
        ("tree/d", ["loop"], []),
    ]
    s.files.download("tree", tmp_path / "down")
    assert found_in(tmp_path / "down") == {"d": None}


def test_what_cannot_be_read_of_a_tree_is_an_error(s: Session, tmp_path: pathlib.Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (tmp_path / "up" / "closed").mkdir(parents=True, mode=0)
    (tmp_path / "up" / "closed").chmod(0)
    with pytest.raises(PermissionError):
        s.files.upload(tmp_path / "up")
    assert s.files.list() == []
    (tmp_path / "up" / "closed").chmod(0o700)


def test_trees_have_limits_that_say_what_to_do(
    s: Session, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(text: str) -> None:
        with pytest.raises(OSError, match=text):
            s.files.upload(tmp_path / "up")
        assert s.files.list() == []

    deep = tmp_path / "up"
    for _ in range(102):
        deep /= "d"
    deep.mkdir(parents=True)
    both("more than 100 deep: take an inner one")
    s.exec("import os; os.makedirs('/'.join(['deep'] + ['d'] * 102))")
    with pytest.raises(OSError, match="more than 100 deep"):
        s.files.download("deep", tmp_path / "down")
    s.exec("import shutil; shutil.rmtree('deep')")
    monkeypatch.setattr(trees, "DEEPEST", 200)
    monkeypatch.setattr(trees, "MOST_ENTRIES", 100)
    both("more than 100 entries: take its directories one by one")
    monkeypatch.setattr(trees, "MOST_ENTRIES", 1000)
    monkeypatch.setattr(trees, "MOST_BYTES", 10)
    (deep / "file").write_text("more than ten")
    both("larger than 0 GiB")


def test_ten_thousand_files_go_both_ways(s: Session, tmp_path: pathlib.Path) -> None:
    up = tmp_path / "up"
    up.mkdir()
    for i in range(10_000):
        (up / str(i)).write_text(str(i))
    s.files.upload(up)
    s.files.download("up", tmp_path / "down")
    assert found_in(tmp_path / "down") == found_in(up)


def test_a_tree_is_one_call_of_the_session(s: Session, tmp_path: pathlib.Path) -> None:
    s.exec("1")
    busy: list[BaseException] = []
    began = threading.Event()

    class Source(io.FileIO):
        """Waits in the middle of the archive until another thread was refused."""

        def read(self, size: int = -1) -> bytes:
            if not began.is_set() and threading.current_thread() is threading.main_thread():
                if s._engine.turn.is_taken:
                    other.start()
                    other.join()
                    began.set()
            return super().read(size)

    def disturb() -> None:
        try:
            s.exec("1")
        except hutch.SessionBusy as error:
            busy.append(error)

    other = threading.Thread(target=disturb)
    with tarfile.open(tmp_path / "up.tar", "w") as tar:
        info = tarfile.TarInfo("x")
        info.size = 100
        tar.addfile(info, io.BytesIO(bytes(100)))
    with Source(tmp_path / "up.tar") as source:
        s.files.untar(source)  # type: ignore[arg-type]
    assert len(busy) == 1 and s.files.list() == ["x"]


def test_progress_is_shown_of_what_takes_long(
    s: Session,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from hutch._connect import progress

    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "file").write_bytes(bytes(9 << 20))
    s.files.upload(tmp_path / "up")
    assert capsys.readouterr().err == ""  # it was quick
    monkeypatch.setattr(progress, "QUIET_SEC", -1)
    monkeypatch.setattr(progress, "LINE_SEC", -1)
    s.files.upload(tmp_path / "up")
    s.files.download("up", tmp_path / "down")
    said = capsys.readouterr().err
    assert "hutch: upload of up: sending 100% 9.4 of 9.4 MB" in said
    assert "hutch: download of down: receiving 100% 9.4 of 9.4 MB" in said


# ---- archives


def test_a_tree_comes_back_from_an_archive(s: Session) -> None:
    s.files.write("a/b/file", b"content" * 1_000_000)
    s.files.write("a/run.sh", "#!/bin/sh")
    s.exec(
        "import os\n"
        "os.chmod('a/run.sh', 0o755); os.makedirs('a/empty'); os.mkfifo('a/fifo')\n"
        "os.symlink('b/file', 'a/link'); os.symlink('../run.sh', 'a/b/up')\n"
        "os.symlink('/etc', 'a/out'); os.symlink('../../..', 'a/b/far')\n"
        "os.utime('a/run.sh', (5, 5))"
    )
    data = s.files.tar("a")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert sorted(tar.getnames()) == ["b", "b/file", "b/up", "empty", "link", "run.sh"]
        run = tar.getmember("run.sh")
        assert (run.uid, run.gid, run.uname, run.mode, run.mtime) == (0, 0, "", 0o755, 5)
    s.files.untar(data, "again")
    assert s.files.read_bytes("again/link") == b"content" * 1_000_000
    assert s.exec("os.access('again/run.sh', os.X_OK), os.readlink('again/b/up')").value == (
        True,
        "../run.sh",
    )


@pytest.mark.parametrize("compressed", ["", "gz", "bz2", "xz"])
def test_archives_of_others_are_unpacked(
    s: Session, tmp_path: pathlib.Path, compressed: str
) -> None:
    (tmp_path / "x").write_text("content")
    os.link(tmp_path / "x", tmp_path / "y")
    place = tmp_path / "archive"
    with tarfile.open(place, f"w:{compressed}") as tar:
        tar.add(tmp_path / "x", "./d/x")
        tar.add(tmp_path / "y", "./d/y")
        tar.add(tmp_path, ".", recursive=False)
        tar.add(tmp_path / "x", "n" * 200 + "/" + "m" * 200)
    s.files.untar(place, "from/path")
    s.files.untar(place.read_bytes(), "from/bytes")
    with open(place, "rb") as file:
        s.files.untar(file, "from/file")
    for name in ("path", "bytes", "file"):
        assert s.files.read(f"from/{name}/d/x") == s.files.read(f"from/{name}/d/y") == "content"
        assert s.files.list(f"from/{name}") == ["d", "n" * 200]


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x1f\x8b\x08 broken", b"BZh9 broken"])
def test_an_archive_that_is_none_is_an_error(s: Session, data: bytes) -> None:
    with pytest.raises(ValueError, match="the archive cannot be read"):
        s.files.untar(data, "there")
    assert s.files.list() == []


def test_what_is_no_archive_is_refused(s: Session) -> None:
    with pytest.raises(TypeError, match="an archive is bytes, a path or an open file"):
        s.files.untar(5)  # type: ignore[arg-type]
    reading, writing = os.pipe()
    with open(reading, "rb") as file, pytest.raises(ValueError, match="twice"):
        s.files.untar(file)
    os.close(writing)


# ---- what has changed


def test_changed_tells_what_was_made_changed_and_deleted() -> None:
    files = {"kept": "1", "edited": "1", "gone": "1", "d/inner": "1"}
    with Session(files=files, memory_mb=256) as s:
        assert s.files.changed() == {}
        s.exec(
            "import os\n"
            "open('edited', 'w').write('22'); os.unlink('gone'); os.makedirs('new/empty')\n"
            "open('new/file', 'w').close(); os.symlink('kept', 'link')\n"
            "open('/tmp/elsewhere', 'w').close()"
        )
        assert s.files.changed() == {
            "edited": "modified",
            "gone": "deleted",
            "link": "added",
            "new/file": "added",
        }
        assert s.files.changed() == {}
        s.files.write("d/inner", "22")
        assert s.exec("os._exit(3)").restarted
        assert s.files.changed() == {"d/inner": "modified"}
        s.files.write("x", "")
        s.reset(files=True)
        assert s.files.changed() == {}


def test_changed_begins_with_an_empty_directory(s: Session) -> None:
    s.exec("open('made', 'w').close()")
    assert s.files.changed() == {"made": "added"}


def test_changed_begins_with_what_a_mount_holds(tmp_path: pathlib.Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("1")
    mount = hutch.Mount(tmp_path / "out", writable=True)
    if os.geteuid() == 0:
        pytest.skip("root's mounts are copies")
    with Session(mounts={"/out": mount}, cwd="/out", memory_mb=256) as s:
        s.exec("open('new', 'w').close()")
        assert s.files.changed() == {"new": "added"}


# ---- asyncio


def test_an_async_session_has_the_same_files(tmp_path: pathlib.Path) -> None:
    async def use() -> None:
        (tmp_path / "up").mkdir()
        (tmp_path / "up" / "x").write_text("1")
        async with AsyncSession(memory_mb=256) as s:
            await s.files.upload(tmp_path / "up")
            await s.files.download("up", tmp_path / "down")
            assert found_in(tmp_path / "down") == {"x": b"1"}
            await s.files.untar(await s.files.tar("up"), "again")
            assert await s.files.read("again/x") == "1"
            assert await s.files.changed() == {"again/x": "added", "up/x": "added"}

    asyncio.run(use())
