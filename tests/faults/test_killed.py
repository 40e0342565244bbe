# SPDX-License-Identifier: Apache-2.0
"""Something of ours dies while a call runs: one clear error that says whether it may have run."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import until

import hutch
from hutch import _core, sandbox

HUTCH = Path(sys.executable).with_name("hutch")


@sandbox
def nap(seconds: float) -> str:
    import time

    time.sleep(seconds)
    return "slept"


class Running:
    """A call in a thread of its own, begun for certain."""

    def __init__(self, seconds: float = 120) -> None:
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.began = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(seconds,))
        self.thread.start()
        assert self.began.wait(60)

    def _run(self, seconds: float) -> None:
        source = f"print('begun', flush=True); import time; time.sleep({seconds}); print('slept')"
        options: dict[str, Any] = {"on_stdout": lambda _: self.began.set()}
        try:
            program = hutch.Program(source, **options)
            self.outcome = program.run()
        except BaseException as error:
            self.error = error
            self.began.set()

    def join(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive(), "the call hangs"


def assert_lost(running: Running) -> None:
    """The fault is reported as a fault, never as what the program did."""
    error = running.error
    if error is None:
        assert running.outcome.status == "fault", running.outcome
        assert running.outcome.may_have_run and not running.outcome.safe_to_retry
        with pytest.raises(hutch.SandboxStartupError) as raised:
            running.outcome.unwrap()
        error = raised.value
    assert isinstance(error, hutch.SandboxStartupError)
    assert error.may_have_run and not error.safe_to_retry
    assert error.hint


def worker_of_running_call(host: Any) -> dict[str, Any]:
    status = hutch.status()
    names = [name for pool in status["pools"] if pool["leased"] for name in pool["workers"]]
    found = [c for c in host.containers("worker") if any(name in c["Names"] for name in names)]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(autouse=True)
def _only_one_pool(works: Callable[[], None]) -> None:
    works()


def test_killed_warden_is_a_fault_of_ours(host: Any) -> None:
    running = Running()
    for container in host.containers("worker"):
        host.kill(container["Pid"])
    running.join()
    assert_lost(running)


@pytest.mark.parametrize("order", [1, -1])
def test_killed_zygote_is_a_fault_of_ours(host: Any, order: int) -> None:
    """Slots, and what is PID 1 of their cells, have its name too: first or last."""
    running = Running()
    for container in host.containers("worker"):
        for pid in host.children(container["Pid"], "zygote.py")[::order]:
            host.kill(pid)
    running.join()
    assert_lost(running)


def test_removed_worker_container_is_a_fault_of_ours(host: Any) -> None:
    running = Running()
    for container in host.containers("worker"):
        host.podman("rm", "--force", "--time", "0", container["Id"])
    running.join()
    assert_lost(running)


def test_killed_idle_worker_fails_no_call(host: Any) -> None:
    assert nap(0) == "slept"
    for container in host.containers("worker"):
        host.kill(container["Pid"])
    time.sleep(0.5)
    assert nap(0) == "slept"


def test_call_outlives_its_killed_agent_and_the_next_one_starts_another(host: Any) -> None:
    running = Running(2)
    host.kill(host.agent_pid())
    running.join()
    assert running.error is None and running.outcome.ok, (running.error, running.outcome)
    assert running.outcome.stdout.endswith("slept\n")
    assert hutch.run("print(1)").stdout == "1\n"


@pytest.mark.parametrize("another", [False, True], ids=["none runs", "another runs"])
def test_reload_knows_that_the_agent_it_was_connected_to_is_gone(host: Any, another: bool) -> None:
    assert hutch.run("print(1)").stdout == "1\n"
    host.kill(host.agent_pid())
    if another:
        subprocess.run([HUTCH, "agent", "start"], check=True, capture_output=True)
    assert hutch.agent.reload() is another


def test_status_asks_the_agent_that_runs_now(host: Any) -> None:
    assert hutch.run("print(1)").stdout == "1\n"
    host.kill(host.agent_pid())
    subprocess.run([HUTCH, "agent", "start"], check=True, capture_output=True)
    assert hutch.status()["running"]


def test_killed_cell_is_reported_as_a_signal_and_not_as_a_fault(host: Any) -> None:
    outcome = hutch.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (outcome.status, outcome.signal) == ("died", signal.SIGKILL)


def test_killed_podman_service_is_started_again_and_calls_go_on(host: Any) -> None:
    assert nap(0) == "slept"
    service = f"podman system service .*{_core.paths()['run_dir']}/podman/"
    subprocess.run(["pkill", "-KILL", "-f", service], check=True)
    assert nap(0) == "slept"
    # A worker that nobody has yet needs Podman.
    assert nap.options(labels={"test": "fresh worker"})(0) == "slept"


def test_killed_client_leaves_no_cell_behind(host: Any) -> None:
    script = textwrap.dedent(
        """
        import hutch
        hutch.Program("print('begun', flush=True); import time; time.sleep(600)",
                      timeout_sec=None, on_stdout=lambda text: print("begun", flush=True)).run()
        """
    )
    client = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None and client.stdout.readline() == "begun\n"
    before = sum(pool["leased"] for pool in hutch.status()["pools"])
    client.kill()
    client.communicate()
    until(
        lambda: sum(pool["leased"] for pool in hutch.status()["pools"]) < before,
        "the cell of a killed client lives on",
    )


def test_interrupted_caller_kills_its_cell_and_raises() -> None:
    script = textwrap.dedent(
        """
        import hutch, time
        try:
            hutch.Program("print('begun', flush=True); import time; time.sleep(600)",
                          timeout_sec=None, on_stdout=lambda text: print("begun", flush=True)).run()
        except KeyboardInterrupt:
            time.sleep(1)
            idle = [pool for pool in hutch.status()["pools"] if pool["labels"] == {}]
            print(sum(pool["leased"] for pool in idle), flush=True)
            print(hutch.run("print('next works')").stdout, flush=True)
        """
    )
    client = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None and client.stdout.readline() == "begun\n"
    client.send_signal(signal.SIGINT)
    rest, _ = client.communicate(timeout=30)
    assert client.returncode == 0 and "next works" in rest
