# SPDX-License-Identifier: Apache-2.0
"""A server of packages of a test's own, which the network of a container that builds reaches."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest


def own_address() -> str:
    """One of this machine's that a container's network reaches."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback's")
        return str(probe.getsockname()[0])


class PackageHandler(http.server.BaseHTTPRequestHandler):
    """Subclasses have `do_GET`, which calls answer() once."""

    content_type = "text/html"

    def do_GET(self) -> None:
        raise NotImplementedError

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": self.content_type, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


Server = TypeVar("Server", bound=http.server.HTTPServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    with server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
