"""A dependency is installed by a container with a network of its own: slirp4netns or pasta,
whichever this system's Podman has. From an index of the test's own on this machine.
"""

from __future__ import annotations

import functools
import http.server
import socket
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch import Environment, sandbox


def own_address() -> str:
    """One of this machine's that a container's network reaches."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    page = tmp_path / "simple" / "hutch-test-tiny"
    page.mkdir(parents=True)
    info = "hutch_test_tiny-1.0.dist-info"
    files = {
        "hutch_test_tiny.py": "VERSION = '1.0'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: hutch-test-tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    name = "hutch_test_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(page / name, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    (page / "index.html").write_text(f'<a href="{name}">{name}</a>')
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer((own_address(), 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{server.server_address[0]}:{server.server_port}/simple/"
        server.shutdown()


def test_a_dependency_is_installed(index: str) -> None:
    environment = Environment(["hutch-test-tiny"], index_url=index)

    @sandbox(environment=environment, timeout_sec=60, queue_sec=300, build_sec=500)
    def version() -> str:
        import hutch_test_tiny

        return str(hutch_test_tiny.VERSION)

    assert version() == "1.0"
