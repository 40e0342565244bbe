# SPDX-License-Identifier: Apache-2.0
"""A warm call goes another way than the first one: nothing may show it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import hutch
from hutch import sandbox

FACTOR = 2


def scaled(x: int) -> int:
    return x * FACTOR


@sandbox
def scale(x: int, more: int = 0) -> int:
    return scaled(x) + more


@dataclasses.dataclass
class Point:
    x: int


def warmed(function: Any, *args: Any) -> Any:
    function(*args)
    assert function._target.fast_value is not None
    return function


def test_the_first_call_makes_the_fast_path_and_the_next_ones_take_it() -> None:
    warmed(scale, 1)
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        assert scale(2) == 4
    finally:
        sys.setprofile(None)
    assert entered == ["__call__"]


def test_what_travels_is_sent_anew_when_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warmed(scale, 1)(3) == 6
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 10)
    assert scale(3) == 30
    monkeypatch.setattr(sys.modules[__name__], "scaled", lambda x: -x)
    assert scale(3) == -3
    monkeypatch.setattr(scale.__wrapped__, "__defaults__", (100,))
    assert scale(3) == 97


def test_a_closure_is_sent_anew_when_it_is_replaced() -> None:
    value = 1

    @sandbox
    def told() -> int:
        return value

    assert warmed(told)() == 1
    value = 2
    assert told() == 2


def test_what_is_mutable_is_sent_with_every_call() -> None:
    state = [1]

    @sandbox
    def told() -> list[int]:
        return state

    assert told() == [1]
    state.append(2)
    assert told() == [1, 2]


@pytest.mark.parametrize("value", [7, [1, {"a": 2}], b"x" * 100_000, None], ids=lambda x: type(x))
def test_arguments_of_every_kind_take_it(value: Any) -> None:
    @sandbox
    def same(value: Any, *, more: Any = None) -> Any:
        return value, more

    assert warmed(same, value)(value) == (value, None)
    assert same(value, more=value) == (value, value)


@pytest.mark.parametrize(
    "values",
    [
        [None, True, False],
        [0, -1, 2**31 - 1, -(2**31)],
        [2**31, 10**30, -(2**63)],
        [0.0, -0.0, 1.5, float("inf"), 1e300],
        ["", "text", "\u00fc\U0001f600", "x" * 5000, "\ud800"],
        [b"", b"\x80\x97", b"y" * 300],
        [b"y" * 70_000, b"z" * 65_536],
    ],
    ids=["names", "ints", "long ints", "floats", "text", "bytes", "large bytes"],
)
def test_what_comes_beside_a_large_bytes_arrives_as_it_is(values: list[Any]) -> None:
    @sandbox
    def told(large: bytes, *rest: Any) -> Any:
        return len(large), large[-3:], list(map(repr, rest)), [type(x).__name__ for x in rest]

    large = bytes(200_000) + b"end"
    first = told(large, *values)
    assert first == (200_003, b"end", list(map(repr, values)), [type(x).__name__ for x in values])
    for _ in range(3):
        assert told(large, *values) == first
    for value in values:
        assert warmed(told, large)(value if isinstance(value, bytes) else large, value)


def test_an_argument_that_cannot_be_sent_is_reported_the_same() -> None:
    def told(function: Callable[[Any], Any]) -> str:
        with pytest.raises(hutch.SerializationError) as failure:
            function(x for x in ())
        return str(failure.value)

    first = told(sandbox(lambda x: x))
    assert told(warmed(sandbox(lambda x: x), 1)) == first


def test_what_a_function_raises_is_reported_the_same() -> None:
    @sandbox
    def divide(x: int) -> float:
        print("dividing")
        return 1 / x

    def told() -> tuple[str, str, str]:
        with pytest.raises(hutch.SandboxExecutionError) as failure:
            divide(0)
        outcome = failure.value.outcome
        assert outcome is not None and outcome.error is not None
        assert sum(outcome.timings.values()) > 0
        return str(failure.value), outcome.error.traceback, outcome.stdout

    first = told()
    warmed(divide, 1)
    assert told() == first
    assert divide(2) == 0.5


def test_a_return_annotation_stays_a_promise() -> None:
    @sandbox(check_result=True)
    def same(x: Any) -> int:
        return x  # type: ignore[no-any-return]

    warmed(same, 1)
    with pytest.raises(hutch.SerializationError, match="annotated int"):
        same("one")
    assert same(2) == 2


def test_classes_that_arguments_or_annotations_name_come_back() -> None:
    @sandbox
    def same(x: Any) -> Any:
        return x

    assert warmed(same, 1)(Point(1)) == Point(1)

    @sandbox
    def point(x: int) -> Point:
        return Point(x)

    assert [point(x) for x in (1, 2)] == [Point(1), Point(2)]


def test_what_it_prints_is_shown_and_given(capfd: pytest.CaptureFixture[str]) -> None:
    got: list[str] = []

    @sandbox(on_stdout=got.append)
    def say(text: str) -> None:
        print(text)

    warmed(say, "one")
    capfd.readouterr()
    say("two")
    assert "".join(got) == "one\ntwo\n"
    assert capfd.readouterr().out == "two\n"
    quiet = warmed(sandbox(lambda: print("hush"), echo=False))
    quiet()
    assert capfd.readouterr().out == ""


def test_a_callbacks_exception_ends_the_call() -> None:
    def refuse(text: str) -> None:
        raise LookupError(text)

    calm = True

    @sandbox(on_stdout=lambda text: None if calm else refuse(text), echo=False)
    def say() -> None:
        print("word")

    warmed(say)
    calm = False
    with pytest.raises(LookupError, match="word"):
        say()


def test_after_the_agent_went_the_call_is_made_on_a_new_one() -> None:
    warmed(scale, 1)
    hutch.agent.stop()
    assert scale(4) == 8
    assert warmed(scale, 1)(5) == 10


def test_a_text_function_takes_it_too() -> None:
    double = warmed(hutch.function("def double(x): return 2 * x", "double"), 1)
    assert double(4) == 8
    with pytest.raises(hutch.SandboxExecutionError, match="TypeError"):
        double(None)


def test_a_limit_is_named_on_it() -> None:
    @sandbox(timeout_sec=0.5)
    def spin(forever: bool) -> None:
        while forever:
            pass

    warmed(spin, False)
    with pytest.raises(hutch.SandboxTimeoutError) as failure:
        spin(True)
    assert failure.value.outcome is not None and failure.value.outcome.limit == "time"


def told(outcome: hutch.Outcome[Any]) -> dict[str, Any]:
    """All that is the same in equal calls."""
    said = outcome.to_dict()
    assert set(said["timings"]) == {"queue", "environment", "worker", "send", "run", "receive"}
    assert said["timings"]["run"] > 0 and said["timings"]["receive"] > 0
    assert said["usage"].pop("wall_sec") > 0
    for name in ("cpu_sec", "cpu_wait_sec", "waited_sec", "peak_memory_bytes"):
        assert said["usage"].pop(name) >= 0
    for name in ("timings", "call_id", "worker_id"):
        assert said.pop(name)
    return said


PROGRAMS = {
    "returns": "print(__name__, __file__, __builtins__.__name__, __annotations__)",
    "has arguments": "import os, sys\nprint(sys.argv, sys.path[0] == os.getcwd())",
    "is main": "import sys\nx = sys.modules['__main__']\nprint(x.x is x, vars(x) is globals())",
    "reads nothing": "import sys\nprint(repr(sys.stdin.read()))",
    "raises": "def f():\n    return 1 / 0\n\nf()",
    "exits": "import sys\nprint('a')\nsys.exit(3)",
    "exits with a text": "raise SystemExit('so it is')",
    "exits with 0": "import sys\nprint('a')\nsys.exit(0)",
    "has a wrong line": "x = (\n",
    "is warned of": "x = 1\nprint(x is 1)",
    "has exit functions": "import atexit\natexit.register(print, 'at exit')\nprint('first')",
    "has threads": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
        "print('main')"
    ),
    "logs late": (
        "import logging, logging.handlers\n"
        "to = logging.StreamHandler()\n"
        "logging.getLogger().addHandler(logging.handlers.MemoryHandler(9, target=to))\n"
        "logging.error('late')"
    ),
    "writes without end of line": "import sys\nsys.stdout.write('a')\nsys.stderr.write('b')",
    "kills itself": "import os\nos.kill(os.getpid(), 9)",
    "replaces main": "import sys\ndel sys.modules['__main__']\nprint('gone')",
}


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_is_run_again_says_the_same(source: str) -> None:
    first, *others = (told(hutch.run(source)) for _ in range(5))
    assert others == [first] * 4
    assert told(hutch.Program(source, cpu_sec=50).run()) == first  # the long way


def test_a_program_is_given_what_each_run_is_given() -> None:
    program = hutch.Program("import sys\nprint(sys.argv[1:], sys.stdin.read())")
    for _ in range(3):
        assert program.run().stdout == "[] \n"
        assert program.run(args=["a"], stdin="text").stdout == "['a'] text\n"
        assert program.run(stdin="").stdout == "[] \n"


@sandbox
def speak(x: int) -> float:
    import sys

    print("out", x)
    print("err", file=sys.stderr)
    return 1 / x


@pytest.mark.parametrize("x", [1, 0])
def test_an_outcome_is_the_same_again(x: int, capfd: pytest.CaptureFixture[str]) -> None:
    speak.run(1)
    first, *others = (told(speak.run(x)) for _ in range(4))
    assert others == [first] * 3
    assert first["status"] == ("returned" if x else "raised") and first["stdout"] == f"out {x}\n"
    assert capfd.readouterr() == ("", ""), "an Outcome shows nothing unless asked to"
    assert told(speak.options(cpu_sec=50).run(x)) == first


def test_an_outcome_that_c_made_has_every_field() -> None:
    made_in_python = hutch.Outcome("returned", 1.0)
    for _ in range(2):  # by the long way, then by the fast path
        outcome = speak.run(1)
        for made, expected in (
            (outcome, made_in_python),
            (outcome.usage, made_in_python.usage),
        ):
            assert type(made) is type(expected)
            for name in type(made).__slots__:
                value, other = getattr(made, name), getattr(expected, name)
                assert type(value) is type(other), name
        assert outcome.timings.keys() == made_in_python.timings.keys()


def test_an_outcome_is_shown_where_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []
    shown, listened = speak.options(echo=True), speak.options(on_stdout=heard.append)
    for _ in range(3):
        shown.run(1)
        assert capfd.readouterr() == ("out 1\n", "err\n")
        listened.run(2)
        assert capfd.readouterr() == ("", "")
    assert "".join(heard) == "out 2\n" * 3


def test_an_outcome_of_what_is_no_data_or_breaks_its_promise() -> None:
    @sandbox
    def give(how: str) -> int:
        return 1 if how == "int" else "x" if how == "str" else object()  # type: ignore[return-value]

    for _ in range(3):
        assert give.run("int").value == 1
        for how in ("str", "object"):
            error = give.run(how).error
            assert error is not None and error.type == "SerializationError" and how in error.message


def test_an_outcome_is_had_from_a_new_agent() -> None:
    speak.run(1)
    hutch.agent.stop()
    assert speak.run(1).value == 1.0, "nothing had run: it is sent again"


def of_a_kind(i: int) -> Any:
    if i % 10 == 7:
        raise ValueError(f"number {i}")
    kinds = (i, -i * 1.5, str(i), b"x" * i, None, True, [i, {"a": (i,)}], 1 << i, "\ud800", {i})
    return kinds[i % 10]


def long_ones(i: int) -> str:
    return "é" * (1000 * i)


def exits_at_five(i: int) -> int:
    if i == 5:
        raise SystemExit(3)
    return i


def outcomes_of(function: Any, items: list[Any], chunksize: int) -> list[Any]:
    return [
        (one.status, one.value, one.limit, one.error)
        for one in function.map(items, chunksize=chunksize, on_error="outcome")
    ]


@pytest.mark.parametrize("chunksize", [7, 100])
@pytest.mark.parametrize("function", [of_a_kind, long_ones, exits_at_five])
def test_items_of_a_chunk_are_the_same_as_by_the_long_way(function: Any, chunksize: int) -> None:
    short, long = sandbox(function), sandbox(function, cpu_sec=60)
    expected = outcomes_of(long, list(range(100)), chunksize)
    for _ in range(2):
        assert outcomes_of(short, list(range(100)), chunksize) == expected
    bad = expected[5 if function is exits_at_five else 7]
    assert bad[0] == ("returned" if function is long_ones else "raised")


def test_values_of_chunks_come_in_order_until_one_raises() -> None:
    mapped = sandbox(of_a_kind).map(range(20), chunksize=5)
    assert [next(mapped) for _ in range(5)] == [of_a_kind(i) for i in range(5)]
    rest: list[Any] = []
    with pytest.raises(hutch.SandboxExecutionError, match="number 7"):
        rest.extend(mapped)
    assert list(sandbox(long_ones).map(range(50), chunksize=50)) == list(map(long_ones, range(50)))


def test_a_chunk_takes_arguments_of_every_kind() -> None:
    same = sandbox(lambda *args: args)
    items = [(i, [i], "x" * 5_000) for i in range(30)]
    assert list(same.starmap(items, chunksize=30)) == items
    plain = [(i, "x" * 5_000) for i in range(30)]
    assert list(same.starmap(plain, chunksize=30)) == plain
    assert list(sandbox(lambda: 1).starmap([()] * 9, chunksize=4)) == [1] * 9


def test_an_item_that_is_not_as_annotated_is_reported_alone() -> None:
    @sandbox(check_result=True)
    def whole(i: int) -> int:
        return i if i != 3 else "3"  # type: ignore[return-value]

    for _ in range(2):
        found = outcomes_of(whole, list(range(6)), 6)
        assert [one[0] for one in found] == ["returned"] * 3 + ["raised"] + ["returned"] * 2
