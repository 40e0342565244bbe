# SPDX-License-Identifier: Apache-2.0
"""`@sandbox` against the real thing: values, errors, output, both ways of calling, many calls."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import enum
import functools
import itertools
import math
import multiprocessing
import operator
import os
import pickle
import subprocess
import sys
import threading
import time
import uuid
import warnings
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pytest
from support import until

import hutch
from hutch import sandbox

FACTOR = 3


def helper(x: int) -> int:
    return x * FACTOR


@sandbox
def triple(x: int) -> int:
    return helper(x)


@sandbox(timeout_sec=60)
def identity(x: Any) -> Any:
    return x


def test_a_call_returns_its_value() -> None:
    assert triple(14) == 42


def test_a_replaced_helper_is_seen_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triple(1) == 3
    monkeypatch.setitem(globals(), "FACTOR", 5)
    assert triple(1) == 5


def test_decorated_with_and_without_parentheses_and_as_a_method() -> None:
    class Model:
        def __init__(self, rate: int) -> None:
            self.rate = rate

        @sandbox()
        def predict(self, x: int) -> int:
            return self.rate * x

    assert Model(3).predict(4) == 12
    assert sandbox(helper)(2) == sandbox(helper, timeout_sec=5)(2) == 6


def test_no_name_of_a_parameter_is_taken() -> None:
    @sandbox
    def f(self: int, args: int = 0, kwargs: int = 0, timeout_sec: int = 0, echo: int = 0) -> int:
        return self + args + kwargs + timeout_sec + echo

    names = {"self": 1, "args": 2, "kwargs": 3, "timeout_sec": 4, "echo": 5}
    assert f(**names) == f.run(**names).value == f.local(**names) == 15
    assert f.submit(**names).result(60) == asyncio.run(f.aio(**names)) == 15


def test_keyword_arguments_defaults_and_closures() -> None:
    offset = 100

    @sandbox
    def f(a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> list[int]:
        return [a, b, *rest, c, *more.values(), offset]

    assert f(1) == [1, 2, 3, 100]
    assert f(1, 5, 6, c=7, d=8) == [1, 5, 6, 7, 8, 100]


@pytest.mark.parametrize(
    "value",
    [
        None,
        2**200,
        "ü\ud800",
        b"x" * (1 << 20),
        bytearray(b"y" * 100_000),
        [1, (2.5, {"a": {3}}), frozenset({4})],
        range(3),
        uuid.UUID(int=5),
        PurePosixPath("/a/b"),
    ],
)
def test_a_value_arrives_equal_in_both_directions(value: Any) -> None:
    got = identity(value)
    assert got == value and type(got) is type(value)


class Colour(enum.Enum):
    RED = "r"


class Pair(NamedTuple):
    left: int
    right: Colour


@dataclasses.dataclass
class Point:
    x: int
    pair: Pair


@sandbox
def make_point(x: int) -> list[Point]:
    return [Point(x, Pair(1, Colour.RED))]


def test_classes_that_the_annotation_names_are_built() -> None:
    assert make_point(3) == [Point(3, Pair(1, Colour.RED))]


def test_classes_that_an_argument_names_are_built() -> None:
    assert identity(Point(1, Pair(2, Colour.RED))) == Point(1, Pair(2, Colour.RED))


PLAIN_MISMATCHES: list[tuple[Any, Any]] = [
    (float, None),
    (list, (1, 2)),
    (int, 5.5),
    (list[int], {"a": 1}),
    (dict[str, int], {"a": "b"}),
    (str, b"x"),
    (None, 3),
    (tuple[int, int], (1, 2, 3)),
]


@pytest.mark.parametrize(("annotation", "value"), PLAIN_MISMATCHES, ids=repr)
def test_plain_data_arrive_whatever_the_annotation_says(annotation: Any, value: Any) -> None:
    def f(x: Any) -> Any:
        return x

    f.__annotations__["return"] = annotation
    g = sandbox(f)
    with pytest.warns(hutch.AnnotationWarning, match="check_result=True") as caught:
        assert g(value) == value
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():  # once for a function and a place
        warnings.simplefilter("always")
        with pytest.MonkeyPatch.context() as patch:
            told: list[Any] = []
            patch.setattr(warnings, "warn", lambda *args, **named: told.append(args))
            assert [g(value), g.run(value).unwrap(), *g.map([value] * 4, chunksize=2)] == [
                value
            ] * 6
            assert told == []
    checked = g.options(check_result=True)
    with pytest.raises(hutch.SerializationError, match="annotated") as refused:
        checked(value)
    assert refused.value.outcome is not None and refused.value.outcome.value == value
    outcome = checked.run(value)
    assert outcome.status == "raised" and outcome.value == value


def test_a_caller_can_make_the_annotation_warning_an_error() -> None:
    @sandbox
    def f() -> int:
        return "no"  # type: ignore[return-value]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(hutch.SerializationError, match="annotated int"):
                f()


def test_strict_checks_results() -> None:
    assert hutch.Policy.strict().check_result and not hutch.Policy().check_result

    @sandbox(policy=hutch.Policy.strict().replace(hard_limits=False))
    def f() -> int:
        return "no"  # type: ignore[return-value]

    with pytest.raises(hutch.SerializationError, match="annotated int"):
        f()


def test_errors_say_which_builtin_class_they_were() -> None:
    @sandbox
    def f() -> None:
        open("/nothing/here")

    with pytest.raises(hutch.SandboxExecutionError) as raised:
        f()
    assert not isinstance(raised.value, OSError)
    assert raised.value.builtin == "FileNotFoundError"
    assert raised.value.is_a(OSError) and not raised.value.is_a(ValueError)


def test_named_types_must_match() -> None:
    @sandbox
    def nothing() -> Point:
        return None  # type: ignore[return-value]

    @sandbox
    def listed() -> list[Point]:
        return [1]  # type: ignore[list-item]

    @sandbox
    def point() -> Point:
        return Point("no", Pair(1, Colour.RED))  # type: ignore[arg-type]

    @sandbox
    def hidden() -> Any:
        return [Point(1, Pair(1, Colour.RED))]

    for function, path, kind in (
        (nothing, "result", "NoneType"),
        (listed, "result[0]", "int"),
        (point, "result", "str"),
    ):
        with pytest.raises(hutch.SerializationError) as caught:
            function()
        assert (caught.value.path, caught.value.type_name) == (path, kind)
    with pytest.raises(hutch.SerializationError, match=r"an enum.*Colour") as caught:
        hidden()
    assert caught.value.path == 'result[0]["pair"][1]'


@sandbox
def raises(name: str) -> None:
    import builtins

    raise getattr(builtins, name)("of the cell")


def test_an_error_is_also_of_its_builtin_type_with_its_own_lines() -> None:
    with pytest.raises(ValueError, match="of the cell") as caught:
        raises("ValueError")
    error = caught.value
    assert isinstance(error, hutch.SandboxExecutionError)
    assert error.error_type == "ValueError"
    assert "in raises" in error.traceback_str
    assert 'raise getattr(builtins, name)("of the cell")' in error.traceback_str
    assert os.path.basename(__file__) in error.traceback_str
    assert "hutch" not in error.traceback_str and "/opt/" not in error.traceback_str
    assert error.error.line == raises.__wrapped__.__code__.co_firstlineno + 4
    assert error.outcome is not None and error.outcome.status == "raised"


def test_a_forged_kind_of_error_does_not_choose_the_hosts_except() -> None:
    for name in ("FileNotFoundError", "StopIteration", "KeyboardInterrupt", "SystemExit"):
        with pytest.raises(hutch.SandboxError) as caught:
            raises(name)
        assert not isinstance(caught.value, (OSError, StopIteration, KeyboardInterrupt, SystemExit))


def test_an_errors_pickle_is_the_same() -> None:
    with pytest.raises(KeyError) as caught:
        raises("KeyError")
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, KeyError) and str(again) == str(caught.value)


def test_a_report_does_not_talk_to_the_terminal() -> None:
    @sandbox
    def shout(fails: bool) -> str:
        print("\x1b[2J\u202e<b>")
        if fails:
            raise ValueError("\x1b]0;x\x07")
        return "\x1b[2J"

    for outcome in (shout.run(True), shout.run(False)):
        for text in (repr(outcome), str(outcome), outcome._repr_html_()):
            assert "\x1b" not in text and "\u202e" not in text and "\x07" not in text
        assert "\n" not in repr(outcome) and "<b>" not in outcome._repr_html_()
        assert outcome.stdout == "\x1b[2J\u202e<b>\n"


def test_the_environments_part_of_the_time_is_reported() -> None:
    @sandbox(env={"FRESH": uuid.uuid4().hex})
    def use() -> int:
        return 1

    first, second = use.run(), use.run()
    assert first.timings["environment"] > second.timings["environment"]


def test_run_gives_an_outcome_and_never_raises_for_what_the_function_did() -> None:
    good, bad = triple.run(2), raises.run("ValueError")
    assert (good.ok, good.value, good.status) == (True, 6, "returned")
    assert bad.status == "raised" and bad.error is not None and bad.error.type == "ValueError"
    assert good.call_id and good.worker_id and good.usage.enforcement
    assert {"queue", "environment", "worker", "send", "run", "receive"} <= good.timings.keys()
    with pytest.raises(ValueError, match="of the cell"):
        bad.unwrap()


@sandbox
def speaks(text: str) -> None:
    import sys

    print(text)
    print("to stderr", file=sys.stderr)


def test_prints_are_echoed_live_and_harmless(capfd: pytest.CaptureFixture[str]) -> None:
    speaks("evil \x1b[2J")
    assert capfd.readouterr() == ("evil \\x1b[2J\n", "to stderr\n")
    speaks.options(echo=False)("quiet")
    outcome = speaks.run("kept")
    assert capfd.readouterr() == ("", "")
    assert outcome.stdout == "kept\n" and outcome.stderr == "to stderr\n"
    speaks.options(echo=True).run("shown")
    assert capfd.readouterr().out == "shown\n"


def test_output_arrives_while_the_call_runs() -> None:
    seen: list[float] = []

    @sandbox
    def slow() -> None:
        import time

        print("first", flush=True)
        time.sleep(1)

    slow.options(on_stdout=lambda text: seen.append(time.monotonic()), echo=False)()
    assert time.monotonic() - seen[0] > 0.5


def test_a_callback_that_raises_ends_the_call() -> None:
    def refuse(text: str) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        speaks.options(on_stdout=refuse)("x")
    assert triple(1) == 3


def test_an_async_function_is_awaited_by_its_caller() -> None:
    @sandbox
    async def add(a: int, b: int) -> int:
        import asyncio

        await asyncio.sleep(0.01)
        return a + b

    async def main() -> list[int]:
        return [await add(1, 2), await triple.aio(2), (await add.run_aio(3, 4)).unwrap()]

    assert asyncio.run(main()) == [3, 6, 7]


def test_many_awaited_calls_do_not_block_the_loop() -> None:
    async def main() -> tuple[list[int], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        values = await asyncio.gather(*[triple.aio(i) for i in range(30)])
        await asyncio.sleep(0.05)
        ticking.cancel()
        return values, ticks

    values, ticks = asyncio.run(main())
    assert values == [3 * i for i in range(30)] and ticks > 0


@sandbox(timeout_sec=60)
def sleeps(seconds: float) -> float:
    import time

    time.sleep(seconds)
    return seconds


def test_cancelling_a_task_cancels_its_call() -> None:
    async def main() -> None:
        with pytest.raises((asyncio.TimeoutError, TimeoutError)):
            await asyncio.wait_for(sleeps.aio(50), 0.5)

    start = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - start < 20


def test_a_future_can_be_cancelled_while_it_runs() -> None:
    future = sleeps.submit(50)
    until(future.running)
    time.sleep(0.3)
    assert future.cancel()
    with pytest.raises(concurrent.futures.CancelledError) as caught:
        future.result(20)
    assert isinstance(caught.value, hutch.SandboxCancelled)
    assert future.cancelled() and future.outcome().status == "cancelled"
    assert triple(1) == 3


def test_a_future_has_its_value_outcome_and_call_id() -> None:
    future = triple.submit(5)
    assert future.result(60) == 15
    assert future.outcome().ok and future.call_id == future.outcome().call_id
    failing = raises.submit("ValueError")
    assert isinstance(failing.exception(60), ValueError)


def test_an_executor_is_one() -> None:
    with hutch.Executor(max_workers=2) as executor:
        assert isinstance(executor, concurrent.futures.Executor)
        assert list(executor.map(helper, range(5))) == [0, 3, 6, 9, 12]
        future = executor.submit(helper, 5)
        assert concurrent.futures.wait([future]).done == {future} and future.result() == 15
    with pytest.raises(RuntimeError, match="shutdown"):
        executor.submit(helper, 1)


class Scaled:
    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, x: int) -> int:
        return self.by * x

    def more(self, x: int, *, off: int = 0) -> int:
        return self.by * x + off

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    @sandbox
    def sandboxed(self, x: int) -> int:
        return self.by * x


def test_an_executor_takes_what_one_of_processes_takes() -> None:
    def place(*args: Any, **kwargs: Any) -> Any:
        return os.getpid(), args, kwargs

    scaled = Scaled(5)
    partial = functools.partial
    cases: list[tuple[Any, tuple[Any, ...], Any]] = [
        (partial(helper, 2), (), 6),
        (partial(partial(divmod, 7), 2), (), (3, 1)),
        (partial(scaled.more, off=1), (2,), 11),
        (scaled.more, (2,), 10),
        (Scaled.name, (), "Scaled"),
        (scaled, (2,), 10),
        (partial(scaled, 3), (), 15),
        (scaled.sandboxed, (2,), 10),
        (partial(triple, 2), (), 6),
        (math.sqrt, (9,), 3.0),
        (str.upper, ("a",), "A"),
        ("a-b".split, ("-",), ["a", "b"]),
        (int, ("7",), 7),
        (operator.itemgetter(1), ([1, 2],), 2),
        (functools.lru_cache(helper), (2,), 6),
    ]
    with hutch.Executor(max_workers=2) as executor:
        futures = [executor.submit(call, *args) for call, args, _ in cases]
        assert [one.result(60) for one in futures] == [expected for _, _, expected in cases]
        pid, args, kwargs = executor.submit(partial(place, 1, a=2, b=3), 4, b=5).result(60)
        assert (args, kwargs) == ((1, 4), {"a": 2, "b": 5}) and pid != os.getpid()
        assert list(executor.map(partial(pow, 2), [1, 2])) == [2, 4]
        with pytest.raises(TypeError, match="what can be called, not int"):
            executor.submit(5)  # type: ignore[arg-type]
        with pytest.raises(hutch.SerializationError, match="the argument 'x' "):
            executor.submit(partial(helper, threading.Lock())).result(60)


LEFT_TO_ITS_EXECUTOR = """
import time
import hutch

def double(x): return 2 * x

def note(future):
    time.sleep(0.1)  # longer than the program would last if it did not wait for this
    print(future.result(), flush=True)

executor = hutch.Executor(1)
for number in range(3):
    executor.submit(double, number).add_done_callback(note)
del executor
"""


def test_a_program_that_ends_waits_for_its_executors() -> None:
    words = [sys.executable, "-c", LEFT_TO_ITS_EXECUTOR]
    done = subprocess.run(words, capture_output=True, timeout=60, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n2\n4\n", "", 0)


USED_BY_A_CHILD = """
import os, sys
import hutch

executor = hutch.Executor(1)
assert executor.submit(len, "abc").result() == 3
executor._threads.finish()  # its thread waits for work, which a child does not have
pid = os.fork()
if pid == 0:
    assert executor.submit(len, "ab").result(30) == 2
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert executor.submit(len, "a").result() == 1
"""


def test_a_forked_child_uses_an_executor_of_its_parent() -> None:
    words = [sys.executable, "-c", USED_BY_A_CHILD]
    done = subprocess.run(words, capture_output=True, timeout=60, text=True)
    assert done.returncode == 0, done.stderr


def test_map_starmap_and_endless_iterators() -> None:
    assert list(triple.map(range(6))) == [0, 3, 6, 9, 12, 15]
    assert sorted(triple.map(range(6), ordered=False)) == [0, 3, 6, 9, 12, 15]
    assert list(triple.map(range(5), chunksize=2)) == [0, 3, 6, 9, 12]
    assert list(itertools.islice(triple.map(itertools.count()), 4)) == [0, 3, 6, 9]

    @sandbox
    def add(a: int, b: int) -> int:
        return a + b

    assert list(add.map([1, 2], [10, 20])) == list(add.starmap([(1, 10), (2, 20)])) == [11, 22]


def test_map_with_outcomes_goes_on_after_a_failure() -> None:
    names = ["ValueError", "KeyError"]
    outcomes = list(raises.map(names, on_error="outcome"))
    assert [o.error.type for o in outcomes if o.error] == names
    chunked = list(raises.map(names, on_error="outcome", chunksize=2))
    assert [o.error.type for o in chunked if o.error] == names
    with pytest.raises(ValueError, match="of the cell"):
        list(raises.map(names))


def test_an_async_map() -> None:
    async def main() -> list[int]:
        return [value async for value in triple.map_aio(range(4))]

    assert asyncio.run(main()) == [0, 3, 6, 9]


def test_the_same_key_never_runs_twice() -> None:
    @sandbox
    def dice() -> str:
        import uuid

        return str(uuid.uuid4())

    keyed = dice.options(key=str(uuid.uuid4()))
    first = keyed.run()
    assert keyed.run() is first and keyed() == first.value
    assert dice.options(key=str(uuid.uuid4()))() != first.value


def test_threads_of_one_process_call_side_by_side() -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(triple, range(40))) == [3 * i for i in range(40)]


def test_a_forked_child_calls_through_a_connection_of_its_own() -> None:
    assert triple(1) == 3
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writes, str(triple(2)).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reads, 10) == b"6"
    os.close(reads)
    os.close(writes)
    assert triple(3) == 9


def test_a_sandboxed_function_goes_to_other_processes_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(triple)) is triple
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, context) as processes:
        assert list(processes.map(triple, [1, 2])) == [3, 6]


def test_each_call_is_a_process_of_its_own() -> None:
    state: list[int] = []

    @sandbox
    def remember() -> int:
        import builtins

        builtins.seen = getattr(builtins, "seen", 0) + 1  # type: ignore[attr-defined]
        state.append(1)
        return builtins.seen + len(state)  # type: ignore[attr-defined,no-any-return]

    assert [remember() for _ in range(3)] == [2, 2, 2] and state == []


def test_env_and_setup_are_inside_and_the_hosts_environment_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")

    def prepare() -> None:
        import builtins

        builtins.loaded = "ahead"  # type: ignore[attr-defined]

    @sandbox(env={"GREETING": "hello"}, setup=prepare)
    def look() -> Any:
        import builtins
        import os

        return (
            os.environ.get("GREETING"),
            os.environ.get("SECRET_OF_THE_HOST"),
            getattr(builtins, "loaded", None),
        )

    assert look() == ("hello", None, "ahead")


def test_a_setup_that_fails_is_reported_and_not_passed_over() -> None:
    def prepare() -> None:
        raise LookupError("no model here")

    @sandbox(setup=prepare)
    def use() -> int:
        return 1

    for _ in range(2):
        with pytest.raises(hutch.SandboxStartupError, match=r"setup= failed.*no model") as caught:
            use()
        assert caught.value.safe_to_retry and caught.value.outcome is not None


def test_a_module_of_preload_that_is_not_there_is_warned_of() -> None:
    @sandbox(preload=["no_such_module_at_all"])
    def use() -> int:
        return 1

    with pytest.warns(UserWarning, match="no_such_module_at_all") as caught:
        assert use() == 1
    assert caught[0].filename == __file__


def test_modules_are_importable_inside(tmp_path: Any) -> None:
    package = tmp_path / "carried_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("VALUE = 7\n")

    @sandbox(modules=[package])
    def use() -> Any:
        from carried_package import part  # type: ignore[import-not-found]

        try:
            open(part.__file__, "w")
        except OSError:
            return part.VALUE
        return "writable"

    assert use() == 7


def test_warm_fills_the_pool() -> None:
    assert triple.warm(2) >= 2


def test_options_of_an_outcome_are_suggested_and_work() -> None:
    @sandbox(timeout_sec=0.5)
    def slow() -> str:
        import time

        time.sleep(0.7)
        return "done"

    outcome = slow.run()
    assert outcome.limit == "time"
    assert slow.options(**outcome.usage.suggested)() == "done"


def test_arguments_that_cannot_be_sent_are_named_before_anything_is_sent() -> None:
    with pytest.raises(hutch.SerializationError, match="argument 'x'"):
        identity(threading.Lock())


def test_status_and_close() -> None:
    triple(1)
    assert hutch.status()["running"]
    hutch.close()
    assert triple(1) == 3


@pytest.mark.parametrize("last", ["hutch.close()", "hutch.agent.stop()", "pass"])
def test_a_process_that_mapped_ends_as_any_other(last: str) -> None:
    source = (
        "import hutch\n"
        "f = hutch.sandbox(lambda x: 2 * x)\n"
        "assert f(1) == 2\n"  # now the pool is known, and calls need no threads of their own
        "assert list(f.map(range(100), chunksize=10)) == list(range(0, 200, 2))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source + last], capture_output=True, timeout=60, text=True
    )
    assert done.returncode == 0, done.stderr


class Unloadable:
    def __reduce__(self) -> Any:
        return _not_inside, ()


def _not_inside() -> Unloadable:
    if FACTOR and "hutch" not in sys.modules:
        raise KeyError("type")
    return Unloadable()


UNLOADABLE = Unloadable()


@sandbox
def uses_what_does_not_load() -> bool:
    return UNLOADABLE is None


@sandbox
def raises_a_key_error() -> None:
    raise KeyError("type")


def test_what_does_not_load_inside_is_not_reported_as_the_functions_own_error() -> None:
    error = uses_what_does_not_load.run().error
    assert error is not None and error.type == "KeyError"
    assert "before the function began" in error.message and "did not raise" in error.hint
    own = raises_a_key_error.run().error
    assert own is not None and (own.type, own.message, own.hint) == ("KeyError", "'type'", "")


ENDS_EARLY = """
import threading, time
from hutch import sandbox

@sandbox
def nap(seconds: float) -> None:
    import time
    time.sleep(seconds)

nap(0)
for i in range(12):
    threading.Thread(target=nap, args=(0.02 + i * 0.004,), daemon=True).start()
time.sleep(0.03)
"""


def test_a_program_may_end_while_its_daemon_threads_wait() -> None:
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", ENDS_EARLY], timeout=100).returncode == 0


def test_an_error_shows_its_reader_one_frame_of_ours() -> None:
    @sandbox
    def divide(x: int) -> float:
        return 1 / x

    for _ in range(3):  # the third call takes the fast path
        with pytest.raises(ZeroDivisionError) as caught:
            divide(0)
        files = [entry.path.parent.name for entry in caught.traceback]
        assert files == ["end_to_end", "hutch"]
        assert "in divide" in str(caught.value.__cause__)
