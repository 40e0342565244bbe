# SPDX-License-Identifier: Apache-2.0
"""Between the agent and Podman something is slow, cuts replies to pieces, or cuts them off."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support import until

import hutch
from hutch import _core, sandbox


@sandbox(timeout_sec=60, queue_sec=120)
def answer() -> int:
    return 6 * 7


def fresh(name: str) -> int:
    """Calls in workers that no call before had: a spare one is used up, Podman makes the others."""
    for number in range(3):
        value: int = answer.options(labels={"worker": f"{name}-{number}-{time.monotonic_ns()}"})()
    return value


Pump = Callable[[socket.socket, socket.socket], None]


@contextmanager
def between(reply: Pump) -> Iterator[list[int]]:
    """Whoever connects to Podman's service gets a middleman, whose replies go through `reply`."""
    path = Path(str(_core.paths()["run_dir"])) / "podman" / "podman.sock"
    real = path.with_name("real.sock")
    path.rename(real)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    owner = real.stat()
    os.chown(path, owner.st_uid, owner.st_gid)
    path.chmod(0o600)
    listener.listen(64)
    connections = [0]

    def forward(source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    def serve(client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as service, suppress(OSError):
            service.connect(str(real))
            threading.Thread(target=forward, args=(client, service), daemon=True).start()
            reply(service, client)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            connections[0] += 1
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield connections
    finally:
        real.rename(path)
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def in_pieces(source: socket.socket, to: socket.socket) -> None:
    while data := source.recv(64):
        for at in range(0, len(data), 7):
            time.sleep(0.001)
            to.sendall(data[at : at + 7])


def cut_off(source: socket.socket, to: socket.socket) -> None:
    to.sendall(source.recv(40))
    to.shutdown(socket.SHUT_RDWR)


def reset(source: socket.socket, to: socket.socket) -> None:
    to.shutdown(socket.SHUT_RDWR)


def test_a_slow_podman_in_small_pieces_is_only_slow(host: Any) -> None:
    assert answer() == 42
    with between(in_pieces) as connections:
        assert fresh("pieces") == 42
        assert connections[0] > 0  # the middleman was asked
    assert fresh("after") == 42


@pytest.mark.parametrize("reply", [cut_off, reset])
def test_replies_that_are_cut_off_are_reported_and_nothing_is_left(host: Any, reply: Pump) -> None:
    assert answer() == 42
    with between(reply) as connections:
        with pytest.raises(hutch.SandboxStartupError) as caught:
            for _ in range(3):
                fresh(reply.__name__)
        assert not caught.value.may_have_run
        assert connections[0] > 0
        assert answer() == 42  # a warm call needs no Podman

    def served() -> bool:
        try:
            return fresh("after") == 42
        except hutch.SandboxStartupError:
            time.sleep(0.5)
            return False

    until(served, sec=90)  # what failed in a row is tried again ever more slowly

    def half_made() -> set[str]:
        return {c["Id"] for c in host.containers("worker") if c["State"] == "created"}

    # They are removed. One that is just being made is of this moment.
    made = half_made()
    until(lambda: not made & half_made())
