# SPDX-License-Identifier: Apache-2.0
"""What becomes of a session whose agent or worker is killed."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import until

import hutch
from hutch import Session


def ended(host: Any, worker: str) -> bool:
    left = [c for c in host.containers("worker") if worker in c["Names"]]
    return all(c["State"] != "running" for c in left)


def test_an_agent_that_is_killed_ends_its_sessions(host: Any) -> None:
    """One that is idle at once, and one with a call as soon as its worker waits no longer."""
    begun = threading.Event()
    with Session(memory_mb=128, idle_sec=None) as s, Session(memory_mb=128, timeout_sec=None) as t:
        s.exec("kept = 1")
        worker = s.info()["worker_id"]
        container = host.worker(worker)
        assert container["State"] == "running"
        with ThreadPoolExecutor(1) as threads:
            text = "import time; print('begun', flush=True); time.sleep(600)"
            running = threads.submit(t.exec, text, on_stdout=lambda _: begun.set())
            assert begun.wait(30)
            host.kill(host.agent_pid())
            time.sleep(0.5)
            with pytest.raises(hutch.AgentUnavailable, match="its agent is gone") as lost:
                s.exec("kept")
            assert "another session" in lost.value.hint and not lost.value.may_have_run
            with pytest.raises(hutch.SandboxStartupError, match="its agent is gone"):
                s.exec("kept")
            assert s.info()["closed"] == "its agent is gone"
            with pytest.raises(hutch.AgentUnavailable) as lost:
                running.result(60)
            assert lost.value.may_have_run and "its agent is gone" in lost.value.message
    with Session(memory_mb=128) as next_one:
        assert next_one.exec("1 + 1").value == 2
        until(lambda: ended(host, worker))


def test_a_call_that_ends_soon_after_its_killed_agent_has_its_outcome(host: Any) -> None:
    begun = threading.Event()
    with Session(memory_mb=128) as s, ThreadPoolExecutor(1) as threads:
        text = "import time; print('begun', flush=True); time.sleep(1); 5"
        running = threads.submit(s.exec, text, on_stdout=lambda _: begun.set())
        assert begun.wait(30)
        host.kill(host.agent_pid())
        assert running.result(60).value == 5


def test_a_worker_that_is_killed_ends_its_sessions(host: Any) -> None:
    with Session(memory_mb=128) as s:
        s.exec("1")
        host.kill(host.worker(s.info()["worker_id"])["Pid"])
        time.sleep(0.5)
        with pytest.raises(hutch.SandboxStartupError):
            s.exec("1")
        with pytest.raises(hutch.SandboxStartupError, match="has ended"):
            s.exec("1")
