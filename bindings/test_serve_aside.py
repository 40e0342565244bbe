# SPDX-License-Identifier: Apache-2.0
"""What takes long for its size keeps neither the loop nor another client waiting."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from hutch import _strict_json
from hutch.serve import memory
from hutch.serve.aside import AT_ONCE, Aside
from hutch.serve.encode import encoded, size_of
from hutch.serve.settings import Client, Settings

LARGE = AT_ONCE + 1


def run(main: Any) -> None:
    """One that hangs fails."""
    asyncio.run(asyncio.wait_for(main, 60))


def test_what_is_large_is_done_beside_the_loop_and_what_is_small_on_it() -> None:
    async def main() -> None:
        aside, here = Aside(), threading.get_ident()
        goes_on = threading.Event()

        def work() -> int:
            assert goes_on.wait(60)
            return threading.get_ident()

        task = asyncio.ensure_future(aside.do(Client(), LARGE, work))
        await asyncio.sleep(0)
        assert await aside.do(Client(), AT_ONCE, threading.get_ident) == here
        goes_on.set()
        assert await task != here

    run(main())


def test_one_client_has_one_thread_and_another_is_served_beside_it() -> None:
    async def main() -> None:
        aside, first, other = Aside(), Client("first"), Client("other")
        goes_on, begun = threading.Event(), []

        def work(number: int) -> int:
            begun.append(number)
            assert goes_on.wait(60)
            return number

        many = [asyncio.ensure_future(aside.do(first, LARGE, lambda n=n: work(n)))
                for n in range(5)]  # fmt: skip
        assert await aside.do(other, LARGE, lambda: "served") == "served"
        assert len(begun) <= 1
        goes_on.set()
        assert await asyncio.gather(*many) == [0, 1, 2, 3, 4]

    run(main())


def test_one_that_is_cancelled_ends_with_its_work() -> None:
    async def main() -> None:
        aside, client = Aside(), Client()
        begun, goes_on = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            assert goes_on.wait(60)
            raise ValueError

        task = asyncio.ensure_future(aside.do(client, LARGE, work))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ZeroDivisionError):
            await aside.do(client, LARGE, lambda: 1 // 0)

    run(main())


def test_where_there_is_no_thread_it_is_done_on_the_loop(monkeypatch: Any) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        here = threading.get_ident()
        assert await Aside().do(Client(), LARGE, threading.get_ident) == here

    run(main())


def test_bytes_leave_as_base64_and_surrogates_as_they_are() -> None:
    assert json.loads(encoded({"files": {"a": b"\x00\xff"}})) == {"files": {"a": "AP8="}}
    assert json.loads(encoded({"a": "\ud83d"})) == {"a": "\ud83d"}
    with pytest.raises(TypeError):
        encoded({"a": {1, 2}})
    assert size_of({"a": "xxx", "b": [b"yy", 1, None, {"c": "z"}]}) == 3 + 2 + 8 + 8 + 1


@pytest.mark.parametrize("length", [999, 1000, 1001, 1100, 5000])
@pytest.mark.parametrize("before", [0, 1, 50, 99, 100, 1234])
def test_no_number_of_too_many_digits_is_read_wherever_it_stands(length: int, before: int) -> None:
    data = b'{"a": ["%s", %s]}' % (b"x" * before, b"7" * length)
    if length <= 1000:
        assert _strict_json.parsed(data, 100, 1000)["a"][1] == int("7" * length)
    else:
        with pytest.raises(ValueError, match="more than 1000 digits"):
            _strict_json.parsed(data, 100, 1000)


def test_what_all_may_have_fits_what_the_process_may_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    limits: dict[str, Any] = {"space": memory.resource.RLIM_INFINITY}
    monkeypatch.setattr(memory, "_group", lambda: inner)
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: (limits["space"], -1))
    mib = 1 << 20
    assert memory.most_held(Settings(held_mb=1024)) == 1024 * mib
    (inner / "memory.max").write_text("max\n")
    assert memory.most_held(Settings(held_mb=1024)) == 1024 * mib
    (inner.parent / "memory.max").write_text(f"{512 * mib}\n")
    assert memory.most_held(Settings(held_mb=1024)) == (512 * mib - memory._OWN) // 2
    assert memory.most_held(Settings(held_mb=10)) == 10 * mib
    assert memory.most_held(Settings(held_mb=1024, workers=4)) == memory._LEAST
    limits["space"] = 300 * mib
    assert memory.most_held(Settings(held_mb=1024)) == (300 * mib - memory._OWN) // 2
