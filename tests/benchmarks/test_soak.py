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


def test_growth_is_told_from_noise() -> None:
    found = {"containers": (2, 3), "client: KiB": (9000, 9100), "agent: threads": (4, 3)}
    assert soak.grown(found) == {"containers": (2, 3)}
