# SPDX-License-Identifier: Apache-2.0
"""Rows of what an allowed host costs: a request, and many bytes, by the egress process.

Beside the same done by a plain process of this host. The server is this process's own, on loopback.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

from calls import Bench
from table import RATE, Row

from hutch import sandbox

LARGE = 100_000_000  # bytes


def measured(port: int, requests: int, size: int) -> tuple[float, float]:
    """Seconds of a request on a connection of its own (the median), and bytes a second."""
    import socket
    import statistics
    import time

    def ask(wanted: int) -> float:
        begin = time.perf_counter()
        with socket.create_connection(("localhost", port), 30) as to:
            to.sendall(f"{wanted:>12}".encode())
            left, space = wanted, bytearray(1 << 20)
            while left > 0:
                got = to.recv_into(space)
                if got == 0:
                    raise EOFError(left)
                left -= got
        return time.perf_counter() - begin

    ask(12)
    small = statistics.median(ask(12) for _ in range(requests))
    return small, size / min(ask(size) for _ in range(2))


def answer(connection: socket.socket) -> None:
    with connection:
        size = int(connection.recv(12, socket.MSG_WAITALL) or b"0")
        chunk = bytes(1 << 20)
        while size > 0:
            size -= connection.send(chunk[: min(size, len(chunk))])


def serve(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # closed
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


PLAIN = "import sys; sys.path.insert(0, sys.argv[1]); import network as n; print(*n.measured({}))"


def rows(bench: Bench) -> Iterator[Row]:
    requests, size = (20, LARGE // 10) if bench.quick else (200, LARGE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        allowed = [f"localhost:{port}", "127.0.0.0/8"]
        inside = sandbox(measured, allow_network=allowed, timeout_sec=120)(port, requests, size)
        command = PLAIN.format(f"{port}, {requests}, {size}")
        told = subprocess.run(
            [sys.executable, "-c", command, __file__.rpartition("/")[0]],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        plain = [float(word) for word in told.stdout.split()]
        listener.shutdown(socket.SHUT_RDWR)
    added = inside[0] - plain[0]
    yield Row(
        "network",
        "a new connection and a request to an allowed host, over the same without a sandbox",
        added,
        floor=plain[0],
        floor_is="the same, plain",
        target="≤ 1 ms more",
        met=added <= 0.001,
    )
    yield Row(
        "network-bytes",
        f"{size // 1_000_000} MB from an allowed host, MB",
        inside[1] / 1e6,
        unit=RATE,
        floor=plain[1] / 1e6,
        floor_is="the same, plain",
        target="≥ 200 MB/s",
        met=inside[1] >= 200e6,
        takes_all=True,
    )


ROWS = {"network": rows}
