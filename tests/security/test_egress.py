# SPDX-License-Identifier: Apache-2.0
"""The network, where some is allowed: what is named is reached, and nothing else by any trick.

On the whole thing; the parsers by themselves are tried in agent/egress. The servers are this
test's own, on loopback.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import Outcome, sandbox

LOOPBACK = "127.0.0.0/8"  # lets "localhost" resolve to what it does


class Echo:
    """Answers what it is sent with what it got, and keeps it; knows when connections end."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.got: list[bytes] = []
        self.open = 0
        self.lock = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=[connection], daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with self.lock:
            self.open += 1
        try:
            while data := connection.recv(65536):
                self.got.append(data)
                body = b"got " + data
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                )
        except OSError:
            pass
        finally:
            connection.close()
            with self.lock:
                self.open -= 1

    def none_open(self) -> bool:
        deadline = time.monotonic() + 10
        while self.open and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.open


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.listener.close()


def ask(requests: dict[str, tuple[str, int, bytes]]) -> dict[str, bytes]:
    """Sends each to an address of the cell, and what came back within a moment."""
    import socket

    answers = {}
    for name, (host, port, request) in requests.items():
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                connection.settimeout(5)
                connection.sendall(request)
                answers[name] = connection.recv(65536)
        except OSError as error:
            answers[name] = type(error).__name__.encode()
    return answers


PROXY = ("127.63.0.1", 3128)


def asking(*allowed: str, **keywords: Any) -> Callable[[dict[str, Any]], Outcome[Any]]:
    function = sandbox(ask, allow_network=allowed, timeout_sec=30, **keywords)
    return lambda requests: function.run(requests)


def connects(authorities: list[str]) -> dict[str, Any]:
    return {a: (*PROXY, f"CONNECT {a} HTTP/1.1\r\nHost: x\r\n\r\n".encode()) for a in authorities}


def status(answer: bytes) -> int:
    """Of an HTTP answer; 0: the connection was closed without one."""
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.") else 0


def test_connect_reaches_the_allowed_port_and_no_other(echo: Echo) -> None:
    other = Echo()
    outcome = asking(f"localhost:{echo.port}", LOOPBACK)(
        connects([f"localhost:{echo.port}", f"localhost:{other.port}", "evil.example:443"])
    )
    answers = list(outcome.unwrap().values())
    assert [status(answer) for answer in answers] == [200, 403, 403]
    assert not other.got and other.open == 0


def test_spellings_of_a_name_get_one_decision(echo: Echo) -> None:
    port = echo.port
    same = [f"LocalHost:{port}", f"localhost.:{port}", f"localhost:{port}"]
    others = [f".localhost:{port}", f"localhost..:{port}", f"xlocalhost:{port}"]
    others += [f"localhost.evil.example:{port}", f"evil-localhost:{port}"]
    answers = asking(f"localhost:{port}", LOOPBACK)(connects(same + others)).unwrap()
    assert {status(answers[name]) for name in same} == {200}
    assert {status(answers[name]) for name in others} <= {400, 403}


def test_authorities_made_to_confuse_are_bad_requests(echo: Echo) -> None:
    port = echo.port
    tricks = [
        f"localhost@evil.example:{port}",
        f"evil.example#@localhost:{port}",
        f"localhost\\@evil.example:{port}",
        f"localhost%2eevil.example:{port}",
        f"localhost:{port}@evil.example:{port}",
        f"localhost\0.evil.example:{port}",
        f"localhost:{port}:80",
        "localhost:0",
        "localhost:65536",
        f"localhost:+{port}",
        "localhost:",
        "localhost",
    ]
    answers = asking(f"localhost:{port}", LOOPBACK)(connects(tricks)).unwrap()
    assert {status(answer) for answer in answers.values()} <= {400, 403}


def test_addresses_are_reached_only_where_a_network_names_them(echo: Echo) -> None:
    port = echo.port
    literals = [f"127.0.0.1:{port}", f"[::ffff:127.0.0.1]:{port}", f"2130706433:{port}"]
    literals += [f"0x7f.1:{port}", f"0177.0.0.1:{port}", f"127.1:{port}", f"[::1]:{port}"]
    literals += ["169.254.169.254:80", "10.0.2.2:80"]
    before = len(echo.got)
    outcome = asking(f"localhost:{port}", f"*.example:{port}")(connects(literals))
    assert {status(answer) for answer in outcome.unwrap().values()} <= {400, 403}
    named = asking(f"127.0.0.1:{port}")(connects(literals)).unwrap()
    assert status(named[f"127.0.0.1:{port}"]) == 200
    assert {status(named[name]) for name in literals[2:]} <= {400, 403}
    assert len(echo.got) == before


def test_a_name_that_leads_to_this_host_is_refused_unless_that_is_said(echo: Echo) -> None:
    request = {"x": ("localhost", echo.port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")}
    before = len(echo.got)
    outcome = asking(f"localhost:{echo.port}")(request)
    assert not outcome.unwrap()["x"].startswith(b"HTTP/1.1 200")
    assert [record.allowed for record in outcome.network] == [False]
    assert len(echo.got) == before
    told = asking(f"localhost:{echo.port}", LOOPBACK)(request)
    assert told.unwrap()["x"].startswith(b"HTTP/1.1 200")


def test_ports_that_nobody_named_do_not_even_listen(echo: Echo) -> None:
    requests = {str(p): ("localhost", p, b"x") for p in (22, 25, 80, 443, echo.port + 1)}
    answers = asking(f"localhost:{echo.port}")(requests).unwrap()
    assert set(answers.values()) == {b"ConnectionRefusedError"}


def test_names_of_others_do_not_resolve_and_udp_leads_nowhere(echo: Echo) -> None:
    @sandbox(allow_network=["*", LOOPBACK], timeout_sec=20)
    def look() -> dict[str, str]:
        import socket

        found = {}
        for name, attempt in {
            "dns": lambda: socket.getaddrinfo("example.org", 443),
            "udp": lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 443)),
            "tcp": lambda: socket.create_connection(("192.0.2.1", 443), timeout=3),
            "tcp6": lambda: socket.create_connection(("2001:db8::1", 443), timeout=3),
            "host": lambda: socket.create_connection(("127.0.0.1", 22), timeout=3),
        }.items():
            try:
                attempt()
                found[name] = "done"
            except OSError as error:
                found[name] = type(error).__name__
        return found

    assert "done" not in look().values()


def test_credentials_for_a_proxy_are_not_sent_on(echo: Echo) -> None:
    head = f"GET http://localhost:{echo.port}/ HTTP/1.1\r\nHost: other.example\r\n"
    head += "Proxy-Authorization: Basic c2VjcmV0\r\nConnection: close\r\n\r\n"
    outcome = asking(f"localhost:{echo.port}", LOOPBACK)({"x": (*PROXY, head.encode())})
    answer = outcome.unwrap()["x"]
    if answer.startswith(b"HTTP/1.1 200"):
        assert b"c2VjcmV0" not in answer.lower() and b"other.example" not in answer
        assert f"localhost:{echo.port}".encode() in answer
    assert not any(b"c2VjcmV0" in data for data in echo.got)


def test_a_head_without_an_end_is_refused_and_takes_no_memory(echo: Echo) -> None:
    endless = b"CONNECT localhost:%d HTTP/1.1\r\n" % echo.port + b"X: y\r\n" * 300_000
    outcome = asking(f"localhost:{echo.port}", LOOPBACK)({"x": (*PROXY, endless)})
    answer = outcome.unwrap()["x"]
    assert status(answer) in (0, 400, 413, 431)
    again = asking(f"localhost:{echo.port}", LOOPBACK)(connects([f"localhost:{echo.port}"]))
    assert {status(answer) for answer in again.unwrap().values()} == {200}


def test_socks_takes_names_and_nothing_else(echo: Echo) -> None:
    port = echo.port.to_bytes(2, "big")
    hello = b"\5\1\0"
    outcome = asking(f"localhost:{echo.port}", LOOPBACK)(
        {
            "nul": (*PROXY, hello + b"\5\1\0\3\x0elocalhost\0evil" + port),
            "udp": (*PROXY, hello + b"\5\3\0\3\x09localhost" + port),
            "bind": (*PROXY, hello + b"\5\2\0\3\x09localhost" + port),
            "socks4": (*PROXY, b"\4\1" + port + b"\x7f\0\0\1\0"),
        }
    )
    for name, answer in outcome.unwrap().items():
        assert not answer.startswith(b"\5\0\5\0"), name


def test_a_connection_does_not_outlive_its_call(echo: Echo) -> None:
    @sandbox(allow_network=[f"localhost:{echo.port}", LOOPBACK], timeout_sec=20)
    def leave_one_open(port: int) -> bytes:
        import os
        import socket

        connection = socket.create_connection(("localhost", port))
        connection.sendall(b"first")
        answer = connection.recv(4096)
        if os.fork() == 0:  # a daemon that holds it
            os.setsid()
            while True:
                connection.recv(4096)
        return answer

    assert leave_one_open(echo.port).endswith(b"got first")
    assert echo.none_open()


def test_what_one_call_began_is_not_there_for_the_next(echo: Echo) -> None:
    @sandbox(allow_network=[f"localhost:{echo.port}", LOOPBACK], timeout_sec=20)
    def crowd(port: int) -> int:
        import socket

        global kept
        kept = [socket.create_connection(("localhost", port)) for _ in range(40)]
        return len(kept)

    assert [crowd(echo.port) for _ in range(3)] == [40, 40, 40]
    assert echo.none_open()
    outcome = asking(f"localhost:{echo.port}", LOOPBACK)(connects([f"localhost:{echo.port}"]))
    assert [record.count for record in outcome.network] == [1]


def test_a_thousand_connections_hurt_nobody_else(echo: Echo) -> None:
    @sandbox(allow_network=[f"localhost:{echo.port}", LOOPBACK], timeout_sec=20)
    def flood(port: int) -> int:
        import socket

        opened = []
        for _ in range(900):
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(("localhost", port))
            opened.append(connection)
        return len(opened)

    assert flood.run(echo.port).status in ("returned", "raised")
    assert echo.none_open()
    answers = asking(f"localhost:{echo.port}", LOOPBACK)(connects([f"localhost:{echo.port}"]))
    assert {status(answer) for answer in answers.unwrap().values()} == {200}


def test_calls_cannot_use_each_others_listeners(echo: Echo, hold: Any) -> None:
    @sandbox(allow_network=[f"localhost:{echo.port}", LOOPBACK], timeout_sec=60, tools=[hold.tool])
    def keep_open(port: int) -> bytes:
        import socket

        with socket.create_connection(("localhost", port)) as connection:
            connection.sendall(b"held")
            answer = connection.recv(4096)
            held()  # type: ignore[name-defined]  # noqa: F821
            return answer

    holder = keep_open.submit(echo.port)
    hold.await_begun()

    @sandbox
    def intrude(ports: list[int]) -> list[str]:
        import socket

        found = []
        for host in ("127.0.0.1", "127.63.0.1", "127.64.0.1"):
            for port in ports:
                try:
                    socket.create_connection((host, port), timeout=2)
                    found.append(f"{host}:{port}")
                except OSError:
                    pass
        return found

    assert intrude([80, 443, 3128, echo.port]) == []
    assert not holder.done()
    hold.release()
    assert holder.result().endswith(b"got held")


def egress_processes() -> list[int]:
    """Of this test's own agent and no other: the directory of its socket is mounted there."""
    from hutch import _core

    paths = _core.paths()
    mine = f"{Path(paths['run_dir']).name}/egress"
    found = []
    for directory in Path("/proc").iterdir():
        try:
            line = (directory / "cmdline").read_bytes().split(b"\0")
            if b"--egress" in line and mine in (directory / "mountinfo").read_text():
                found.append(int(directory.name))
        except OSError:
            pass
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may end a process of the service user's")
def test_a_proxy_that_dies_fails_closed_and_the_next_call_has_another(echo: Echo) -> None:
    @sandbox(allow_network=[f"localhost:{echo.port}", LOOPBACK], timeout_sec=30)
    def survive(port: int) -> list[str]:
        import socket
        import time

        told = []
        connection = socket.create_connection(("localhost", port), timeout=20)
        connection.sendall(b"before")
        told.append(connection.recv(4096)[-6:].decode())
        try:
            told.append(repr(connection.recv(4096)))  # until the proxy dies
        except OSError as error:
            told.append(type(error).__name__)
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("localhost", port), timeout=5) as again:
                    again.sendall(b"after")
                    told.append(repr(again.recv(4096)))
            except OSError as error:
                told.append(type(error).__name__)
            time.sleep(0.5)
        return told

    call = survive.submit(echo.port)
    deadline = time.monotonic() + 20
    while b"before" not in echo.got and time.monotonic() < deadline:
        time.sleep(0.05)
    [pid] = egress_processes()
    os.kill(pid, signal.SIGKILL)
    outcome = call.outcome()
    told = outcome.unwrap()
    assert told[0] == "before"
    assert not [answer for answer in told[1:] if "got" in answer]
    assert b"after" not in echo.got
    assert [record.reason for record in outcome.network if not record.allowed]
    assert "ended" in outcome.network_lost  # its answer is one, and may be less than it would be
    assert outcome.to_dict()["network_lost"] == outcome.network_lost
    deadline = time.monotonic() + 20
    answer = b""
    while status(answer) != 200 and time.monotonic() < deadline:
        outcome = asking(f"localhost:{echo.port}", LOOPBACK)(connects([f"localhost:{echo.port}"]))
        [answer] = outcome.unwrap().values()
    assert status(answer) == 200


def forwarders() -> list[int]:
    """Those of this test's own agent: below the conmon of one of its workers."""
    told = repr(hutch.status())
    found = []
    for directory in Path("/proc").iterdir():
        try:
            if not (directory / "cmdline").read_bytes().startswith(b"hutch-forwarder\0"):
                continue
            above = directory
            while b"conmon" not in (above / "cmdline").read_bytes():
                above = Path("/proc") / (above / "stat").read_text().rpartition(")")[2].split()[1]
            line = (above / "cmdline").read_bytes().split(b"\0")
            if line[line.index(b"-n") + 1].decode() in told:
                found.append(int(directory.name))
        except (OSError, ValueError):
            pass
    return found


def poll(port: int, seconds: float) -> int:
    """Asks again and again, and does not live with a failure."""
    import socket
    import time

    end = time.monotonic() + seconds
    asked = 0
    while time.monotonic() < end:
        with socket.create_connection(("localhost", port), timeout=20) as connection:
            connection.sendall(b"tick")
            if not connection.recv(4096):
                raise ConnectionAbortedError("cut off")
        asked += 1
        time.sleep(0.02)
    return asked


def polled(echo: Echo, port: int, seconds: float, harm: Callable[[], None]) -> Outcome[Any]:
    """The outcome of poll() where that happens once it has begun."""
    before = len(echo.got)
    allowed = [f"localhost:{echo.port}", f"localhost:{port}", LOOPBACK]
    call = sandbox(poll, allow_network=allowed, timeout_sec=60).submit(port, seconds)
    deadline = time.monotonic() + 30
    while port == echo.port and len(echo.got) < before + 3 and time.monotonic() < deadline:
        if call.done():  # cut off, or it took no longer
            break
        time.sleep(0.02)
    harm()
    return call.outcome()


def kill_egress() -> None:
    for pid in egress_processes():
        os.kill(pid, signal.SIGKILL)


def stop_egress() -> None:
    for pid in egress_processes():
        os.kill(pid, signal.SIGSTOP)


def kill_forwarders() -> None:
    assert forwarders()
    for pid in forwarders():
        os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may end a process of the service user's")
@pytest.mark.parametrize("harm", [kill_egress, stop_egress, kill_forwarders])
def test_a_call_that_fails_for_our_fault_is_no_answer(echo: Echo, harm: Callable[[], None]) -> None:
    outcome = polled(echo, echo.port, 50, harm)
    assert outcome.status == "fault", outcome
    assert not outcome.ok and not outcome.safe_to_retry
    assert outcome.network_lost in str(outcome.exception())
    with pytest.raises(hutch.SandboxStartupError) as raised:
        outcome.unwrap()
    assert raised.value.may_have_run
    # What it said of it is kept.
    assert isinstance(raised.value.__cause__, hutch.SandboxError)
    assert outcome.error is not None and outcome.error.type
    # The next one has a network again.
    deadline = time.monotonic() + 60
    answer = polled(echo, echo.port, 0.2, lambda: None)
    while answer.status == "fault" and time.monotonic() < deadline:
        answer = polled(echo, echo.port, 0.2, lambda: None)
    assert answer.status == "returned" and answer.value > 0
    assert answer.network_lost == ""


def test_what_a_call_fails_of_by_itself_stays_its_own(echo: Echo) -> None:
    plain = polled(echo, echo.port, 0.5, lambda: None)
    assert (plain.status, plain.network_lost) == ("returned", "")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    refused = polled(echo, port, 5, lambda: None)
    assert (refused.status, refused.network_lost) == ("raised", "")
    assert refused.error is not None and refused.error.type.startswith("Connection")


def test_nine_calls_that_take_all_they_can_leave_others_a_network(echo: Echo) -> None:
    """Each has as many connections as a call may have, and more than all could once have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))
    taken: list[socket.socket] = []

    def take(listener: socket.socket) -> None:
        while True:
            try:
                taken.append(listener.accept()[0])
            except OSError:
                return

    crowd = socket.create_server(("127.0.0.1", 0), backlog=512)
    taker = threading.Thread(target=take, args=[crowd])
    taker.start()
    allowed = [f"localhost:{echo.port}", f"localhost:{crowd.getsockname()[1]}", LOOPBACK]

    @sandbox(allow_network=allowed, timeout_sec=90, memory_mb=256)
    def hog(port: int) -> int:
        import select
        import socket
        import time

        held = []
        for number in range(256):
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(("localhost", port))
            held.append(connection)
            if number % 16 == 15:  # more names at once than are resolved would be refused
                time.sleep(0.2)
        select.select([], [], [], 60)
        return len(held)

    hogs = [hog.submit(crowd.getsockname()[1]) for _ in range(9)]
    try:
        deadline = time.monotonic() + 50
        while len(taken) < 9 * 240 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(taken) > 1000
        for _ in range(3):
            request = {"x": ("localhost", echo.port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")}
            answer = asking(*allowed)(request).unwrap()["x"]
            assert answer.startswith(b"HTTP/1.1 200"), answer
    finally:
        for call in hogs:
            call.cancel()
        crowd.shutdown(socket.SHUT_RDWR)  # which ends the accept() that waits
        taker.join()
        crowd.close()
        for connection in taken:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_forwarder_is_out_of_the_cells_sight_and_reach(echo: Echo) -> None:
    @sandbox(allow_network=[f"localhost:{echo.port}", LOOPBACK], timeout_sec=20)
    def look() -> dict[str, Any]:
        import os
        import socket

        try:
            socket.socket().bind(("127.64.0.1", 80))
            bound = "bound"
        except OSError as error:
            bound = type(error).__name__
        return {
            "pids": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
            "fds": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:5],
            "capabilities": [line for line in open("/proc/self/status") if line.startswith("Cap")],
            "bound": bound,
        }

    found = look()
    assert found["pids"] == [1, 2]
    assert found["fds"][:4] == [0, 1, 2, 3]
    assert all(line.split()[1].strip("0") == "" for line in found["capabilities"])
    assert found["bound"] == "PermissionError"


def test_no_secret_is_in_what_anybody_can_list(echo: Echo) -> None:
    from hutch import Secret, status as agent_status

    secret = Secret("t0ps3cret-value")
    function = sandbox(ask, secrets={"localhost": {"Authorization": secret}}, timeout_sec=20)
    outcome = function.run({"x": ("localhost", 80, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")})
    texts = [repr(outcome.to_dict()), str(outcome), repr(agent_status())]
    texts.append(subprocess.run(["ps", "axeww"], capture_output=True, text=True).stdout)
    assert not [text for text in texts if "t0ps3cret-value" in text]
