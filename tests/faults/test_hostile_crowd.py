# SPDX-License-Identifier: Apache-2.0
"""A hundred hostile calls at once, beside one that behaves: each meets its own limit, and the agent
neither grows nor loses anybody's answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import Pool, sandbox

pytestmark = pytest.mark.alone  # it takes all of the processors

GROWTH_KB = 24 << 10


@sandbox(
    memory_mb=48, disk_mb=16, pids=16, timeout_sec=2, output_mb=1, queue_sec=300, echo=False,
    pool=Pool(max_cells=16), labels={"test": "crowd"},
)  # fmt: skip
def attack(kind: str) -> int:
    import os

    if kind == "forks":
        while True:
            if os.fork() == 0:
                while True:
                    pass
    if kind == "memory":
        held = []
        while True:
            held.append(b"x" * (1 << 20))  # as quick as it gets: sixteen others want the CPU, too
    if kind == "output":
        while True:
            os.write(1, b"x" * 65536)
            os.write(2, b"y" * 65536)
    if kind == "spin":
        while True:
            pass
    return 1


# How each may end. A flood of output is cut, not ended: the time is. Whoever gets no CPU beside
# the others, on a machine of few, ends by its time.
ENDS = {
    "forks": {"pids", "time", "memory"},
    "memory": {"memory", "time"},
    "output": {"time", "output"},
    "spin": {"time"},
}


@sandbox
def add(a: int, b: int) -> int:
    return a + b


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def test_a_hundred_hostile_calls_harm_nobody_else(host: Any) -> None:
    assert add(1, 2) == 3
    assert attack("nothing") == 1  # the harmless counterpart
    pid = host.agent_pid()
    before = resident_kb(pid)
    crowd = [(kind, attack.submit(kind)) for _ in range(25) for kind in ENDS]
    answered = 0
    largest = before
    while not all(flight.done() for _, flight in crowd):
        assert add(answered, 1) == answered + 1
        answered += 1
        largest = max(largest, resident_kb(pid))
    for kind, flight in crowd:
        outcome = flight.outcome()
        assert outcome.status == "limit" and outcome.limit in ENDS[kind], (kind, outcome)
        assert len(outcome.stdout) + len(outcome.stderr) <= 2 << 20
    assert answered > 50
    assert host.agent_pid() == pid
    assert largest - before < GROWTH_KB
    assert hutch.status()["running"]
