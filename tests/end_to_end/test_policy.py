# SPDX-License-Identifier: Apache-2.0
"""Policies, agent.toml and the audit log, with a real agent: what is asked is what is held."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support import until

import hutch
from hutch import Policy, sandbox

HUTCH = str(Path(sys.executable).with_name("hutch"))


def plus_one(x: int) -> int:
    return x + 1


# ---- policies


def test_strict_names_what_this_host_cannot_hold_hard_and_runs_nothing() -> None:
    if hutch.status().get("enforcement") == "cgroup":
        pytest.skip("this host enforces each limit hard")
    with pytest.raises(hutch.PlatformNotSupportedError, match=r"cgroup.*memory_mb.*cpus") as caught:
        sandbox(plus_one, policy="strict")(1)
    assert not caught.value.may_have_run
    assert "hard_limits=False" in str(caught.value)


def test_the_limits_of_strict_hold_where_it_takes_what_the_host_has() -> None:
    policy = Policy.strict().replace(hard_limits=False)

    def devour() -> None:
        hoard = []
        while True:
            hoard.append(bytearray(1 << 20))

    outcome = sandbox(devour, policy=policy).run()
    assert (outcome.status, outcome.limit) == ("limit", "memory")
    error = outcome.exception()
    assert isinstance(error, hutch.SandboxMemoryError) and error.allowed == 256

    def large() -> bytes:
        return b"x" * (17 << 20)

    assert sandbox(large, policy=policy).run().limit == "result"
    assert sandbox(plus_one, policy=policy)(1) == 2


def test_a_file_is_what_holds(tmp_path: Path) -> None:
    path = tmp_path / "quick.toml"
    path.write_text("timeout_sec = 0.3\n")

    def sleep() -> None:
        import time

        time.sleep(20)

    outcome = sandbox(sleep, policy=path).run()
    assert outcome.limit == "time"
    assert sandbox(sleep, policy=path).options(timeout_sec=30)._resolved().terms.timeout_ms == 30000


# ---- agent.toml


def test_more_than_the_ceiling_is_refused_with_what_is_allowed(
    agent_toml: Callable[[str], None],
) -> None:
    function = sandbox(plus_one, labels={"test": "ceiling"})
    assert function(1) == 2
    agent_toml("[ceiling]\nmemory_mb = 512\ntimeout_sec = 10\n")
    for keywords, words in (
        (
            {"timeout_sec": 10},
            "memory_mb=1024 is above what this agent allows: at most memory_mb=512",
        ),
        (
            {"memory_mb": 512},
            "timeout_sec=30 is above what this agent allows: at most timeout_sec=10",
        ),
        ({"memory_mb": 512, "timeout_sec": None}, r"timeout_sec=None \(unlimited\) is above"),
    ):
        with pytest.raises(hutch.SandboxStartupError, match=words) as caught:
            function.options(**keywords)(1)  # type: ignore[arg-type]
        assert "[ceiling]" in str(caught.value) and not caught.value.may_have_run
    # One that was prepared before, too.
    with pytest.raises(hutch.SandboxStartupError, match="above what this agent allows"):
        function(1)
    assert function.options(memory_mb=512, timeout_sec=10)(1) == 2


def test_nothing_is_built_for_what_is_above_the_ceiling(agent_toml: Callable[[str], None]) -> None:
    agent_toml("[ceiling]\npids = 8\n")
    function = sandbox(plus_one, dependencies=["there-is-no-such-package-at-all"], pids=9)
    with pytest.raises(hutch.SandboxStartupError, match="pids=9 is above"):
        function(1)


def test_a_mistake_is_reported_with_its_line_and_what_held_goes_on(
    agent_toml: Callable[[str], None],
) -> None:
    agent_toml("[ceiling]\nmemory_mb = 512\n")
    with pytest.raises(hutch.SandboxError, match=r'agent\.toml:2: .*did you mean "memory_mb"'):
        agent_toml("[ceiling]\nmemory_gb = 4\n")
    with pytest.raises(hutch.SandboxStartupError, match="memory_mb=1024 is above"):
        sandbox(plus_one)(1)
    done = subprocess.run([HUTCH, "agent", "reload"], capture_output=True, text=True)
    assert done.returncode == 3 and "agent.toml:2" in done.stderr


def test_a_tenant_has_a_ceiling_and_a_share_of_its_own(agent_toml: Callable[[str], None]) -> None:
    agent_toml(
        '[tenants.batch]\nlabels = { team = "batch" }\ncells = 1\nceiling = { memory_mb = 512 }\n'
    )
    with pytest.raises(hutch.SandboxStartupError, match="memory_mb=1024 is above") as caught:
        sandbox(plus_one, labels={"team": "batch"})(1)
    assert "[tenants.batch.ceiling]" in str(caught.value)
    assert sandbox(plus_one, labels={"team": "web"})(1) == 2

    def overlap() -> tuple[float, float]:
        import time

        begun = time.monotonic()
        time.sleep(0.2)
        return begun, time.monotonic()

    one = sandbox(overlap, labels={"team": "batch"}, memory_mb=512)
    with ThreadPoolExecutor(4) as threads:
        times = sorted(future.result() for future in [threads.submit(one) for _ in range(4)])
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times))


def test_the_host_ends_pools_that_no_call_uses(agent_toml: Callable[[str], None]) -> None:
    agent_toml("[host]\nidle_sec = 1\n")
    unused: Any = {"labels": {"pool": "unused"}, "pool": hutch.Pool(idle_sec=3600)}

    def workers() -> list[str]:
        pools = hutch.status()["pools"]
        return next(one["workers"] for one in pools if one["labels"] == unused["labels"])

    assert hutch.run("print(1)", **unused).stdout == "1\n"
    until(lambda: not workers())
    assert hutch.run("print(2)", **unused).stdout == "2\n"
    assert workers()


def test_the_hosts_cells_are_shared_by_all_pools(agent_toml: Callable[[str], None]) -> None:
    agent_toml("[host]\ncells = 2\n")
    functions = [sandbox(plus_one, labels={"test": "share"}, env={"N": str(n)}) for n in range(4)]
    with ThreadPoolExecutor(8) as threads:
        results = [threads.submit(f, n) for n in range(6) for f in functions]
        assert sum(future.result() for future in results) == sum(n + 1 for n in range(6)) * 4


def test_a_full_queue_of_the_host_is_said_with_its_numbers(
    agent_toml: Callable[[str], None],
) -> None:
    agent_toml("[host]\ncells = 1\nqueue = 2\n")

    def nap(seconds: float) -> str:
        import time

        time.sleep(seconds)
        return "slept"

    began = threading.Event()
    first = hutch.Program(
        "print('begun', flush=True); import time; time.sleep(60)",
        on_stdout=lambda _: began.set(),
        timeout_sec=90,
        labels={"test": "queue"},
    ).submit()
    assert began.wait(60)
    napping = sandbox(nap, labels={"test": "queue"}, queue_sec=60)
    waiting = [napping.submit(0) for _ in range(6)]
    until(lambda: sum(flight.done() for flight in waiting) == 4)
    refused = [flight for flight in waiting if flight.done()]
    for flight in refused:
        error = flight.exception()
        assert isinstance(error, hutch.SandboxBusy) and error.safe_to_retry, error
        assert error.queued == 2, error
    first.cancel()
    assert [flight.result() for flight in waiting if flight not in refused] == ["slept"] * 2


# ---- the audit log


def audit(lines: int = 1000) -> list[dict[str, Any]]:
    """The last ones. An agent may have kept those of days."""
    command = [HUTCH, "logs", "--audit", "--json", "-n", str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def calls_of(label: str, wanted: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 20
    while True:
        found = [entry for entry in audit() if entry.get("labels", {}).get("test") == label]
        if len(found) >= wanted or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def test_each_call_is_one_line_that_tells_who_what_and_how_and_no_value() -> None:
    import os

    label = f"audit-{os.getpid()}"
    secret = "an-argument-that-nobody-writes-down"

    def act(what: str) -> str:
        if what == "raise":
            raise ValueError(what + "-message")
        if what == "exit":
            os._exit(3)
        print("printed-text")
        return "result-" + what

    function = sandbox(act, labels={"test": label}, env={"NAME": "value-of-env"}, timeout_sec=7)
    outcomes = [function.run(what) for what in (secret, "raise", "exit")]
    entries = calls_of(label, 3)
    by_id = {entry["call_id"]: entry for entry in entries}
    assert len(entries) == 3 == len(by_id)
    for outcome, status in zip(outcomes, ("returned", "raised", "died")):
        entry = by_id[outcome.call_id]
        assert entry["status"] == status == outcome.status
        assert entry["worker"] == outcome.worker_id
        assert (entry["uid"], entry["pid"]) == (os.getuid(), os.getpid())
        assert entry["network"] == [] and entry["calls"] == 1
        assert entry["usage"]["wall_sec"] > 0
        assert len(entry["digest"]) == 64 and len(entry["policy"]) == 16
    died = by_id[outcomes[2].call_id]
    assert died["exit_code"] == 3
    code = function._resolved().code().sha256
    assert {entry["code"] for entry in entries} == {code[:32]}
    policies = [entry for entry in audit() if entry["event"] == "policy"]
    told = next(entry for entry in policies if entry["policy"] == died["policy"])
    assert (told["timeout_sec"], told["memory_mb"], told["isolation"]) == (7, 1024, "cell")
    text = json.dumps(audit())
    for hidden in (secret, "-message", "result-", "printed-text", "value-of-env"):
        assert hidden not in text


def test_a_call_whose_client_is_killed_is_written_down_too() -> None:
    import os

    label = f"killed-{os.getpid()}"
    source = f"""
import hutch
@hutch.sandbox(labels={{"test": {label!r}}})
def f():
    import time
    print("it runs", flush=True)
    time.sleep(30)
f()
"""
    child = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"it runs\n"
    child.kill()
    child.wait()
    child.stdout.close()
    (entry,) = calls_of(label, 1)
    assert entry["status"] == "cancelled" and entry["pid"] == child.pid


def test_the_last_lines_are_shown_and_those_that_come() -> None:
    import os

    label = f"follow-{os.getpid()}"
    function = sandbox(plus_one, labels={"test": label})
    for n in range(3):
        function(n)
    assert len(calls_of(label, 3)) == 3
    assert len(audit(2)) == 2 and audit(0) == []
    follower = subprocess.Popen(
        [HUTCH, "logs", "--audit", "--follow", "-n", "1"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["event"]
        outcome = function.run(9)
        while json.loads(follower.stdout.readline()).get("call_id") != outcome.call_id:
            pass
    finally:
        follower.kill()
        follower.wait()
        follower.stdout.close()  # type: ignore[union-attr]
