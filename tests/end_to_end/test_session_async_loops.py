# SPDX-License-Identifier: Apache-2.0
"""AsyncSession on event loops: several at once, other ones, and those that end during a call."""

from __future__ import annotations

import asyncio
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop

import hutch
from hutch import AsyncSession, SessionBusy

FOR_EVER = "while True: pass"


def run(main: Coroutine[Any, Any, None]) -> None:
    """One that hangs fails."""
    asyncio.run(asyncio.wait_for(main, 60))


async def begun(s: AsyncSession, source: str) -> asyncio.Task[Any]:
    """An exec that certainly runs."""
    runs = asyncio.Event()
    source = "print('here', flush=True)\n" + source
    task = asyncio.ensure_future(s.exec(source, on_stdout=lambda _: runs.set()))
    await runs.wait()
    return task


# ---- several, and others


def test_sessions_on_two_loops_at_once_know_nothing_of_each_other() -> None:
    async def main(loops: list[int]) -> None:
        async def where(n: int) -> int:
            await asyncio.sleep(0)
            loops.append(id(asyncio.get_running_loop()))
            return n

        async with AsyncSession(memory_mb=256, tools=[where]) as s:
            for n in range(50):
                assert (await s.exec(f"where({n}) + 1")).value == n + 1
        assert set(loops) == {id(asyncio.get_running_loop())} and len(loops) == 50

    used: tuple[list[int], list[int]] = ([], [])
    failed: list[BaseException] = []

    def on_a_loop(loops: list[int]) -> None:
        try:
            run(main(loops))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=on_a_loop, args=(loops,)) for loops in used]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and not set(used[0]) & set(used[1])


def test_a_session_is_busy_for_another_loop_and_then_serves_it() -> None:
    async def main() -> None:
        async with AsyncSession(memory_mb=256) as s:
            await s.exec("x = 1")
            task = await begun(s, "import time\nwhile x == 1: time.sleep(0.01)")

            async def refused() -> None:
                with pytest.raises(SessionBusy):
                    await s.exec("2")

            async def served() -> None:
                outcome = await s.exec("x")
                # A busy machine may not have stopped the code in time: it was killed then.
                assert outcome.value == 1 or "x" in s.lost, outcome

            await asyncio.to_thread(asyncio.run, refused())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while True:  # until its code has ended, which this loop watches
                try:
                    await asyncio.to_thread(asyncio.run, served())
                    break
                except SessionBusy:
                    continue

    run(main())


def test_another_loop_than_that_of_asyncio_drives_calls_as_well() -> None:
    """A tool, output, a limit, a cancelled await, and an interpreter that dies, on uvloop."""

    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    async def main() -> None:
        heard: list[str] = []
        async with AsyncSession(memory_mb=256, tools=[double]) as s:
            await s.exec("x = 1")
            threads = set(os.listdir("/proc/self/task"))
            code = "import time; time.sleep(0.2); print('a'); double(21)"
            task = asyncio.ensure_future(s.exec(code, on_stdout=heard.append))
            await asyncio.sleep(0.1)
            assert set(os.listdir("/proc/self/task")) <= threads
            assert (await task).value == 42 and heard == ["a\n"]
            assert (await s.exec(FOR_EVER, timeout_sec=0.2)).limit == "time"
            running = await begun(s, FOR_EVER)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await s.exec("x")).value == 1
            assert (await s.exec("import os; os._exit(3)")).restarted
            assert (await s.exec("1 + 1")).value == 2

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(main(), 60))
    finally:
        loop.close()


# ---- a loop that ends


def test_a_session_outlives_a_loop_that_ends_in_the_middle_of_a_call() -> None:
    s = AsyncSession(memory_mb=256)

    async def begin() -> None:
        await s.exec("x = 1")
        await begun(s, FOR_EVER)

    async def go_on() -> None:
        assert (await s.exec("x")).value == 1
        await s.close()

    run(begin())
    run(go_on())


def test_a_loop_that_is_closed_in_the_middle_of_a_call_ends_its_session() -> None:
    s = AsyncSession(memory_mb=256)
    loop = asyncio.new_event_loop()

    async def begin() -> list[asyncio.Task[Any]]:
        await s.exec("x = 1")
        return [await begun(s, FOR_EVER)]

    kept = loop.run_until_complete(begin())
    loop.close()
    with pytest.raises(RuntimeError):
        kept[0].cancel()  # there is no loop for it

    async def go_on() -> None:
        with pytest.raises(hutch.SandboxStartupError, match="its event loop ended during a call"):
            await s.exec("x")
        await s.close()
        await s.close()

    run(go_on())
    assert s.info()["closed"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", ["code", "tool", "nested", "files"])
def test_a_process_ends_though_its_loop_was_closed_in_the_middle(
    where: str, tmp_path: pathlib.Path
) -> None:
    program = f"""
import asyncio, sys
from hutch import AsyncSession
where = {where!r}

async def begin():
    waiting = asyncio.Event()

    async def wait(source: str) -> None:
        if source:
            await s.exec(source)
        waiting.set()
        await asyncio.sleep(60)

    s = AsyncSession(memory_mb=256, tools=[wait])
    await s.exec("1")
    if where == "code":
        tasks.append(asyncio.ensure_future(s.exec("while True: pass")))
        await asyncio.sleep(0.2)
    elif where == "files":
        tasks.append(asyncio.ensure_future(s.files.upload({str(tmp_path)!r})))
        await asyncio.sleep(0.02)
    else:
        source = "wait('')" if where == "tool" else "wait(\\"wait('')\\")"
        tasks.append(asyncio.ensure_future(s.exec(source)))
        await waiting.wait()
    sessions.append(s)

tasks, sessions = [], []
loop = asyncio.new_event_loop()
loop.run_until_complete(begin())
loop.close()
print("done", flush=True)
"""
    for n in range(8):
        (tmp_path / str(n)).write_bytes(b"x" * (8 << 20))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout == "done\n", done


def test_a_forked_child_makes_its_own() -> None:
    s = AsyncSession(memory_mb=256)

    async def refused() -> None:
        with pytest.raises(hutch.SandboxStartupError, match="parent of this process"):
            await s.exec("1")

    async def use(value: int) -> None:
        assert (await s.exec(str(value))).value == value

    async def end() -> None:
        await s.close()

    run(use(1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(refused())
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run(use(2))
    run(end())


def test_without_a_loop_of_asyncio_it_says_so() -> None:
    """As under trio, which drives coroutines of its own."""
    s = AsyncSession()
    for coroutine in (s.exec("1"), s.get("x"), s.files.list(), s.reset()):
        with pytest.raises(RuntimeError, match="an event loop of asyncio, and none is running"):
            coroutine.send(None)
