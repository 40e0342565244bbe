# SPDX-License-Identifier: Apache-2.0
"""The agent's socket: who may speak to it, and what happens to nonsense."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hutch import _core, sandbox


@pytest.fixture(scope="module")
def paths() -> dict[str, Any]:
    @sandbox
    def start() -> int:
        return 1

    assert start() == 1
    return dict(_core.paths())


def connect(path: str, uid: int) -> socket.socket:
    """As Podman's user, whom the agent accepts."""
    sock = socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET if kind_of(path) == 5 else socket.SOCK_STREAM
    )
    sock.settimeout(5)
    own = os.geteuid()
    if own == 0 and uid != 0:
        os.seteuid(uid)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    finally:
        if own == 0 and uid != 0:
            os.seteuid(own)
    return sock


def kind_of(path: str) -> int:
    for row in Path("/proc/net/unix").read_text().splitlines():
        if row.endswith(path):
            return int(row.split()[4], 16)
    return 1


def test_the_socket_and_its_directory_are_for_one_user(paths: dict[str, Any]) -> None:
    place = Path(paths["agent_socket"])
    directory = place.parent.stat()
    assert stat.S_IMODE(directory.st_mode) == 0o700
    assert directory.st_uid == paths["uid"]
    assert stat.S_ISSOCK(place.stat().st_mode)
    assert stat.S_IMODE(place.stat().st_mode) & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as somebody else")
def test_another_user_cannot_connect(paths: dict[str, Any]) -> None:
    code = (
        "import os,socket,sys; os.setgid(65534); os.setuid(65534);"
        "s=socket.socket(socket.AF_UNIX, int(sys.argv[2]));"
        "s.connect(sys.argv[1])"
    )
    place = paths["agent_socket"]
    done = subprocess.run(
        [sys.executable, "-c", code, place, str(kind_of(place))], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "PermissionError" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 4096,
        struct.pack("<Q", 2**63) * 8,
        struct.pack("<I", 0xFFFFFFFF) * 100,
    ],
    ids=["empty", "zero", "http", "ones", "huge lengths", "huge counts"],
)
def test_nonsense_is_hung_up_on_and_others_are_served(
    paths: dict[str, Any], text: bytes, next_call_works: None
) -> None:
    with connect(paths["agent_socket"], paths["uid"]) as sock:
        try:
            sock.send(text)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except (ConnectionError, TimeoutError, BrokenPipeError):
            pass


def test_many_silent_connections_do_not_keep_others_out(
    paths: dict[str, Any], next_call_works: None
) -> None:
    held = []
    try:
        for _ in range(300):
            held.append(connect(paths["agent_socket"], paths["uid"]))
    except OSError:
        pass  # refused at some number, which is an answer
    try:

        @sandbox
        def still() -> int:
            return 2

        assert still() == 2
    finally:
        for sock in held:
            sock.close()


def run_with(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    code = "from hutch import sandbox\nprint(sandbox(lambda: 1)())"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HUTCH_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_socket_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """A listener in the agent's place, of another user, is not spoken to."""
    if os.geteuid() != 0:
        pytest.skip("only root can listen as somebody else")
    place = tmp_path / "agent.sock"
    os.chmod(tmp_path, 0o777)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(place))
        os.chown(place, 65534, 65534)
        os.chmod(place, 0o777)
        listener.listen(1)
        done = run_with({"HUTCH_SOCKET": str(place)})
    assert done.returncode != 0
    assert done.stderr.strip() and "\n1\n" not in done.stdout


def test_a_socket_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o777)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    done = run_with({"HUTCH_SOCKET": str(tmp_path / "link" / "agent.sock")})
    assert done.returncode != 0
