# SPDX-License-Identifier: Apache-2.0
"""Processes that hold the kernel's locks on themselves, and so whoever looks at them, for long.

What tells the share that a process has of memory waits for the lock on its mappings. A process that
changes the protection of many pages, over and over, and among so many that it rarely has a
processor, holds that lock nearly always. It may keep its own look waiting, but not its limits, nor
anything of its neighbours in the same worker.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hutch import sandbox

pytestmark = pytest.mark.alone  # it slows /proc for everybody

POLICY: dict[str, Any] = {"memory_mb": 64, "timeout_sec": 30}
MORE: dict[str, Any] = {"memory_mb": 1024, "timeout_sec": 60}


def stall(processes: int, megabytes: int, seconds: float, then_mb: int) -> str:
    """`processes` that hold their own locks; then others that take `then_mb` of shared memory."""
    import ctypes
    import mmap
    import os
    import time

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    kinds = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    libc.mmap.argtypes = [*kinds, ctypes.c_long]
    libc.mprotect.argtypes = libc.madvise.argtypes = kinds[:3]
    size, populate_read, no_huge_pages = megabytes << 20, 22, 15

    def hold() -> None:
        end = time.monotonic() + seconds
        pages = libc.mmap(None, size, mmap.PROT_READ, 0x22, -1, 0)
        libc.madvise(pages, size, no_huge_pages)
        libc.madvise(pages, size, populate_read)  # of zeros, that cost nothing
        while time.monotonic() < end:
            libc.mprotect(pages, size, 0)
            libc.mprotect(pages, size, mmap.PROT_READ)

    def take() -> None:
        taken = mmap.mmap(-1, 100 << 20)
        for at in range(0, len(taken), 4096):
            taken[at] = 1
        time.sleep(seconds)

    children = []
    for number in range(processes + then_mb // 100):
        if number == processes:
            time.sleep(0.6)
        child = os.fork()
        if child == 0:
            (hold if number < processes else take)()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return "kept"


@sandbox(**MORE)
def wait(seconds: float) -> str:
    import time

    time.sleep(seconds)
    return "fine"


@sandbox(**MORE)
def quick(x: int) -> int:
    return x + 1


def crowd(processes: int, seconds: float, then_mb: int) -> str:
    """`processes` that list /proc and look names up in it; then one that takes `then_mb`."""
    import mmap
    import os
    import time

    def hold() -> None:
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            os.listdir("/proc")
            os.listdir("/proc/self/task")
            for _ in range(20):
                number += 1
                os.path.exists(f"/proc/none{number}")
                os.path.exists(f"/proc/{number}/smaps_rollup")

    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            hold()
            os._exit(0)
        children.append(child)
    time.sleep(0.6)
    if then_mb:
        taken = mmap.mmap(-1, then_mb << 20)
        for at in range(0, len(taken), 4096):
            taken[at] = 1
    for child in children:
        os.waitpid(child, 0)
    return "kept"


def shared_mb() -> int:
    text = Path("/proc/meminfo").read_text()
    return int(text.split("\nShmem:")[1].split()[0]) >> 10


@pytest.mark.wall("watch")
def test_memory_is_limited_though_the_look_at_it_is_kept_waiting(next_call_works: None) -> None:
    attack = sandbox(stall, **POLICY)
    attack.run(0, 0, 0, 0)
    before, most, over = shared_mb(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.05):
            most = max(most, shared_mb() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    outcome = attack.run(36, 128, 8, 1500)
    over.set()
    watcher.join()
    assert (outcome.status, outcome.limit) == ("limit", "memory"), outcome
    assert most < 1000, f"it took {most} MB"


@pytest.mark.wall("watch")
def test_memory_is_limited_though_the_directory_of_processes_is_crowded(
    next_call_works: None,
) -> None:
    attack = sandbox(crowd, **POLICY)
    assert attack(36, 1, 0) == "kept"
    before = shared_mb()
    outcome = attack.run(36, 8, 1500)
    assert (outcome.status, outcome.limit) == ("limit", "memory"), outcome
    assert shared_mb() - before < 1000


def test_neighbours_are_served_beside_those_that_keep_looks_waiting() -> None:
    quick(0)
    neighbour = wait.submit(7)
    time.sleep(1)
    hostile = [
        sandbox(stall, **MORE).submit(59, 256, 5, 0),
        sandbox(crowd, **MORE).submit(59, 5, 0),
    ]
    assert [quick(n) for n in range(20)] == list(range(1, 21))
    assert neighbour.result() == "fine"
    assert {one.outcome().status for one in hostile} <= {"returned", "limit"}


@pytest.mark.wall("cpu")
def test_cpu_time_is_limited_though_looks_are_kept_waiting(next_call_works: None) -> None:
    outcome = sandbox(stall, cpu_sec=1, **MORE).run(59, 256, 30, 0)
    assert (outcome.status, outcome.limit) == ("limit", "cpu_time"), outcome
    assert outcome.usage.cpu_sec < 10


@sandbox(memory_mb=128, timeout_sec=60)
def change_mappings(processes: int, seconds: float) -> int:
    """Children that share what their parent has, and are busy with their own mappings."""
    import mmap
    import os
    import time

    shared = b"x" * (24 << 20)
    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                with mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as own:
                    own[0] = shared[-1]
            os._exit(0)
        children.append(child)
    return sum(os.waitpid(child, 0)[1] == 0 for child in children)


def test_many_processes_that_share_and_map_much_return() -> None:
    """The harmless counterpart: together their resident size is four times the limit."""
    assert change_mappings(16, 2) == 16
