# SPDX-License-Identifier: Apache-2.0
"""What every test relies on.

`pytest -n 3` runs three files at a time, each process of it with an agent of its own. A test marked
`alone` waits until no other one runs, and no other one begins before it has ended.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import IO

import pytest

LONG = ("compat", "machine", "soak", "storm", "wheels")  # which take as long as they are given
PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, ... with -n


def has_own_agent() -> bool:
    return PROCESS not in ("", "gw0")  # the first uses the agent that there is


def pytest_configure() -> None:
    # In the background of a shell SIGINT is ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if has_own_agent():
        from hutch import _core

        os.environ["HUTCH_HOME"] = f"{_core.paths()['state_dir']}-{PROCESS}"


def pytest_unconfigure() -> None:
    if has_own_agent():
        command = [str(Path(sys.executable).with_name("hutch")), "agent", "stop"]
        subprocess.run(command, capture_output=True)


def lock(name: str, how: int) -> IO[str]:
    """Held until it is closed."""
    run = os.environ["PYTEST_XDIST_TESTRUNUID"]
    file = open(Path(tempfile.gettempdir()) / f"hutch-tests-{run}-{name}", "w")
    fcntl.flock(file, how)
    return file


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the time limit
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not PROCESS:
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    with lock("next", fcntl.LOCK_EX):  # or others would overtake one that waits to be alone
        turn = lock("turn", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    with turn:
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(name) for name in LONG):
            item.add_marker(pytest.mark.timeout(4 * 3600))
