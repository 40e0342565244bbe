"""Every process of ours is killed at once, and the files stay: as when a container restarts."""

from __future__ import annotations

import os
import pwd
import signal
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import _core


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
    assert hutch.run("print(1)").stdout == "1\n"
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
