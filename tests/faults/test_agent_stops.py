# SPDX-License-Identifier: Apache-2.0
"""An agent that stops says so first, and named sessions, of any process, are saved by then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import AgentUnavailable, Session, _core

pytestmark = pytest.mark.alone  # what is saved as the agent stops has deadlines of seconds

# Nothing else saves it within the test.
HEAD = """
import asyncio, os, sys, time
from hutch import AsyncSession, Session, _session_named
_session_named._IDLE_SEC = _session_named._MOST_SEC = 1e6

def keywords(id="report"):
    return dict(id=id, storage=sys.argv[1], memory_mb=128, timeout_sec=None)

def say(text):
    print(text, flush=True)

def await_end(s):
    while not s.info()["closed"]:
        time.sleep(0.02)
    say(s.info()["closed"])
"""
IDLE = "s = Session(**keywords()); s.exec('x = 1'); say('holds'); await_end(s)"
AWAITED = """
async def main():
    s = AsyncSession(**keywords())
    await s.exec("x = 1")
    say("holds")
    while not s.info()["closed"]:
        await asyncio.sleep(0.02)
    say(s.info()["closed"])
asyncio.run(main())
"""
BUSY = """
s = Session(**keywords())
s.exec("x = 1")
s.exec("import time; print('holds', flush=True); time.sleep(6); x = 2", echo=True)
await_end(s)
"""
# Its save lasts longer than the agent waits.
SLOW = """
with Session(**keywords()) as s:
    s.exec("x = 1")
s = Session(**keywords())
s.exec('''
import time
class Slow:
    def __reduce__(self):
        time.sleep(60)
        return int, ()
slow = Slow(); x = 2''')
say("holds")
await_end(s)
"""
FORKED = """
s = Session(**keywords())
s.exec("x = 1")
time.sleep(0.5)
here, there = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.close(there[1])
    t = Session(**keywords("child"))
    t.exec("x = 1")
    os.write(here[1], b"1")
    while not t.info()["closed"]:
        time.sleep(0.02)
    os.write(here[1], t.info()["closed"].encode())
    os.read(there[0], 1)
    os._exit(0)
os.read(here[0], 1)
say("holds")
await_end(s)
say(os.read(here[0], 100).decode())
"""

Holders = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "kept")


@pytest.fixture
def holder(place: str) -> Iterator[Holders]:
    """Makes a process that holds a session."""
    processes = []

    def begun(source: str) -> subprocess.Popen[str]:
        text = HEAD + textwrap.dedent(source)
        pipe = subprocess.PIPE
        held = subprocess.Popen(
            [sys.executable, "-c", text, place], stdout=pipe, stderr=pipe, text=True
        )
        processes.append(held)
        assert held.stdout is not None and held.stderr is not None
        line = held.stdout.readline()
        assert line == "holds\n", line + held.stderr.read()
        return held

    yield begun
    for held in processes:
        held.kill()
        held.communicate()


def stop(how: str, host: Any) -> None:
    if how == "podman":
        host.podman("stop", str(_core.paths()["agent_container"]))
    else:
        hutch.agent.stop(drain_sec=60 if how == "drain" else 0)


def kept(place: str, id: str = "report") -> Session:
    return Session(id=id, storage=place, memory_mb=128)


@pytest.mark.parametrize(
    ("source", "how", "x"),
    [
        pytest.param(IDLE, "at once", 1, id="idle"),
        pytest.param(IDLE, "podman", 1, id="idle-podman"),
        pytest.param(AWAITED, "at once", 1, id="awaited"),
        pytest.param(BUSY, "drain", 2, id="busy-drain"),
        pytest.param(BUSY, "at once", 1, id="busy"),
    ],
)
def test_what_was_not_saved_yet_is_saved(
    host: Any, place: str, holder: Holders, source: str, how: str, x: int
) -> None:
    held = holder(source)
    stop(how, host)
    said, _ = held.communicate(timeout=60)
    assert said == "the agent was stopped\n"
    with kept(place) as s:
        assert s["x"] == x and s.lost == []


def test_those_of_the_process_that_stops_it_are_saved(place: str) -> None:
    s, unused, plain = kept(place), kept(place, "unused"), Session(memory_mb=128)
    s.exec("x = 1")
    plain.exec("1")
    hutch.agent.stop()
    assert s.info()["closed"] == "the agent was stopped"
    with pytest.raises(hutch.SandboxStartupError, match="the agent was stopped"):
        s.exec("x")
    with kept(place) as s:
        assert s["x"] == 1 and s.lost == []
    with unused:  # it needs no agent yet
        assert unused.exec("2").value == 2


def test_one_of_a_forked_child_is_saved_as_its_parents_is(place: str, holder: Holders) -> None:
    held = holder(FORKED)
    hutch.agent.stop()
    assert held.stdout is not None
    assert [held.stdout.readline() for _ in range(2)] == ["the agent was stopped\n"] * 2
    for id in ("report", "child"):
        with kept(place, id) as s:
            assert s["x"] == 1 and s.lost == []


def test_one_whose_process_is_stopped_keeps_neither_the_agent_nor_others(
    place: str, holder: Holders
) -> None:
    held = holder(IDLE)
    os.kill(held.pid, signal.SIGSTOP)
    other = holder(IDLE.replace("keywords()", "keywords('other')"))
    hutch.agent.stop()
    assert other.communicate(timeout=60)[0] == "the agent was stopped\n"
    with kept(place, "other") as s:
        assert s["x"] == 1
    os.kill(held.pid, signal.SIGCONT)
    assert "could not be saved" in held.communicate(timeout=60)[1]
    with kept(place) as s:
        assert s.lost == ["x"]


def test_one_whose_save_takes_long_keeps_what_was_saved_before(place: str, holder: Holders) -> None:
    held = holder(SLOW)
    hutch.agent.stop()
    assert "could not be saved" in held.communicate(timeout=60)[1]
    with kept(place) as s:
        assert s["x"] == 1 and s.lost == ["Slow", "slow", "time"]


@pytest.mark.parametrize("before", ["x = 1", "import os; os._exit(3)"])
def test_a_command_that_runs_as_the_agent_stops_may_have_run(before: str) -> None:
    """However an interpreter of its session ended before: a fault is never an answer."""
    with ThreadPoolExecutor(1) as threads, Session(memory_mb=128) as s:
        s.exec(before)
        running = threads.submit(s.bash, "touch here; sleep 600", timeout_sec=None)
        s.bash("until [ -e here ]; do sleep 0.01; done").unwrap()
        hutch.agent.stop()
        with pytest.raises(AgentUnavailable) as caught:
            running.result()
        assert caught.value.may_have_run and not caught.value.safe_to_retry
        with pytest.raises(AgentUnavailable) as caught:
            s.bash("true")
        assert not caught.value.may_have_run
