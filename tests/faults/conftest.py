# SPDX-License-Identifier: Apache-2.0
"""Faults are made for real: processes are killed, containers removed, in the agent under test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hutch

HUTCH = [str(Path(sys.executable).with_name("hutch"))]


class Host:
    """What runs on this machine for Hutch's instance, as Podman and /proc tell it."""

    def podman(self, *args: str) -> str:
        done = subprocess.run([*HUTCH, "podman", *args], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return done.stdout

    def begin_podman(self, *args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*HUTCH, "podman", *args], stdout=subprocess.DEVNULL)

    def containers(self, role: str) -> list[dict[str, Any]]:
        instance = self.instance()
        listed = json.loads(self.podman("ps", "--all", "--format", "json") or "[]") or []
        return [
            c
            for c in listed
            if (c.get("Labels") or {}).get("hutch.role") == role
            and (c.get("Labels") or {}).get("hutch.instance") == instance
        ]

    def instance(self) -> str:
        from hutch import _core

        return _core.paths()["instance"] or "default"

    def agent_pid(self) -> int:
        return int(self.containers("agent")[0]["Pid"])

    def worker(self, worker_id: str) -> dict[str, Any]:
        return next(c for c in self.containers("worker") if worker_id in c["Names"])

    def children(self, pid: int, word: str) -> list[int]:
        """The oldest first, by when they began: numbers of processes are given anew."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            if int(stat[1]) == pid and word in command:
                found.append((int(stat[19]), int(entry.name)))
        return [number for _, number in sorted(found)]

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        if pid <= 0:
            return  # of a container that has no process; 0 would be our own group
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it ended with another that was killed just before


@pytest.fixture
def host() -> Host:
    if os.geteuid() != 0:
        pytest.skip("killing processes of other uids takes root")
    return Host()


def until_it_works() -> None:
    """A call works, once what was killed before is gone."""
    deadline = time.monotonic() + 30
    while True:
        try:
            assert hutch.run("print('fine')").stdout == "fine\n"
            return
        except hutch.SandboxStartupError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.fixture
def works() -> Callable[[], None]:
    return until_it_works


@pytest.fixture(autouse=True)
def _works_again() -> Iterator[None]:
    """Whatever a test broke, the next call works."""
    yield
    until_it_works()
