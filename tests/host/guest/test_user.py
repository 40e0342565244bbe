# SPDX-License-Identifier: Apache-2.0
"""An ordinary user with systemd: what they type first."""

from __future__ import annotations

import json
import subprocess
import sys

import hutch
from hutch import sandbox


def test_doctor_finds_nothing_missing() -> None:
    done = subprocess.run(["hutch", "doctor", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert all(check["ok"] or not check["required"] for check in checks.values()), checks
    assert checks["limits of a call"]["ok"], checks["limits of a call"]
    assert "cgroup" in checks["the memory limit"]["detail"]


def test_a_program_runs() -> None:
    outcome = hutch.run("print(6 * 7)", timeout_sec=60)
    assert (outcome.status, outcome.stdout) == ("returned", "42\n"), str(outcome)


def test_a_function_runs() -> None:
    @sandbox(timeout_sec=60)
    def double(x: int) -> int:
        return 2 * x

    assert double(21) == 42


def test_examples_run() -> None:
    for name in ("grading", "text_program"):
        done = subprocess.run(
            [sys.executable, f"/opt/hutch/examples/{name}.py"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_process_that_is_killed_for_want_of_memory_ends_no_other() -> None:
    assert hutch.run("print(1)").ok
    for unit in ("hutch-podman", "hutch-cells"):
        told = subprocess.run(
            ["systemctl", "--user", "show", "--property=OOMPolicy,ActiveState", unit],
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        assert sorted(told) == ["ActiveState=active", "OOMPolicy=continue"], unit


def test_stopping_leaves_nothing_running() -> None:
    assert hutch.run("print(1)").ok
    hutch.agent.stop()
    units = subprocess.run(
        ["systemctl", "--user", "list-units", "--plain", "--no-legend", "hutch-*"],
        capture_output=True,
        text=True,
    ).stdout
    assert units.strip() == "", units
    left = subprocess.run(["podman", "ps", "-aq"], capture_output=True, text=True).stdout
    assert left.strip() == "", left
    assert hutch.run("print(2)").ok, "and the next call starts it again"
