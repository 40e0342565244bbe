# SPDX-License-Identifier: Apache-2.0
"""The network, where none is allowed: nothing but a loopback of the cell's own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from hutch import sandbox

UNREACHABLE = {"ENETUNREACH", "EADDRNOTAVAIL", "EHOSTUNREACH", "EPERM", "EACCES", "EINVAL"}


@pytest.fixture(scope="module")
def seen(probes: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return probes("network")


def test_nothing_outside_can_be_reached(seen: dict[str, Any]) -> None:
    assert {k: v for k, v in seen["outside"].items() if v not in UNREACHABLE} == {}
    assert set(seen["interfaces"] if isinstance(seen["interfaces"], list) else []) <= {"lo"}


def test_names_do_not_resolve_and_do_not_stall(seen: dict[str, Any]) -> None:
    assert seen["names_resolve_quickly"]
    for name, (answer, seconds) in seen["names_resolve_quickly"].items():
        assert answer != "done", name
        assert seconds < 5, name
    assert "nameserver" not in seen["name_servers"] or "127.0.0.1" in seen["name_servers"]


def test_odd_protocols_lead_nowhere(seen: dict[str, Any]) -> None:
    refused = UNREACHABLE | {
        "EPROTONOSUPPORT",
        "ESOCKTNOSUPPORT",
        "EAFNOSUPPORT",
        "ENODEV",
        "EPROTOTYPE",
    }
    assert {k: v for k, v in seen["odd_protocols"].items() if v not in refused} == {}


@pytest.mark.wall("profile")
def test_interfaces_and_routes_cannot_be_changed(seen: dict[str, Any]) -> None:
    assert set(seen["netlink"]["changes"].values()) == {"EPERM"}
    assert {answer for answer in seen["netlink"]["protocols"].values()} <= {"EPROTONOSUPPORT"}
    assert set(seen["interface_changes"]) <= {"EPERM", "EACCES"}


def test_ones_own_interfaces_can_be_listed(seen: dict[str, Any]) -> None:
    assert seen["netlink"]["interfaces"] == ["lo"]


def test_a_server_and_a_client_of_ones_own_work(seen: dict[str, Any]) -> None:
    assert list(seen["loopback"].values()) == ["hello"] * 3


def test_nothing_else_listens_on_a_cells_loopback(seen: dict[str, Any]) -> None:
    assert seen["ports"] == []


@sandbox(timeout_sec=20)
def serve(seconds: float) -> list[int]:
    """Listens on every address and by an abstract name; tells how many came."""
    import socket
    import time

    tcp = socket.socket()
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    tcp.bind(("0.0.0.0", 8080))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0hutch-meeting")
    came = [0, 0]
    end = time.monotonic() + seconds
    for sock in (tcp, abstract):
        sock.listen(5)
        sock.setblocking(False)
    while time.monotonic() < end:
        for at, sock in enumerate((tcp, abstract)):
            try:
                sock.accept()
                came[at] += 1
            except BlockingIOError:
                pass
        time.sleep(0.01)
    return came


@sandbox(timeout_sec=20)
def visit(seconds: float) -> list[int]:
    import socket
    import time

    met = [0, 0]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for at, (family, address) in enumerate(
            ((socket.AF_INET, ("127.0.0.1", 8080)), (socket.AF_UNIX, "\0hutch-meeting"))
        ):
            with socket.socket(family) as sock:
                sock.settimeout(0.1)
                if sock.connect_ex(address) == 0:
                    met[at] += 1
        time.sleep(0.02)
    return met


@pytest.mark.wall("network")
def test_a_listening_cell_is_reached_by_no_other_and_not_by_the_host() -> None:
    serving, visiting = serve.submit(3.0), visit.submit(2.5)
    reached = 0
    end = time.monotonic() + 2
    while time.monotonic() < end:
        with socket.socket() as sock:
            sock.settimeout(0.1)
            reached += sock.connect_ex(("127.0.0.1", 8080)) == 0
        time.sleep(0.05)
    assert serving.result(30) == [0, 0]
    assert visiting.result(30) == [0, 0]
    assert reached == 0


def test_a_listener_of_the_host_is_not_reached() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        port = server.getsockname()[1]
        came: list[object] = []

        def accept() -> None:
            try:
                came.append(server.accept())
            except OSError:
                pass

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()

        @sandbox
        def knock(port: int) -> int:
            import socket

            with socket.socket() as sock:
                sock.settimeout(1)
                return sock.connect_ex(("127.0.0.1", port))

        assert knock(port) != 0
        assert came == []
        server.shutdown(socket.SHUT_RDWR)
