# SPDX-License-Identifier: Apache-2.0
"""An agent that stops says so first, and named sessions, of any process, are saved by then."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
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

def keywords(id=sys.argv[2]):
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

OF_OTHERS = {
    "idle": IDLE,
    "awaited": AWAITED,
    "forked": FORKED,
    "stopped": IDLE,
    "slow": SLOW,
    "busy": BUSY,  # the last to begin, as it is to be busy still
}
Said = tuple[str, str]


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "kept")


def holder(place: str, name: str, source: str) -> subprocess.Popen[str]:
    """A process that holds a session of that name."""
    command = [sys.executable, "-c", HEAD + textwrap.dedent(source), place, name]
    pipe = subprocess.PIPE
    held = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    assert held.stdout is not None and held.stderr is not None
    line = held.stdout.readline()
    if line != "holds\n":
        held.kill()
        raise AssertionError(line + held.stderr.read())
    return held


@pytest.fixture(scope="module")
def of_others(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Said]]:
    """Sessions of six processes, and what each process said of an agent that stopped at once."""
    place = str(tmp_path_factory.mktemp("stopped") / "kept")
    held = {name: holder(place, name, source) for name, source in OF_OTHERS.items()}
    os.kill(held["stopped"].pid, signal.SIGSTOP)
    try:
        hutch.agent.stop()
        said = {name: held[name].communicate(timeout=60) for name in held if name != "stopped"}
        os.kill(held["stopped"].pid, signal.SIGCONT)
        said["stopped"] = held["stopped"].communicate(timeout=60)
    finally:
        for process in held.values():
            process.kill()
            process.communicate()
    return place, said


def kept(place: str, id: str = "report") -> Session:
    return Session(id=id, storage=place, memory_mb=128)


@pytest.mark.parametrize("name", ["idle", "awaited", "busy"])
def test_what_was_not_saved_yet_is_saved(of_others: tuple[str, dict[str, Said]], name: str) -> None:
    """Whatever the processes that cannot save theirs do."""
    place, said = of_others
    assert said[name][0] == "the agent was stopped\n"
    with kept(place, name) as s:
        assert s["x"] == 1 and s.lost == []


@pytest.mark.parametrize(("how", "source", "x"), [("podman", IDLE, 1), ("drain", BUSY, 2)])
def test_what_was_not_saved_yet_is_saved_however_it_stops(
    host: Any, place: str, how: str, source: str, x: int
) -> None:
    held = holder(place, "report", source)
    try:
        if how == "podman":
            host.podman("stop", str(_core.paths()["agent_container"]))
        else:
            hutch.agent.stop(drain_sec=60)
        assert held.communicate(timeout=60)[0] == "the agent was stopped\n"
    finally:
        held.kill()
        held.communicate()
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


def test_one_of_a_forked_child_is_saved_as_its_parents_is(
    of_others: tuple[str, dict[str, Said]],
) -> None:
    place, said = of_others
    assert said["forked"][0] == "the agent was stopped\n" * 2
    for id in ("forked", "child"):
        with kept(place, id) as s:
            assert s["x"] == 1 and s.lost == []


def test_one_whose_process_is_stopped_is_not_saved_and_says_so(
    of_others: tuple[str, dict[str, Said]],
) -> None:
    place, said = of_others
    assert "could not be saved" in said["stopped"][1]
    with kept(place, "stopped") as s:
        assert s.lost == ["x"]


def test_one_whose_save_takes_long_keeps_what_was_saved_before(
    of_others: tuple[str, dict[str, Said]],
) -> None:
    place, said = of_others
    assert "could not be saved" in said["slow"][1]
    with kept(place, "slow") as s:
        assert s["x"] == 1 and s.lost == ["Slow", "slow", "time"]


def test_a_command_that_runs_as_the_agent_stops_may_have_run() -> None:
    """However an interpreter of its session ended before: a fault is never an answer."""
    with contextlib.ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(2))
        running = []
        for before in ("x = 1", "import os; os._exit(3)"):
            s = stack.enter_context(Session(memory_mb=128))
            s.exec(before)
            running.append((s, threads.submit(s.bash, "touch here; sleep 600", timeout_sec=None)))
            s.bash("until [ -e here ]; do sleep 0.01; done").unwrap()
        hutch.agent.stop()
        for s, command in running:
            with pytest.raises(AgentUnavailable) as caught:
                command.result()
            assert caught.value.may_have_run and not caught.value.safe_to_retry
            with pytest.raises(AgentUnavailable) as caught:
                s.bash("true")
            assert not caught.value.may_have_run
