# SPDX-License-Identifier: Apache-2.0
"""Mounts: files of the host that a call sees, and that stay the host's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
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
        "read": tried(open, f"{place}/a.txt"),
    }


def test_nothing_of_a_mount_can_be_written(data: Path) -> None:
    tried = sandbox(attempts, mounts={"/data": data})("/data")
    assert tried.pop("read") == "done"
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
def test_root_cannot_mount_writable_and_the_error_says_why(data: Path) -> None:
    with pytest.raises(ValueError, match=r"root.*copy"):
        sandbox(read, mounts={"/data": Mount(data, writable=True)})("/data/a.txt")


def test_the_run_command_shows_mounts(data: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print(open('/data/a.txt').read())")
    command = [sys.executable, "-m", "hutch", "run", "--mount", f"{data}:/data", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.stdout == "first\n"
    command[5] = "/data"
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode != 0 and "SOURCE:DESTINATION" in done.stderr


@pytest.mark.parametrize("isolation", ["container", "shared"])
def test_every_isolation_shows_mounts(isolation: str, data: Path) -> None:
    call = sandbox(read, mounts={"/data": data}, isolation=isolation)  # type: ignore[call-overload]
    assert call("/data/inner/b.txt") == ["second"]


of_an_ordinary_user = pytest.mark.skipif(
    os.geteuid() == 0, reason="root's sources are copied: only an ordinary user's are shown"
)


@of_an_ordinary_user
def test_what_is_written_to_a_writable_mount_is_the_callers_and_never_executed(
    data: Path, tmp_path: Path
) -> None:
    def write() -> list[str]:
        import os
        import subprocess

        said = []
        with open("/out/made.sh", "w") as file:
            file.write("#!/bin/sh\n")
        os.chmod("/out/made.sh", 0o755)
        for what in (
            lambda: subprocess.run(["/out/made.sh"]),
            lambda: open("/data/new", "w"),
        ):
            try:
                what()
            except OSError as error:
                said.append(type(error).__name__)
        with open("/proc/self/mountinfo") as file:
            said += [line.split()[5] for line in file if line.split()[4] == "/out"]
        return said

    out = tmp_path / "out"
    out.mkdir(mode=0o700)
    executed, written, flags = sandbox(
        write, mounts={"/data": data, "/out": Mount(out, writable=True)}
    )()
    assert (executed, written) == ("PermissionError", "OSError")
    assert {"rw", "nosuid", "nodev", "noexec"} <= set(flags.split(","))
    made = (out / "made.sh").stat()
    assert (made.st_uid, made.st_gid) == (os.getuid(), os.getgid())


@of_an_ordinary_user
def test_a_socket_or_fifo_that_comes_later_is_dead_inside(data: Path) -> None:
    def touch() -> list[str]:
        import os
        import socket

        said = []
        for what in (
            lambda: socket.socket(socket.AF_UNIX).connect("/data/late.sock"),
            lambda: os.open("/data/late.fifo", os.O_WRONLY | os.O_NONBLOCK),
        ):
            try:
                what()
            except OSError as error:
                said.append(os.strerror(error.errno or 0))
        return said

    call = sandbox(touch, mounts={"/data": data})
    assert call() == ["No such file or directory"] * 2
    os.mkfifo(data / "late.fifo")
    reader = os.open(data / "late.fifo", os.O_RDONLY | os.O_NONBLOCK)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(data / "late.sock"))
        (data / "late.sock").chmod(0o777)
        (data / "late.fifo").chmod(0o666)
        listener.listen(1)
        assert call() == ["Connection refused", "No such device or address"]
    os.close(reader)
