# SPDX-License-Identifier: Apache-2.0
"""The history of a named session: what is written while it runs, whatever becomes of its process
and its storage.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hutch import AsyncSession, DirectoryStorage, Session, StorageError, sessions


class Kept:
    """A storage in memory, which may fail."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}
        self.fails = False
        self.slow: threading.Event | None = None

    def get(self, name: str) -> bytes | None:
        return self.items.get(name)

    def put(self, name: str, data: bytes) -> None:
        if self.slow is not None and "~h" in name:
            assert self.slow.wait(60)
        if self.fails:
            raise StorageError("the storage is full")
        self.items[name] = data

    def delete(self, name: str) -> None:
        self.items.pop(name, None)

    def list(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.items if name.startswith(prefix))

    def parts(self) -> list[str]:
        return self.list("report~h")


def opened(storage: Any, **keywords: Any) -> Session:
    return Session(id="report", storage=storage, memory_mb=256, timeout_sec=60, **keywords)


KILLED = """
import os, sys
from hutch import Session
def stop(): os.kill(os.getpid(), 9)
s = Session(id="report", storage=sys.argv[1], memory_mb=256, tools=[stop])
s.exec("x = 1")
s.bash("exit 3")
s.kv.set("step", "2")
if sys.argv[2] == "saved":
    s._life.save_idle()
    s.exec("y = 2")
s.exec("stop()")
"""


@pytest.mark.parametrize("how", ["saved", "never saved"])
def test_what_ended_is_there_after_a_kill(tmp_path: Path, how: str) -> None:
    place = str(tmp_path / "kept")
    ended = subprocess.run([sys.executable, "-c", KILLED, place, how], timeout=100)
    assert ended.returncode == -9
    assert [one.id for one in sessions.list(place)] == ["report"]
    expected = [("exec", "x = 1", "returned", None), ("bash", "exit 3", "raised", 3)]
    if how == "saved":
        expected.append(("exec", "y = 2", "returned", None))
    with opened(place) as s:
        found = [(e.kind, e.source, e.status, e.exit_code) for e in s.history()]
        assert found == expected and s.kv.get("step") == "2"
        s.exec("3")
        assert [e.id for e in s.history()] == list(range(1, len(expected) + 2))
    with opened(place) as s:  # and once it is part of a state
        assert [e.id for e in s.history()] == list(range(1, len(expected) + 2))


def test_a_state_takes_the_place_of_what_was_written_before() -> None:
    storage = Kept()
    with opened(storage) as s:
        for number in range(40):
            s.exec(str(number))
        assert len(storage.parts()) == 2
        assert s._life.save_idle() and storage.parts() == []
        s.exec("40")
        assert len(storage.parts()) == 1
    assert storage.parts() == []
    with opened(storage) as s:
        assert [e.source for e in s.history()] == [str(number) for number in range(41)]


def test_what_is_written_between_two_states_is_bounded() -> None:
    storage = Kept()

    def tool() -> None:
        pass

    with opened(storage, tools=[tool]) as s:
        s.exec("pass")
        source = "for _ in range(3000): tool()\n#" + "x" * 20_000
        s.exec(source)
        for _ in range(70):  # each has a part of its own, nearly
            s.exec("#" + "é" * 100_000)
        assert len(storage.parts()) <= 65
        assert sum(map(len, storage.items.values())) < 24 << 20
        kept = dict(storage.items)
    storage.items = kept  # as if its process had been killed
    with opened(storage) as s:
        found = s.history(10**6)
        assert [e.kind for e in found].count("tool") >= 900
        assert [e.kind for e in found].count("exec") == 72


def test_a_storage_that_fails_costs_no_outcome(capfd: pytest.CaptureFixture[str]) -> None:
    storage = Kept()
    with opened(storage) as s:
        s.exec("x = 1")
        storage.fails = True
        assert s.exec("x + 1").value == 2 and s.exec("x + 2").value == 3
        assert capfd.readouterr().err.count("the storage is full") == 1
        storage.fails = False
        assert s.exec("x + 3").value == 4
        assert len(s.history()) == 4
    with opened(storage) as s:
        assert len(s.history()) == 4


def test_damaged_parts_are_not_read_and_others_are(tmp_path: Path) -> None:
    place = str(tmp_path / "kept")
    storage = Kept()
    s = opened(storage)
    for number in range(70):
        s.exec(str(number))
    kept = {name: data for name, data in storage.items.items() if "~h" in name}
    s.close()
    directory = DirectoryStorage(place)
    for name, data in kept.items():
        directory.put(name, data)
    names = sorted(kept)
    assert len(names) == 3
    path = os.path.join(place, names[1])
    with open(path, "r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"?")
    with opened(place) as s:
        left = [*range(32), *range(64, 70)]
        assert [e.source for e in s.history()] == [str(number) for number in left]
        s.exec("70")
        assert s.history(1)[0].id == 71


def test_an_event_loop_waits_for_no_storage() -> None:
    storage = Kept()
    storage.slow = threading.Event()

    async def main() -> None:
        async with AsyncSession(id="report", storage=storage, memory_mb=256) as s:
            for number in range(5):
                assert (await s.exec(f"x = {number}; x")).value == number
            assert storage.slow is not None
            storage.slow.set()
            for _ in range(200):
                if storage.parts():
                    break
                await asyncio.sleep(0.05)
            assert storage.parts()
            await s.exec("6")

    asyncio.run(main())
    with opened(storage) as s:
        assert len(s.history()) == 6


def test_one_that_was_closed_writes_nothing_more() -> None:
    storage = Kept()

    def close() -> None:
        s.close()

    s = opened(storage, tools=[close])
    s.exec("close()")
    assert "running" not in [e.status for e in s.history()] and storage.parts() == []
    with opened(storage) as s:  # their end came after it was saved
        assert [(e.kind, e.status, e.end) for e in s.history()] == [
            ("exec", "fault", None), ("tool", "fault", None)]  # fmt: skip
