# SPDX-License-Identifier: Apache-2.0
"""isolation="shared": one cell for many calls; what is shared then, and what never is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import hutch
from hutch import sandbox


def counting() -> Callable[[], int]:
    def count() -> int:
        import builtins

        builtins.calls = getattr(builtins, "calls", 0) + 1  # type: ignore[attr-defined]
        return int(builtins.calls)  # type: ignore[attr-defined]

    return count


# Each test has a pool of its own: cells are shared by all functions of one.
def test_state_leaks_from_call_to_call_as_it_is_meant_to() -> None:
    shared = sandbox(counting(), isolation="shared", labels={"test": "leaks"})
    assert [shared() for _ in range(5)] == [1, 2, 3, 4, 5]


def test_a_call_for_a_fresh_cell_sees_nothing_of_it() -> None:
    shared = sandbox(counting(), isolation="shared", labels={"test": "fresh"})
    fresh = shared.options(isolation="cell")
    assert [shared(), shared()] == [1, 2]
    assert [fresh() for _ in range(10)] == [1] * 10
    assert shared() == 3


def test_another_process_gets_other_cells() -> None:
    shared = sandbox(counting(), isolation="shared", labels={"test": "fork"})
    assert [shared(), shared()] == [1, 2]
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if shared() == 1 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert shared() == 3


def test_a_cell_is_replaced_after_max_calls() -> None:
    shared = sandbox(counting(), isolation="shared", max_calls=3, labels={"test": "max"})
    assert [shared() for _ in range(7)] == [1, 2, 3, 1, 2, 3, 1]


def test_a_cell_is_replaced_when_it_is_old() -> None:
    shared = sandbox(counting(), isolation="shared", max_age_sec=0.3, labels={"test": "age"})
    assert shared() == 1
    time.sleep(0.4)
    # One call may be on the old one, which goes then: unless it was old after its first call.
    assert 1 in (shared(), shared())


def test_functions_of_one_pool_share_it_and_each_keeps_its_code() -> None:
    @sandbox(isolation="shared", labels={"test": "two"})
    def one(x: int) -> int:
        return x + 1

    @sandbox(isolation="shared", labels={"test": "two"})
    def two(x: int) -> int:
        return x * 10

    assert [(one(n), two(n)) for n in range(6)] == [(n + 1, n * 10) for n in range(6)]
    # A chunk, a text and a program meet the same cells.
    assert list(one.map(range(6), chunksize=3)) == [1, 2, 3, 4, 5, 6]
    text = hutch.function("def one(x): return -x\ndef two(x): return [x]", "one").options(
        isolation="shared", labels={"test": "two"}
    )
    assert [text(1), text(2), one(1)] == [-1, -2, 2]
    program = hutch.Program("print(6 * 7)", isolation="shared", labels={"test": "two"})
    assert [program.run().stdout for _ in range(3)] == ["42\n"] * 3


def test_a_replaced_capture_is_seen_by_the_next_call() -> None:
    captured = [1]

    @sandbox(isolation="shared", labels={"test": "capture"})
    def total() -> int:
        return sum(captured)

    assert total() == 1
    captured.append(41)
    assert total() == 42


def test_an_error_leaves_the_cell_and_a_limit_ends_it() -> None:
    @sandbox(isolation="shared", timeout_sec=1, labels={"test": "ends"})
    def act(what: str) -> int:
        import builtins
        import os

        builtins.calls = getattr(builtins, "calls", 0) + 1  # type: ignore[attr-defined]
        if what == "raise":
            raise ValueError(what)
        if what == "hang":
            while True:
                pass
        if what == "die":
            os._exit(7)
        return int(builtins.calls)  # type: ignore[attr-defined]

    assert act("") == 1
    with pytest.raises(ValueError, match="raise"):
        act("raise")
    assert act("") == 3
    assert act.run("hang").limit == "time"
    assert act("") == 1
    assert act.run("die").exit_code == 7
    assert act("") == 1


def test_the_clock_of_a_slow_call_does_not_end_a_later_one() -> None:
    @sandbox(isolation="shared", timeout_sec=2, labels={"test": "clock"})
    def nap(seconds: float) -> int:
        import os
        import time

        time.sleep(seconds)
        return os.getpid()

    # Together longer than the limit and the warden's grace: each was reported, and taken off again.
    assert {nap(1.2) for _ in range(4)} == {nap(0.0)}


def test_cpu_time_is_counted_for_each_call() -> None:
    @sandbox(isolation="shared", cpu_sec=1, timeout_sec=20, labels={"test": "cpu"})
    def burn(seconds: float) -> int:
        import os
        import time

        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return os.getpid()

    assert len({burn(0.5) for _ in range(3)}) == 1
    assert burn.run(30).limit == "cpu_time"
    assert burn(0.1)


def test_output_is_each_calls_own() -> None:
    @sandbox(isolation="shared", labels={"test": "output"})
    def say(n: int) -> None:
        print("line", n)

    assert [say.run(n).stdout for n in range(5)] == [f"line {n}\n" for n in range(5)]


def test_threads_futures_and_maps_use_shared_cells_one_call_at_a_time() -> None:
    @sandbox(isolation="shared", labels={"test": "threads"})
    def alone(x: int) -> int:
        import builtins

        assert not getattr(builtins, "busy", False)
        builtins.busy = True  # type: ignore[attr-defined]
        sum(range(1000))
        builtins.busy = False  # type: ignore[attr-defined]
        return x

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(alone, range(200))) == list(range(200))
    assert list(alone.map(range(200))) == list(range(200))
    futures = [alone.submit(n) for n in range(50)]
    assert [future.result() for future in futures] == list(range(50))


def test_large_values_arrive_and_end_the_cell() -> None:
    @sandbox(isolation="shared", labels={"test": "large"})
    def back(data: bytes) -> bytes:
        return data[::-1]

    for n in range(4):
        data = bytes([n]) * 300_000 + b"end"
        assert back(data) == data[::-1]
        assert back(b"ab") == b"ba"


def test_an_unused_shared_cell_is_given_up_when_others_want_it() -> None:
    pool = hutch.Pool(max_cells=1)
    shared = sandbox(counting(), isolation="shared", pool=pool, labels={"test": "taken"})
    fresh = shared.options(isolation="cell", queue_sec=20)
    assert shared() == 1
    assert fresh() == 1
    assert shared() == 1


def test_the_limit_of_a_result_holds_for_every_call_of_a_cell() -> None:
    give = sandbox(lambda size: "x" * size, isolation="shared", result_mb=0.001)
    for _ in range(4):
        assert give.run(500).value == "x" * 500
        assert give.run(3_000).limit == "result"
