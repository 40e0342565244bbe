# SPDX-License-Identifier: Apache-2.0
"""What every test relies on.

`pytest -n 4 --dist loadfile` runs four files at a time, the first process with the agent of its
HUTCH_HOME, each other one with an agent of its own. A test marked `alone` measures or changes what
is the whole machine's: `tests/run.py` runs those when all others have ended.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LONG = ("compat", "machine", "soak", "storm", "wheels")  # which take as long as they are given
PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, ... with -n
ROOT = Path(__file__).parent
sys.dont_write_bytecode = False  # seven seconds of each start, where the environment forbids it
LEFT = pytest.StashKey[list[str]]()  # to the other of the two values of --alone


def has_own_agent() -> bool:
    return PROCESS not in ("", "gw0")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run only the tests that are marked alone, or all others"
    parser.addoption("--alone", choices=("only", "no"), default=None, help=text)
    text = "write which tests were found, chosen and left out to this file"
    parser.addoption("--selection", type=Path, default=None, help=text)


def pytest_configure(config: pytest.Config) -> None:
    selection = config.getoption("--selection")
    if selection is not None and PROCESS in ("", "gw0"):
        config.pluginmanager.register(Selection(selection))
    # In the background of a shell SIGINT is ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if has_own_agent():
        from hutch import _core

        first = Path(str(_core.paths()["state_dir"]))
        own = first.with_name(f"{first.name}-{PROCESS}")
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (first / "agent.toml").exists():
            shutil.copy(first / "agent.toml", own)
        os.environ["HUTCH_HOME"] = str(own)


def pytest_unconfigure() -> None:
    if has_own_agent():
        command = [str(Path(sys.executable).with_name("hutch")), "agent", "stop"]
        subprocess.run(command, capture_output=True)


class Selection:
    """What became of each test that was found, for tests/run.py: none is lost between two runs."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.names: dict[str, list[str]] = {"found": [], "deselected": [], "chosen": []}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.names["found"] = [item.nodeid for item in items]

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.names["deselected"] += [item.nodeid for item in items]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names["chosen"] = [item.nodeid for item in session.items]
        self.names["left"] = session.config.stash.get(LEFT, [])
        self.file.write_text(json.dumps(self.names))


@pytest.hookimpl(trylast=True)  # when other hooks have marked theirs
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(name) for name in LONG):
            item.add_marker(pytest.mark.timeout(4 * 3600))
    choose(config, items)
    if PROCESS:
        seconds = json.loads((ROOT / "tests" / "durations.json").read_text())
        items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # else each collection of garbage goes through thousands of tests


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("alone")
    if chosen is None:
        return
    alone = [item for item in items if item.get_closest_marker("alone") is not None]
    others = [item for item in items if item.get_closest_marker("alone") is None]
    items[:], left = (alone, others) if chosen == "only" else (others, alone)
    config.stash[LEFT] = [item.nodeid for item in left]
    config.hook.pytest_deselected(items=left)
