# SPDX-License-Identifier: Apache-2.0
"""isolation="container": each call in a container of its own, out of a stock. Its limits are
tried in security/test_ladder.py, as those of the other rungs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from support import until

import hutch
from hutch import Pool, sandbox


def marked() -> Callable[[], int]:
    """Counts the calls that an interpreter has seen, as far down as a call can reach."""

    def count() -> int:
        import builtins

        builtins.calls = getattr(builtins, "calls", 0) + 1  # type: ignore[attr-defined]
        return int(builtins.calls)  # type: ignore[attr-defined]

    return count


def test_no_two_calls_share_a_container() -> None:
    count = sandbox(marked(), isolation="container")
    outcomes = [count.run() for _ in range(3)]
    assert [outcome.unwrap() for outcome in outcomes] == [1] * 3
    assert len({outcome.worker_id for outcome in outcomes}) == 3
    cells = [sandbox(marked()).run() for _ in range(3)]
    assert len({outcome.worker_id for outcome in cells}) == 1, "the counterpart: cells share one"


def test_the_cells_walls_are_there_too() -> None:
    @sandbox(isolation="container")
    def look() -> tuple[int, str, int]:
        import os
        import socket

        pids = [name for name in os.listdir("/proc") if name.isdigit()]
        return os.getpid(), socket.gethostname(), len(pids)

    assert look() == (2, "cell", 2)


STATEFUL = """
import os
born = os.urandom(8)  # by the zygote that imported this
"""


def test_what_a_package_keeps_in_its_zygote_is_not_there_for_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "keeper.py").write_text(STATEFUL)

    def born() -> bytes:
        import keeper  # type: ignore[import-not-found]

        return bytes(keeper.born)

    keywords = {"modules": [tmp_path / "keeper.py"], "preload": ["keeper"]}
    contained = sandbox(born, isolation="container", **keywords)  # type: ignore[call-overload]
    assert len({contained() for _ in range(3)}) == 3
    in_cell = sandbox(born, **keywords)  # type: ignore[call-overload]
    assert len({in_cell() for _ in range(4)}) == 1, "the counterpart: a zygote is its worker's"


def test_map_submit_and_await_work_and_each_item_has_its_container() -> None:
    square = sandbox(isolation="container")(lambda x: x * x)
    outcomes = list(square.map(range(3), on_error="outcome"))
    assert [outcome.unwrap() for outcome in outcomes] == [0, 1, 4]
    assert len({outcome.worker_id for outcome in outcomes}) == 3
    assert square.submit(7).result() == 49
    assert asyncio.run(square.aio(8)) == 64


def test_programs_and_chunks_work() -> None:
    outcome = hutch.run("print(6 * 7)", isolation="container")
    assert outcome.stdout == "42\n"
    double = sandbox(isolation="container")(lambda x: 2 * x)
    assert list(double.map(range(4), chunksize=2)) == [0, 2, 4, 6]


def test_a_stock_is_kept_and_refilled() -> None:
    function = sandbox(
        marked(), isolation="container", pool=Pool(warm=2, max_cells=6), labels={"test": "stock"}
    )
    function.warm(2)

    def ready() -> int:
        pools = [p for p in hutch.status().get("pools", []) if p["labels"] == {"test": "stock"}]
        return sum(pool["ready"] for pool in pools)

    assert ready() >= 2
    assert function() == 1
    until(lambda: ready() >= 2)


def test_bad_words_for_it_are_refused() -> None:
    with pytest.raises(ValueError, match='"cell", "container"'):
        sandbox(isolation="vm")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="one call"):
        sandbox(isolation="container", max_calls=5)
