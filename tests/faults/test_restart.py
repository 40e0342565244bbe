# SPDX-License-Identifier: Apache-2.0
"""Every process of ours is killed at once, and the files stay: as when a container restarts."""

from __future__ import annotations

import os
import pwd
import signal
from pathlib import Path
from typing import Any

import pytest
from support import until

import hutch
from hutch import _core

pytestmark = pytest.mark.alone  # all that Podman's user runs is killed


def service_processes(user: str) -> list[int]:
    """Those of Podman's user and of its subordinate ids."""
    ranges = [(pwd.getpwnam(user).pw_uid, 1)]
    for line in Path("/etc/subuid").read_text().splitlines():
        name, first, count = line.split(":")
        if name == user:
            ranges.append((int(first), int(count)))
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                uid = entry.stat().st_uid
                if any(first <= uid < first + count for first, count in ranges):
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to kill what is another user's")
def test_call_after_everything_was_killed_at_once(host: Any) -> None:
    for more in range(3):  # as many workers: Podman's migration gives up at the first
        assert hutch.run("print(1)", memory_mb=200 + more).stdout == "1\n"
    names = host.podman("ps", "--format", "{{.Labels}}").splitlines()
    if any(f"hutch.instance:{host.instance()}" not in line for line in names):
        pytest.skip("other containers of Podman's user are at work on this machine")
    for _ in range(3):
        for pid in service_processes(pwd.getpwuid(_core.paths()["uid"]).pw_name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    hutch.close()
    assert hutch.run("print(2)").stdout == "2\n"


def test_agent_that_died_in_the_middle_of_being_stopped_is_replaced(host: Any) -> None:
    """Podman goes on believing that its container is stopping, for ever."""
    assert hutch.run("print(1)").stdout == "1\n"
    agent = host.containers("agent")[0]
    os.kill(agent["Pid"], signal.SIGSTOP)
    stop = host.begin_podman("stop", "--time", "600", agent["Id"])
    state = ["inspect", "--format", "{{.State.Status}} {{.State.ConmonPid}}", agent["Id"]]
    told = until(lambda: (said := host.podman(*state)).startswith("stopping") and said)
    stop.kill()
    stop.wait()
    host.kill(int(told.split()[1]))  # who would have told Podman of the end
    host.kill(agent["Pid"])
    hutch.close()
    assert host.podman(*state).startswith("stopping")
    assert hutch.run("print(2)").stdout == "2\n"
