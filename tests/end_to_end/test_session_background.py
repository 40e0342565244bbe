# SPDX-License-Identifier: Apache-2.0
"""Programs of a session that run on between its calls."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import until

import hutch
from hutch import AsyncSession, Session
from hutch._background import Process


@pytest.fixture(scope="module", params=["cell", "container"])
def s(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(isolation=request.param) as session:
        yield session


def running(session: Session, text: str) -> int:
    """How many processes have that in their command line, beside what counts them."""
    counted = session.command(["pgrep", "-fc", text])
    return int(counted.stdout)


def test_it_runs_between_calls_reads_and_prints(s: Session) -> None:
    process = s.start("echo begins; echo err >&2; read name; echo hello $name; exit 3")
    assert s.exec("1 + 1").value == 2
    assert s.info()["processes"] == {process.pid: process.command}
    process.write("you\n")
    assert list(process.lines()) == ["begins", "hello you"]
    outcome = process.wait()
    assert (outcome.exit_code, outcome.stdout) == (3, "begins\nhello you\n")
    assert outcome.stderr == "err\n" and s.info()["processes"] == {}
    with pytest.raises(hutch.CommandError):
        process.wait().unwrap()


def test_its_lines_come_as_they_are_printed(s: Session) -> None:
    process = s.start("echo one; read x; printf two; exit 0")
    lines = process.lines()
    assert next(lines) == "one"
    process.close_stdin()
    assert list(lines) == ["two"]
    assert process.wait().ok


def test_a_time_limit_of_waiting_leaves_it_and_kill_ends_all_of_it(s: Session) -> None:
    process = s.start(["sh", "-c", "setsid sleep 999 & sleep 999"])
    late = process.wait(timeout_sec=0.5)
    assert late.limit == "time" and not late.restarted and running(s, "sleep 999") == 3
    process.kill()
    process.kill()
    assert process.wait().exit_code == 137 and running(s, "sleep 999") == 0


def test_kill_and_signal_work_beside_whoever_waits_for_it_and_beside_code(s: Session) -> None:
    with ThreadPoolExecutor() as threads:
        for end, code in ((Process.kill, 137), (lambda one: one.signal(signal.SIGTERM), 143)):
            process = s.start("sleep 999 & sleep 999")
            waits = threads.submit(process.wait)
            until_busy(s)
            end(process)
            assert waits.result().exit_code == code
            s.command(["pkill", "sleep"])
        process = s.start("sleep 999")
        busy = threads.submit(s.exec, "import time\ntime.sleep(999)")
        until_busy(s)
        process.kill()
        s.interrupt()
        assert busy.result().error is not None
    assert process.wait().exit_code == 137


def until_busy(s: Session) -> None:
    until(lambda: s._engine.turn.is_taken)


@pytest.mark.skipif(shutil.which("runsc") is None, reason="runsc is not installed")
def test_it_is_read_killed_and_waited_for_where_the_kernel_is_gvisor() -> None:
    with ThreadPoolExecutor() as threads, Session(isolation="gvisor") as s:
        process = s.start("echo up; sleep 999")
        assert next(process.lines()) == "up"
        waits = threads.submit(process.wait)
        process.kill()
        assert waits.result().exit_code == 137


def test_an_async_one_is_killed_beside_whoever_awaits_it() -> None:
    async def main() -> None:
        async with AsyncSession() as s:
            process = await s.start("sleep 999")
            waits = asyncio.ensure_future(process.wait())
            await asyncio.sleep(0)
            await process.kill()
            assert (await waits).exit_code == 137

    asyncio.run(main())


def test_one_that_its_interpreter_ended_with_cannot_be_killed(s: Session) -> None:
    process = s.start("sleep 999")
    if not s.info()["restartable"]:
        pytest.skip("the interpreter of this session is not replaced")
    s.reset()
    with pytest.raises(hutch.SandboxExecutionError, match="before the interpreter was restarted"):
        process.kill()
    s.reset()


def test_a_signal_is_for_it_alone(s: Session) -> None:
    process = s.start("trap 'echo heard; exit 5' USR1; echo ready; while true; do sleep 0.05; done")
    lines = process.lines()
    assert next(lines) == "ready"
    process.signal(signal.SIGUSR1)
    assert list(lines) == ["heard"] and process.wait().exit_code == 5
    with pytest.raises(ValueError, match="signal"):
        process.signal(999)


def test_it_is_found_again_by_its_number(s: Session) -> None:
    process = s.start(["cat"])
    (same,) = [one for one in s.processes() if one.pid == process.pid]
    same.write("through another handle")
    same.close_stdin()
    assert process.wait().stdout == "through another handle"
    with pytest.raises(hutch.SandboxExecutionError, match="was closed"):
        same.write("more")


def test_what_cannot_be_started_is_said_at_once(s: Session) -> None:
    with pytest.raises(hutch.SandboxExecutionError, match=r"FileNotFoundError.*nosuchprogram"):
        s.start(["nosuchprogram"])
    with pytest.raises(ValueError, match="zero byte"):
        s.start("a\0")


def test_of_many_that_ended_the_latest_are_known(s: Session) -> None:
    for _ in range(70):
        s.start(["true"]).wait().unwrap()
    last = s.start(["echo", "last"])
    assert last.wait().stdout == "last\n" and len(s.processes()) <= 66


def test_it_ends_with_its_interpreter() -> None:
    with Session() as s:
        process = s.start("sleep 999")
        s.reset()
        assert s.info()["processes"] == {} and running(s, "sleep 999") == 0
        assert s.processes() == []
        with pytest.raises(hutch.SandboxExecutionError, match="restarted"):
            process.kill()


def test_it_counts_in_the_limits_of_the_session() -> None:
    with Session(memory_mb=128) as s:
        s.exec("x = 1")
        s.start(["python", "-c", "x = [bytearray(1 << 20) for _ in range(4000)]\ninput()"])
        assert s.bash("sleep 0.5; echo alive", timeout_sec=10).status in ("returned", "limit")
        assert s.bash("echo alive").stdout == "alive\n"


def test_an_async_session_awaits_it() -> None:
    async def main() -> None:
        async with AsyncSession() as s:
            process = await s.start("read x; echo $x; sleep 0.1; echo end")
            await process.write("in\n")
            assert [line async for line in process.lines()] == ["in", "end"]
            assert (await process.wait()).exit_code == 0
            other = await s.start(["sleep", "999"])
            await other.signal(signal.SIGTERM)
            assert (await other.wait()).exit_code == 143
            await other.kill()
            assert [one.pid for one in await s.processes()] == [process.pid, other.pid]

    asyncio.run(main())


@pytest.mark.parametrize("lie", ["None", "(1, 2)", "('a', 1, 'b')", "[1]", "[(1, 2, 'x')]"])
def test_what_stands_in_for_it_is_not_believed(lie: str) -> None:
    with Session() as s:
        s.exec(f"import sys; sys.modules['_hutch_background'].answer = lambda *_: {lie}")
        calls: list[Any] = [lambda: s.start(["true"]), s.processes]
        for call in calls:
            with pytest.raises(hutch.SerializationError, match="has replaced"):
                call()
