# SPDX-License-Identifier: Apache-2.0
"""Calls of a session that a tool makes within the exec that called it, and what tools may be given
beside their functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy
import pytest

from hutch import AsyncSession, Outcome, Session, SessionBusy, StopExec, Tool


class Nesting:
    """A session with the tool `run(source)`, which executes text and keeps the Outcomes."""

    def __init__(self) -> None:
        self.seen: list[Outcome[Any]] = []
        self.act: Callable[[str], Any] = self.run_it
        self.session = Session(memory_mb=256, timeout_sec=20, tools=[Tool(self.run, name="run")])

    def run(self, source: str) -> Any:
        return self.act(source)

    def run_it(self, source: str) -> Any:
        self.seen.append(self.session.exec(source))
        return self.seen[-1].value


@pytest.fixture
def n() -> Iterator[Nesting]:
    nesting = Nesting()
    with nesting.session:
        yield nesting


def test_a_tool_runs_code_in_the_session_that_waits_for_it(n: Nesting) -> None:
    outcome = n.session.exec("x = 1\ny = run('x += 1; z = 5; x * 10')\n[x, y, z]")
    assert outcome.value == [2, 20, 5], outcome
    inner = n.seen[0]
    assert inner.ok and inner.value == 20
    assert inner.usage.wall_sec == 0 and inner.timings["run"] == 0
    assert sorted(n.session.names()) == ["x", "y", "z"]


def test_what_the_inner_code_prints_and_shows_is_in_both(n: Nesting) -> None:
    outcome = n.session.exec(
        "print('before')\n"
        "run('import sys; print(1); print(2, file=sys.stderr); display(3)')\n"
        "print('after')"
    )
    assert outcome.stdout == "before\n1\nafter\n" and outcome.stderr == "2\n"
    inner = n.seen[0]
    assert (inner.stdout, inner.stderr) == ("1\n", "2\n")
    assert (inner.stdout_size, inner.stdout_truncated) == (2, False)
    assert inner.display == outcome.display == [{"text/plain": "3"}]


def test_an_error_of_the_inner_code_is_in_its_outcome(n: Nesting) -> None:
    outcome = n.session.exec("run('y = 1\\n1 / 0')\n'went on'")
    assert outcome.value == "went on"
    error = n.seen[0].error
    assert error is not None and error.type == "ZeroDivisionError" and error.line == 2
    assert '"<cell 2>", line 2' in error.traceback and "1 / 0" in error.traceback
    with pytest.raises(ZeroDivisionError):
        n.seen[0].unwrap()


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("raise SystemExit(3)", "raised"),
        ("import sys; sys.exit()", "returned"),
        ("x = (", "raised"),
    ],
)
def test_inner_code_that_ends_itself_ends_nothing_else(
    n: Nesting, source: str, status: str
) -> None:
    outcome = n.session.exec(f"run({source!r})\n'went on'")
    assert outcome.value == "went on" and n.seen[0].status == status


def test_a_value_of_the_inner_code_that_is_no_data_is_shown(n: Nesting) -> None:
    n.session.exec("run('object()')")
    assert n.seen[0].ok and n.seen[0].value is None
    assert n.seen[0].display[0]["text/plain"].startswith("<object object")


def test_a_value_that_is_too_large_for_a_message_is_an_error(n: Nesting) -> None:
    outcome = n.session.exec("run('bytes(5 << 20)')\nlen(run('bytes(3 << 20)'))")
    assert outcome.value == 3 << 20
    assert n.seen[0].error is not None and "cannot be returned at once" in n.seen[0].error.message


@dataclasses.dataclass
class Point:
    x: int
    y: int


def test_a_tool_uses_names_files_functions_and_children(n: Nesting) -> None:
    s = n.session

    def doubled(p: Point) -> Point:
        return Point(p.x * k, p.y * k)  # type: ignore[name-defined]  # noqa: F821

    def act(source: str) -> Any:
        s["k"] = 2
        s["large"], s["fixed"] = bytearray(100_000), bytes(100_000)
        assert s.exec("large[1] = 7; type(large), type(fixed)").ok
        assert (
            s["large"][:2] == b"\0\x07"
            and s["fixed"] == bytes(100_000)
            and "k" in s
            and s.get("absent") is None
        )
        s.files.write("a.txt", source)
        assert s.files.list() == ["a.txt"]
        assert s.call(doubled, Point(1, 2)) == Point(2, 4)
        with s.child() as inner:
            assert inner.exec("k = 50; k").value == 50
        del s["large"], s["fixed"]
        return s["k"]

    n.act = act
    assert s.exec("run('text'), open('a.txt').read()").value == (2, "text")
    assert sorted(s.names()) == ["Point", "k"]


def test_sixteen_run_within_one_another_and_no_more(n: Nesting) -> None:
    depths: list[int] = []

    def act(source: str) -> Any:
        outcome = n.session.exec(f"run(str({int(source) + 1}))")
        depths.append(int(source))
        return outcome.value if outcome.ok else f"{outcome.error}"

    n.act = act
    outcome = n.session.exec("run('0')")
    assert outcome.ok and "SessionBusy" in outcome.value and "16 nested calls" in outcome.value
    assert sorted(depths) == list(range(16))
    assert n.session.exec("1").value == 1


def test_inner_code_may_await_and_call_tools_from_threads(n: Nesting) -> None:
    inner = (
        "import asyncio, concurrent.futures as f\n"
        "await asyncio.sleep(0)\n"
        "with f.ThreadPoolExecutor(4) as threads:\n"
        "  found = list(threads.map(run, ['1', '2', '3', 'run(\"4\")']))\n"
        "found"
    )
    outcome = n.session.exec(
        f"import asyncio\nasync def outer():\n  await asyncio.sleep(0)\n  return run({inner!r})\n"
        "await asyncio.gather(outer(), asyncio.sleep(0.01, 'of the outer'))"
    )
    assert outcome.value == [[1, 2, 3, 4], "of the outer"], outcome


def test_another_thread_is_refused(n: Nesting) -> None:
    refused: list[BaseException] = []

    def from_a_thread(source: str) -> None:
        def work() -> None:
            try:
                n.session.exec(source)
            except BaseException as error:
                refused.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    n.act = from_a_thread
    assert n.session.exec("run('1')").ok
    assert [type(error) for error in refused] == [SessionBusy]


def test_other_callbacks_run_nothing() -> None:
    with Session(memory_mb=256, on_display=lambda _: s.exec("1"), tools=[Tool(look)]) as s:
        with pytest.raises(SessionBusy):
            s.exec("display(1)")
        with pytest.raises(SessionBusy):
            s.exec("print(1)", on_stdout=lambda _: s.exec("1"))


def test_an_answer_to_input_may_come_from_the_session() -> None:
    with Session(memory_mb=256, on_input=lambda _: str(s["answer"])) as s:
        assert s.exec("answer = 42\ninput()").value == "42"


def test_limits_are_those_of_the_outer_exec(n: Nesting) -> None:
    def act(source: str) -> Any:
        with pytest.raises(TypeError, match="timeout_sec= cannot be given"):
            n.session.exec(source, timeout_sec=1)
        with pytest.raises(SessionBusy):
            n.session.reset()
        return n.run_it(source)

    n.act = act
    n.session["kept"] = 1
    late = n.session.exec("run('while True: pass')\nx = 'not reached'", timeout_sec=0.5)
    assert late.limit == "time" and not late.restarted
    assert n.session.names() == ["kept"]
    assert n.seen == []


def test_with_the_time_of_tools_excluded_that_of_inner_code_counts() -> None:
    def run(source: str) -> Any:
        time.sleep(1.6)
        value = s.exec(source).value
        time.sleep(1.6)
        return value

    with Session(memory_mb=256, timeout_sec=3, tool_time="excluded", tools=[run]) as s:
        assert s.exec("run('5')").value == 5
        late = s.exec("run('while True: pass')")
        assert late.limit == "time" and not late.restarted


def test_ctrl_c_ends_the_whole_call_and_costs_no_names(n: Nesting) -> None:
    n.session["kept"] = 1
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        n.session.exec("run('while True: pass')\nx = 'not reached'")
    assert n.session.names() == ["kept"] and n.seen == []


def test_inner_code_that_cannot_be_interrupted_loses_the_interpreter(n: Nesting) -> None:
    n.session["lost"] = 1
    source = "n = 0\nwhile True:\n  try:\n    while n >= 0: n += 1\n  except BaseException: n = 2"
    late = n.session.exec(f"run({source!r})", timeout_sec=0.5)
    assert late.limit == "time" and late.restarted and n.session.lost == ["lost"]
    assert n.session.exec("run('5')").value == 5


def test_inner_code_that_ends_the_process_ends_the_tool(n: Nesting) -> None:
    ended: list[type] = []

    def act(source: str) -> Any:
        try:
            return n.run_it(source)
        except BaseException as error:
            ended.append(type(error))
            raise

    n.act = act
    outcome = n.session.exec("run('import os; os._exit(3)')")
    assert outcome.status == "died" and outcome.exit_code == 3 and outcome.restarted
    assert ended == [StopExec]


def test_a_tool_that_goes_on_after_the_end_changes_nothing(n: Nesting) -> None:
    def act(source: str) -> Any:
        with contextlib.suppress(BaseException):
            n.run_it(source)
        with pytest.raises(StopExec):
            n.session.exec("1")
        return "went on"

    n.act = act
    assert n.session.exec("run('import os; os._exit(3)')").status == "died"
    assert n.session.exec("2").value == 2


def test_stop_exec_ends_the_innermost_exec(n: Nesting) -> None:
    def act(source: str) -> Any:
        if source == "stop":
            raise StopExec
        return n.run_it(source)

    n.act = act
    outcome = n.session.exec("run(\"run('stop'); x = 1\")\nrun('7')")
    assert outcome.value == 7 and n.session.names() == []
    assert n.seen[0].ok and n.seen[0].value is None


def test_inner_code_that_goes_on_after_it_was_stopped_is_ended(n: Nesting) -> None:
    def act(source: str) -> Any:
        if source == "stop":
            raise StopExec
        return n.run_it(source)

    n.act = act
    inner = "try: run('stop')\nexcept BaseException: pass\nrun('1')"
    outcome = n.session.exec(f"run({inner!r})")
    assert not outcome.ok and outcome.restarted, outcome
    assert n.session.exec("3").value == 3


def test_what_a_callback_of_the_inner_exec_raises_is_raised_in_the_tool() -> None:
    def fails(_: str) -> str:
        raise LookupError("no answer")

    def run(source: str) -> str:
        try:
            s.exec(source)
        except LookupError as error:
            return f"caught {error}"
        return "nothing"

    with Session(memory_mb=256, tools=[run], on_input=fails) as s:
        assert s.exec("run('input()')").value == "caught no answer"


def test_a_forked_child_of_inner_code_answers_nothing(n: Nesting) -> None:
    outcome = n.session.exec("run('import os\\npid = os.fork()')\nos.waitpid(pid, 0)[1]")
    assert outcome.value == 0, outcome


FORGED = [
    "[]",
    "['returned']",
    "['returned', b'', 0]",
    "['returned', b'abc', 99]",
    "['returned', 'text', 0]",
    "['raised', b'\\xff\\xff', 2]",
    "['of no kind', b'', 0]",
    "[[1], [2], [3]]",
]


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_reply_is_an_error_and_no_more(n: Nesting, forged: str) -> None:
    outcome = n.session.exec(
        f"import sys\nsys.modules['_hutch_nested'].run = lambda *_: {forged}\nrun('1')\n'went on'"
    )
    assert outcome.value == "went on", outcome
    assert not n.seen[0].ok and n.seen[0].error is not None


def test_a_reply_that_nobody_waits_for_is_refused(n: Nesting) -> None:
    outcome = n.session.exec(
        "import gc, sys\n"
        "d = next(o for o in gc.get_objects() if type(o).__name__ == 'Dialogue')\n"
        "try: d.ask('nested', 'returned', b'', 0)\n"
        "except RuntimeError as error: text = str(error)\n"
        "text, run('5')"
    )
    assert outcome.value == ("a message of this kind is not known", 5), outcome


def test_an_async_tool_runs_code_in_its_session() -> None:
    async def main() -> None:
        async def run(source: str) -> list[Any]:
            first, second = await asyncio.gather(s.exec(source), s.get("x"))
            async with await s.child() as inner:
                await inner.set("x", 0)
            return [first.value, second]

        async with AsyncSession(memory_mb=256, tools=[run]) as s:
            outcome = await s.exec("x = 3\nrun('x += 1; x')")
            assert outcome.value == [4, 4], outcome
            assert (await s.exec("run(\"run('x')\")")).value == [[4, 4], 4]

    asyncio.run(main())


def test_a_task_of_an_async_tool_that_lives_on_is_refused() -> None:
    async def main() -> None:
        tasks: list[asyncio.Task[Any]] = []

        async def later() -> Any:
            await asyncio.sleep(0.3)
            return await s.exec("1")

        async def begin() -> None:
            tasks.append(asyncio.ensure_future(later()))

        async with AsyncSession(memory_mb=256, tools=[begin]) as s:
            await s.exec("begin()\nimport time; time.sleep(1)")
            with pytest.raises(SessionBusy):
                await tasks[0]

    asyncio.run(main())


# ---- what a tool may be given


def look(text: str) -> str:
    """Looks."""
    return f"seen {text}"


def test_a_tool_that_takes_too_long_raises_inside_and_the_exec_goes_on() -> None:
    gone_on = threading.Event()
    enough = threading.Event()

    def slow(text: str) -> str:
        if text == "wait":
            enough.wait(20)
            gone_on.set()
        return text

    with Session(memory_mb=256, tools=[Tool(slow, timeout_sec=0.3)]) as s:
        assert s.exec("slow('at once')").value == "at once"
        outcome = s.exec(
            "try: slow('wait')\nexcept TimeoutError as error: found = str(error)\nfound"
        )
        assert outcome.value == "slow() took longer than its timeout_sec=0.3"
        assert not gone_on.is_set()
        enough.set()
        assert gone_on.wait(10)


def test_a_tool_with_a_time_limit_is_as_any_other() -> None:
    def act(text: str) -> str:
        if text == "stop":
            raise StopExec
        if text == "key":
            raise KeyError("k")
        if text == "nested":
            s.exec("1")
        return text

    with Session(memory_mb=256, tools=[Tool(act, timeout_sec=20)]) as s:
        assert s.exec("act(5)").error.type == "TypeError"  # type: ignore[union-attr]
        assert s.exec("act('key')").error.type == "KeyError"  # type: ignore[union-attr]
        assert "SessionBusy" in s.exec("act('nested')").error.type  # type: ignore[union-attr]
        assert s.exec("act('stop')\nx = 1").ok and s.names() == []


def test_a_tool_without_a_time_limit_runs_on_the_thread_of_the_exec() -> None:
    rows = sqlite3.connect(":memory:")  # of this thread only

    def one() -> int:
        return int(rows.execute("select 1").fetchone()[0])

    with Session(memory_mb=256, tools=[one]) as s:
        assert s.exec("one()").value == 1


def test_an_async_tool_that_takes_too_long_is_cancelled() -> None:
    async def main() -> None:
        cancelled: list[str] = []

        async def slow(text: str) -> str:
            try:
                await asyncio.sleep(20 if text == "wait" else 0)
            except asyncio.CancelledError:
                cancelled.append(text)
                raise
            return text

        async with AsyncSession(memory_mb=256, tools=[Tool(slow, timeout_sec=0.3)]) as s:
            assert (await s.exec("slow('at once')")).value == "at once"
            outcome = await s.exec("slow('wait')")
            assert outcome.error is not None and outcome.error.type == "TimeoutError"
            await asyncio.sleep(0)
            assert cancelled == ["wait"]

    asyncio.run(main())


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), ("1", TypeError)])
def test_a_wrong_time_limit_of_a_tool_is_refused(value: Any, error: type) -> None:
    with pytest.raises(error, match="timeout_sec"):
        Tool(look, timeout_sec=value)


class Color(enum.Enum):
    RED = "red"


def test_the_schema_of_a_result_is_that_of_its_annotation() -> None:
    def points(n: int) -> list[Point]:
        return [Point(n, n)]

    def anything(n: int):  # type: ignore[no-untyped-def]
        return n

    def frame(n: int) -> numpy.ndarray:  # type: ignore[type-arg]
        return numpy.arange(n)

    assert Tool(look).output_schema == {"type": "string"}
    assert Tool(points).output_schema == {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "required": ["x", "y"],
        },
    }
    assert Tool(anything).output_schema is None and Tool(frame).output_schema is None
    own = {"type": "string", "maxLength": 9}
    assert Tool(look, output_schema=own).output_schema == own
    with Session(memory_mb=256, tools=[points, anything], dependencies=[]) as s:
        assert s.exec("points(2), anything(3)").value == ([{"x": 2, "y": 2}], 3)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (int, "1", "result must be int, not str"),
        (int, True, "result must be int, not bool"),
        (type(None), 1, "result must be None, not int"),
        (list[int], [1, "2"], "result[1] must be int, not str"),
        (dict[str, float], {"a": None}, "result['a'] must be float, not NoneType"),
        (tuple[int, str], (1,), "result must have 2 items, not 1"),
        (Literal["a", "b"], "c", "result must be Literal['a', 'b'], not str"),
        (int | None, "1", "result must be int | None, not str"),
        (Color, "blue", "result must be Literal['red'], not str"),
        (Point, [1, 2], "result must be dict, not list"),
        (float, 1, ""),
        (float, numpy.float64(2), ""),
        (int, numpy.int64(2), ""),
        (list[int], [], ""),
        (tuple[int, ...], (1, 2, 3), ""),
        (int | None, None, ""),
        (Color, Color.RED, ""),
        (Point, Point(1, 2), ""),
        (Point, {"x": 1, "y": 2}, ""),
        (dict, {1: 2}, ""),
        (Any, "anything", ""),
    ],
)
def test_what_a_tool_returns_is_checked(kind: Any, value: Any, text: str) -> None:
    from hutch._tool_results import check_result

    if not text:
        check_result(kind, value)
        return
    with pytest.raises(TypeError) as caught:
        check_result(kind, value)
    assert f"result{caught.value}" == text


def test_a_tool_that_returns_something_else_raises_inside() -> None:
    def wrong(n: int) -> int:
        return "text"  # type: ignore[return-value]

    with Session(memory_mb=256, tools=[wrong]) as s:
        error = s.exec("wrong(1)").error
        assert error is not None and error.type == "TypeError"
        assert (
            "ran, but returned what it is not annotated with: result must be int" in error.message
        )


def test_tools_are_found_and_called_by_their_names() -> None:
    with Session(memory_mb=256, tools=[look, Tool(look, name="other", description="Xyz")]) as s:
        assert s.exec("from hutch_tools import call, search\ncall('look', 'a')").value == "seen a"
        assert s.exec("call('other', text='b')").value == "seen b"
        assert s.exec("search('look'), search('xYz'), search(), search('none')").value == (
            ["look"],
            ["other"],
            ["look", "other"],
            [],
        )
        assert "there is no tool 'absent'" in s.exec("call('absent')").error.message  # type: ignore[union-attr]
