# SPDX-License-Identifier: Apache-2.0
"""What a session's history says of what ran, however it ended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hutch import AsyncSession, HistoryEntry, SandboxError, Session, StopExec, Tool, _core
from hutch._calls import session_call


@pytest.fixture
def s() -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=20) as session:
        yield session


def brief(entries: list[HistoryEntry]) -> list[tuple[Any, ...]]:
    return [(e.id, e.within, e.kind, e.source, e.status, e.error) for e in entries]


def test_what_ran_is_there_in_order_with_its_sizes(s: Session) -> None:
    def double(n: int) -> int:
        print("double")
        return 2 * n

    begun = time.time()
    first = s.exec("print('abc'); 'é' * 1000")
    s.exec("import sys; print('e', file=sys.stderr); 1 / 0")
    assert s.call(double, 4) == 8
    s["n"] = 3
    s.files.write("a", "x")
    assert s.names() == ["n"] or "n" in s.names()  # none of these three runs code
    entries = s.history()
    assert [e[:3] for e in brief(entries)] == [
        (1, None, "exec"),
        (2, None, "exec"),
        (3, None, "call"),
    ]
    one, two, three = entries
    assert one.source == "print('abc'); 'é' * 1000" and one.source_size == len(one.source) + 1
    assert (one.status, one.error, one.exit_code, one.call_id) == (
        "returned",
        "",
        None,
        first.call_id,
    )
    assert (one.stdout_size, one.stderr_size) == (4, 0) and one.result_size >= 2000
    assert (two.status, two.error, two.stderr_size) == ("raised", "ZeroDivisionError", 2)
    assert three.status == "returned" and three.source.endswith("double") and three.stdout_size == 7
    assert all(begun - 1 < e.start <= (e.end or 0) < time.time() + 1 for e in entries)
    assert not any(e.restarted for e in entries)
    assert s.history(1) == entries[2:] and s.history(limit=0) == []
    with pytest.raises(ValueError, match="limit=-1 is below 0"):
        s.history(-1)


def test_what_failed_was_interrupted_or_ended_its_interpreter_is_there(s: Session) -> None:
    s.exec("x = (")
    s.exec("while True: pass", timeout_sec=0.3)
    timer = threading.Timer(0.5, s.interrupt)
    timer.start()
    s.exec("while True: pass")
    timer.join()
    s.exec("import os; os._exit(3)")
    s.exec("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    s.exec("1")
    s.reset()
    s.exec("2")
    entries = s.history()
    assert [(e.status, e.error, e.exit_code, e.restarted) for e in entries] == [
        ("raised", "SyntaxError", None, False),
        ("limit", "KeyboardInterrupt", None, False),
        ("raised", "KeyboardInterrupt", None, False),
        ("died", "SandboxDied", 3, True),
        ("died", "SandboxDied", None, True),
        ("returned", "", None, False),
        ("returned", "", None, False),
    ]


def test_tools_and_what_they_have_the_session_run_are_within_what_called_them() -> None:
    def price(item: str, count: int = 1) -> int:
        return {"apple": 2}[item] * count

    def run_it(source: str) -> Any:
        return s.exec(source).value

    def end() -> None:
        raise StopExec

    with Session(memory_mb=256, tools=[price, run_it, Tool(end, max_calls=1)]) as s:
        s.exec("price('apple', count=3)\ntry: price('plum')\nexcept KeyError: pass")
        s.exec("run_it('price(\"apple\") + 1')\nprice('apple')")
        s.exec("end()")
        found = brief(s.history())
        s.exec("import hutch_tools\ntry: hutch_tools.call('none')\nexcept RuntimeError: pass")
        assert brief(s.history(1)) == [(12, 11, "tool", "none()", "raised", "RuntimeError")]
    assert [one[:3] + one[4:] for one in found] == [
        (1, None, "exec", "returned", ""),
        (2, 1, "tool", "returned", ""),
        (3, 1, "tool", "raised", "KeyError"),
        (4, None, "exec", "returned", ""),
        (5, 4, "tool", "returned", ""),
        (6, 5, "exec", "returned", ""),
        (7, 6, "tool", "returned", ""),
        (8, 4, "tool", "returned", ""),
        (9, None, "exec", "returned", ""),
        (10, 9, "tool", "raised", "StopExec"),
    ]
    assert found[1][3] == "price('apple', count=3)" and found[5][3] == 'price("apple") + 1'


def test_commands_are_there_with_their_exit_codes() -> None:
    def look() -> str:
        return str(s.bash("echo within; exit 4").exit_code)

    with Session(memory_mb=256, timeout_sec=20, tools=[look]) as s:
        s.bash("echo out; echo error >&2; exit 3")
        s.command(["printf", "%s", "a b"])
        s.command("exit 5")
        s.bash("sleep 100", timeout_sec=0.3)
        s.command(["nosuchprogram"], as_bytes=True)
        s.exec("look()")
        entries = s.history()
    assert [(e.within, e.kind, e.source, e.status, e.exit_code) for e in entries] == [
        (None, "bash", "echo out; echo error >&2; exit 3", "raised", 3),
        (None, "command", "printf %s 'a b'", "returned", 0),
        (None, "command", "exit 5", "raised", 5),
        (None, "bash", "sleep 100", "limit", None),
        (None, "command", "nosuchprogram", "raised", 127),
        (None, "exec", "look()", "returned", None),
        (6, "tool", "look()", "returned", None),
        (7, "bash", "echo within; exit 4", "raised", 4),
    ]
    assert (entries[0].stdout_size, entries[0].stderr_size) == (4, 6)
    assert entries[0].error == "CommandError" and entries[7].stdout_size == 7


def test_one_that_runs_is_there_meanwhile() -> None:
    seen: list[HistoryEntry] = []

    def look() -> None:
        seen.extend(s.history())

    with Session(memory_mb=256, tools=[look]) as s:
        s.exec("look()")
        assert [(e.kind, e.status, e.end) for e in seen] == [
            ("exec", "running", None), ("tool", "running", None)]  # fmt: skip
        assert [e.status for e in s.history()] == ["returned", "returned"]


def test_a_callback_that_raises_leaves_an_entry() -> None:
    def fail(prompt: str) -> str:
        raise RuntimeError("of the callback")

    with Session(memory_mb=256, on_input=fail) as s:
        with pytest.raises(RuntimeError, match="of the callback"):
            s.exec("input()")
        with pytest.raises(ValueError):
            s.exec("print('a')", on_stdout=lambda text: int(text))
        assert s.exec("1").value == 1
        statuses = [e.status for e in s.history()]
    assert len(statuses) == 3 and "running" not in statuses and statuses[2] == "returned"


def test_a_fault_is_there(s: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    s.exec("1")

    def lost(self: session_call.SessionCall, core: _core.Session) -> _core.CallResult:
        raise SandboxError("the agent is gone")

    with monkeypatch.context() as patch:
        patch.setattr(session_call.SessionCall, "send", lost)
        with pytest.raises(SandboxError, match="the agent is gone"):
            s.exec("2")
    assert [(e.status, e.error) for e in s.history()] == [
        ("returned", ""), ("fault", "SandboxError")]  # fmt: skip


def test_a_call_that_was_refused_is_not_there(s: Session) -> None:
    with pytest.raises(TypeError):
        s.exec("1", memory_mb=3)
    s.close()
    with pytest.raises(SandboxError):
        s.exec("1")
    assert s.history() == []


def test_it_is_bounded_in_number_and_in_length(s: Session) -> None:
    s.exec("#" + "é" * 20_000)
    cut = s.history()[0]
    assert len(cut.source.encode()) <= 16_390 and cut.source_size == 40_001
    for _ in range(1005):
        s.exec("1")
    entries = s.history(10**6)
    assert len(entries) == 1000 and [e.id for e in entries] == list(range(7, 1007))
    assert len(s.history()) == 100


def test_an_async_session_awaits_it() -> None:
    async def main() -> None:
        async def run_it(source: str) -> Any:
            return (await s.exec(source)).value

        async with AsyncSession(memory_mb=256, tools=[run_it]) as s:
            await s.exec("run_it('1 + 1')")
            task = asyncio.ensure_future(s.exec("kept = 1\nwhile True: pass"))
            while len(await s.history()) < 4:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await s.exec("1")
            found = [(e.id, e.within, e.kind, e.status) for e in await s.history()]
            assert found[:3] == [
                (1, None, "exec", "returned"),
                (2, 1, "tool", "returned"),
                (3, 2, "exec", "returned"),
            ]
            assert found[3] == (4, None, "exec", "cancelled")
            assert found[4] == (5, None, "exec", "returned")

    asyncio.run(asyncio.wait_for(main(), 60))
