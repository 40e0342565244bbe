# SPDX-License-Identifier: Apache-2.0
"""The three limits that a delegated cgroup puts on each call, as the kernel tells of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import hutch
from hutch import sandbox

PATIENT = {"timeout_sec": 120}


def cells() -> Path:
    """Where slots have their cgroups: the unit that the launcher has made says it."""
    found = list(Path(f"/run/user/{os.getuid()}/hutch").glob("cells"))
    assert found, "no cgroup was delegated"
    return Path(found[0].read_text().strip())


_seen: dict[tuple[Path, str], int] = {}


def counted(file: str, event: str) -> int:
    """Of all slots together, with those that have gone since they were looked at."""
    every = [cells()] if file == "memory.events" else [p for p in cells().iterdir() if p.is_dir()]
    for group in every:
        try:
            lines = (group / file).read_text().splitlines()
        except OSError:
            continue  # its slot went meanwhile: ENOENT, or ENODEV where the file was open
        for line in lines:
            name, _, value = line.partition(" ")
            if name == event:
                _seen[group, event] = int(value)
    return sum(count for (_, name), count in _seen.items() if name == event)


@sandbox(**PATIENT)
def honest(x: int) -> int:
    return x + 1


@pytest.fixture(autouse=True)
def the_next_call_works() -> Iterator[None]:
    assert honest(0) == 1
    yield
    assert honest(1) == 2


def test_limits_are_the_kernels() -> None:
    status = hutch.status()
    assert status["enforcement"] == "cgroup", status["enforcement_note"]
    assert honest.run(1).usage.enforcement == "cgroup"
    for controller in ("memory", "pids", "cpu"):
        assert controller in (cells() / "cgroup.subtree_control").read_text().split()


def test_memory_that_no_rlimit_counts_ends_the_call() -> None:
    @sandbox(memory_mb=64, disk_mb=16, **PATIENT)
    def share() -> int:
        import mmap

        memory = mmap.mmap(-1, 512 << 20)  # shared and anonymous: RLIMIT_DATA does not see it
        for at in range(0, len(memory), 4096):
            memory[at] = 1
        return len(memory)

    before = counted("memory.events", "oom_kill")
    outcome = share.run()
    assert (outcome.status, outcome.limit) == ("limit", "memory"), str(outcome)
    assert counted("memory.events", "oom_kill") > before, "it was not the kernel that ended it"
    assert outcome.usage.enforcement == "cgroup"
    assert 0 < outcome.usage.peak_memory_bytes <= 64 << 20
    assert outcome.usage.suggested["memory_mb"] > 64
    with pytest.raises(hutch.SandboxMemoryError) as caught:
        outcome.unwrap()
    assert (caught.value.limit, caught.value.allowed) == ("memory", 64)

    @sandbox(memory_mb=64, disk_mb=16, **PATIENT)
    def share_less() -> int:
        import mmap

        memory = mmap.mmap(-1, 16 << 20)
        for at in range(0, len(memory), 4096):
            memory[at] = 1
        return len(memory)

    assert share_less() == 16 << 20


def test_memory_of_all_processes_counts_together() -> None:
    @sandbox(memory_mb=96, disk_mb=16, **PATIENT)
    def spread() -> int:
        import os
        import time

        for _ in range(8):
            if os.fork() == 0:
                held = bytearray(24 << 20)
                held[::4096] = b"x" * (len(held) // 4096)
                time.sleep(60)
        time.sleep(60)
        return 8

    outcome = spread.run()
    assert (outcome.status, outcome.limit) == ("limit", "memory"), str(outcome)
    assert outcome.usage.peak_memory_bytes <= 96 << 20


def test_processes_are_counted() -> None:
    @sandbox(pids=8, **PATIENT)
    def multiply(most: int) -> int:
        import os
        import time

        for made in range(most):
            try:
                if os.fork() == 0:
                    time.sleep(60)
            except BlockingIOError:
                return made
        return most

    before = counted("pids.events", "max")
    assert multiply(4) == 4
    assert counted("pids.events", "max") == before
    assert 4 < multiply(100) <= 8
    assert counted("pids.events", "max") > before, "it was not the kernel's count that ended it"


def test_a_share_of_a_cpu_is_all_that_is_had() -> None:
    def burn(seconds: float) -> float:
        import time

        start, used = time.monotonic(), time.process_time()
        while time.process_time() - used < seconds:
            pass
        return time.monotonic() - start

    throttled = counted("cpu.stat", "nr_throttled")
    assert sandbox(burn, cpus=0.2, **PATIENT)(0.6) >= 0.6 / 0.2 * 0.6
    assert counted("cpu.stat", "nr_throttled") > throttled


def test_no_worker_sees_the_cgroup_file_system() -> None:
    @sandbox(**PATIENT)
    def look() -> tuple[list[str], bool]:
        import os

        mounts = open("/proc/self/mountinfo").read()
        return [line for line in mounts.splitlines() if " - cgroup" in line], os.path.exists(
            "/sys/fs/cgroup"
        )

    found, there = look()
    assert (found, there) == ([], False)


def test_calls_that_run_out_of_memory_leave_no_cgroup_behind() -> None:
    @sandbox(memory_mb=48, disk_mb=16, **PATIENT)
    def devour() -> None:
        held = []
        while True:
            held.append(b"x" * (1 << 20))

    for _ in range(6):
        assert devour.run().limit == "memory"
    honest(1)
    empty = [group for group in cells().glob("slot-*") if "populated 0" in told(group)]
    assert len(empty) <= 2, "what is left is removed when the next slot is made"


def told(group: Path) -> str:
    try:
        return (group / "cgroup.events").read_text()
    except OSError:  # its slot went meanwhile: ENOENT, or ENODEV where the file was open
        return ""
