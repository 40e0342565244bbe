"""What is frozen, not dead: nothing hangs for longer than its caller allowed, and all goes on."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import hutch
from hutch import _core, sandbox


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


def test_a_frozen_agent_keeps_nobody_longer_than_the_queue_allows(host: Any) -> None:
    only = nap.options(labels={"test": "frozen agent"}, pool=hutch.Pool(max_cells=1), queue_sec=2)
    only(0)
    first = only.submit(20)  # has the one cell, so that the next call must ask the agent
    time.sleep(0.5)
    with frozen(host, host.agent_pid()):
        with pytest.raises(hutch.SandboxStartupError) as raised:
            only(0)
        assert raised.value.safe_to_retry and not raised.value.may_have_run
    first.cancel()
    assert nap(0) == "slept"


def test_a_frozen_warden_stops_no_deadline(host: Any) -> None:
    nap(0)
    wardens = [container["Pid"] for container in host.containers("worker")]
    with frozen(host, *wardens):
        try:
            outcome = nap.options(timeout_sec=1, queue_sec=5).run(30)
        except hutch.SandboxStartupError:
            pass  # no cell was ahead, and none could be made: told within the queue's time
        else:
            assert (outcome.status, outcome.limit) == ("limit", "time"), outcome
    assert nap(0) == "slept"


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
                assert error.safe_to_retry
                ended.append("refused")
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
    deadline = time.monotonic() + 30
    while left := [
        c["Id"] for c in host.containers("worker") if c["Id"] in {w["Id"] for w in workers}
    ]:
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


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
    deadline = time.monotonic() + 60
    while True:  # what was asked of the frozen one may fail late, and is told as safe to repeat
        try:
            assert after(0) == "slept"
            return
        except hutch.SandboxStartupError as error:
            assert error.safe_to_retry and time.monotonic() < deadline
