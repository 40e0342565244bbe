# SPDX-License-Identifier: Apache-2.0
"""Floors of a first result: one container by Podman's API that does nothing, and a bare import."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from hutch import _core
from hutch._connect import launcher

_names = (f"hutch-bench-{os.getpid()}-{n}" for n in range(1_000_000))


class _Podman(http.client.HTTPConnection):
    """The service that the agent talks to."""

    def connect(self) -> None:
        path = f"{_core.paths()['run_dir']}/podman/podman.sock"
        self.sock = socket.socket(socket.AF_UNIX)  # closed with this connection, connected or not
        try:
            self.sock.connect(path)
        except OSError as error:
            raise RuntimeError(f"Podman's service does not answer at {path}: {error}") from error


def _ask(service: _Podman, method: str, path: str, body: Any = None) -> bytes:
    headers = {"Content-Type": "application/json"}
    service.request(
        method, f"/v4.0.0/libpod/containers{path}", json.dumps(body) if body else None, headers
    )
    reply = service.getresponse()
    said = reply.read()
    if reply.status >= 300:
        raise RuntimeError(f"{method} {path}: {said.decode(errors='replace')[:200]}")
    return said


def container() -> float:
    """Seconds to create and start one of the base image as bare as a worker's is: no network, no
    capability, its system call list. What runs in it is not waited for.
    """
    name = next(_names)
    seccomp = f"{_core.paths()['state_dir']}/runtime/{launcher.runtime_id()}/seccomp-worker.json"
    spec = {
        "name": name,
        "image": f"localhost/hutch-base:{launcher.base_id()}",
        "command": ["python3", "-I", "-S", "-c", "import time; time.sleep(60)"],
        "netns": {"nsmode": "none"},
        "cap_drop": ["ALL"],
        "no_new_privileges": True,
        "read_only_filesystem": True,
        "seccomp_profile_path": seccomp,
        "log_configuration": {"driver": "none"},
        "stop_timeout": 0,
        "sdnotifyMode": "ignore",
        "volatile": True,
    }
    with closing(_Podman("localhost")) as service:
        begin = time.perf_counter()
        _ask(service, "POST", "/create", spec)
        try:
            _ask(service, "POST", f"/{name}/start")
            return time.perf_counter() - begin
        finally:
            _ask(service, "DELETE", f"/{name}?force=true&timeout=0")


_IMPORT = """
import sys, time
sys.path += sys.argv[2:]
begin = time.perf_counter()
__import__(sys.argv[1])
print(time.perf_counter() - begin)
"""


def interpreter(modules: Sequence[str], paths: Sequence[str]) -> float:
    """Seconds until a fresh interpreter has imported these: no call is taken before."""
    code = "import sys; sys.path += sys.argv[2:]; list(map(__import__, sys.argv[1].split()))"
    command = [sys.executable, "-I", "-S", "-c", f"{code}; print()", " ".join(modules), *paths]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=_one_thread()) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"\n":
            raise RuntimeError("the interpreter of the floor ended early")
        return time.perf_counter() - begin


def _one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def importing(module: str, paths: Sequence[str]) -> float:
    """Seconds of that import alone, in a fresh interpreter. It keeps the bytecode that it makes,
    where it may, whatever PYTHONDONTWRITEBYTECODE says.
    """
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _IMPORT, module, *paths],
        env=_one_thread(),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)
