# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys of `hutch serve`: what a key promises, whoever asks how often, and what that
costs those who wait.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hutch.serve import kept
from hutch.serve.gate import Refused
from hutch.serve.keys import Keys
from hutch.serve.queue import Full
from hutch.serve.settings import Client, Settings


def run(main: Coroutine[Any, Any, None]) -> None:
    """One that hangs fails."""
    asyncio.run(asyncio.wait_for(main, 60))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(Settings(kept=3, kept_mb=1), tmp_path / "keys")


ONE, OTHER = Client("one"), Client("other")
ANSWER = (200, b"a")


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this process asks of the file from now on."""
    seen: list[str] = []
    connect = sqlite3.connect

    def traced(*given: Any, **named: Any) -> sqlite3.Connection:
        database = connect(*given, **named)
        database.set_trace_callback(seen.append)
        return database

    monkeypatch.setattr(sqlite3, "connect", traced)
    return seen


@contextmanager
def another_process(path: Path, work: Callable[[Keys], None]) -> Iterator[Callable[[], None]]:
    """Claims "k" within; then what it gives has it do `work`."""
    (begun, tell_begun), (told, tell) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        keys = Keys(Settings(), path)
        keys.claim(ONE, "k", b"r")
        os.write(tell_begun, b"x")
        os.read(told, 1)
        work(keys)
        os._exit(0)
    os.read(begun, 1)
    try:
        yield lambda: assert_written(tell)
    finally:
        assert_written(tell)
        os.waitpid(child, 0)
        for one in (begun, tell_begun, told, tell):
            os.close(one)


def assert_written(descriptor: int) -> None:
    assert os.write(descriptor, b"x") == 1


async def waiting(keys: Keys, count: int, client: Client = ONE) -> list[asyncio.Task[Any]]:
    """So many who wait for "k"."""
    tasks = [asyncio.ensure_future(keys.wait(client, "k", b"r")) for _ in range(count)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    return tasks


def test_a_key_belongs_to_its_tenant(keys: Keys) -> None:
    assert keys.claim(ONE, "k", b"r") is True and keys.claim(OTHER, "k", b"r") is True
    keys.keep(ONE, "k", (200, b"a"))
    assert keys.claim(ONE, "k", b"r") == (200, b"a") and keys.claim(OTHER, "k", b"r") is False
    keys.release(OTHER, "k")
    assert keys.claim(OTHER, "k", b"r") is True


def test_keys_are_bounded_for_each_tenant_and_never_forgotten_early(keys: Keys) -> None:
    large = bytes(600 << 10)
    for name in "abc":
        assert keys.claim(ONE, name, b"r") is True
        keys.keep(ONE, name, (200, large))
    with pytest.raises(Refused) as full:
        keys.claim(ONE, "d", b"r")
    assert full.value.status == 429 and full.value.headers["Retry-After"]
    assert keys.claim(OTHER, "d", b"r") is True
    with pytest.raises(Refused) as gone:  # its answer made room; it does not run again
        keys.claim(ONE, "a", b"r")
    assert gone.value.status == 410


def test_a_key_is_free_again_after_its_time(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    assert keys.claim(ONE, "a", b"r") is True
    keys.keep(ONE, "a", (200, b"a"))
    assert keys.claim(ONE, "b", b"r") is True  # runs, and does so for longer
    monkeypatch.setattr(time, "monotonic", lambda: now + 3599)
    assert keys.claim(ONE, "a", b"r") == (200, b"a")
    monkeypatch.setattr(time, "monotonic", lambda: now + 3700)
    assert keys.claim(ONE, "a", b"other") is True and keys.claim(ONE, "b", b"r") is False


def test_a_key_of_a_process_that_ended_is_not_run_again(keys: Keys, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        Keys(Settings(), tmp_path / "keys").claim(ONE, "k", b"r")
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(Refused) as lost:
        keys.claim(ONE, "k", b"r")
    assert lost.value.status == 500 and "may have run" in lost.value.text


# ---- those who wait


def test_those_who_wait_are_informed_and_ask_the_file_for_nothing(
    statements: list[str], keys: Keys
) -> None:
    async def main() -> None:
        assert keys.claim(ONE, "k", b"r") is True
        tasks = await waiting(keys, 100)
        statements.clear()
        keys.keep(ONE, "k", ANSWER)
        assert await asyncio.gather(*tasks) == [ANSWER] * 100
        assert not any(one.startswith("SELECT request") for one in statements), statements
        assert sum(one.startswith("BEGIN") for one in statements) == 1

    run(main())


def test_of_those_who_wait_for_what_did_not_run_one_runs_it(keys: Keys) -> None:
    async def main() -> None:
        assert keys.claim(ONE, "k", b"r") is True
        tasks = await waiting(keys, 3)
        keys.release(ONE, "k")
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [None] and len(others) == 2
        keys.keep(ONE, "k", ANSWER)
        assert await asyncio.gather(*others) == [ANSWER] * 2

    run(main())


def test_who_waits_for_another_process_changes_nothing_in_the_file(
    statements: list[str], keys: Keys, tmp_path: Path
) -> None:
    async def main(tell: Callable[[], None]) -> None:
        tasks = await waiting(keys, 50)
        statements.clear()
        tell()
        assert await asyncio.gather(*tasks) == [ANSWER] * 50
        assert statements and all(one.startswith("SELECT") for one in statements), statements
        assert len(statements) < 50  # one looks for all

    path = tmp_path / "keys"
    with another_process(path, lambda keys: keys.keep(ONE, "k", ANSWER)) as tell:
        run(main(tell))


def test_who_waits_for_another_process_hears_of_its_end(keys: Keys, tmp_path: Path) -> None:
    async def main(tell: Callable[[], None]) -> None:
        tasks = await waiting(keys, 2)
        tell()
        for task in tasks:
            with pytest.raises(Refused, match="may have run"):
                await task

    with another_process(tmp_path / "keys", lambda _: os._exit(0)) as tell:
        run(main(tell))


def test_who_waits_for_another_process_runs_what_that_did_not(keys: Keys, tmp_path: Path) -> None:
    async def main(tell: Callable[[], None]) -> None:
        (task,) = await waiting(keys, 1)
        tell()
        assert await task is None

    with another_process(tmp_path / "keys", lambda keys: keys.release(ONE, "k")) as tell:
        run(main(tell))


def test_those_who_wait_are_bounded_for_each_client(tmp_path: Path) -> None:
    keys = Keys(Settings(queue=3), tmp_path / "keys")

    async def main() -> None:
        assert keys.claim(ONE, "k", b"r") is keys.claim(OTHER, "k", b"r") is True
        tasks = await waiting(keys, 3)
        with pytest.raises(Full):
            await keys.wait(ONE, "k", b"r")
        assert len(await waiting(keys, 1, OTHER)) == 1
        tasks[0].cancel()
        await asyncio.wait({tasks[0]})
        tasks[0] = (await waiting(keys, 1))[0]
        keys.keep(ONE, "k", ANSWER)
        assert await asyncio.gather(*tasks) == [ANSWER] * 3
        assert await keys.wait(ONE, "k", b"r") == ANSWER

    run(main())


# ---- the file


def test_an_answer_is_found_without_a_change_in_the_file(statements: list[str], keys: Keys) -> None:
    assert keys.claim(ONE, "k", b"r") is True
    keys.keep(ONE, "k", ANSWER)
    statements.clear()
    assert keys.claim(ONE, "k", b"r") == ANSWER
    assert all(one.startswith("SELECT") for one in statements), statements


def test_what_has_no_answer_of_its_own_is_never_let_go(keys: Keys) -> None:
    """A map, whose items have keys."""
    assert keys.claim(ONE, "map", b"r", (200, b"")) is True
    for name in "ab":
        assert keys.claim(ONE, name, b"r") is True
        keys.keep(ONE, name, (200, bytes(600 << 10)))
    with pytest.raises(Refused, match="too much room"):
        keys.claim(ONE, "a", b"r")
    assert keys.claim(ONE, "map", b"r", (200, b"")) == (200, b"")


def test_keys_whose_time_is_over_take_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(Settings(kept=3, kept_sec=5), tmp_path / "keys")
    now = time.monotonic()
    for name in "abc":
        assert keys.claim(ONE, name, b"r", ANSWER) is True
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    for name in "def":
        assert keys.claim(ONE, name, b"r", ANSWER) is True
    with pytest.raises(Refused, match="3 keys are kept"):
        keys.claim(ONE, "g", b"r")


def test_each_server_has_keys_of_its_own(tmp_path: Path) -> None:
    servers = [{"port": 1}, {"port": 2}, {"socket": "a"}, {"socket": "b"}]
    for server in servers:
        keys = Keys(Settings(**server), tmp_path / "keys")
        assert keys.claim(ONE, "k", b"r", (200, repr(server).encode())) is True
    for server in servers:
        keys = Keys(Settings(**server), tmp_path / "keys")
        assert keys.claim(ONE, "k", b"r") == (200, repr(server).encode())


def test_an_earlier_boot_has_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock was another one, and its processes are gone."""
    path = tmp_path / "keys"
    assert Keys(Settings(), path).claim(ONE, "k", b"r", ANSWER) is True
    assert Keys(Settings(), path).claim(ONE, "k", b"r") == ANSWER
    monkeypatch.setattr(kept, "boot_id", lambda: "another")
    again = Keys(Settings(), path)
    assert again.claim(ONE, "k", b"r", ANSWER) is True
    assert Keys(Settings(), path).claim(ONE, "k", b"r") == ANSWER
