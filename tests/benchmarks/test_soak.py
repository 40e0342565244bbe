# SPDX-License-Identifier: Apache-2.0
"""Calls leave nothing behind: memory, descriptors, threads, processes, containers, files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import soak

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="seeing into the agent and its workers takes root"
)


@pytest.mark.parametrize(
    "calls",
    [pytest.param(500, id="500"), pytest.param(10_000, id="10000", marks=pytest.mark.soak)],
)
def test_nothing_grows_with_calls(calls: int) -> None:
    found = soak.soak(calls)
    assert not soak.grown(found), found
    assert found["containers"][0] >= 2 and found["agent: descriptors"][0] > 8  # it has looked


@pytest.mark.parametrize(
    ("execs", "sessions"),
    [
        pytest.param(500, 5, id="500"),
        pytest.param(20_000, 50, id="20000", marks=pytest.mark.soak),
    ],
)
def test_nothing_grows_with_execs(execs: int, sessions: int) -> None:
    found = soak.soak_sessions(execs, sessions)
    assert not soak.grown(found), found
    assert found["processes of workers"][0] >= 2 * sessions


@pytest.mark.parametrize(
    "sessions", [pytest.param(30, id="30"), pytest.param(1000, id="1000", marks=pytest.mark.soak)]
)
def test_nothing_grows_with_named_sessions(sessions: int) -> None:
    found = soak.soak_named(sessions)
    assert not soak.grown(found), found


@pytest.mark.parametrize(
    "calls", [pytest.param(200, id="200"), pytest.param(10_000, id="10000", marks=pytest.mark.soak)]
)
def test_nothing_grows_with_calls_of_bash_and_node(calls: int) -> None:
    found = soak.soak_commands(calls)
    assert not soak.grown(found), found
    assert found["sessions: processes"][0] >= 6  # of each: PID 1, the code, Node


def test_growth_is_distinguished_from_noise() -> None:
    found = {"containers": (2, 3), "client: KiB": (9000, 9100), "agent: threads": (4, 3)}
    assert soak.grown(found) == {"containers": (2, 3)}
