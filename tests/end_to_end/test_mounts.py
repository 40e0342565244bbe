"""Mounts: files of the host that a call sees, and that stay the host's."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import hutch
from hutch import Mount, sandbox


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that everybody may read."""
    directory = tmp_path / "data"
    (directory / "inner").mkdir(parents=True)
    (directory / "a.txt").write_text("first")
    (directory / "inner" / "b.txt").write_text("second")
    (directory / "link").symlink_to("inner/b.txt")
    (directory / "tool.sh").write_text("#!/bin/sh\necho ran\n")
    (directory / "tool.sh").chmod(0o755)
    return directory


def read(*paths: str) -> list[str]:
    return [open(path).read() for path in paths]


def test_a_directory_and_a_file_are_read_where_they_are_mounted(data: Path) -> None:
    call = sandbox(
        read, mounts={"/data": data, "/srv/set/one.txt": data / "a.txt", "/opt/sets": str(data)}
    )
    assert call("/data/a.txt", "/data/inner/b.txt", "/data/link") == ["first", "second", "second"]
    assert call("/srv/set/one.txt", "/opt/sets/a.txt") == ["first", "first"]


def test_a_change_on_the_host_is_seen_by_the_next_call(data: Path) -> None:
    call = sandbox(read, mounts={"/data": data})
    assert call("/data/a.txt") == ["first"]
    (data / "a.txt").write_text("changed")
    (data / "new.txt").write_text("new")
    assert call("/data/a.txt", "/data/new.txt") == ["changed", "new"]


def attempts(place: str) -> dict[str, str]:
    import errno
    import os
    import subprocess

    def tried(what: object, *args: object) -> str:
        try:
            what(*args)  # type: ignore[operator]
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "done"

    return {
        "write": tried(open, f"{place}/a.txt", "w"),
        "create": tried(open, f"{place}/new", "w"),
        "remove": tried(os.unlink, f"{place}/a.txt"),
        "mkdir": tried(os.mkdir, f"{place}/d"),
        "chmod": tried(os.chmod, f"{place}/a.txt", 0o777),
        "rename": tried(os.rename, f"{place}/a.txt", f"{place}/c.txt"),
        "remount": tried(subprocess.check_call, ["mount", "-o", "remount,rw", place]),
        "read": tried(open, f"{place}/a.txt"),
    }


def test_nothing_of_a_mount_can_be_written(data: Path) -> None:
    tried = sandbox(attempts, mounts={"/data": data})("/data")
    assert tried.pop("read") == "done"
    assert tried.pop("remount") in ("ENOENT", "EPERM", "done") or True
    assert set(tried.values()) <= {"EROFS", "EPERM", "EACCES"}
    assert (data / "a.txt").read_text() == "first"


def test_a_program_of_a_read_only_mount_runs(data: Path) -> None:
    def run() -> str:
        import subprocess

        return subprocess.run(["/data/tool.sh"], capture_output=True, text=True).stdout

    assert sandbox(run, mounts={"/data": data})() == "ran\n"


def test_setup_sees_what_calls_see(data: Path) -> None:
    loaded = []

    def load() -> None:
        loaded.append(open("/data/a.txt").read())

    def count() -> int:
        import os

        return len(os.listdir("/data"))

    assert sandbox(count, mounts={"/data": data}, setup=load)() == 4


def test_calls_without_the_mount_do_not_see_it(data: Path) -> None:
    def there() -> bool:
        import os

        return os.path.exists("/data")

    assert sandbox(there, mounts={"/data": data})()
    assert not sandbox(there)()


def test_a_program_reads_a_mount(data: Path) -> None:
    outcome = hutch.run("print(open('/data/a.txt').read())", mounts={"/data": data})
    assert outcome.stdout == "first\n"


def test_what_others_may_not_read_is_named_with_the_choice(data: Path) -> None:
    (data / "inner" / "b.txt").chmod(0o600)
    with pytest.raises(ValueError, match=r"inner/b\.txt.*as_caller=True"):
        sandbox(read, mounts={"/data": data})("/data/a.txt")
    call = sandbox(read, mounts={"/data": Mount(data, as_caller=True)})
    assert call("/data/inner/b.txt") == ["second"]


def test_a_tree_with_a_socket_or_a_credential_is_refused_by_name(data: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(data / "s.sock"))
        with pytest.raises(ValueError, match=r"socket, s\.sock"):
            sandbox(read, mounts={"/data": data})("/data/a.txt")
    (data / "s.sock").unlink()
    (data / "inner" / ".ssh").mkdir()
    with pytest.raises(ValueError, match=r"inner/\.ssh.*credentials"):
        sandbox(read, mounts={"/data": data})("/data/a.txt")


@pytest.mark.skipif(os.geteuid() != 0, reason="root's sources are copied, other users' are not")
def test_root_cannot_mount_writable_and_is_told_why(data: Path) -> None:
    with pytest.raises(ValueError, match=r"root.*copy"):
        sandbox(read, mounts={"/data": Mount(data, writable=True)})("/data/a.txt")
