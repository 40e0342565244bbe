# SPDX-License-Identifier: Apache-2.0
"""Storage: bytes by name, written as a whole or not at all, in places that are their owner's."""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import hutch
from hutch import DirectoryStorage, FsspecStorage, SqliteStorage, Storage, StorageError, storage_of
from hutch._storage import required_id

PLACES = ("{}/kept", "sqlite://{}/data/kept.db", "fsspec+file://{}/kept")


def opened(place: str) -> Storage:
    """Also of fsspec's own files, which `storage_of` has no use for."""
    return FsspecStorage(place[7:]) if place.startswith("fsspec+") else storage_of(place)


@pytest.fixture(params=PLACES, ids=("directory", "sqlite", "fsspec"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    text: str = request.param
    return text.format(tmp_path)


@pytest.fixture
def storage(place: str) -> Storage:
    return opened(place)


# ---- what each does


def test_what_was_put_is_there_for_everybody_who_opens_it(place: str, storage: Storage) -> None:
    data = bytes(range(256)) * 1000
    storage.put("a.b_c-d~e", data)
    storage.put("empty", b"")
    storage.put("again", b"first")
    storage.put("again", bytearray(b"second"))
    for one in (storage, opened(place)):
        assert one.get("a.b_c-d~e") == data and one.get("empty") == b""
        assert one.get("again") == b"second" and one.get("absent") is None
        assert one.list() == ["a.b_c-d~e", "again", "empty"] and one.list("a") == one.list()[:2]
        assert one.list("absent") == []


def test_what_was_deleted_is_gone_and_may_be_deleted_again(storage: Storage) -> None:
    storage.put("a", b"1")
    storage.delete("a")
    storage.delete("a")
    assert storage.get("a") is None and storage.list() == []


ODD = ("", ".", "..", "../a", "a/b", "/etc/passwd", "a\0b", "a" * 201, "x" * 300, ".begun-a", "é",
       "a b", "a\n", "٣", "a%2fb", "*", "~/a/..", "a\\b")  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_name_is_no_path(storage: Storage, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    uses: list[Callable[[], object]] = [
        lambda: storage.get(name),
        lambda: storage.put(name, b"x"),
        lambda: storage.delete(name),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="not a valid name in a storage"):
            use()
    assert sorted(tmp_path.rglob("*")) == before and storage.list() == []
    with pytest.raises(ValueError, match="id="):
        required_id(name)


@pytest.mark.parametrize("name", ("a", "A.b_c-d", "-", "_.", "0" * 128))
def test_a_name_of_200_letters_is_one(storage: Storage, name: str) -> None:
    assert required_id(name) == name
    for longer in (name, (name + "~x" * 100)[:200]):
        storage.put(longer, b"x")
        assert storage.get(longer) == b"x"


def test_what_is_neither_text_nor_bytes_is_refused(storage: Storage) -> None:
    for name in (None, b"a", 3):
        with pytest.raises(TypeError, match="is text, not"):
            storage.get(name)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="keeps bytes, not str"):
        storage.put("a", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a prefix is text"):
        storage.list(None)  # type: ignore[arg-type]


def test_threads_may_use_it_at_once(storage: Storage) -> None:
    storage.put("shared", b"0" * 5000)
    failed: list[BaseException] = []

    def use(number: int) -> None:
        try:
            for _ in range(10):
                storage.put("shared", str(number).encode() * 5000)
                storage.put(f"own{number}", str(number).encode())
                found = storage.get("shared")
                assert found is not None and len(found) == 5000 and len(set(found)) == 1
                assert storage.get(f"own{number}") == str(number).encode()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(storage.list("own")) == 4


# ---- writes are whole


def forked(work: Callable[[], object]) -> int:
    """A process that does it, and exits with 0 if it returned."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


def test_a_writer_that_is_killed_at_any_moment_leaves_a_whole_value(storage: Storage) -> None:
    def write(number: int) -> None:
        while True:
            number += 1
            storage.put("a", bytes([number % 251]) * 300_000)

    def value() -> int:
        found = storage.get("a")
        assert found is not None and len(found) == 300_000 and len(set(found)) == 1
        return found[0]

    storage.put("a", b"\0" * 300_000)
    for round in range(10):
        before = value()
        writer = forked(lambda before=before: write(before))
        try:
            while (value() - before) % 251 <= round % 3:  # so many values later
                pass
        finally:
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
        value()
        assert storage.list() == ["a"]


def test_a_writer_that_is_killed_before_it_renames_changes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "kept"
    storage = storage_of(place)
    storage.put("a", b"old")

    def write() -> None:
        os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        storage.put("a", b"new")

    assert os.waitpid(forked(write), 0)[1] == signal.SIGKILL
    assert storage.get("a") == b"old" and storage.list() == ["a"]
    left = [path for path in place.iterdir() if path.name != "a"]
    assert len(left) == 1 and left[0].read_bytes() == b"new"
    storage_of(place)
    assert left[0].exists()  # somebody may be writing it
    os.utime(left[0], (time.time() - 7200,) * 2)
    storage_of(place)
    assert not left[0].exists() and storage.get("a") == b"old"


def test_what_has_no_room_is_refused_and_what_was_there_stays(storage: Storage) -> None:
    storage.put("a", b"old")

    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        storage.put("small", b"s" * 100)
        with pytest.raises(StorageError):
            storage.put("a", b"new" * 1_000_000)
        assert storage.get("a") == b"old"
        storage.put("small", b"t" * 100)

    assert os.waitpid(forked(write), 0)[1] == 0
    assert storage.get("a") == b"old" and storage.get("small") == b"t" * 100
    assert storage.list() == ["a", "small"]


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    disk = tmp_path / "disk"
    disk.mkdir(0o700)
    made = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(disk)]
    if subprocess.run(made, check=False, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        storage = storage_of(disk / "kept")
        storage.put("a", b"old")
        with pytest.raises(StorageError, match="No space left") as failed:
            storage.put("a", b"new" * 1_000_000)
        assert "free some space" in failed.value.hint and storage.get("a") == b"old"
        assert [path.name for path in (disk / "kept").iterdir()] == ["a"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_what_is_damaged_where_nothing_moves_as_a_whole_is_never_read(tmp_path: Path) -> None:
    storage = FsspecStorage(f"file://{tmp_path}/kept")
    storage.put("a", b"x" * 1000)
    file = tmp_path / "kept" / "a"
    whole = file.read_bytes()
    for torn in (whole[:-1], whole[:20], b"", whole + b"x", whole[:500] + b"y" + whole[501:]):
        file.write_bytes(torn)
        with pytest.raises(StorageError, match="damaged"):
            storage.get("a")
    file.write_bytes(whole)
    assert storage.get("a") == b"x" * 1000


# ---- places that are not the caller's alone


def refused(place: str | Path, why: str) -> None:
    with pytest.raises(StorageError, match=why) as failed:
        storage_of(place)
    assert failed.value.hint


@pytest.fixture(params=("directory", "database"))
def own(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A directory, and what is kept in it."""
    directory = tmp_path / "kept"
    return directory, str(directory) if request.param == "directory" else f"sqlite://{directory}/db"


def test_a_new_place_is_the_callers_alone(own: tuple[Path, str]) -> None:
    directory, place = own
    before = os.umask(0)
    try:
        storage_of(place).put("a", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for file in directory.iterdir():
        assert file.stat().st_uid == os.geteuid() and not stat.S_IMODE(file.stat().st_mode) & 0o022


@pytest.mark.parametrize("mode", (0o701, 0o710, 0o740, 0o770, 0o777, 0o1777))
def test_a_directory_that_is_open_to_others_is_refused(own: tuple[Path, str], mode: int) -> None:
    directory, place = own
    storage = storage_of(place)
    storage.put("a", b"x")
    directory.chmod(mode)
    refused(place, f"open to others .mode {mode:04o}")
    with pytest.raises(StorageError, match="open to others"):
        storage.get("a")
    directory.chmod(0o700)
    assert storage.get("a") == b"x"


def test_a_directory_above_that_others_may_write_to_is_refused(own: tuple[Path, str]) -> None:
    directory, place = own
    storage_of(place)
    directory.parent.chmod(0o777)
    refused(place, "may be written to by others")
    directory.parent.chmod(0o1777)  # as /tmp: nobody can take another's place there
    storage_of(place)


def test_a_link_in_the_place_of_a_directory_is_refused(own: tuple[Path, str]) -> None:
    directory, place = own
    storage = storage_of(place)
    moved = directory.rename(directory.with_name("moved"))
    directory.symlink_to(moved)
    refused(place, "is a link, or no directory")
    with pytest.raises(StorageError, match="is a link"):
        storage.put("a", b"x")
    directory.unlink()
    directory.write_text("a file")
    refused(place, "is a link, or no directory")


def test_a_link_on_the_way_to_it_is_followed_to_what_is_checked(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "way").symlink_to("real")
    storage_of(tmp_path / "way" / "kept").put("a", b"x")
    assert (tmp_path / "real" / "kept" / "a").read_bytes() == b"x"
    (tmp_path / "real").chmod(0o777)
    refused(tmp_path / "way" / "kept", "may be written to by others")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_what_belongs_to_somebody_else_is_refused(own: tuple[Path, str]) -> None:
    directory, place = own
    storage = storage_of(place)
    storage.put("a", b"x")
    file = next(directory.iterdir())
    os.chown(file, 12345, 12345)
    with pytest.raises(StorageError, match="belongs to user 12345"):
        storage.get("a")
    os.chown(directory, 12345, 12345)
    refused(place, "belongs to user 12345")
    os.chown(directory, 0, 0)
    os.chown(directory.parent, 12345, 12345)
    refused(place, "belongs to user 12345")


def test_a_file_that_is_a_link_or_none_is_refused(own: tuple[Path, str], tmp_path: Path) -> None:
    directory, place = own
    storage = storage_of(place)
    storage.put("a", b"x")
    secret = tmp_path / "secret"
    secret.write_bytes(b"of the host")
    file = next(directory.iterdir())

    def is_refused(why: str) -> None:
        with pytest.raises(StorageError, match=why):
            storage.get("a")

    file.unlink()
    file.symlink_to(secret)
    is_refused("is not a regular file")
    file.unlink()
    os.link(secret, file)
    is_refused("has another name")
    file.unlink()
    os.mkfifo(file)
    is_refused("is not a regular file")
    file.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(file))
        is_refused("is not a regular file")
    file.unlink()
    file.mkdir()
    with pytest.raises(StorageError):
        storage.get("a")
    file.rmdir()
    file.write_bytes(b"")
    file.chmod(0o666)
    is_refused("may be written to by others")
    assert secret.read_bytes() == b"of the host"


def test_a_link_in_the_place_of_a_file_is_replaced_and_what_it_names_untouched(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"of the host")
    storage = DirectoryStorage(tmp_path / "kept")
    (tmp_path / "kept" / "a").symlink_to(secret)
    storage.put("a", b"x")
    assert storage.get("a") == b"x" and secret.read_bytes() == b"of the host"
    (tmp_path / "kept" / "b").symlink_to(secret)
    storage.delete("b")
    assert secret.exists()


def test_other_files_in_a_directory_are_none_of_it(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    (tmp_path / "a b").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    assert storage.list() == []


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(StorageError, match="not a database"):
        SqliteStorage(tmp_path / "db")
    assert (tmp_path / "db").read_bytes() == b"nothing of the kind" * 100


def test_a_directory_that_cannot_be_written_to_says_so() -> None:
    with pytest.raises(StorageError, match="/proc/kept"):
        storage_of("/proc/kept")


# ---- how it is named


def test_a_place_is_a_path_a_url_or_a_storage(tmp_path: Path) -> None:
    assert isinstance(storage_of(tmp_path), DirectoryStorage)
    assert isinstance(storage_of(f"file://{tmp_path}/x"), DirectoryStorage)
    assert isinstance(storage_of(f"sqlite://{tmp_path}/db"), SqliteStorage)
    assert isinstance(storage_of("memory://kept"), FsspecStorage)

    class Own:
        def get(self, name: str) -> bytes | None:
            return None

        def put(self, name: str, data: bytes) -> None: ...
        def delete(self, name: str) -> None: ...
        def list(self, prefix: str = "") -> list[str]:
            return []

    own = Own()
    assert storage_of(own) is own and isinstance(own, hutch.Storage)
    for wrong in (None, 3, object(), Own, {"a": 1}, b"/tmp/x"):
        with pytest.raises(TypeError, match="a storage is a path"):
            storage_of(wrong)  # type: ignore[arg-type]
    for text in ("sqlite://relative/db", "file://relative"):
        with pytest.raises(ValueError, match="no absolute path"):
            storage_of(text)
    for text in ("", "a\0b"):
        with pytest.raises(ValueError, match="the path of a storage"):
            storage_of(text)
    with pytest.raises(ValueError, match="unknown-kind"):
        storage_of("unknown-kind://x")


def test_what_fsspec_keeps_in_memory_is_there() -> None:
    storage = storage_of("memory://hutch-test/below")
    storage.put("a", b"1")
    storage.put("a", b"2")
    assert storage.get("a") == b"2" and storage.list() == ["a"]
    storage.delete("a")
    assert storage.get("a") is None and storage.list() == []


def test_without_fsspec_its_urls_say_what_to_install() -> None:
    source = (
        "import sys; sys.modules['fsspec'] = None\n"
        "import hutch\n"
        "try: hutch.storage_of('s3://bucket')\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert "pip install fsspec" in done.stdout, done.stderr
