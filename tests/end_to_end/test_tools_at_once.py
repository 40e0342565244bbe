# SPDX-License-Identifier: Apache-2.0
"""Async tools that run at the same time, for coroutines and for threads of the code inside."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from support import endings, until

import hutch
from hutch import AsyncSession, StopExec, Tool, sandbox
from hutch._calls.within import _within
from hutch._outcome import STAGES

BEGIN = """
import asyncio, concurrent.futures, threading
def in_threads(function, values):
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        return list(threads.map(function, values))
"""


class Meeting:
    """A tool that returns once so many of its calls run, which never do where they take turns."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.running = 0
        self.most = 0
        self.cancelled: list[str] = []
        self._all = asyncio.Event()

    def begin_again(self) -> None:
        """None has run yet."""
        self.most = 0
        self._all.clear()

    def count(self) -> int:
        """How many run."""
        return self.running

    async def meet(self, name: str) -> str:
        """Waits for the others."""
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.running == self.wanted:
                self._all.set()
            await self._all.wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self.running -= 1
        return f"met {name}"


def in_session(
    work: Callable[[AsyncSession, Meeting], Awaitable[None]],
    wanted: int = 4,
    more: Any = (),
    isolation: Any = "cell",
) -> None:
    async def main() -> None:
        meeting = Meeting(wanted)
        tools = [meeting.meet, meeting.count, *more]
        async with AsyncSession(
            memory_mb=256, timeout_sec=60, tools=tools, isolation=isolation
        ) as s:
            await s.exec(BEGIN)
            await work(s, meeting)

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["cell", "container"])
@pytest.mark.parametrize(
    "source",
    [
        "await asyncio.gather(*(meet(c) for c in 'abcd'))",
        "in_threads(meet, 'abcd')",
        "await asyncio.gather(meet('a'), meet('b'), *(asyncio.to_thread(meet, c) for c in 'cd'))",
        "import hutch_tools; await asyncio.gather(*(hutch_tools.call('meet', c) for c in 'abcd'))",
        "tasks = [asyncio.create_task(meet(c)) for c in 'abcd']; [await one for one in tasks]",
        "await asyncio.to_thread(in_threads, meet, 'abcd')",
    ],
)
def test_they_run_at_the_same_time(source: str, isolation: Any) -> None:
    async def work(s: AsyncSession, meeting: Meeting) -> None:
        outcome = await s.exec(source)
        assert outcome.value == [f"met {c}" for c in "abcd"], outcome
        assert meeting.most == 4

    in_session(work, isolation=isolation)


def test_without_a_loop_a_call_returns_its_result_and_with_one_it_is_awaited() -> None:
    async def work(s: AsyncSession, meeting: Meeting) -> None:
        assert (await s.exec("meet('a')")).value == "met a"
        assert (await s.exec("await meet('b')")).value == "met b"
        wrong = await s.exec("async def f():\n  return meet('c') + '!'\nawait f()")
        assert wrong.error is not None and wrong.error.type == "TypeError"
        assert Tool(meeting.meet).stub().startswith("async def meet(name: str) -> str:")

    in_session(work, wanted=1)


def test_one_that_stops_the_code_may_do_so_in_a_group() -> None:
    class Group(BaseException):  # as task groups of Python 3.11 raise it
        def __init__(self, *exceptions: BaseException) -> None:
            self.exceptions = exceptions

    async def finish() -> None:
        raise Group(StopExec(), Group(StopExec()))

    async def fail() -> None:
        raise Group(StopExec(), ValueError())

    async def work(s: AsyncSession, meeting: Meeting) -> None:
        outcome = await s.exec("kept = 1\nawait finish()\nkept = 2")
        assert outcome.ok and outcome.value is None and await s.get("kept") == 1
        with pytest.raises(Group):
            await s.exec("await fail()")

    in_session(work, more=[finish, fail])


def test_one_that_is_not_awaited_shows_its_name() -> None:
    async def work(s: AsyncSession, meeting: Meeting) -> None:
        shown = await s.exec("await asyncio.sleep(0)\nmeet('x')")
        assert shown.text.startswith("<coroutine object meet at 0x"), shown

    in_session(work)


def test_other_tools_take_turns_meanwhile() -> None:
    names: list[str] = []

    def note(name: str) -> int:
        names.append(name)
        return len(names)

    async def work(s: AsyncSession, meeting: Meeting) -> None:
        source = (
            "first = [asyncio.create_task(meet(c)) for c in 'ab']\nawait asyncio.sleep(0)\n"
            "counts = [note(c) for c in 'xyz'] + in_threads(note, 'pqr')\n"
            "[await meet('c'), *[await one for one in first], sorted(counts)]"
        )
        outcome = await s.exec(source)
        assert outcome.value == ["met c", "met a", "met b", [1, 2, 3, 4, 5, 6]], outcome

    in_session(work, wanted=3, more=[note])


def test_no_more_than_sixteen_do_and_all_are_answered() -> None:
    async def work(s: AsyncSession, meeting: Meeting) -> None:
        outcome = await s.exec("await asyncio.gather(*(meet(str(i)) for i in range(50)))")
        assert outcome.value == [f"met {i}" for i in range(50)], outcome
        assert meeting.most == 16
        assert (await s.exec("in_threads(meet, map(str, range(40)))")).value[-1] == "met 39"

    in_session(work, wanted=16)


def test_answers_come_in_any_order_and_size() -> None:
    sizes = [10, 300_000, 20, 70_000, 500_000, 65_000, 1_000_000, 5]
    waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def of_size(size: int) -> bytes:
        future = asyncio.get_running_loop().create_future()
        waiting.append((size, future))
        if len(waiting) == len(sizes):
            for _, one in reversed(waiting):  # the last is the first
                one.set_result(None)
        await future
        return size.to_bytes(4, "little") * (size // 4)

    async def work(s: AsyncSession, meeting: Meeting) -> None:
        check = (
            "[data == size.to_bytes(4, 'little') * (size // 4) for size, data in zip(sizes, {})]"
        )
        for how in ("await asyncio.gather(*map(of_size, sizes))", "in_threads(of_size, sizes)"):
            waiting.clear()
            outcome = await s.exec(f"sizes = {sizes}\n{check.format(how)}")
            assert outcome.value == [True] * len(sizes), outcome

    in_session(work, more=[of_size])


def test_an_error_of_one_is_that_of_one() -> None:
    async def half(n: int) -> int:
        await asyncio.sleep(0)
        if n % 2:
            raise LookupError(f"no half of {n}")
        return n // 2

    async def work(s: AsyncSession, meeting: Meeting) -> None:
        source = "await asyncio.gather(*map(half, [2, 3, 4]), half('5'), return_exceptions=True)"
        outcome = await s.exec(f"[str(one) for one in {source}]")
        assert outcome.value == ["1", "no half of 3", "2", "n must be int, not str"], outcome

    in_session(work, more=[half])


def test_one_that_stops_the_code_ends_it_and_costs_no_names() -> None:
    async def finish(answer: str) -> None:
        raise StopExec

    async def work(s: AsyncSession, meeting: Meeting) -> None:
        await s.exec("kept = 1")
        outcome = await s.exec("await asyncio.gather(meet('a'), finish('42'), meet('b'))\nkept = 2")
        assert outcome.ok and outcome.value is None, outcome
        assert await s.get("kept") == 1
        assert meeting.cancelled == ["a"]  # the other had not begun

    in_session(work, more=[finish])


class Mine(BaseException):
    pass


def test_an_error_of_approve_or_of_a_callback_is_raised_after_the_code_was_ended() -> None:
    async def stop(text: str) -> None:
        raise Mine(text)

    async def main() -> None:
        async with AsyncSession(memory_mb=256, tools=[stop]) as s:
            await s.exec("import asyncio; kept = 1")
            with pytest.raises(Mine, match="by hand"):
                await s.exec("await asyncio.gather(stop('by hand'))")
            assert await s.get("kept") == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "source",
    [
        "task = asyncio.create_task(meet('a'))\nwhile not count(): await asyncio.sleep(0)\n'left'",
        "task = asyncio.ensure_future(meet('a'))\nwhile not count():\n"
        "  await asyncio.wait([task], timeout=0.001)\n'left'",
    ],
)
def test_what_the_code_leaves_under_way_is_cancelled_with_it(source: str) -> None:
    async def work(s: AsyncSession, meeting: Meeting) -> None:
        assert (await s.exec(source)).value == "left"
        assert meeting.running == 0
        assert meeting.cancelled == ["a"]
        meeting.cancelled.clear()
        late = await s.exec("while True: await asyncio.gather(meet('b'))", timeout_sec=2.5)
        assert late.limit == "time" and not late.restarted
        assert meeting.running == 0 and meeting.cancelled == ["b"]
        meeting.wanted = 1
        assert (await s.exec("await meet('c')")).value == "met c"

    in_session(work)


def test_a_task_that_waits_for_one_at_the_end_learns_that_in_the_next_exec() -> None:
    async def work(s: AsyncSession, meeting: Meeting) -> None:
        await s.exec("task = asyncio.create_task(meet('a')); await asyncio.sleep(0)")
        outcome = await s.exec("try: await task\nexcept RuntimeError as error: found = str(error)")
        assert outcome.ok and await s.get("found") == "the call that asked has ended"

    in_session(work)


def test_threads_that_never_stop_asking_do_not_keep_the_code_from_its_end() -> None:
    async def soon(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def work(s: AsyncSession, meeting: Meeting) -> None:
        outcome = await s.exec(
            "errors = []\nfirst = threading.Barrier(21)\ndef ask():\n  first.wait()\n"
            "  try:\n    while True: soon(1)\n"
            "  except RuntimeError as error: errors.append(str(error))\n"
            "threads = [threading.Thread(target=ask, daemon=True) for _ in range(20)]\n"
            "for one in threads: one.start()\nfirst.wait()\nsoon(2)",
            timeout_sec=10,
        )
        assert outcome.value == 2, outcome
        ended = await s.exec("for one in threads: one.join(5)\nlen(errors)")
        assert ended.value == 20 and not ended.restarted, ended
        assert (await s.exec("soon(3)")).value == 3

    in_session(work, more=[soon])


ASKING = """
import sys
sys.setswitchinterval(1e-6)
answers, others = set(), set()
def ask():
    while True:
        try: answers.add(soon(1))
        except RuntimeError: pass  # no call runs
        except BaseException as error: others.add(repr(error))
async def ask_in_loop():
    while True:
        try: answers.add(await soon(1))
        except RuntimeError: await asyncio.sleep(0)
        except BaseException as error: others.add(repr(error))
for begin in [ask, ask, lambda: asyncio.run(ask_in_loop())]:
    threading.Thread(target=begin, daemon=True).start()
"""


def test_threads_that_ask_across_calls_take_nothing_of_the_next_one() -> None:
    async def soon(n: int) -> int:
        return n

    async def work(s: AsyncSession, meeting: Meeting) -> None:
        await s.exec(ASKING)
        for i in range(100):
            outcome = await s.exec(f"soon({i})", timeout_sec=10)
            assert outcome.value == i and not outcome.restarted, outcome
        assert (await s.exec("answers, others")).value == ({1}, set())

    in_session(work, more=[soon])


def test_an_interrupt_of_asyncio_itself_keeps_no_later_tool_from_its_answer() -> None:
    async def work(s: AsyncSession, meeting: Meeting) -> None:
        await s.exec(
            "await asyncio.sleep(0)\nloop = asyncio.get_running_loop()\n"
            "loop._selector._selector.register(3, 1)  # as it is left, where this is interrupted"
        )
        for _ in range(2):
            assert (await s.exec("await meet('a')")).value == "met a"

    in_session(work, wanted=1)


def test_code_that_calls_many_is_not_kept_by_those_that_wait_for_a_place() -> None:
    async def run(source: str) -> Any:
        return (await s.exec(source)).value

    async def main() -> None:
        nonlocal s
        async with AsyncSession(memory_mb=256, timeout_sec=10, tools=[run]) as s:
            await s.exec(BEGIN)
            inner = "sum(await asyncio.gather(*map(run, '12345')))"
            outcome = await s.exec(f"await asyncio.gather(*[run({inner!r}) for _ in range(20)])")
            assert outcome.value == [15] * 20, outcome

    s: Any = None
    asyncio.run(main())


LEFT = """
task = asyncio.create_task(run('1'))
await asyncio.sleep(0)
for _ in range(50): count()  # the code has come
"""


@pytest.mark.parametrize(
    "source",
    [
        "task.cancel()\nawait asyncio.wait([task])\nawait run('2')",
        "threading.Thread(target=run, args=['2']).start()\nwhile count() < 2: pass\n2",
    ],
)
def test_code_that_nobody_runs_any_more_keeps_no_other_from_its_end(source: str) -> None:
    asked = 0

    def count() -> int:
        return asked

    async def run(source: str) -> Any:
        nonlocal asked
        asked += 1
        return (await s.exec(source)).value

    async def main() -> None:
        nonlocal s
        async with AsyncSession(memory_mb=256, timeout_sec=10, tools=[run, count]) as s:
            await s.exec(BEGIN)
            outcome = await s.exec(LEFT + source)
            assert outcome.value == 2 and not outcome.restarted, outcome

    s: Any = None
    asyncio.run(main())


def test_cancelling_what_awaits_one_cancels_it() -> None:
    async def work(s: AsyncSession, meeting: Meeting) -> None:
        source = (
            "for i in range(40):\n"
            "  task = asyncio.ensure_future(meet(str(i)))\n"
            "  while not count(): await asyncio.sleep(0)\n"
            "  task.cancel()\n  await asyncio.wait([task])\n"
            "  while count(): await asyncio.sleep(0)\n"
            "task.cancelled()"
        )
        assert (await s.exec(source)).value is True
        assert meeting.most == 1 and meeting.cancelled == [str(i) for i in range(40)]

    in_session(work)


def test_each_may_use_the_session_that_waits_for_it() -> None:
    async def run(source: str) -> Any:
        await asyncio.sleep(0.001)
        first = await s.exec(source)
        await asyncio.sleep(0.001)
        return [first.value, (await s.exec(f"print({source!r}); {source}")).value]

    async def main() -> None:
        nonlocal s
        async with AsyncSession(memory_mb=256, timeout_sec=60, tools=[run]) as s:
            await s.exec(BEGIN)
            for how in (
                "await asyncio.gather(*map(run, sources))",
                "in_threads(run, sources)",
                "await asyncio.gather(*(asyncio.to_thread(run, one) for one in sources))",
            ):
                outcome = await s.exec(f"sources = ['1', 'n', '3', 'n * n']\nn = 2\n{how}")
                assert outcome.value == [[1, 1], [2, 2], [3, 3], [4, 4]], outcome
                assert sorted(outcome.stdout.split("\n")) == ["", "1", "3", "n", "n * n"]
            deeper = await s.exec(
                "await asyncio.gather(run('run(\"1\")'), run('await run(\"2\")'), run('3'))"
            )
            assert deeper.value == [[[1, 1]] * 2, [[2, 2]] * 2, [3, 3]], deeper
            entries = {entry.id: entry for entry in await s.history(1000)}
            for entry in entries.values():
                inner = entry.kind == "exec" and entry.within is not None
                if inner:
                    tool = entries[entry.within]  # type: ignore[index]
                    assert tool.kind == "tool"
                    text = entry.source.partition(";")[2].strip() or entry.source
                    assert text in tool.source.replace("\\", "") or "run" in text

    s: Any = None
    asyncio.run(main())


def test_many_may_run_code_that_calls_them_again() -> None:
    async def run(source: str) -> Any:
        return (await s.exec(source)).value

    async def main() -> None:
        nonlocal s
        async with AsyncSession(memory_mb=256, timeout_sec=20, tools=[run]) as s:
            await s.exec(BEGIN)
            for how in ("await asyncio.gather(*map(run, sources))", "in_threads(run, sources)"):
                for form in ("await run('{}')", "run('{}')"):
                    sources = [form.format(i) for i in range(16)]
                    outcome = await s.exec(f"sources = {sources}\n{how}")
                    assert outcome.value == [*range(16)], outcome
            only = await s.exec(f"await asyncio.gather(*map(run, {sources}))")
            assert only.ok
            entries = {entry.id: entry for entry in await s.history(1000)}
            latest = max(entry.id for entry in entries.values() if entry.within is None)
            called = [one for one in entries.values() if one.within == latest]
            assert [one.kind for one in called] == ["tool"] * 16

    s: Any = None
    asyncio.run(main())


def test_one_that_runs_code_learns_that_the_call_has_ended() -> None:
    ended: list[type] = []

    async def run(source: str) -> Any:
        try:
            return (await s.exec(source)).value
        except BaseException as error:
            ended.append(type(error))
            raise

    async def main() -> None:
        nonlocal s
        async with AsyncSession(memory_mb=256, timeout_sec=60, tools=[run]) as s:
            await s.exec(BEGIN)
            outcome = await s.exec(
                "await asyncio.gather(run('import os; os._exit(3)'), run('1'), run('2'))"
            )
            assert outcome.status == "died" and outcome.restarted
            assert StopExec in ended
            assert (await s.exec("1 + 1")).value == 2

    s: Any = None
    asyncio.run(main())


def test_tools_of_functions_may_be_awaited_too() -> None:
    async def later(n: int) -> int:
        await asyncio.sleep(0.001)
        return n + 1

    @sandbox(tools=[later])
    async def work(n: int) -> Any:
        return [await later(n), *await asyncio.gather(later(5), later(6))]

    @sandbox(tools=[later])
    def at_once(n: int) -> Any:
        return later(n)

    async def main() -> None:
        assert await work(1) == [2, 6, 7]
        assert await at_once.aio(1) == 2
        program = "import asyncio\nasync def main(): print(await later(4))\nasyncio.run(main())"
        assert (await hutch.run_aio(program, tools=[later])).stdout == "5\n"

    asyncio.run(main())


def test_the_clock_stands_while_any_of_them_runs_if_their_time_is_excluded() -> None:
    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def main() -> None:
        async with AsyncSession(
            memory_mb=256, timeout_sec=2.5, tools=[wait], tool_time="excluded"
        ) as s:
            await s.exec("import asyncio")
            assert (await s.exec("await asyncio.gather(wait(0.1), wait(3.5), wait(0.2))")).ok
            late = await s.exec("await asyncio.gather(wait(0.1))\nawait asyncio.sleep(60)")
            assert late.limit == "time"

    asyncio.run(main())


def in_function(
    work: Callable[[Callable[..., Awaitable[Any]], Meeting], Awaitable[None]],
    wanted: int = 4,
    more: Any = (),
    **keywords: Any,
) -> None:
    """`run` gives the Outcome of a program."""

    async def main() -> None:
        meeting = Meeting(wanted)
        tools = [meeting.meet, meeting.count, *more]

        async def run(source: str, **more: Any) -> Any:
            of_all = {"memory_mb": 256, "timeout_sec": 60, "tools": tools, **keywords}
            return await hutch.run_aio(BEGIN + source, **{**of_all, **more})

        await work(run, meeting)

    asyncio.run(main())


def test_those_of_functions_run_at_the_same_time(rung: Any) -> None:
    async def main() -> None:
        meeting = Meeting(4)
        with_tools = sandbox(tools=[meeting.meet], isolation=rung, memory_mb=256)

        @with_tools
        async def gather(names: str) -> Any:
            import asyncio

            return await asyncio.gather(*(meet(c) for c in names))  # type: ignore[name-defined] # noqa: F821

        @with_tools
        def threads(names: str) -> Any:
            import concurrent.futures

            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                return list(pool.map(meet, names))  # type: ignore[name-defined] # noqa: F821

        text = "from hutch_tools import meet\nimport asyncio\nasync def f(names):\n"
        text += "    return await asyncio.gather(*map(meet, names))"
        of_text = hutch.function(text, "f", tools=[meeting.meet], isolation=rung)
        for function in (gather, threads, of_text):
            for _ in range(2):
                meeting.begin_again()
                outcome = await function.run_aio("abcd")
                assert outcome.value == [f"met {c}" for c in "abcd"], outcome
                assert meeting.most == 4 and meeting.running == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    "source",
    [
        "async def main(): print(await asyncio.gather(*map(meet, 'abcd')))\nasyncio.run(main())",
        "print(in_threads(meet, 'abcd'))",
    ],
)
def test_those_of_programs_run_at_the_same_time(source: str, rung: Any) -> None:
    async def work(run: Callable[..., Awaitable[Any]], meeting: Meeting) -> None:
        outcome = await run(source, isolation=rung)
        assert outcome.stdout == f"{[f'met {c}' for c in 'abcd']}\n", outcome
        assert meeting.most == 4

    in_function(work)


def test_those_of_a_generator_take_turns() -> None:
    running: list[str] = []

    async def alone(name: str) -> bool:
        running.append(name)
        await asyncio.sleep(0.01)
        was_alone = running == [name]
        running.remove(name)
        return was_alone

    with_tools = sandbox(tools=[alone], memory_mb=256)

    @with_tools
    async def together(names: str) -> list[bool]:
        import asyncio

        return await asyncio.gather(*map(alone, names))

    @with_tools
    async def of_generator(names: str) -> AsyncIterator[bool]:
        import asyncio

        for was_alone in await asyncio.gather(*map(alone, names)):
            yield was_alone

    async def main() -> None:
        assert await together("abcd") != [True] * 4, "the counterpart"
        assert [one async for one in of_generator("abcd")] == [True] * 4

    asyncio.run(main())


def test_other_tools_of_functions_take_turns_and_keep_no_loop() -> None:
    running, most = 0, 0
    released = threading.Event()

    def block(name: str) -> str:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        assert released.wait(60)
        running -= 1
        return name

    async def work(run: Callable[..., Awaitable[Any]], meeting: Meeting) -> None:
        task = asyncio.create_task(run("print(in_threads(block, 'abc'))"))
        while not running:
            await asyncio.sleep(0.001)  # the loop goes on, though one blocks
        released.set()
        assert (await task).stdout == "['a', 'b', 'c']\n"
        assert most == 1

    in_function(work, more=[block])


def test_no_more_than_sixteen_of_a_function_do() -> None:
    async def work(run: Callable[..., Awaitable[Any]], meeting: Meeting) -> None:
        gather = "(await asyncio.gather(*(meet(str(i)) for i in range(50))))"
        outcome = await run(f"async def main(): print({gather}[-1])\nasyncio.run(main())")
        assert outcome.stdout == "met 49\n", outcome
        assert meeting.most == 16
        assert (await run("print(in_threads(meet, map(str, range(40)))[-1])")).stdout == "met 39\n"

    in_function(work, wanted=16)


def test_answers_to_a_function_come_in_any_order_and_size() -> None:
    sizes = [10, 300_000, 20, 70_000, 1_000_000, 5]
    waiting: list[asyncio.Future[None]] = []

    async def of_size(size: int) -> bytes:
        future = asyncio.get_running_loop().create_future()
        waiting.append(future)
        if len(waiting) == len(sizes):
            for one in reversed(waiting):
                one.set_result(None)
        await future
        return size.to_bytes(4, "little") * (size // 4)

    async def work(run: Callable[..., Awaitable[Any]], meeting: Meeting) -> None:
        check = "[data == n.to_bytes(4, 'little') * (n // 4) for n, data in zip(sizes, {})]"
        for how in ("asyncio.run(main())", "in_threads(of_size, sizes)"):
            waiting.clear()
            outcome = await run(
                f"sizes = {sizes}\nasync def main():\n"
                "    return await asyncio.gather(*map(of_size, sizes))\n"
                f"print(all({check.format(how)}))"
            )
            assert outcome.stdout == "True\n", outcome

    in_function(work, more=[of_size])


def test_a_time_limit_of_a_function_ends_the_tools_that_run() -> None:
    async def work(run: Callable[..., Awaitable[Any]], meeting: Meeting) -> None:
        outcome = await run("in_threads(meet, 'ab')", timeout_sec=1.5)
        assert outcome.status == "limit" and outcome.limit == "time", outcome
        assert sorted(meeting.cancelled) == ["a", "b"] and meeting.running == 0
        died = await run(
            "threading.Thread(target=meet, args='d', daemon=True).start()\n"
            "while not count(): pass\nimport os; os.abort()"
        )
        assert died.status == "died" and meeting.cancelled[2:] == ["d"], died

    in_function(work)


@pytest.mark.parametrize("key", [None, "cancelled"])
def test_cancelling_the_task_of_a_function_kills_its_cell_and_cancels_its_tools(key: Any) -> None:
    label = uuid.uuid4().hex

    async def work(run: Callable[..., Awaitable[Any]], meeting: Meeting) -> None:
        task = asyncio.create_task(run("in_threads(meet, 'ab')"))
        while meeting.running < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while meeting.running:
            await asyncio.sleep(0)
        assert sorted(meeting.cancelled) == ["a", "b"]
        while endings(label)["cancelled"] != 1:  # long before its time limit
            await asyncio.sleep(0.01)

    in_function(work, labels={"call": label}, key=key and label)


def test_a_call_of_a_function_that_is_cancelled_before_it_has_a_cell_takes_none() -> None:
    label = uuid.uuid4().hex
    pool = hutch.Pool(max_cells=1)

    async def work(run: Callable[..., Awaitable[Any]], meeting: Meeting) -> None:
        first = asyncio.create_task(run("meet('a')"))
        while not meeting.running:
            await asyncio.sleep(0.001)
        for _ in range(3):
            waiting = asyncio.create_task(run("meet('b')"))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        last = asyncio.create_task(run("print(count())"))
        first.cancel()
        assert (await last).stdout == "0\n"
        while (ends := endings(label)).total() < 2:
            await asyncio.sleep(0.01)
        assert ends == {"cancelled": 1, "returned": 1} and meeting.cancelled == ["a"]

    in_function(work, labels={"call": label}, pool=pool)


def test_the_same_key_runs_tools_of_a_function_once() -> None:
    async def work(run: Callable[..., Awaitable[Any]], meeting: Meeting) -> None:
        key = uuid.uuid4().hex
        both = await asyncio.gather(*(run("print(meet('a'))", key=key) for _ in range(3)))
        assert both[0] is both[1] is both[2] and both[0].stdout == "met a\n"
        assert meeting.most == 1

    in_function(work, wanted=1)


def test_a_function_prints_while_its_tools_run_and_a_callback_may_end_it() -> None:
    heard: list[str] = []

    def fail(text: str) -> None:
        raise Mine(text)

    async def work(run: Callable[..., Awaitable[Any]], meeting: Meeting) -> None:
        source = (
            "one = threading.Thread(target=meet, args='a')\none.start()\nprint('x')\none.join()"
        )
        task = asyncio.create_task(run(source, on_stdout=heard.append))
        while "".join(heard) != "x\n":
            await asyncio.sleep(0.001)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(Mine, match="y"):
            await run("print('y', flush=True)\nmeet('b')", on_stdout=fail)
        assert meeting.running == 0

    in_function(work)


def test_a_tool_of_a_function_may_end_it_and_an_error_of_approve_does() -> None:
    async def finish() -> None:
        raise StopExec

    async def forbid(name: str, arguments: dict[str, Any]) -> bool:
        if arguments["text"] == "raise":
            raise Mine("by hand")
        return arguments["text"] == "yes"

    def say(text: str) -> str:
        return text

    async def work(run: Callable[..., Awaitable[Any]], meeting: Meeting) -> None:
        stopped = await run("print(1, flush=True)\nfinish()\nprint(2)")
        assert stopped.stdout == "1\n", stopped
        assert (await run("print(say('yes'))")).stdout == "yes\n"
        refused = await run("say('no')")
        assert refused.error is not None and refused.error.type == "PermissionError"
        with pytest.raises(Mine, match="by hand"):
            await run("say('raise')")

    in_function(work, more=[finish, Tool(say, approve=forbid)])


def test_what_a_function_with_async_tools_took_is_told() -> None:
    async def work(run: Callable[..., Awaitable[Any]], meeting: Meeting) -> None:
        outcome = await run("meet('a')")
        assert outcome.ok and set(outcome.timings) == set(STAGES)
        assert outcome.timings["run"] > 0 and outcome.timings["environment"] > 0
        assert outcome.call_id
        failed = await run("1 / 0")
        assert failed.error is not None and failed.error.line is not None
        large = await run("print('x' * 1000)", output_mb=0.0001)
        assert large.stdout_truncated

    in_function(work, wanted=1)


def test_a_loop_that_ends_ends_the_call_of_a_function() -> None:
    label = uuid.uuid4().hex
    begun: asyncio.Event
    keywords: Any = {"labels": {"call": label}, "timeout_sec": 600}

    async def forever() -> None:
        begun.set()
        await asyncio.sleep(3600)

    async def leave() -> None:
        nonlocal left, begun
        begun = asyncio.Event()
        left = asyncio.ensure_future(hutch.run_aio("forever()", tools=[forever], **keywords))
        await begun.wait()

    left: Any = None
    asyncio.run(leave())  # which cancels it
    until(lambda: endings(label)["cancelled"] == 1)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()  # nothing is cancelled
    left._log_destroy_pending = False
    left = None

    def is_gone() -> bool:
        gc.collect()
        return endings(label)["cancelled"] == 2

    until(is_gone)


def test_a_forked_child_leaves_the_call_of_a_function_to_its_parent() -> None:
    async def fork() -> int:
        tool = _within.get()
        assert tool is not None
        pid = os.fork()
        if pid == 0:
            try:
                core: Any = tool.talk._turns._core  # type: ignore[attr-defined]
                core.close()
                assert core.turn() is not None
            finally:
                os._exit(3)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    async def work(run: Callable[..., Awaitable[Any]], meeting: Meeting) -> None:
        assert (await run("print(fork())")).stdout == "3\n"

    in_function(work, more=[fork])


@pytest.mark.parametrize("inner", ["await first()", "second()", "await third()"])
def test_one_that_makes_a_call_with_tools_may_use_its_session_too(inner: str) -> None:
    async def main() -> None:
        async def first() -> int:
            return 1

        def second() -> int:
            return 1

        async def third() -> Any:
            return (await s.exec("x")).unwrap()

        async def outer() -> Any:
            program = f"import asyncio\nasync def main(): print({inner})\nasyncio.run(main())"
            ran = await hutch.run_aio(
                f"from hutch_tools import *\n{program}", tools=[first, second, third]
            )
            return ran.stdout.strip(), (await s.exec("x + 1")).unwrap()

        async with AsyncSession(memory_mb=256, timeout_sec=60, tools=[outer]) as s:
            await s.exec("x = 1")
            assert (await s.exec("await outer()")).unwrap() == ("1", 2)

    asyncio.run(main())


def test_a_key_whose_loop_ends_while_the_call_runs_never_runs_again() -> None:
    key, begun = uuid.uuid4().hex, 0

    async def forever() -> None:
        nonlocal begun
        begun += 1
        started.set()
        await asyncio.Event().wait()

    def run() -> Any:
        return hutch.run_aio(
            "from hutch_tools import forever\nforever()", tools=[forever], key=key, timeout_sec=60
        )

    started = asyncio.Event()
    loop = asyncio.new_event_loop()
    task = loop.create_task(run())
    loop.run_until_complete(started.wait())
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with pytest.raises(hutch.SandboxError, match="was interrupted while it ran"):
        asyncio.run(run())
    assert begun == 1
    del task


def test_descriptors_of_calls_that_are_cancelled_wait_for_no_collector() -> None:
    def watched() -> int:
        """How many sets of descriptors: one of each call, and one of the loop."""
        count = 0
        for file in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the one that lists them
                count += os.readlink(f"/proc/self/fd/{file}").endswith("[eventpoll]")
        return count

    async def main() -> None:
        running = asyncio.Event()

        async def stay() -> None:
            running.set()
            await asyncio.Event().wait()

        before = watched()
        for _ in range(20):
            running.clear()
            task = asyncio.create_task(
                hutch.run_aio("from hutch_tools import stay\nstay()", tools=[stay], timeout_sec=60)
            )
            await running.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        left = 6000
        while left and watched() > before:
            left -= 1
            await asyncio.sleep(0.01)
        assert left, watched()

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
