# SPDX-License-Identifier: Apache-2.0
"""Counts of an exec in a session that runs already. As those of test_pins: lower them as it gets
better; raise one only with its reason.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from tracing import MARK, Attached, between_marks, needs_strace

from hutch import Session

pytestmark = pytest.mark.alone  # system calls are counted

# Of the client's process: its own number, which a forked child has not, twice; whether the agent
# has said anything, one sendmsg, one wait, one reply, one note to the agent.
CLIENT_CALLS = 7
# Where an event loop drives it, also what the loop's rounds take, to watch a descriptor and to
# forget it, and a look at the cell before.
LOOP_CALLS = 18
# Of the session's process until it sleeps: one recvmsg, one to pin it to a CPU, its own number, two
# getrusage, the handler of interrupts, which code may have replaced, one sendmsg. After a call that
# took long, as all do on a busy machine, up to two more: what its children used, and one to let it
# go to another CPU.
CELL_CALLS = 7
# Of Python in the client: four write the history, three have Ctrl-C lose no turn.
FRAMES = 42
CELL_FRAMES = 32  # of Python in the session's process

CLIENT = f"""
import os
from hutch import Session

with Session() as s:
    for n in range(5): s.exec("x = 1")
    for n in range(20):
        os.{MARK}()
        s.exec("x = 1")
        os.{MARK}()
"""
ON_A_LOOP = f"""
import asyncio, os
from hutch import AsyncSession

async def main():
    async with AsyncSession() as s:
        for n in range(5): await s.exec("x = 1")
        for n in range(20):
            os.{MARK}()
            await s.exec("x = 1")
            os.{MARK}()

asyncio.run(main())
"""
# Counts frames from when a call arrives until it is answered.
COUNT = """
import sys

counted, frame = [0], sys._getframe()
while frame.f_code.co_name != "handle":
    frame = frame.f_back
worker, plain = type(frame.f_locals["self"]), type(frame.f_locals["self"]).handle

def count(frame, event, _):
    counted[0] += event == "call"

def handle(*call):
    counted[0] = 0
    sys.setprofile(count)
    try:
        return plain(*call)
    finally:
        sys.setprofile(None)
        seen.append(counted[0])

seen = []
worker.handle = handle
"""


@needs_strace
@pytest.mark.parametrize(("program", "most"), [(CLIENT, CLIENT_CALLS), (ON_A_LOOP, LOOP_CALLS)])
def test_the_client_makes_few_system_calls_in_an_exec(
    program: str, most: int, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    subprocess.run(
        ["strace", "-f", "-o", str(trace), sys.executable, "-c", program], check=True, timeout=120
    )
    made = sorted(between_marks(trace.read_text()), key=len)
    assert len(made) == 20
    assert 4 <= len(made[10]) <= most, made[10]


def process_of(session: Session) -> int:
    session.exec("import ctypes; ctypes.CDLL(None).prctl(15, b'of-a-pin')").unwrap()
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # one that ends in between
            if comm.read_text() == "of-a-pin\n":
                return int(comm.parent.name)
    raise AssertionError("no process is called so")


@needs_strace
def test_a_session_makes_few_system_calls_in_an_exec(tmp_path: Path) -> None:
    with Session() as s:
        process = process_of(s)
        s.exec("x = 1")
        with Attached(process, tmp_path / "trace") as seen:
            for _ in range(10):
                s.exec("x = 1")
    starts = [at for at, call in enumerate(seen.calls) if call == "recvmsg"]
    made = [seen.calls[start:end] for start, end in itertools.pairwise(starts)]
    assert len(made) >= 9
    # One that the machine keeps waiting makes more, so the one in the middle says what they make.
    calls = sorted(made, key=len)[len(made) // 2]
    of_a_long_one = (calls.count("getrusage") == 3) + (calls.count("sched_setaffinity") == 2)
    assert 5 <= len(calls) <= CELL_CALLS + of_a_long_one, calls


def test_few_frames_of_python_are_run_for_an_exec() -> None:
    frames = [0]

    def count(_: object, event: str, __: object) -> None:
        frames[0] += event == "call"

    with Session() as s:
        s.exec(COUNT).unwrap()
        s.exec("x = 1")
        sys.setprofile(count)
        try:
            s.exec("x = 1")
        finally:
            sys.setprofile(None)
        inside = s.get("seen")[-1]
    assert 20 <= frames[0] <= FRAMES, frames
    assert 10 <= inside <= CELL_FRAMES, inside
