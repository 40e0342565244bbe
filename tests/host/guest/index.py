# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: a package index of the machine's own, which reaches no other, as the user's
settings name one. Two packages are in it, of one module each.
"""

from __future__ import annotations

import functools
import http.server
import os
import socket
import tempfile
import threading
import zipfile
from pathlib import Path

import pytest

PACKAGES = ("hutch-test-tiny", "six")  # the latter is what tests of walls depend on


def own_address() -> str:
    """One of this machine's that a container's network reaches."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


def publish(root: Path, package: str) -> None:
    """Version 1.0 of it, with a VERSION that says so."""
    page, module = root / "simple" / package, package.replace("-", "_")
    page.mkdir(parents=True)
    info = f"{module}-1.0.dist-info"
    files = {
        f"{module}.py": "VERSION = '1.0'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    name = f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(page / name, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    (page / "index.html").write_text(f'<a href="{name}">{name}</a>')


def pytest_configure(config: pytest.Config) -> None:
    root = tempfile.TemporaryDirectory()
    config.add_cleanup(root.cleanup)
    for package in PACKAGES:
        publish(Path(root.name), package)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=root.name)
    server = http.server.ThreadingHTTPServer((own_address(), 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config.add_cleanup(server.shutdown)
    os.environ["UV_INDEX_URL"] = f"http://{own_address()}:{server.server_port}/simple/"
