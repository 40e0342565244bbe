# SPDX-License-Identifier: Apache-2.0
"""Mounts: nothing in one leads out of it, nothing of it can be changed, and what was looked at is
what is shown."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hutch import Mount, SandboxStartupError, sandbox
from hutch._carry import host_files

SECRET = "the host's own"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A tree that is mounted, and beside it what is not."""
    (tmp_path / "secret.txt").write_text(SECRET)
    directory = tmp_path / "data"
    (directory / "inner").mkdir(parents=True)
    (directory / "inner" / "open.txt").write_text("open")
    (directory / "up.txt").symlink_to("../secret.txt")
    (directory / "absolute.txt").symlink_to(tmp_path / "secret.txt")
    (directory / "passwd").symlink_to("/etc/passwd")
    (directory / "root").symlink_to("/")
    return directory


def look(outside: str) -> dict[str, Any]:
    import os

    def text(path: str) -> str:
        try:
            with open(path) as file:
                return file.read()
        except OSError as error:
            return type(error).__name__

    return {
        "honest": text("/data/inner/open.txt"),
        "up": text("/data/up.txt"),
        "absolute": text("/data/absolute.txt"),
        "dots": text("/data/../secret.txt"),
        "many dots": text("/data/inner/" + "../" * 40 + outside.strip("/")),
        "root": text("/data/root/" + outside.strip("/")),
        "directory": text("/proc/self/cwd/../data/../" + outside.strip("/")),
        "passwd": text("/data/passwd"),
        "own": text("/etc/passwd"),
        "above": sorted(os.listdir("/data/..")) == sorted(os.listdir("/")),
    }


def test_links_and_dots_end_in_the_cells_own_root(data: Path) -> None:
    seen = sandbox(look, mounts={"/data": data})(str(data.parent / "secret.txt"))
    assert seen.pop("honest") == "open"
    assert seen.pop("passwd") == seen.pop("own")  # the cell's, not the host's
    assert seen.pop("above") is True
    assert set(seen.values()) == {"FileNotFoundError"}


def test_a_source_that_was_replaced_by_a_link_is_not_shown(data: Path) -> None:
    hidden = data.parent / "hidden"
    hidden.mkdir()
    (hidden / "secret.txt").write_text(SECRET)
    mount = Mount(data / "inner")
    (data / "inner").rename(data / "was")
    (data / "inner").symlink_to(hidden)

    def listed() -> list[str]:
        import os

        return os.listdir("/data")

    with pytest.raises(ValueError, match="cannot mount"):
        sandbox(listed, mounts={"/data": mount})()
    (data / "inner").unlink()
    (data / "was").rename(data / "inner")
    assert sandbox(listed, mounts={"/data": mount})() == ["open.txt"]


@pytest.mark.wall("vetting")
def test_what_is_mounted_must_be_what_was_looked_at(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed() -> list[str]:
        import os

        return os.listdir("/data/inner")

    looked = host_files.HostFiles.make_ready

    def another(self: host_files.HostFiles, progress: Callable[..., None]) -> None:
        looked(self, progress)
        self.spec["inode"] += 1

    with monkeypatch.context() as patched:
        patched.setattr(host_files.HostFiles, "make_ready", another)
        with pytest.raises(SandboxStartupError, match="replaced"):
            sandbox(listed, mounts={"/data": data})()
    assert sandbox(listed, mounts={"/data": data})() == ["open.txt"]


def flags() -> dict[str, list[str]]:
    found = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            found[fields[4]] = fields[5].split(",")
    return found


def test_a_mount_is_read_only_and_grants_nothing(data: Path) -> None:
    seen = sandbox(flags, mounts={"/data": data, "/set/one.txt": data / "inner" / "open.txt"})()
    for place in ("/data", "/set/one.txt"):
        assert {"ro", "nosuid", "nodev"} <= set(seen[place])


def test_hard_links_lead_neither_in_nor_out(data: Path) -> None:
    (data.parent / "secret.txt").chmod(0o600)
    os.link(data.parent / "secret.txt", data / "inner" / "linked.txt")

    def link() -> list[str]:
        import os

        said = []
        for source, target in (
            ("/data/inner/open.txt", "/tmp/out.txt"),
            ("/etc/passwd", "/data/inner/in.txt"),
        ):
            try:
                os.link(source, target)
            except OSError as error:
                said.append(type(error).__name__)
        return said

    with pytest.raises(
        ValueError, match=r"linked\.txt.*as_caller"
    ):  # it is no more open by its name
        sandbox(link, mounts={"/data": data})()
    (data / "inner" / "linked.txt").unlink()
    assert len(sandbox(link, mounts={"/data": data})()) == 2


@pytest.mark.wall("overlays")
def test_two_calls_do_not_meet_by_locks_of_a_mounted_file(data: Path) -> None:
    def lock(hold_sec: float) -> bool:
        import fcntl
        import time

        with open("/data/inner/open.txt") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            time.sleep(hold_sec)
            return True

    call = sandbox(lock, mounts={"/data": data})
    call.warm(2)
    first = call.submit(1.0)
    time.sleep(0.3)
    assert call(0.0)
    assert first.result()


def test_no_argument_of_a_mount_becomes_an_option_of_one(data: Path) -> None:
    for destination in ("/data,upperdir=/tmp", "/data:/etc", "/a\\,b", "/data\nro"):
        with pytest.raises(ValueError, match="character"):
            sandbox(flags, mounts={destination: data})
    odd = data.parent / "a,b:c d\\e"
    odd.mkdir()
    (odd / "inside.txt").write_text("x")
    seen = sandbox(look, mounts={"/odd name": odd, "/data": data})("/nowhere")
    assert seen["honest"] == "open"
