# SPDX-License-Identifier: Apache-2.0
"""The file system: nothing of the host in it, nothing of it to change, nothing that leads out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hutch import sandbox

REFUSED = {"EROFS", "EACCES", "EPERM", "ENOENT", "EBUSY", "EXDEV", "ENOSYS", "ENOTDIR"}


@pytest.fixture(scope="module")
def seen(probes: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return probes("files")


def test_writing_outside_the_scratch_hits_a_read_only_root(seen: dict[str, Any]) -> None:
    assert {k: v for k, v in seen["write"].items() if v not in REFUSED} == {}


def test_a_call_may_write_to_its_own_scratch(seen: dict[str, Any]) -> None:
    assert set(seen["scratch_is_writable"].values()) == {True}


@pytest.mark.wall("fresh")
def test_the_scratch_begins_empty(seen: dict[str, Any], probes: Callable[[str], Any]) -> None:
    @sandbox
    def look() -> list[list[str]]:
        import os

        return [os.listdir(place) for place in (os.getcwd(), "/tmp", "/dev/shm")]

    @sandbox
    def litter() -> None:
        import os

        for place in (os.getcwd(), "/tmp", "/dev/shm"):
            open(place + "/left-behind", "w").close()

    litter()
    assert look() == [[], [], []]


def test_the_hosts_secrets_are_not_there(seen: dict[str, Any]) -> None:
    assert seen["host_secrets"] == []
    assert all(names == [] for names in seen["homes"].values())


def test_a_file_of_the_host_is_not_there(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")

    @sandbox
    def read(path: str) -> str:
        return open(path).read()

    with pytest.raises(Exception) as caught:
        read(str(secret))
    assert getattr(caught.value, "error_type", "") == "FileNotFoundError"


@pytest.mark.wall("root")
def test_no_socket_can_be_found(seen: dict[str, Any]) -> None:
    assert seen["sockets"] == []


def test_writable_mounts_grant_nothing_and_none_is_the_hosts(seen: dict[str, Any]) -> None:
    for place, options, tags, kind, superblock in seen["mounts"]:
        assert "shared:" not in tags, place
        if "ro" not in options.split(",") and kind not in ("proc",):
            assert kind in ("tmpfs", "devtmpfs", "devpts", "mqueue"), (place, kind, superblock)
            assert "nosuid" in options, place


def test_device_nodes_and_privileged_files_cannot_be_made(seen: dict[str, Any]) -> None:
    answers = dict(seen["devices"])
    hardlink = answers.pop("hardlink")
    assert hardlink in REFUSED
    assert set(answers.values()) <= REFUSED | {"EINVAL", "EOPNOTSUPP"}
    assert all(seen["nosuid_mounts"].values())


def test_opening_a_forged_file_handle_is_refused(seen: dict[str, Any]) -> None:
    assert seen["shocker"] in REFUSED


@pytest.mark.wall("capabilities", "filter")
def test_the_root_cannot_be_changed(seen: dict[str, Any]) -> None:
    assert set(seen["roots"].values()) <= REFUSED


@pytest.mark.wall("capabilities", "filter", "landlock")
def test_mounting_is_refused(seen: dict[str, Any]) -> None:
    assert {k: v for k, v in seen["mounting"].items() if v not in REFUSED} == {}


def test_every_way_up_ends_in_the_cells_own_root(seen: dict[str, Any]) -> None:
    assert {k: v for k, v in seen["traversal"].items() if v is not True and v not in REFUSED} == {}


def test_watching_shared_files_tells_nothing(seen: dict[str, Any]) -> None:
    assert seen["watching"] == 0 or seen["watching"] in REFUSED | {"EMFILE"}


@sandbox(disk_mb=16, memory_mb=256)
def fill(place: str) -> int:
    written = 0
    with open(place + "/full", "wb") as file:
        while written < 64 << 20:
            written += file.write(b"x" * (1 << 20))
    return written


@pytest.mark.wall("scratch")
@pytest.mark.parametrize("place", [".", "/tmp", "/dev/shm"])
def test_filling_the_scratch_hits_the_disk_limit(place: str, next_call_works: None) -> None:
    outcome = fill.run(place)
    assert (outcome.status, outcome.limit) == ("limit", "disk")


@sandbox(disk_mb=16)
def fill_and_go_on() -> int:
    """The harmless counterpart: whoever catches the full disk goes on."""
    import os

    written = 0
    try:
        with open("full", "wb", buffering=0) as file:
            while True:
                written += file.write(b"x" * (1 << 20))
    except OSError:
        os.remove("full")
    return written >> 20


def test_a_caught_full_disk_is_no_limit() -> None:
    assert 8 <= fill_and_go_on() <= 16


@sandbox(disk_mb=16)
def many_inodes() -> int:
    import os

    made = 0
    try:
        for made in range(2_000_000):
            os.close(os.open(f"{made}", os.O_CREAT | os.O_WRONLY))
    except OSError:
        pass
    return made


def test_inodes_are_bounded() -> None:
    assert 0 < many_inodes() < 1_000_000


def test_a_sparse_petabyte_is_the_callers_own_business(next_call_works: None) -> None:
    @sandbox
    def sparse() -> int:
        import os

        with open("big", "wb") as file:
            os.truncate(file.fileno(), 1 << 40)
        return os.stat("big").st_blocks

    outcome = sparse.run()
    assert outcome.status in ("returned", "raised", "limit")
    assert outcome.status != "returned" or outcome.value < 100


def test_the_host_takes_nothing_out_of_a_scratch(next_call_works: None) -> None:
    """Links, FIFOs, sockets and odd names planted everywhere: an outcome has nothing of them."""

    @sandbox
    def plant() -> int:
        import os
        import socket

        for place in (".", "/tmp", "/dev/shm"):
            os.symlink("/etc/passwd", os.path.join(place, "result"))
            os.symlink("../../../..", os.path.join(place, "output"))
            os.mkfifo(os.path.join(place, "stdout"))
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(os.path.join(place, "socket"))
            os.mkdir(os.fsencode(place) + b"/\xff\xfe" + b"n" * 250)
        return 1

    outcome = plant.run()
    assert (outcome.status, outcome.value) == ("returned", 1)
    assert "passwd" not in str(outcome)


def test_a_monstrous_scratch_goes_with_its_cell(next_call_works: None) -> None:
    @sandbox(timeout_sec=30)
    def monster() -> list[int]:
        import os

        deep = 0
        try:
            while deep < 1000:
                os.mkdir("d")
                os.chdir("d")
                deep += 1
        except OSError:
            pass
        os.chdir("/tmp")
        wide = 0
        try:
            for wide in range(100_000):
                os.close(os.open(str(wide), os.O_CREAT | os.O_WRONLY))
        except OSError:
            pass
        return [deep, wide]

    deep, wide = monster()
    assert deep == 1000
    assert wide > 100


def test_an_environment_cannot_be_changed_from_inside() -> None:
    @sandbox(dependencies=["six"])
    def meddle() -> dict[str, str]:
        import errno
        import os

        import six

        tree = os.path.dirname(six.__file__)
        attempts = {
            "append": lambda: open(six.__file__, "a").close(),
            "new": lambda: open(tree + "/planted.pth", "w").close(),
            "unlink": lambda: os.unlink(six.__file__),
            "rename": lambda: os.rename(six.__file__, tree + "/other.py"),
            "mode": lambda: os.chmod(six.__file__, 0o777),
            "link": lambda: os.link(six.__file__, tree + "/linked.py"),
            "directory": lambda: os.mkdir(tree + "/planted"),
        }
        found = {}
        for name, attempt in attempts.items():
            try:
                attempt()
                found[name] = "done"
            except OSError as error:
                found[name] = errno.errorcode[error.errno or 0]
        return found

    first = meddle()
    assert set(first.values()) <= {"EROFS", "EACCES", "EPERM"}, first
    assert "EROFS" in first.values()
    assert meddle() == first  # the next call has it as it was
