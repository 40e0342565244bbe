# SPDX-License-Identifier: Apache-2.0
"""Clients and suites that others wrote, unmodified, at pinned versions: from the package index, in
a directory of their own. Where they cannot be installed their tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`installed(*arguments of pip install)`: the directory that has it. Skips the test."""

    def install(*arguments: str) -> Path:
        place = tmp_path_factory.mktemp("outside")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place)]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"pip cannot install {' '.join(arguments)}: {done.stderr[-300:]}")
        return place

    return install


@pytest.fixture(scope="session")
def ran() -> Callable[..., str]:
    """`ran(place, program, *args)`: what it prints where only `place` is installed."""

    def run(place: Path, program: str, *args: str) -> str:
        command = [sys.executable, "-S", "-c", program, *args]
        environment = {**os.environ, "PYTHONPATH": str(place)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
