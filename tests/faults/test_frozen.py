# SPDX-License-Identifier: Apache-2.0
"""What is frozen, not dead: nothing hangs for longer than its caller allowed, and all goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import until

import hutch
from hutch import _core, sandbox

HUTCH = [str(Path(sys.executable).with_name("hutch"))]


@sandbox(timeout_sec=60)
def nap(seconds: float) -> str:
    import time

    time.sleep(seconds)
    return "slept"


@contextmanager
def frozen(host: Any, *pids: int) -> Iterator[None]:
    assert pids
    for pid in pids:
        host.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            host.kill(pid, signal.SIGCONT)


def service_pids() -> list[int]:
    """Podman's service of this instance."""
    pattern = f"podman system service .*{_core.paths()['run_dir']}/podman/"
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True)
    return [int(text) for text in found.stdout.split()]


def conmon_of(host: Any, container: dict[str, Any]) -> int:
    """0: the container has gone since it was listed."""
    try:
        return int(host.podman("inspect", "--format", "{{.State.ConmonPid}}", container["Id"]))
    except RuntimeError:
        return 0


def begun_call(seconds: float) -> tuple[Any, threading.Event]:
    began = threading.Event()
    source = f"print('begun', flush=True); import time; time.sleep({seconds}); print('slept')"
    program = hutch.Program(source, on_stdout=lambda _: began.set(), timeout_sec=60)
    flight = program.submit()
    assert began.wait(60)
    return flight, began


def test_a_call_outlives_a_frozen_agent(host: Any) -> None:
    flight, _ = begun_call(1)
    with frozen(host, host.agent_pid()):
        outcome = flight.outcome()
    assert outcome.ok and outcome.stdout.endswith("slept\n")


def test_an_agent_that_is_frozen_for_good_is_replaced_by_one_other(host: Any) -> None:
    """For who waits, for who waits for no longer than its queue allows, and for a new process."""
    only = nap.options(labels={"test": "agent for good"}, pool=hutch.Pool(max_cells=1))
    hasty = only.options(queue_sec=2)
    only(0)
    first = only.submit(40)  # has the one cell, so that the next call must ask the agent
    time.sleep(0.5)
    pid = host.agent_pid()
    with frozen(host, pid):
        source = "import hutch; print(hutch.run('print(6 * 7)').stdout)"
        commands = ([sys.executable, "-c", source], [*HUTCH, "status"])
        new, verb = (subprocess.Popen(c, stdout=subprocess.PIPE, text=True) for c in commands)
        waiting = [only.submit(0) for _ in range(3)]
        early = hasty.submit(0)
        assert only(0) == "slept"
        assert [flight.result() for flight in waiting] == ["slept"] * 3
        assert early.outcome().ok or early.outcome().safe_to_retry, early.outcome()
        assert new.communicate(timeout=120)[0].strip() == "42"
        verb.communicate(timeout=60)  # it does not hang, whatever it says
        assert host.agent_pid() != pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)  # not even stopped: two agents would share one state
    assert len(host.containers("agent")) == 1
    outcome = first.outcome()  # its worker waited for the old agent to come back, and ended
    assert outcome.status == "fault" and outcome.may_have_run, outcome


def test_a_frozen_warden_stops_no_deadline(host: Any) -> None:
    nap(0)
    wardens = [container["Pid"] for container in host.containers("worker")]
    with frozen(host, *wardens):
        try:
            outcome = nap.options(timeout_sec=1, queue_sec=5).run(30)
        except hutch.SandboxStartupError:
            pass  # no cell was ahead, and none could be made: reported within the queue's time
        else:
            assert (outcome.status, outcome.limit) == ("limit", "time"), outcome
    assert nap(0) == "slept"


def labelled(test: str) -> tuple[Any, set[str]]:
    """A function with a pool of its own, and the names of that pool's workers."""
    own = nap.options(labels={"test": test}, queue_sec=120)
    assert own(0) == "slept"
    return own, workers_of(test)


def workers_of(test: str) -> set[str]:
    pools = [pool for pool in hutch.status()["pools"] if pool["labels"] == {"test": test}]
    return {name for pool in pools for name in pool["workers"]}


def pids_of(host: Any, part: str, names: set[str]) -> list[int]:
    wardens = [int(c["Pid"]) for c in host.containers("worker") if names & {*c["Names"]}]
    if part == "warden":
        return wardens
    # The oldest is the zygote; slots, and the first process of each cell, have its name too.
    found = [pid for warden in wardens for pid in host.children(warden, "zygote.py")]
    return found[:1] if part == "zygote" else found[1:]


@pytest.mark.parametrize("part", ["warden", "zygote", "slots"])
def test_what_is_frozen_for_good_is_noticed_and_replaced(host: Any, part: str) -> None:
    """The leased cells with it: nobody watches them. Who waits is served by another."""
    test = f"frozen {part}"
    own, names = labelled(test)
    running = own.submit(50)
    time.sleep(1)
    pids = pids_of(host, part, names)
    assert pids
    with frozen(host, *pids):
        begun = time.monotonic()
        ended = []
        for _ in range(16):  # more than are parked
            try:
                ended.append(own.run(0))
            except hutch.SandboxStartupError as error:
                assert error.may_have_run != error.safe_to_retry
                ended.append(error.outcome)
        lost = running.outcome()
        assert time.monotonic() - begun < 45, "noticed by nobody, until the call ended"
    assert lost.status == "fault" and lost.may_have_run and not lost.safe_to_retry, lost
    assert {outcome.status for outcome in ended} <= {"returned", "fault"}
    assert ended[-1].status == "returned" and all(o.value == "slept" for o in ended if o.ok)
    if part != "slots":
        assert not names & workers_of(test)


@pytest.mark.alone
def test_a_pause_is_no_freeze(host: Any) -> None:
    own, names = labelled("paused")
    for _ in range(2):  # nor are two that add up to one
        with frozen(host, *pids_of(host, "warden", names)):
            time.sleep(1)
        assert own(0) == "slept"
    time.sleep(1.5)
    assert workers_of("paused") == names


@pytest.mark.alone
def test_nobody_is_taken_for_frozen_on_a_machine_that_has_no_time(host: Any) -> None:
    own, names = labelled("busy")
    agent = host.agent_pid()
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(32)]
    try:
        begun = time.monotonic()
        while time.monotonic() - begun < 12:  # longer than a silence that is a freeze
            assert own(0) == "slept"
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert workers_of("busy") == names
    assert host.agent_pid() == agent


def test_frozen_zygotes_and_slots_keep_nobody_for_ever(host: Any) -> None:
    nap(0)
    pids = [
        pid
        for container in host.containers("worker")
        for pid in host.children(container["Pid"], "zygote.py")
    ]
    ended = []
    with frozen(host, *pids):
        for _ in range(4):  # those that are ahead are served, then none is
            try:
                ended.append(nap.options(timeout_sec=2, queue_sec=3).run(0).status)
            except hutch.SandboxStartupError as error:
                # The worker may be replaced while a call is with a frozen cell: nobody knows then.
                ended.append("refused" if error.safe_to_retry else "fault")
    assert set(ended) <= {"returned", "refused", "limit", "fault"}, ended
    assert nap(0) == "slept"


def test_a_frozen_or_killed_conmon_is_noticed_by_no_call(host: Any) -> None:
    nap(0)
    workers = host.containers("worker")
    conmons = [conmon_of(host, container) for container in workers]
    with frozen(host, *conmons):
        assert [nap(0) for _ in range(5)] == ["slept"] * 5
    for pid in conmons:
        host.kill(pid)
    assert [nap(0) for _ in range(5)] == ["slept"] * 5
    # And what nobody watches any more is removed with the rest.
    hutch.agent.stop()
    watched = {worker["Id"] for worker in workers}
    until(lambda: not watched & {worker["Id"] for worker in host.containers("worker")})


def test_a_frozen_service_of_podmans_stops_no_warm_call(host: Any) -> None:
    nap(0)
    with frozen(host, *service_pids()):
        assert [nap(0) for _ in range(5)] == ["slept"] * 5
        fresh = nap.options(labels={"test": "frozen service"}, queue_sec=3)
        try:
            assert fresh(0) == "slept"  # by a spare that was there already
        except hutch.SandboxStartupError as error:
            assert error.safe_to_retry
    after = nap.options(labels={"test": "after it"})

    def served() -> bool:
        try:
            return after(0) == "slept"
        except hutch.SandboxStartupError as error:  # what was asked of the frozen one may fail late
            assert error.safe_to_retry
            return False

    until(served)
