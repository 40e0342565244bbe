"""Attacks on the walls, each with its honest twin.

Probes are texts in probes/: functions named `probe_*`, run in one cell each file, after
probes/prelude.py. A probe answers plain data, which the tests judge outside; so a suite of hundreds
of attacks is a dozen calls. What must kill or hang its cell is a call of its own. Runs against the
real thing: Podman, an agent, a worker without packages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hutch import sandbox

PROBES = Path(__file__).parent / "probes"
Answers = dict[str, Any]


def run_probes(source: str, name: str) -> Answers:
    """Runs in the cell. What a probe raises is an answer too."""
    space: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), space)
    answers: dict[str, Any] = {}
    for key, probe in list(space.items()):
        if key.startswith("probe_"):
            try:
                answers[key[6:]] = probe()
            except Exception as error:
                answers[key[6:]] = f"{type(error).__name__}: {error}"
    return answers


@pytest.fixture(scope="session")
def probes() -> Callable[[str], Answers]:
    """The answers of one file of probes; each file runs once a session."""
    known: dict[str, Answers] = {}
    runner = sandbox(run_probes, timeout_sec=60, pids=64, memory_mb=512)
    prelude = (PROBES / "prelude.py").read_text()

    def answers(name: str) -> Answers:
        if name not in known:
            known[name] = runner(prelude + (PROBES / f"{name}.py").read_text(), name)
        return known[name]

    return answers


@pytest.fixture
def next_call_works() -> Iterator[None]:
    """Whatever the test did, the next caller notices nothing."""
    yield
    assert honest([1, 2]) == 3


@sandbox
def honest(numbers: list[int]) -> int:
    return sum(numbers)
