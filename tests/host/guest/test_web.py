# SPDX-License-Identifier: Apache-2.0
"""A call that may reach one host: the proxy is another container of the user's."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from hutch import NetworkDenied, sandbox

LOOPBACK = "127.0.0.0/8"  # lets "localhost" resolve to what it does


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def get(url: str) -> bytes:
    import urllib.request

    with urllib.request.urlopen(url, timeout=60) as response:  # the proxy's first start is slow
        return bytes(response.read())


def test_what_is_allowed_is_reached_and_nothing_else(port: int) -> None:
    call = sandbox(get, allow_network=[f"localhost:{port}", LOOPBACK], timeout_sec=120)
    assert call(f"http://localhost:{port}/") == b"hello"
    with pytest.raises(NetworkDenied):
        call("http://other.example:8080/")
