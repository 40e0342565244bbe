# SPDX-License-Identifier: Apache-2.0
"""Where the agents of a run of tests keep what they have: homes of their own, so that the user's
agent is left alone.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from pathlib import Path

PROCESSES = 4  # on two cores: most tests wait most of the time
IDLE_SEC = 20  # a pool that no test has used for so long is ended
SWEEP_SEC = 5  # between two looks for what was left
WARM_WORKERS = 0  # where each call has a container, as most tests make few calls of a kind


def home_of_tests() -> str:
    """Where the agents of a run keep what they have, with their configuration in it."""
    ask = [sys.executable, "-c", "from hutch import _core; print(_core.paths()['state_dir'])"]
    found = subprocess.run(ask, capture_output=True, text=True)
    if found.returncode != 0:  # Podman's user is not there yet, which an agent's start makes
        prepare = "import hutch; hutch.agent.start(); hutch.agent.stop()"
        subprocess.run([sys.executable, "-c", prepare], check=True)
        found = subprocess.run(ask, capture_output=True, text=True, check=True)
    home = Path(found.stdout.strip() + "-tests")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = home / "agent.toml"
    values = {"idle_sec": IDLE_SEC, "sweep_sec": SWEEP_SEC, "warm_workers": WARM_WORKERS}
    file.write_text("[host]\n" + "".join(f"{key} = {value}\n" for key, value in values.items()))
    file.chmod(0o644)
    return str(home)


def stop_agents(home: str) -> None:
    """Of those that a process of xdist made, none is left; it stops its own, if it lives to."""
    usual = [home, *(f"{home}-gw{number}" for number in range(1, PROCESSES))]
    for place in sorted({*usual, *replaced_homes(home)}):
        if had_an_agent(Path(place)):
            stop = [sys.executable, "-c", "import hutch; hutch.agent.stop()"]
            subprocess.run(stop, env=os.environ | {"HUTCH_HOME": place}, capture_output=True)


def had_an_agent(home: Path) -> bool:
    return home.exists() and any(entry.name != "agent.toml" for entry in home.iterdir())


def replaced_homes(home: str) -> list[str]:
    """Of this run's processes that xdist made in place of one that had ended."""
    begun = Path(home, "agent.toml").stat().st_mtime
    files = [Path(file) for file in glob.glob(f"{glob.escape(home)}-gw*/agent.toml")]
    return [str(file.parent) for file in files if file.stat().st_mtime >= begun]
