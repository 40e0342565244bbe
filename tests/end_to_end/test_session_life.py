# SPDX-License-Identifier: Apache-2.0
"""How many sessions there may be, beside what calls, how they are seen, and what ends them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from support import until

import hutch
from hutch import AsyncSession, Session, _core
from hutch._background import Process
from hutch._status import sessions as open_sessions

HOME = pathlib.Path(str(_core.paths()["state_dir"]))


def mine(session: Session) -> dict[str, Any]:
    """What the agent says of it."""
    return next(dict(one) for one in open_sessions() if one["id"] == session.id)


# ---- how many


def test_one_session_more_than_there_may_be_is_refused_at_once(agent_toml: Any) -> None:
    agent_toml("[host]\nsessions = 2\n")
    with Session(memory_mb=64) as one, Session(memory_mb=64) as two:
        one.exec("x = 1")
        two.exec("x = 2")
        with Session(memory_mb=64, queue_sec=300) as three:
            with pytest.raises(hutch.SandboxBusy, match="2 of 2 are open") as refused:
                three.exec("1")
            assert (refused.value.sessions, refused.value.capacity) == (2, 2)
            assert "hutch sessions" in refused.value.hint and "[host]" in refused.value.hint
            assert not refused.value.may_have_run
            assert hutch.run("3", memory_mb=64).ok, "calls go on"
            one.close()
            until(lambda: len(open_sessions()) == 1)
            assert three.exec("3").value == 3
        assert two.exec("x").value == 2
        status = hutch.status()
        assert status["sessions_max"] == 2


def test_a_tenant_has_no_more_sessions_than_its_own(agent_toml: Any) -> None:
    agent_toml('[tenants.batch]\nlabels = { team = "batch" }\nsessions = 1\n')
    with Session(memory_mb=64, labels={"team": "batch"}) as one, Session(memory_mb=64) as other:
        one.exec("1")
        with (
            Session(memory_mb=64, labels={"team": "batch"}) as two,
            pytest.raises(hutch.SandboxBusy, match="batch") as refused,
        ):
            two.exec("1")
        assert "[tenants.batch]" in refused.value.hint
        assert other.exec("1").ok


def test_more_sessions_than_a_worker_has_slots_starve_no_call() -> None:
    count = 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 20 * count)), hard))
    function = hutch.sandbox(memory_mb=64, pool=hutch.Pool(max_cells=4))(lambda n: n + 1)
    held: list[Session] = []
    try:
        for number in range(count):
            held.append(Session(memory_mb=64, pool=hutch.Pool(max_cells=4), idle_sec=None))
            assert held[-1].exec(f"mine = {number}").ok
            if number % 16 == 0:
                assert function(number) == number + 1
        assert len(open_sessions()) >= count
        assert list(function.map(range(20))) == list(range(1, 21))
        assert [one.exec("mine").value for one in held] == list(range(count))
        workers = {one.info()["worker_id"] for one in held}
        assert len(workers) > 1
    finally:
        for one in held:
            one.close()


def test_rotation_ends_no_session() -> None:
    keywords: dict[str, Any] = {"memory_mb": 64, "max_calls": 40}
    with Session(**keywords) as s:
        s.exec("kept = 1")
        own = s.info()["worker_id"]
        function = hutch.sandbox(**keywords)(lambda: 1)

        def workers() -> list[str]:
            function()
            pools = hutch.status().get("pools", [])
            return next(
                (p["workers"] for p in pools if own in p["workers"] and len(p["workers"]) > 1), []
            )

        until(workers)
        for _ in range(60):
            function()
        with Session(**keywords) as other:
            other.exec("1")
            assert other.info()["worker_id"] != own, "a new worker serves new cells"
        assert s.exec("kept").value == 1
    until(lambda: all(own not in p["workers"] for p in hutch.status().get("pools", [])))


# ---- what is seen of them


def test_sessions_are_listed() -> None:
    with Session(memory_mb=64, idle_sec=77) as s:
        assert s.id not in [one["id"] for one in open_sessions()], "nothing is started before"
        s.exec("1")
        s.exec("2")
        one = mine(s)
        assert (one["pid"], one["state"], one["idle_sec"]) == (os.getpid(), "idle", 77)
        assert one["worker"] == s.info()["worker_id"] and one["calls"] == 2
        assert 0 <= one["unused_sec"] <= one["age_sec"]
        said = subprocess.run(
            [sys.executable, "-m", "hutch", "sessions"], capture_output=True, text=True, check=True
        )
        assert s.id[:8] in said.stdout
        told = subprocess.run(
            [sys.executable, "-m", "hutch", "sessions", "--json"], capture_output=True, check=True
        )
        assert s.id in [one["id"] for one in json.loads(told.stdout)]
        status = hutch.status()
        assert status["sessions"] >= 1 and status["sessions_max"] == 256
        assert sum(pool["sessions"] for pool in status["pools"]) == status["sessions"]
        assert f"hutch_sessions {status['sessions']}\n" in hutch.metrics()
        assert "hutch_sessions_max 256\n" in hutch.metrics()
        ps = subprocess.run(
            [sys.executable, "-m", "hutch", "ps"], capture_output=True, text=True, check=True
        )
        assert f"{status['sessions']} of 256 sessions" in ps.stdout
    until(lambda: s.id not in [one["id"] for one in open_sessions()])


def test_the_audit_log_names_session_and_call() -> None:
    with Session(memory_mb=64) as s:
        s.exec("1")
        s.exec("1 / 0")

        def lines() -> list[dict[str, Any]]:
            text = (HOME / "audit" / "audit.jsonl").read_text()
            found = [json.loads(line) for line in text.splitlines()]
            found = [one for one in found if one.get("session") == s.id]
            return found if len(found) == 2 else []

        found = until(lines)
        assert [one["number"] for one in found] == [1, 2]
        assert [one["status"] for one in found] == ["returned", "raised"]


def test_an_outcome_tells_of_the_end_of_an_interpreter_that_calls_without_one_met() -> None:
    """By an exec, or by the exception of another call, whichever comes first."""
    told = []
    with Session(memory_mb=128) as s:
        s.exec("x = 1")
        s.exec(
            "import os, threading\n"
            "def end():\n  while not os.path.exists('go'): pass\n  os._exit(1)\n"
            "threading.Thread(target=end).start()"
        )

        def has_ended() -> bool:
            try:
                return s.get("x") is None
            except hutch.SandboxError as error:  # during this one
                assert error.outcome is not None
                told.append(error.outcome.restarted)
                return False

        try:
            s.files.write("go", "")
        except hutch.SandboxError as error:
            assert error.outcome is not None
            told.append(error.outcome.restarted)
        until(has_ended)
        assert s.lost == ["end", "os", "threading", "x"]
        assert s.exec("1").restarted or True in told
        assert not s.exec("1").restarted
        with pytest.raises(hutch.SandboxError) as died:
            s.call(lambda: __import__("os")._exit(1))
        assert died.value.outcome is not None and died.value.outcome.restarted
        assert not s.exec("1").restarted


# ---- between calls


BURNS = (
    "import threading, time\nstop = False\n"
    "def burn():\n  while not stop: pass\n"
    "threading.Thread(target=burn, daemon=True).start()"
)


def test_cpu_time_between_calls_is_measured() -> None:
    with Session(memory_mb=128) as s:
        quiet = s.exec("import time; time.sleep(0.2)")
        time.sleep(0.5)
        assert quiet.usage.background_cpu_sec < 0.2
        assert s.exec("time.sleep(0.2)").usage.background_cpu_sec < 0.2, "nothing ran"
        s.exec(BURNS + "\ntime.sleep(0.1)")
        time.sleep(1.5)
        burnt = s.exec("stop = True\ntime.sleep(0.3)").usage
        assert 0.3 < burnt.background_cpu_sec < 1.5 + 30
        s.exec("time.sleep(0.2)")  # what was left of the thread
        assert s.exec("time.sleep(0.2)").usage.background_cpu_sec < 0.2


def test_short_calls_are_no_background() -> None:
    with Session(memory_mb=128) as s:
        s.exec("import time; time.sleep(0.1)")
        for _ in range(300):
            s.exec("sum(range(50_000))")
        assert s.exec("time.sleep(0.2)").usage.background_cpu_sec < 0.2


def test_all_cpu_time_is_that_of_a_call_or_of_the_background() -> None:
    """By the clock of the code itself. Each call is one of which the warden is informed."""
    with Session(memory_mb=128) as s:
        s.exec("import time; time.sleep(0.1)")
        before = s.exec("time.sleep(0.05); time.process_time()").value
        calls = [s.exec(BURNS)]
        for _ in range(80):
            calls.append(s.exec("time.sleep(0.006)"))
            time.sleep(0.01)
        calls.append(s.exec("stop = True; time.sleep(0.2); time.process_time()"))
        used = calls[-1].value - before
        told = sum(call.usage.cpu_sec + call.usage.background_cpu_sec for call in calls)
        assert told > 0.98 * used - 0.02, "the kernel shows it to the warden in units of 10 ms"


def test_what_commands_take_is_theirs_alone() -> None:
    """Whether they run between calls or beside one."""
    burns = ["python3", "-c", "import time\nwhile time.process_time() < 0.5: pass"]
    with Session(memory_mb=128) as s:
        s.exec("import time; time.sleep(0.1)")
        assert s.command(burns).usage.cpu_sec > 0.4
        after = [s.exec("time.sleep(0.1)").usage for _ in range(2)]
        assert sum(one.cpu_sec + one.background_cpu_sec for one in after) < 0.2
        beside = s.start(burns)
        during = s.exec("while time.process_time() < 0.3: pass").usage
        assert beside.wait().usage.cpu_sec > 0.4
        assert during.cpu_sec < 0.4
        s.exec(f"import subprocess\nsubprocess.run({burns!r})")
        assert s.exec(f"subprocess.run({burns!r});").usage.cpu_sec > 0.4, (
            "the code's own is its own"
        )


def test_what_a_large_result_takes_is_no_background() -> None:
    with Session(memory_mb=128) as s:
        s.exec("import time\nlarge = [[i] for i in range(200_000)]\ntime.sleep(0.1)")
        for _ in range(6):
            s.exec("large")
        assert s.exec("time.sleep(0.2)").usage.background_cpu_sec < 0.15


def test_memory_taken_between_calls_ends_the_interpreter() -> None:
    with Session(memory_mb=128) as s:
        s.files.write("kept", "yes")
        s.exec(
            "import threading, time\nheld = []\n"
            "def take():\n  time.sleep(0.3)\n  while True: held.append(bytearray(4 << 20))\n"
            "threading.Thread(target=take, daemon=True).start()"
        )
        time.sleep(1.5)  # nobody asks the session for anything in that time
        until(lambda: s.exec("1").restarted)
        assert s.files.read("kept") == "yes"


def test_the_users_process_goes_first_where_memory_runs_out() -> None:
    scores = (
        "import subprocess\n"
        "def score(pid): return int(open(f'/proc/{pid}/oom_score_adj').read())\n"
        "child = subprocess.run(['cat', '/proc/self/oom_score_adj'], capture_output=True)\n"
        "score(1), score('self'), int(child.stdout)"
    )
    with Session(memory_mb=128) as s:
        assert s.exec(scores).value == (800, 900, 900)
        s.exec("import os; os._exit(1)")
        assert s.exec(scores).value == (800, 900, 900)
        refused = s.exec("open('/proc/self/oom_score_adj', 'w').write('0')")
        assert refused.error is not None and refused.error.type in ("OSError", "PermissionError")


# ---- their end


def test_a_client_that_is_killed_leaves_no_session() -> None:
    source = (
        "import sys, time; from hutch import Session\n"
        "s = Session(memory_mb=64, idle_sec=None); s.exec('1')\n"
        "print(s.id, flush=True); time.sleep(600)"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert client.stdout is not None
    session = client.stdout.readline().strip()
    assert session in [one["id"] for one in open_sessions()]
    client.send_signal(signal.SIGKILL)
    client.communicate()
    until(lambda: session not in [one["id"] for one in open_sessions()])


# ---- one that nobody has any more


def test_one_that_nothing_refers_to_is_closed_at_once() -> None:
    gc.disable()  # it is in no cycle
    try:
        s = Session(memory_mb=64)
        id = s.id
        s.exec("x = 1").unwrap()
        child = s.child()
        assert any(one["id"] == id for one in open_sessions())
        del s
        assert child.exec("x").value == 1, "its child has it"
        del child
        until(lambda: all(one["id"] != id for one in open_sessions()))
    finally:
        gc.enable()


def test_its_files_say_so() -> None:
    files = Session(memory_mb=64).files
    with pytest.raises(hutch.SandboxStartupError, match="nothing referred to it any more"):
        files.list()


def test_one_that_is_awaited_is_closed_at_once_too() -> None:
    async def main() -> str:
        s = AsyncSession(memory_mb=64)
        await s.exec("x = 1")
        return s.id

    gc.disable()
    try:
        id = asyncio.run(main())
        until(lambda: all(one["id"] != id for one in open_sessions()))
    finally:
        gc.enable()


def test_a_program_that_it_started_keeps_it() -> None:
    def started() -> Process:
        return Session(memory_mb=64).start("read name; echo hello $name")

    program = started()
    gc.collect()
    program.write("you\n")
    assert list(program.lines()) == ["hello you"]
