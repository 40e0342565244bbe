# SPDX-License-Identifier: Apache-2.0
"""Servers of `hutch serve`, each a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest


@contextmanager
def serving(*flags: str, before: Sequence[str] = ()) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [*before, sys.executable, "-m", "hutch", "serve", "--port", "0", *flags]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        assert "serving on" in line, line + server.stderr.read()
        yield line.split("serving on ")[1].strip(), server
    finally:
        server.terminate()
        try:
            server.wait(40)
        finally:
            server.kill()
            if server.stderr is not None:
                server.stderr.close()


@pytest.fixture(scope="session", name="serving")
def _serving() -> Callable[..., AbstractContextManager[tuple[str, subprocess.Popen[str]]]]:
    """`with serving(*flags) as (url, process)`. `before`: words that its command begins with."""
    return serving
