# SPDX-License-Identifier: Apache-2.0
"""Memory of the host that a session takes over many execs, and between them, by what the host says.

Each attack would take gigabytes. Others use the machine too, so the margins are large.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hutch import Session


def meminfo_mb(name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def shared_mb() -> float:
    return meminfo_mb("Shmem")


class Loss:
    """The most that was lost while it was watched, in MiB."""

    most = 0.0


@contextmanager
def lost(measure: Callable[[], float]) -> Iterator[Loss]:
    loss, over, before = Loss(), threading.Event(), measure()

    def watch() -> None:
        while not over.wait(0.01):
            loss.most = max(loss.most, measure() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield loss
    finally:
        over.set()
        thread.join()


SPARSE = "import mmap; m = mmap.mmap(-1, 400 << 20); m[0] = 1"


@pytest.mark.alone  # the figure that it is about is the whole machine's
def test_what_another_session_writes_is_not_held_against_one_that_sleeps() -> None:
    with (
        Session(memory_mb=256, timeout_sec=60) as sleeps,
        Session(memory_mb=1024, disk_mb=500, timeout_sec=60) as other,
    ):
        sleeps.exec(SPARSE).unwrap()
        other.exec("1")
        for _ in range(2):
            time.sleep(4)  # a warden knows after its next look or two that a cell sleeps
            other.exec(
                "with open('x', 'wb') as f:\n"
                "    for _ in range(400): f.write(bytes(range(256)) * 4096)"
            ).unwrap()
            outcome = sleeps.exec("import time; time.sleep(2); m[0]")
            assert outcome.value == 1, (outcome, outcome.limit)
            other.files.delete("x")


@pytest.mark.alone  # what it is seen by is the whole machine's
@pytest.mark.wall("objects")
def test_what_a_session_hides_in_shared_memory_between_two_execs_is_held_against_it() -> None:
    """The attack of which the one above is the harmless counterpart."""
    hide = (
        "import threading, time\n"
        "def fill():\n"
        "    time.sleep(3)\n"
        "    for at in range(0, 390 << 20, 10 << 20):\n"
        "        m[at:at + (10 << 20)] = bytes(10 << 20)\n"
        "        m.madvise(mmap.MADV_DONTNEED)\n"
        "threading.Thread(target=fill).start()"
    )
    with Session(memory_mb=256, timeout_sec=60) as s:
        s.exec(SPARSE).unwrap()
        s.exec(hide).unwrap()
        with lost(shared_mb) as loss:
            time.sleep(8)
            outcome = s.exec("len(m)")
        assert outcome.restarted, (outcome, loss.most)


BURST = """
import ctypes, mmap, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def grow(at, megabytes, hold):
    "The kernel fills the area, a large page at a time."
    p = libc.mmap(None, ctypes.c_size_t((megabytes + 2) << 20), 3, 0x22, -1, 0)
    p = (p + (2 << 20) - 1) & ~((2 << 20) - 1)
    libc.madvise(ctypes.c_void_p(p), ctypes.c_size_t(megabytes << 20), 14)  # MADV_HUGEPAGE
    time.sleep(max(0, at - time.monotonic()))
    libc.madvise(ctypes.c_void_p(p), ctypes.c_size_t(megabytes << 20), 23)  # MADV_POPULATE_WRITE
    time.sleep(hold)
    os._exit(0)
def burst(count, megabytes, after, hold):
    at = time.monotonic() + after
    for _ in range(count):
        if os.fork() == 0: grow(at, megabytes, hold)
"""


@pytest.mark.alone  # a warden that gets no processor sees nothing
@pytest.mark.wall("watch")
def test_a_burst_of_processes_that_slept_is_seen_at_once() -> None:
    """One that lasts for less than half a second, wherever in a second it comes. Each is in a
    worker of its own, which is at rest before.
    """
    with contextlib.ExitStack() as stack:
        sessions = [
            stack.enter_context(Session(memory_mb=64, timeout_sec=30, labels={"phase": str(n)}))
            for n in range(6)
        ]
        for s in sessions:
            s.exec(BURST).unwrap()
        for phase, s in enumerate(sessions):
            s.exec(f"burst(2, 60, {3 + phase * 0.17}, 0.3)").unwrap()
        time.sleep(6)
        seen = [s.exec("1").restarted for s in sessions]
    assert all(seen), seen


AT_REST = {
    "three shared mappings": """
import mmap, threading, time
maps = [mmap.mmap(-1, 300 << 20) for _ in range(3)]
def fill(m):
    time.sleep(3)
    for at in range(0, 300 << 20, 4 << 20): m[at:at + (4 << 20)] = bytes(4 << 20)
for m in maps: threading.Thread(target=fill, args=(m,), daemon=True).start()
""",
    "24 processes": """
import os, time
for _ in range(24):
    if os.fork() == 0:
        time.sleep(3)
        filled = bytes(range(256)) * (30 << 12)
        time.sleep(5)
        os._exit(0)
""",
}


@pytest.mark.alone  # the figure that it is about is the whole machine's
@pytest.mark.wall("watch")
@pytest.mark.parametrize("isolation", ["cell", "container"])
@pytest.mark.parametrize("how", AT_REST)
def test_a_session_at_rest_takes_no_more_than_in_an_exec(how: str, isolation: Any) -> None:
    with Session(memory_mb=64, timeout_sec=30, isolation=isolation) as s:
        s.exec(AT_REST[how]).unwrap()
        with lost(shared_mb) as loss:
            time.sleep(5)
            outcome = s.exec("1")
    assert outcome.restarted and outcome.value == 1
    assert loss.most < 300, loss.most  # not 900


def test_what_fits_may_be_taken_between_two_execs() -> None:
    with Session(memory_mb=256, timeout_sec=30) as s:
        s.exec(BURST).unwrap()
        s.exec("burst(2, 60, 2, 1)")
        time.sleep(5)
        outcome = s.exec("1")
        assert outcome.value == 1 and not outcome.restarted


@pytest.mark.parametrize("memory_mb", [32, 256, 1024])
def test_files_as_large_as_may_be_leave_a_session_an_interpreter(memory_mb: int) -> None:
    with Session(memory_mb=memory_mb, disk_mb=min(memory_mb, 256), timeout_sec=10) as s:
        s.exec("open('kept', 'w').write('x')")
        full = s.exec(
            "import os\n"
            "f = open('/tmp/x', 'wb')\n"
            "for _ in range(300): os.write(f.fileno(), bytes(1 << 20))"
        )
        assert full.limit == "disk" and not full.restarted, full
        s.reset()
        assert s.exec("import time; time.sleep(1.5); 1").value == 1
        assert s.files.list("/tmp") == ["x"]
        s.files.delete("/tmp/x")
        assert s.files.read("kept") == "x"
        assert s.exec("open('/tmp/y', 'wb').write(bytes(8 << 20))").value == 8 << 20


def test_files_and_other_memory_of_a_session_count_together() -> None:
    with Session(memory_mb=256, timeout_sec=10) as s:
        s.exec("with open('x', 'wb') as f: f.write(bytes(150 << 20))").unwrap()
        outcome = s.exec("import time; b = bytes(range(256)) * (150 << 12); time.sleep(5)")
        assert outcome.limit == "memory" and outcome.restarted, outcome
        assert s.exec("import os; os.path.getsize('x')").value == 150 << 20
