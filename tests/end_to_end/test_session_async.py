# SPDX-License-Identifier: Apache-2.0
"""AsyncSession: what drives its calls, and what becomes of them when a task or a loop ends."""

from __future__ import annotations

import asyncio
import os
import pathlib
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

import hutch
from hutch import AsyncSession, SessionBusy, Tool

FOR_EVER = "while True: pass"
STUBBORN = "sum(range(10**12))"  # which looks for no signal


def run(main: Coroutine[Any, Any, None]) -> None:
    """One that hangs fails."""
    asyncio.run(asyncio.wait_for(main, 60))


async def ended(task: asyncio.Task[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


async def begun(s: AsyncSession, source: str) -> asyncio.Task[Any]:
    """An exec that certainly runs."""
    task = asyncio.ensure_future(s.exec("print('here', flush=True)\n" + source, on_stdout=here))
    heard.clear()
    while not heard:
        await asyncio.sleep(0.01)
    return task


heard: list[str] = []
here = heard.append


# ---- threads


def test_calls_at_once_of_many_sessions_take_no_thread() -> None:
    async def main() -> None:
        sessions = [AsyncSession(memory_mb=64) for _ in range(50)]
        await asyncio.gather(*(s.exec("x = 1") for s in sessions))
        before = set(os.listdir("/proc/self/task"))
        during = []

        async def count() -> None:
            while True:
                during.append(frozenset(os.listdir("/proc/self/task")))
                await asyncio.sleep(0.02)

        counting = asyncio.ensure_future(count())
        source = "import time; time.sleep(0.5); x += 1; x"
        outcomes = await asyncio.gather(*(s.exec(source) for s in sessions))
        assert [outcome.value for outcome in outcomes] == [2] * 50
        await asyncio.gather(*(s.set("y", n) for n, s in enumerate(sessions)))
        assert await asyncio.gather(*(s.get("y") for s in sessions)) == list(range(50))
        await asyncio.gather(*(s.files.write("f", "x") for s in sessions))
        assert all(await asyncio.gather(*(s.files.exists("f") for s in sessions)))
        counting.cancel()
        assert len(during) > 10 and all(one <= before for one in during), (before, during)
        await asyncio.gather(*(s.close() for s in sessions))
        assert set(os.listdir("/proc/self/task")) <= before

    run(main())


def test_the_loop_goes_on_while_a_session_starts_and_is_restarted() -> None:
    async def main() -> None:
        rounds = 0

        async def count() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())

        async def grows(wait: Coroutine[Any, Any, Any]) -> Any:
            before = rounds
            result = await wait
            assert rounds > before + 3  # an await that blocks has one or two
            return result

        async with AsyncSession(memory_mb=256) as s:
            await grows(s.exec("1"))
            await grows(s.reset())
            assert (await grows(s.exec(STUBBORN, timeout_sec=0.1))).restarted
            outcome = await grows(s.exec("import os; os._exit(3)"))
            assert outcome.restarted and outcome.exit_code == 3
            await s.files.write("big", b"x" * 5_000_000)
            assert len(await grows(s.files.read_bytes("big"))) == 5_000_000
        counting.cancel()

    run(main())


# ---- ends


def test_what_ends_a_call_is_reported_as_ever() -> None:
    async def main() -> None:
        async with AsyncSession(memory_mb=256) as s:
            await s.exec("x = 1")
            assert s.info()["started"] and s.info()["execs"] == 1
            assert await s.info() == s.info() and type(await s.info()) is dict
            late = await s.exec(FOR_EVER, timeout_sec=0.3)
            assert late.limit == "time" and not late.restarted
            assert (await s.exec("x")).value == 1
            big = await s.exec("y = bytearray(1 << 30)")
            assert not big.ok
            await s.set("z", 1)
            dead = await s.exec("import os; print('last', flush=True); os.kill(os.getpid(), 9)")
            assert dead.restarted and dead.signal == 9 and dead.stdout == "last\n"
            assert s.lost[-1] == "z"
            outcome = await s.exec("'again'")
            assert outcome.value == "again" and outcome.usage.cpu_sec >= 0
            assert outcome.timings["run"] > 0
            large = await s.exec("bytes(3_000_000)", result_mb=1)
            assert large.limit == "result"

    run(main())


def test_a_container_goes_on_after_a_cancel_that_its_code_does_not_heed() -> None:
    async def main() -> None:
        async with AsyncSession(memory_mb=256, isolation="container") as s:
            await s.exec("x = 1")
            if not s.info()["restartable"]:
                pytest.skip("an interpreter is not replaced here")
            running = await begun(s, STUBBORN)
            running.cancel()
            await ended(running)
            assert (await s.exec("1")).restarted and s.lost == ["x"]

    run(main())


def test_a_cell_that_dies_ends_the_session() -> None:
    """Under gVisor and the like, and here as everything of the session is killed."""

    async def main() -> None:
        async with AsyncSession(memory_mb=256, isolation="container") as s:
            await s.exec("1")
            if s.info()["restartable"]:
                pytest.skip("an interpreter is replaced here")
            outcome = await s.exec("import os; os._exit(3)")
            assert not outcome.ok
            with pytest.raises(hutch.SandboxStartupError, match="has ended"):
                await s.exec("1")

    run(main())


def test_output_comes_on_the_threads_loop_whatever_ends_the_call() -> None:
    async def main() -> None:
        came: list[tuple[str, int]] = []

        def hear(text: str) -> None:
            came.append((text, threading.get_ident()))

        async with AsyncSession(memory_mb=256) as s:
            await s.exec("print('a')", on_stdout=hear)
            await s.exec("import os; print('b', flush=True); os._exit(1)", on_stdout=hear)
            assert "".join(text for text, _ in came) == "a\nb\n"
            assert {thread for _, thread in came} == {threading.get_ident()}

            def fail(_: str) -> None:
                raise LookupError("of the callback")

            with pytest.raises(LookupError, match="of the callback"):
                await s.exec("print('c')\nimport time; time.sleep(20)", on_stdout=fail)
            assert (await s.exec("1")).value == 1

    run(main())


# ---- a task that is cancelled


@pytest.mark.parametrize("awaits", [True, False])
def test_an_interrupt_may_be_awaited(awaits: bool) -> None:
    async def main() -> None:
        async with AsyncSession(memory_mb=128) as s:
            code = asyncio.ensure_future(
                s.exec("open('up', 'w').close()\nimport time\ntime.sleep(600)")
            )
            await s.bash("until [ -e up ]; do sleep 0.01; done")
            if awaits:
                await s.interrupt()
            else:
                s.interrupt()
            error = (await code).error
            assert error is not None and error.type == "KeyboardInterrupt"

    asyncio.run(main())


def test_a_cancelled_await_interrupts_the_code_and_the_session_goes_on() -> None:
    async def main() -> None:
        async with AsyncSession(memory_mb=256) as s:
            await s.exec("x = 1")
            task = await begun(s, "x += 1\n" + FOR_EVER)
            with pytest.raises(SessionBusy):
                await s.exec("1")
            task.cancel()
            await ended(task)
            assert (await s.exec("x")).value == 2
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(s.exec("import time; time.sleep(60)"), 0.2)
            assert (await s.exec("x")).value == 2

    run(main())


def test_code_that_does_not_end_when_it_is_cancelled_is_killed() -> None:
    async def main() -> None:
        async with AsyncSession(memory_mb=256) as s:
            await s.files.write("kept", "there")
            task = await begun(s, "x = 1\n" + STUBBORN)
            task.cancel()
            await ended(task)
            assert not await s.has("x")
            assert await s.files.read("kept") == "there"

    run(main())


def test_the_first_outcome_that_somebody_gets_tells_of_a_restart_after_cancels() -> None:
    """Values, files and further cancels come between."""

    async def main() -> None:
        waiting = asyncio.Event()

        async def tool() -> None:
            waiting.set()
            await asyncio.sleep(600)

        async with AsyncSession(memory_mb=256, tools=[tool]) as s:

            async def cancelled(running: asyncio.Task[Any]) -> None:
                running.cancel()
                await ended(running)

            async def is_told(lost: list[str]) -> None:
                first, second = await s.exec("1 + 1"), await s.exec("x = 1")
                assert first.ok and first.restarted and s.lost == lost
                assert not second.restarted

            await cancelled(await begun(s, STUBBORN))  # the very first one
            await is_told([])
            await cancelled(await begun(s, STUBBORN))
            await is_told(["x"])
            await cancelled(await begun(s, STUBBORN))
            await cancelled(asyncio.ensure_future(s.exec("1")))
            await is_told(["x"])
            await cancelled(await begun(s, STUBBORN))
            assert await s.get("x") is None and await s.files.list() == []
            await s.set("y", 1)
            assert await s.call(lambda: 2) == 2
            await is_told(["x"])
            waits = "while True:\n  try: tool()\n  except BaseException: pass"
            waiting.clear()
            running = asyncio.ensure_future(s.exec(waits))
            await waiting.wait()
            await cancelled(running)
            await is_told(["x", "y"])
            await cancelled(await begun(s, STUBBORN))
            told = await s.bash("true")
            assert told.restarted and not (await s.exec("1")).restarted
            await cancelled(await begun(s, STUBBORN))
            await s.reset()
            assert not (await s.exec("1")).restarted, "as was asked for"

    run(main())


def test_an_await_that_is_cancelled_while_its_session_starts_costs_nothing() -> None:
    async def main(turns: int) -> None:
        async with AsyncSession(memory_mb=256) as s:
            task = asyncio.ensure_future(s.exec(FOR_EVER))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await ended(task)
            assert (await s.exec("1 + 1")).value == 2 and s.lost == []

    for turns in (2, 3, 4) * 8:  # the interrupt comes before, while and after its code is prepared
        run(main(turns))


def test_the_files_of_a_cancelled_upload_are_whole_or_not_there(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        (tmp_path / "large").write_bytes(b"x" * (64 << 20))
        async with AsyncSession(memory_mb=256) as s:
            await s.exec("1")
            task = asyncio.ensure_future(s.files.upload(tmp_path / "large"))
            while not any(one.name == "hutch-wait" for one in threading.enumerate()):
                await asyncio.sleep(0)  # until its thread moves the file
            task.cancel()
            await ended(task)
            names = await s.files.list()
            assert names in ([], ["large"]), names
            if names:
                assert (await s.files.stat("large"))["size"] == 64 << 20

    run(main())


def test_a_task_that_was_cancelled_just_now_is_in_nobodys_way() -> None:
    async def main() -> None:
        async with AsyncSession(memory_mb=256) as s:
            await s.exec("x = 1")
            running = await begun(s, FOR_EVER)
            running.cancel()
            waiting = asyncio.ensure_future(s.exec("x = 2"))
            await asyncio.sleep(0)
            waiting.cancel()
            assert (await s.exec("x")).value == 1
            await ended(running)
            await ended(waiting)

    run(main())


# ---- a session that is closed in the middle


@pytest.mark.parametrize("source", [FOR_EVER, STUBBORN, "tool()"])
def test_closing_ends_the_call_that_runs(source: str) -> None:
    async def tool() -> None:
        print("here")
        await asyncio.sleep(600)

    async def main() -> None:
        s = AsyncSession(memory_mb=256, tools=[tool])
        await s.exec("1")
        running = await begun(s, source)
        await s.close()
        assert running.done() and not (await running).ok
        assert s.info()["closed"] and not s.info()["started"]
        with pytest.raises(hutch.SandboxStartupError, match="it was closed"):
            await s.exec("1")
        await s.close()

    run(main())


def test_a_tool_that_was_asked_for_before_its_call_was_cancelled_is_not_begun_after() -> None:
    begun: list[str] = []

    async def tool() -> None:
        begun.append("tool")
        await asyncio.sleep(600)

    async def main() -> None:
        async with AsyncSession(memory_mb=256, tools=[tool]) as s:
            await s.exec("1")
            is_before = False
            while not is_before:
                begun.clear()
                calling = asyncio.ensure_future(s.exec("tool()"))
                for _ in range(5):
                    await asyncio.sleep(0)
                is_before = not begun  # this thread was not kept waiting by others
                time.sleep(0.2)  # its question has come, and the loop has not seen it
                calling.cancel()
                await ended(calling)
            assert (await s.exec("1 + 1")).value == 2 and not begun

    run(main())


def test_an_error_beside_a_call_is_what_the_context_raises() -> None:
    async def main() -> None:
        with pytest.raises(LookupError, match="mine"):
            async with AsyncSession(memory_mb=256) as s:
                await begun(s, FOR_EVER)
                raise LookupError("mine")

    run(main())


def test_a_tool_closes_the_session_that_waits_for_it() -> None:
    async def main() -> None:
        async def close() -> None:
            await s.close()

        s = AsyncSession(memory_mb=256, tools=[close])
        outcome = await s.exec("close()\nwhile True: pass", timeout_sec=20)
        assert not outcome.ok and outcome.limit is None, outcome
        assert s.info()["closed"]

    run(main())


# ---- tools


def test_tools_run_on_the_loop_and_its_thread() -> None:
    threads: list[int] = []

    def plain(n: int) -> int:
        threads.append(threading.get_ident())
        return n + len(asyncio.all_tasks())

    async def waits(n: int) -> int:
        await asyncio.sleep(0.01)
        return plain(n)

    async def main() -> None:
        async with AsyncSession(
            memory_mb=256, tools=[plain, waits], on_input=lambda prompt: prompt + "!"
        ) as s:
            outcome = await s.exec("a = plain(1)\nb = waits(2)\n(a > 1, b > 2, input('c'))")
            assert outcome.value == (True, True, "c!"), outcome
            assert set(threads) == {threading.get_ident()}
            wrong = await s.exec("plain('1')")
            assert wrong.error is not None and wrong.error.type == "TypeError"

    run(main())


def test_a_tool_with_a_time_limit_does_not_block_the_loop() -> None:
    go_on = threading.Event()

    def slow() -> str:
        assert go_on.wait(20)
        return "slow"

    async def main() -> None:
        async with AsyncSession(memory_mb=256, tools=[Tool(slow, timeout_sec=20)]) as s:
            asyncio.get_running_loop().call_later(0.1, go_on.set)
            assert (await s.exec("slow()")).value == "slow"

    run(main())


def test_a_nested_exec_of_an_async_tool_goes_as_deep_as_that_of_any_other() -> None:
    async def main() -> None:
        deepest = 0

        async def down(n: int) -> int:
            nonlocal deepest
            deepest = max(deepest, n)
            try:
                return int((await s.exec(f"down({n + 1})")).unwrap())
            except SessionBusy:
                return n

        async with AsyncSession(memory_mb=256, tools=[down]) as s:
            assert (await s.exec("down(0)")).value == 16 == deepest
            assert (await s.exec("1")).value == 1

    run(main())


def test_an_async_tool_uses_the_files_of_its_session() -> None:
    async def main() -> None:
        async def copy(path: str) -> list[str]:
            content = await s.files.read(path)
            await s.files.write("copy", content + "!")
            packed = await s.files.tar()
            await s.files.untar(packed, "again")
            return await s.files.glob("again/*")

        async with AsyncSession(memory_mb=256, tools=[copy]) as s:
            await s.files.write("f", "text")
            assert (await s.exec("copy('f')")).value == ["again/copy", "again/f"]
            assert (await s.exec("open('copy').read()")).value == "text!"

    run(main())


def test_a_cancelled_await_cancels_the_tool_that_the_code_waits_for() -> None:
    async def main() -> None:
        waiting = asyncio.Event()
        cancelled: list[str] = []

        async def wait(deeper: bool) -> None:
            try:
                if deeper:
                    await s.exec("wait(False)")
                waiting.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append("deeper" if deeper else "tool")
                raise

        async with AsyncSession(memory_mb=256, tools=[wait]) as s:
            await s.exec("x = 1")
            for source, expected in [("wait(False)", ["tool"]), ("wait(True)", ["tool", "deeper"])]:
                waiting.clear()
                cancelled.clear()
                task = asyncio.ensure_future(s.exec(source))
                await waiting.wait()
                task.cancel()
                await ended(task)
                assert (await s.exec("x")).value == 1
                assert sorted(cancelled) == sorted(expected)

    run(main())


def test_a_nested_exec_that_is_cancelled_goes_on_to_its_end() -> None:
    async def main() -> None:
        async def bounded(source: str) -> str:
            try:
                await asyncio.wait_for(s.exec(source), 0.2)
            except asyncio.TimeoutError:
                return "too long"
            return "in time"

        async with AsyncSession(memory_mb=256, tools=[bounded]) as s:
            late = "import time; time.sleep(0.4); y = 1"
            outcome = await s.exec(f"[bounded('1'), bounded({late!r}), y, bounded('x = 2'), x]")
            assert outcome.value == ["in time", "too long", 1, "in time", 2], outcome

    run(main())


def test_the_clock_stands_while_an_async_tool_runs_if_its_time_is_excluded() -> None:
    async def main() -> None:
        async def wait() -> None:
            await asyncio.sleep(2.4)

        for tool_time in ("included", "excluded"):
            async with AsyncSession(
                memory_mb=256, timeout_sec=2, tools=[wait], tool_time=tool_time
            ) as s:
                await s.exec("1")
                outcome = await s.exec("wait()\nimport time; time.sleep(0.2)")
                assert outcome.ok == (tool_time == "excluded"), outcome

    run(main())
