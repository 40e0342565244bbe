# SPDX-License-Identifier: Apache-2.0
"""What becomes of a session whose agent or worker is killed."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import hutch
from hutch import Session


def ended(host: Any, worker: str) -> bool:
    left = [c for c in host.containers("worker") if worker in c["Names"]]
    return all(c["State"] != "running" for c in left)


def test_an_agent_that_is_killed_ends_its_sessions(host: Any) -> None:
    with Session(memory_mb=128, idle_sec=None) as s:
        s.exec("kept = 1")
        worker = s.info()["worker_id"]
        container = host.worker(worker)
        assert container["State"] == "running"
        host.kill(host.agent_pid())
        time.sleep(0.5)
        with pytest.raises(hutch.AgentUnavailable, match="its agent is gone") as lost:
            s.exec("kept")
        assert "another session" in lost.value.hint and not lost.value.may_have_run
        with pytest.raises(hutch.SandboxStartupError, match="its agent is gone"):
            s.exec("kept")
        assert s.info()["closed"] == "its agent is gone"
    with Session(memory_mb=128) as next_one:
        assert next_one.exec("1 + 1").value == 2
        give_up = time.monotonic() + 30
        while not ended(host, worker):  # within ten seconds, on a machine that has time for it
            assert time.monotonic() < give_up
            time.sleep(0.2)


def test_a_call_that_outlasts_its_killed_agent_says_so(host: Any) -> None:
    errors: list[BaseException] = []
    with Session(memory_mb=128, timeout_sec=None) as s:
        s.exec("import time")

        def call() -> None:
            try:
                s.exec("time.sleep(600)")
            except BaseException as error:
                errors.append(error)

        running = threading.Thread(target=call)
        running.start()
        time.sleep(1)
        host.kill(host.agent_pid())
        running.join(60)
        assert not running.is_alive()
        assert isinstance(errors[0], hutch.AgentUnavailable), errors
        assert errors[0].may_have_run and "its agent is gone" in errors[0].message


def test_a_call_that_ends_soon_after_its_killed_agent_has_its_outcome(host: Any) -> None:
    with Session(memory_mb=128) as s:
        s.exec("import time")
        outcomes: list[Any] = []
        running = threading.Thread(target=lambda: outcomes.append(s.exec("time.sleep(2); 5")))
        running.start()
        time.sleep(1)
        host.kill(host.agent_pid())
        running.join(60)
        assert outcomes[0].value == 5


def test_a_worker_that_is_killed_ends_its_sessions(host: Any) -> None:
    with Session(memory_mb=128) as s:
        s.exec("1")
        host.kill(host.worker(s.info()["worker_id"])["Pid"])
        time.sleep(0.5)
        with pytest.raises(hutch.SandboxStartupError):
            s.exec("1")
        with pytest.raises(hutch.SandboxStartupError, match="has ended"):
            s.exec("1")
