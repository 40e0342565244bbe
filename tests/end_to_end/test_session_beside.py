# SPDX-License-Identifier: Apache-2.0
"""Commands of a session beside each other and beside what else it does. Where two are to run at the
same time, each waits for a file that the other one makes: one after another they would never end.
"""

from __future__ import annotations

import asyncio
import os
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from support import until

import hutch
from hutch import AsyncSession, Session, SessionBusy

WORK = "/work"  # the directory of a cell


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as pool:
        yield pool


def meet(mine: str, other: str) -> str:
    """A text for bash."""
    return f"touch {mine}; until [ -e {other} ]; do sleep 0.01; done; echo {mine}"


MEET = """
import os, time
open({mine!r}, "w").close()
while not os.path.exists({other!r}):
    {wait}
{mine!r}
"""


def until_there(s: Session, name: str) -> None:
    s.bash(f"until [ -e {name} ]; do sleep 0.01; done").unwrap()


def clean(s: Session) -> None:
    s.exec(f"import os\nfor name in os.listdir({WORK!r}): os.path.isfile(name) and os.unlink(name)")


# ---- at the same time


def test_commands_run_at_the_same_time_and_each_has_its_own_outcome(
    s: Session, threads: ThreadPoolExecutor
) -> None:
    clean(s)
    first = threads.submit(s.bash, meet("a", "b") + "; echo err of a >&2; exit 3")
    second = threads.submit(s.bash, meet("b", "c"), env={"WHO": "b"})
    third = threads.submit(s.command, ["bash", "-c", meet("c", "a") + "; cat"], input="given")
    outcomes = [one.result() for one in (first, second, third)]
    assert [one.stdout for one in outcomes] == ["a\n", "b\n", "c\ngiven"]
    assert [one.stderr for one in outcomes] == ["err of a\n", "", ""]
    assert [one.exit_code for one in outcomes] == [3, 0, 0]
    assert len({one.call_id for one in outcomes}) == 3


@pytest.mark.parametrize("wait", ["pass", "time.sleep(0.01)", "time.sleep(60)"])
def test_a_command_runs_beside_code_that_computes_or_sleeps(
    s: Session, threads: ThreadPoolExecutor, wait: str
) -> None:
    clean(s)
    if "60" in wait:  # it never looks whether the file is there
        code = threads.submit(s.exec, "open('py', 'w').close()\nimport time\ntime.sleep(60)")
        assert s.bash(meet("sh", "py")).stdout == "sh\n"
        s.interrupt()
        error = code.result().error
        assert error is not None and error.type == "KeyboardInterrupt"
        return
    code = threads.submit(s.exec, MEET.format(mine="py", other="sh", wait=wait))
    assert s.bash(meet("sh", "py")).stdout == "sh\n"
    assert code.result().unwrap() == "py"


def test_a_command_runs_beside_a_command_of_the_code_and_beside_event_loops(
    s: Session, threads: ThreadPoolExecutor
) -> None:
    clean(s)
    code = threads.submit(s.exec, f"!{meet('line', 'sh')}")
    assert s.bash(meet("sh", "line")).stdout == "sh\n" and code.result().stdout == "line\n"
    clean(s)
    loop = "import asyncio, os\nasync def main():\n    open('py', 'w').close()\n"
    loop += "    while not os.path.exists('sh'): await asyncio.sleep(0.01)\n    return 1\n"
    code = threads.submit(s.exec, loop + "asyncio.run(main())")
    assert s.bash(meet("sh", "py")).stdout == "sh\n" and code.result().unwrap() == 1


def test_a_command_runs_beside_code_that_waits_for_a_tool(threads: ThreadPoolExecutor) -> None:
    asked, answered = threading.Event(), threading.Event()

    def tool() -> str:
        asked.set()
        assert answered.wait(60)
        return "answer"

    with Session(tools=[tool]) as s:
        code = threads.submit(s.exec, "tool()")
        assert asked.wait(60)
        outcomes = [threads.submit(s.bash, f"echo {n}") for n in range(5)]
        assert sorted(one.result().stdout for one in outcomes) == [f"{n}\n" for n in range(5)]
        answered.set()
        assert code.result().unwrap() == "answer"


def test_an_event_loop_gathers_commands_and_code_of_a_session_that_has_not_begun() -> None:
    async def main() -> None:
        async with AsyncSession(files={"given": "there"}) as s:
            outcomes: Any = await asyncio.gather(
                s.bash(meet("a", "b") + "; cat given"),
                s.bash(meet("b", "py") + "; cat given"),
                s.exec(MEET.format(mine="py", other="a", wait="time.sleep(0.01)")),
            )
            assert [one.stdout for one in outcomes[:2]] == ["a\nthere", "b\nthere"]
            assert outcomes[2].unwrap() == "py"

    asyncio.run(main())


def test_threads_begin_a_session_together(threads: ThreadPoolExecutor) -> None:
    with Session(files={"given": "there"}) as s:
        found = [threads.submit(s.bash, "cat given") for _ in range(10)]
        assert [one.result().stdout for one in found] == ["there"] * 10


# ---- what they refuse


@pytest.mark.parametrize("isolation", ["cell", "container"])  # gVisor's have one interpreter
def test_a_command_waits_for_the_call_that_begins_its_interpreter(
    isolation: str, threads: ThreadPoolExecutor
) -> None:
    """That has its turn, and is not sent yet."""
    begun, go = threading.Event(), threading.Event()

    class Slow:
        def __reduce__(self) -> tuple[Any, ...]:
            begun.set()
            assert go.wait(60)
            return int, ()

    def text(value: Any) -> str:
        return str(value)

    with Session(memory_mb=256, isolation=isolation) as s:
        s.exec("1")
        s.reset()
        call = threads.submit(s.call, text, Slow())
        assert begun.wait(20), call.exception()
        command = threads.submit(s.bash, "echo here")
        assert wait({command}, timeout=0.3).not_done
        go.set()
        assert command.result().stdout == "here\n" and call.result() == "0"


def test_one_more_command_than_allowed_is_refused_and_code_still_runs_alone(
    s: Session, threads: ThreadPoolExecutor
) -> None:
    clean(s)
    s.bash("mkfifo gate").unwrap()
    up = [threading.Event() for _ in range(16)]
    running = [
        threads.submit(s.bash, "echo up; cat gate", on_stdout=lambda _, one=one: one.set())
        for one in up
    ]
    assert all(one.wait(60) for one in up)
    code = threads.submit(s.exec, "import time; time.sleep(60)")
    with pytest.raises(SessionBusy, match="16 commands of the session"):
        s.bash("true")
    while True:
        try:
            s.exec("1")  # until the other code runs
        except SessionBusy as error:
            assert "another call" in str(error)
            break
    with pytest.raises(SessionBusy, match="is running another call"):
        s.reset()
    assert not code.done() and not any(one.done() for one in running)
    s.interrupt()
    for one in running:
        error = one.result().error
        assert error is not None and error.type == "KeyboardInterrupt"
    outcome = code.result()
    assert outcome.status == "raised", outcome.stderr
    clean(s)
    assert s.bash("rm gate; echo free").stdout == "free\n"


# ---- limits and ends


def test_a_cd_beside_code_moves_it(s: Session, threads: ThreadPoolExecutor) -> None:
    """Unless it is in a subshell, or its command was given a directory."""
    clean(s)
    s.bash("mkdir -p one").unwrap()
    source = MEET.format(mine="py", other="go", wait="time.sleep(0.01)")
    code = threads.submit(s.exec, f"{source}\nos.getcwd()")
    until_there(s, "py")
    s.bash("(cd one)").unwrap()
    s.bash("cd /tmp", cwd=WORK).unwrap()
    s.bash("touch go").unwrap()
    assert code.result().unwrap() == WORK
    still = (
        f"open('here', 'w').close()\nwhile os.getcwd() == {WORK!r}: time.sleep(0.01)\nos.getcwd()"
    )
    code = threads.submit(s.exec, still)
    until_there(s, "here")
    s.bash("cd one").unwrap()
    assert code.result().unwrap() == f"{WORK}/one"
    s.bash("cd ..").unwrap()


def test_a_time_limit_kills_one_tree_and_no_other(s: Session, threads: ThreadPoolExecutor) -> None:
    clean(s)
    other = threads.submit(s.bash, meet("other", "go"))
    code = threads.submit(s.exec, MEET.format(mine="py", other="go", wait="time.sleep(0.01)"))
    until_there(s, "other -a -e py")
    late = s.bash("echo printed; (setsid nohup sleep 555 &); sleep 555", timeout_sec=0.5)
    assert late.limit == "time" and late.stdout == "printed\n" and not late.restarted
    assert "bash(…, timeout_sec=1)" in str(late)
    assert s.bash("pgrep -fc 'sleep 55[5]'").stdout == "0\n"
    s.bash("touch go")
    assert (other.result().stdout, code.result().unwrap()) == ("other\n", "py")


# Its first thread ends, so that the system shows it as ended, while another one goes on.
WITHOUT_ITS_FIRST = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(555,)).start()
open("begun", "w").close()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""
PROCESSES = "import os\nsum(name.isdigit() for name in os.listdir('/proc'))"


def test_a_time_limit_kills_what_has_lost_its_first_thread(s: Session) -> None:
    clean(s)
    before = s.exec(PROCESSES).value
    s.files.write("program.py", WITHOUT_ITS_FIRST)
    late = s.bash("(setsid python3 program.py &); sleep 555", timeout_sec=2)
    assert late.limit == "time" and s.files.exists("begun")
    until = time.monotonic() + 10
    while s.exec(PROCESSES).value != before:  # PID 1 waits for what was killed
        assert time.monotonic() < until
    clean(s)


def test_a_forked_child_interrupts_nothing_of_its_parent(
    s: Session, threads: ThreadPoolExecutor
) -> None:
    clean(s)
    command = threads.submit(s.bash, meet("up", "go"))
    until_there(s, "up")
    pid = os.fork()
    if pid == 0:
        try:
            s.interrupt()
        except hutch.SandboxStartupError:
            os._exit(7)
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    s.bash("touch go")
    assert command.result().stdout == "up\n"


def test_a_limit_of_cpu_time_is_of_the_command_that_has_it(
    s: Session, threads: ThreadPoolExecutor
) -> None:
    clean(s)
    code = threads.submit(s.exec, MEET.format(mine="py", other="go", wait="time.sleep(0.01)"))
    until_there(s, "py")
    spent = s.bash("(while :; do :; done) & while :; do :; done", cpu_sec=1, timeout_sec=50)
    assert spent.limit == "cpu_time" and not spent.restarted
    assert s.bash("touch go; i=0; while [ $((i += 1)) -lt 9 ]; do :; done", cpu_sec=9).ok
    assert code.result().unwrap() == "py"


# It keeps the GIL, and no signal wakes it.
NEVER_COMES_BACK = """
import ctypes, signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
ctypes.PyDLL(None).sleep(10 ** 6)
"""


def test_code_that_never_comes_back_keeps_commands_waiting_to_their_own_limits(
    threads: ThreadPoolExecutor,
) -> None:
    with Session() as s:
        before = threads.submit(s.bash, "echo begun; touch up; sleep 555", timeout_sec=2)
        until_there(s, "up")
        code = threads.submit(s.exec, "open('py', 'w').close()" + NEVER_COMES_BACK, timeout_sec=7)
        killed = before.result()  # though no Python runs there
        assert killed.limit == "time" and killed.stdout == "begun\n"
        waits = s.bash("echo never", timeout_sec=0.5)
        assert waits.limit == "time" and waits.stdout == "" and not waits.may_have_run
        assert not code.done()
        assert code.result().limit == "time"
        assert s.bash("echo again; pgrep -c sleep").stdout == "again\n0\n"


HOGS = f"import threading\ndef hog():\n{textwrap.indent(NEVER_COMES_BACK, '    ')}\n"
HOGS += "kept = 1\nthreading.Timer(0.2, hog).start()"


def test_a_thread_that_never_comes_back_costs_commands_their_time_alone() -> None:
    has_begun = True
    while has_begun:  # one that is stopped in the middle is another case
        with Session() as s:
            s.exec(HOGS).unwrap()
            time.sleep(1)
            while (outcome := s.bash("true", timeout_sec=0.5)).ok:
                time.sleep(1)  # the thread has not begun to
            has_begun = outcome.may_have_run
            if not has_begun:
                assert outcome.limit == "time" and not outcome.restarted
                assert s.bash("true", timeout_sec=0.2).limit == "time"
                assert s.exec("1", timeout_sec=0.2).limit == "time"  # this ends the interpreter
                assert s.bash("echo again").stdout == "again\n" and "kept" in s.lost


def test_nor_do_they_cost_more_where_they_are_awaited() -> None:
    async def outcome() -> Any:
        async with AsyncSession() as s:
            await s.exec(HOGS)
            await asyncio.sleep(1)
            while (found := await s.bash("true", timeout_sec=0.5)).ok:
                await asyncio.sleep(1)
            return found

    while (found := asyncio.run(outcome())).may_have_run:
        pass
    assert found.limit == "time" and not found.restarted


def test_a_command_that_finds_no_room_for_its_thread_hits_the_limit_of_processes() -> None:
    fill = (
        "import threading\nover, threads = threading.Event(), []\ntry:\n    while True:\n"
        "        thread = threading.Thread(target=over.wait, daemon=True)\n"
        "        thread.start()\n        threads.append(thread)\n"
        "except RuntimeError: pass"
    )
    with Session(pids=16) as s:
        s.exec(fill).unwrap()
        full = s.bash("echo never")
        assert full.limit == "pids" and full.stdout == "" and not full.may_have_run
        s.exec("over.set()\nfor thread in threads: thread.join()").unwrap()
        assert s.bash("echo again").stdout == "again\n"


def test_a_command_that_fills_the_disk_hits_its_limit_and_one_that_fails_then_does_not() -> None:
    with Session(disk_mb=8, memory_mb=128) as s:
        full = s.bash("echo begins; head -c 20M /dev/zero > big")
        assert (full.status, full.limit, full.exit_code) == ("limit", "disk", 1)
        assert full.stdout == "begins\n" and "disk_mb=8 allowed" in str(full)
        with pytest.raises(hutch.LimitExceeded, match="disk limit"):
            full.unwrap()
        other = s.bash("exit 3")
        assert (other.status, other.limit, other.exit_code) == ("raised", None, 3)
        assert s.bash("rm big; echo room > small; cat small").stdout == "room\n"
        files = s.command("i=0; while :; do i=$((i + 1)); true > f$i || exit 4; done")
        assert (files.limit, files.exit_code) == ("disk", 4) and "files allowed" in str(files)
        assert s.bash("rm f*; echo again").stdout == "again\n"


def test_a_cancelled_await_kills_its_command_alone(cancelled: Any) -> None:
    async def main() -> None:
        async with AsyncSession() as s:
            other = asyncio.ensure_future(s.bash(meet("other", "go")))
            await cancelled(s, "echo x; setsid sleep 555 & sleep 555")
            assert (await s.bash("pgrep -fc 'sleep 55[5]'; touch go")).stdout == "0\n"
            assert (await other).stdout == "other\n"

    asyncio.run(main())


def test_the_end_of_the_interpreter_ends_them_all_with_what_they_printed(
    threads: ThreadPoolExecutor,
) -> None:
    with Session() as s:
        s.exec("x = 1")
        waits = [threads.submit(s.bash, f"echo {n}; touch up{n}; sleep 555") for n in range(3)]
        until_there(s, "up0 -a -e up1 -a -e up2")
        dead = s.bash("kill -9 $PPID; sleep 555")
        for n, one in enumerate([*(one.result() for one in waits), dead]):
            assert (one.status, one.signal) == ("died", 9), one
            assert one.stdout == (f"{n}\n" if n < 3 else "")
        assert s.bash("echo alive").stdout == "alive\n" and s.lost == ["x"]


ENDS = {
    "crash": "import os; os._exit(3)",
    "time": "n = 0\nwhile True:\n  try:\n    while n >= 0: n += 1\n  except BaseException: n = 2",
}


@pytest.mark.parametrize("how", ["crash", "time"])
def test_a_command_is_not_blamed_for_how_another_call_ended_its_interpreter(
    threads: ThreadPoolExecutor, how: str
) -> None:
    with Session(memory_mb=256) as s:
        s.exec("x = 1")
        command = threads.submit(s.bash, "echo printed; touch up; sleep 555")
        until_there(s, "up")
        call = s.exec(ENDS[how], timeout_sec=2)
        assert call.restarted
        outcome = command.result()
        assert (outcome.status, outcome.limit, outcome.exit_code) == ("died", None, None)
        assert (outcome.signal, outcome.stdout, outcome.restarted) == (9, "printed\n", True)
        assert outcome.error is not None and "during another call" in outcome.error.message
        with pytest.raises(hutch.SandboxDied):
            outcome.unwrap()


def test_nor_for_how_its_interpreter_ended_between_calls(threads: ThreadPoolExecutor) -> None:
    late = "import os, threading, time\ndef end():\n  while not os.path.exists('up'): pass\n"
    with Session() as s:
        s.exec(late + "  os._exit(3)\nthreading.Thread(target=end, daemon=True).start()").unwrap()
        outcome = s.bash("touch up; sleep 555")
        assert (outcome.status, outcome.signal, outcome.exit_code) == ("died", 9, None)
        assert outcome.error is not None and "has ended, with exit code 3" in outcome.error.message


def test_a_closed_session_ends_its_commands(threads: ThreadPoolExecutor) -> None:
    s = Session()
    waits = threads.submit(s.bash, "echo x; touch up; sleep 555")
    until_there(s, "up")
    s.close()
    outcome = waits.result()
    assert outcome.error is not None and outcome.error.type == "KeyboardInterrupt"
    with pytest.raises(hutch.SandboxStartupError, match="has ended"):
        s.bash("true")


def test_what_a_callback_raises_kills_the_command_and_is_raised(s: Session) -> None:
    def fail(_: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        s.bash("echo x; sleep 555", on_stdout=fail)
    assert s.bash("pgrep -fc 'sleep 55[5]'").stdout == "0\n"


# ---- what lasts


def test_each_begins_with_what_there_is_then_and_the_last_to_end_stays(
    s: Session, threads: ThreadPoolExecutor
) -> None:
    clean(s)
    s.bash("mkdir -p one two; export KEPT=before")
    first: Future[Any] = threads.submit(s.bash, f"{meet('a', 'b')}; export KEPT=a OF_A=1; cd one")
    second = threads.submit(s.bash, f"{meet('b', 'a')}; until [ -e go ]; do sleep 0.01; done; "
                                    "echo $KEPT $OF_A; export KEPT=b")  # fmt: skip
    assert first.result().ok
    assert s.bash("echo $KEPT $OF_A; pwd; touch ../go").stdout == f"a 1\n{WORK}/one\n"
    assert second.result().stdout == "b\nbefore\n"
    assert s.bash("echo $KEPT $OF_A; pwd").stdout == f"b 1\n{WORK}/one\n"
    assert s.exec("import os; os.getcwd(), os.environ['KEPT']").value == (f"{WORK}/one", "b")
    s.bash("cd ..; unset KEPT OF_A")


def test_what_is_left_in_the_background_prints_to_the_next_command(s: Session) -> None:
    clean(s)
    s.bash("(until [ -e go ]; do sleep 0.01; done; echo late; touch said) &")
    assert "late\n" in s.bash("touch go; until [ -e said ]; do sleep 0.01; done").stdout


def test_the_history_has_them_side_by_side(s: Session, threads: ThreadPoolExecutor) -> None:
    clean(s)
    code = threads.submit(s.exec, MEET.format(mine="py", other="sh", wait="time.sleep(0.01)"))
    until_there(s, "py")
    s.bash("touch sh; exit 4")
    code.result().unwrap()
    kinds = {one.kind: one for one in s.history(3)}
    assert (kinds["bash"].within, kinds["bash"].exit_code) == (None, 4)
    assert kinds["exec"].within is None and kinds["exec"].status == "returned"


# ---- of a session with a name


def test_a_named_session_is_saved_while_a_command_runs_and_after_it(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch._session_named._IDLE_SEC", 0.5)
    monkeypatch.setattr("hutch._session_named._MOST_SEC", 1e6)  # of one that is not idle
    keywords: Any = {"id": "a", "storage": str(tmp_path / "kept"), "memory_mb": 128}
    with Session(**keywords) as s:
        s.exec("x = 1").unwrap()
        running = threads.submit(s.bash, "until [ -e end ]; do sleep 0.01; done; echo more > more")
        until(lambda: s.info()["version"] >= 1)
        assert not running.done()
        before = s.info()["version"]
        s.files.write("end", "")
        running.result().unwrap()
        until(lambda: s.info()["version"] > before)
    with Session(**keywords) as s:
        assert s["x"] == 1 and s.files.read("more") == "more\n" and not s.lost


def test_an_async_session_that_is_closed_during_both_gives_both_outcomes() -> None:
    async def main() -> None:
        s = AsyncSession(memory_mb=128)
        await s.exec("x = 1")
        command = asyncio.ensure_future(s.bash("echo printed; touch here; sleep 600"))
        await s.bash("until [ -e here ]; do sleep 0.01; done")
        sleeps = "import time; open('sleeps', 'w').close(); time.sleep(600)"
        code = asyncio.ensure_future(s.exec(sleeps))
        await s.bash("until [ -e sleeps ]; do sleep 0.01; done")
        await s.close()
        outcome = await command
        assert outcome.status == "raised" and outcome.stdout == "printed\n"
        assert (await code).status in ("cancelled", "raised")

    asyncio.run(main())
