# SPDX-License-Identifier: Apache-2.0
"""A named session that another one asks for while it is in use: it is saved as it is, or kept."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support import until

import hutch
from hutch import AsyncSession, Session, SessionBusy, _session_hold, _session_life

HOLDER = """
import asyncio
from hutch import AsyncSession, SandboxError

async def again(s):
    try:
        print("again:", (await s.exec("c")).text)
    except SandboxError as error:
        print("again:", type(error).__name__)

async def main():
    async with AsyncSession(id="a", storage={place!r}, memory_mb=256, queue={queue}) as s:
        await s.exec("c = 10; open('f', 'w').write('x')")
        print("holds", flush=True)
        if {queue}:
            more = [asyncio.ensure_future(again(s)) for _ in range(3)]
            await asyncio.sleep(0)
        try:
            print("busy:", (await s.{busy}).status)
        except SandboxError as error:  # it had not begun
            print("busy:", type(error).__name__)
        if {then}:
            await again(s)
    print("over")

asyncio.run(main())
"""
BUSY = {
    "exec": "exec('import time\\nwhile True: time.sleep(0.05)')",
    "bash": "bash('sleep 1000')",
    "node": "node('while (true) {}')",
    "await": "exec('import asyncio\\nawait asyncio.sleep(1000)')",
}


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "kept")


def holder_of(place: str, busy: str, then: bool = True, queue: bool = False) -> Any:
    text = HOLDER.format(place=place, busy=BUSY[busy], then=then, queue=queue)
    pipe = subprocess.PIPE
    other = subprocess.Popen(
        [sys.executable, "-c", text], stdout=pipe, stderr=subprocess.STDOUT, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "holds\n", other.stdout.read()
    return other


@pytest.mark.parametrize("then", [True, False], ids=["goes on", "ends"])
@pytest.mark.parametrize("busy", BUSY)
def test_an_async_one_that_is_busy_is_saved(place: str, busy: str, then: bool) -> None:
    other = holder_of(place, busy, then)
    with Session(id="a", storage=place, memory_mb=256, steal=True) as s:
        assert s.get("c") == 10 and s.files.read("f") == "x" and s.lost == []
    said = other.communicate(timeout=60)[0]
    assert "could not be saved" not in said and said.endswith("over\n"), said
    assert not then or "again: SandboxStartupError" in said


@pytest.mark.parametrize("ends", ["close", "steal"])
def test_no_call_runs_after_the_save_and_is_lost(place: str, ends: str) -> None:
    """What returns is in the save; what does not come to its turn before it says so."""

    async def main() -> dict[str, str]:
        s = AsyncSession(id="a", storage=place, memory_mb=256, queue=True)
        await s.exec("done = []")
        told: dict[str, str] = {}

        async def call(name: str, source: str = "") -> None:
            try:
                source = source or f"done.append({name!r})"
                told[name] = (await s.exec(source, on_stdout=lambda _: begun.set())).status
            except hutch.SandboxError as error:
                told[name] = type(error).__name__

        async def write(name: str) -> None:
            try:
                await s.files.write(name, "x")
                told[name] = "returned"
            except hutch.SandboxError as error:
                told[name] = type(error).__name__

        begun = asyncio.Event()
        endless = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.05)"
        tasks = [asyncio.ensure_future(call("first", endless))]
        await begun.wait()
        tasks += [asyncio.ensure_future(call(f"c{n}")) for n in range(3)]
        tasks += [asyncio.ensure_future(write(f"f{n}")) for n in range(3)]
        await asyncio.sleep(0)  # in which they queue
        if ends == "steal":
            thief = asyncio.to_thread(Session, id="a", storage=place, memory_mb=256, steal=True)
            (await thief).close()
        else:
            await s.close()
        await asyncio.gather(*tasks)
        assert s.info()["closed"]
        return told

    told = asyncio.run(main())
    with Session(id="a", storage=place, memory_mb=256) as t:
        kept = [*t["done"], *t.files.list()]
        assert sorted(kept) == sorted(name for name, how in told.items() if how == "returned")
        assert t.lost == []
    assert told.pop("first") == "cancelled" and len(told) == 6
    assert set(told.values()) == {"SandboxStartupError"}, told


def test_calls_that_queue_come_after_the_save(place: str) -> None:
    other = holder_of(place, "exec", queue=True)
    with Session(id="a", storage=place, memory_mb=256, steal=True) as s:
        assert s.get("c") == 10 and s.lost == []
    said = other.communicate(timeout=60)[0]
    assert "could not be saved" not in said, said


def test_one_whose_tool_takes_its_time_is_saved_once_that_is_over(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_session_life, "_INTERRUPTED_SEC", 0.05)
    goes_on, waits = threading.Event(), threading.Event()

    def tool() -> None:
        waits.set()
        goes_on.wait(60)

    s = Session(id="a", storage=place, memory_mb=256, tools=[tool])
    s.exec("c = 10")
    caller = threading.Thread(target=lambda: s.exec("tool()\nc = 11"))
    caller.start()
    assert waits.wait(60)
    threading.Timer(0.5, goes_on.set).start()
    with Session(id="a", storage=place, memory_mb=256, steal=True) as t:
        assert t.get("c") == 10 and t.lost == []
    caller.join()
    with pytest.raises(hutch.SandboxStartupError, match="has taken it"):
        s.exec("c")


def test_one_that_cannot_be_saved_in_time_is_kept(
    place: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_session_life, "GIVEN_UP_SEC", 0.2)
    monkeypatch.setattr(_session_hold, "STEAL_SEC", 1.0)
    goes_on, waits = threading.Event(), threading.Event()

    def tool() -> None:
        waits.set()
        goes_on.wait(60)

    with Session(id="a", storage=place, memory_mb=256, tools=[tool]) as s:
        s.exec("c = 10")
        caller = threading.Thread(target=lambda: s.exec("tool()"))
        caller.start()
        assert waits.wait(60)
        with pytest.raises(SessionBusy, match="is held by process") as error:
            Session(id="a", storage=place, steal=True)
        assert "in this very process" in error.value.hint
        goes_on.set()
        caller.join()
        assert s.exec("c += 1; c").value == 11
    assert "could not be saved: the session is running another call" in capfd.readouterr().err
    with Session(id="a", storage=place, memory_mb=256) as t:
        assert t["c"] == 11 and t.lost == []


def test_a_loop_is_not_kept_waiting_for_a_session_of_its_own(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_session_hold, "STEAL_SEC", 1e6)  # it would wait for ever

    async def main() -> None:
        async with AsyncSession(id="a", storage=place, memory_mb=256) as s:
            await s.exec("c = 10")
            with pytest.raises(SessionBusy, match="is held by process") as error:
                AsyncSession(id="a", storage=place, steal=True)
            assert "in this very process: close() it" in error.value.hint
            assert (await s.exec("c += 1; c")).value == 11

    asyncio.run(main())
    with Session(id="a", storage=place, memory_mb=256) as t:
        assert t["c"] == 11 and t.lost == []


def test_a_loop_that_is_blocked_keeps_its_session(
    place: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hutch._awaited_life.GIVEN_UP_SEC", 0.2)
    monkeypatch.setattr(_session_hold, "STEAL_SEC", 1.0)
    refused: list[str] = []

    def steal() -> None:
        try:
            Session(id="a", storage=place, steal=True)
        except SessionBusy as error:
            refused.append(error.message)

    async def main() -> None:
        async with AsyncSession(id="a", storage=place, memory_mb=256) as s:
            await s.exec("c = 10")
            thief = threading.Thread(target=steal)
            thief.start()
            thief.join()  # and nothing else runs on this loop
            assert len(refused) == 1
            assert (await s.exec("c += 1; c")).value == 11

    asyncio.run(main())
    assert "the event loop of its AsyncSession is kept busy" in capfd.readouterr().err
    with Session(id="a", storage=place, memory_mb=256) as t:
        assert t["c"] == 11 and t.lost == []


class Bucket:
    """A storage of the caller's own."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        return self.kept.get(name)

    def put(self, name: str, data: bytes) -> None:
        self.kept[name] = bytes(data)

    def delete(self, name: str) -> None:
        self.kept.pop(name, None)

    def list(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.kept if name.startswith(prefix))


class Placed(Bucket):
    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place


def test_storages_that_have_a_place_share_no_locks() -> None:
    one, two = Placed("bucket:one"), Placed("bucket:two")
    with Session(id="hutch-test-a", storage=one, memory_mb=256) as s:
        s.exec("x = 1")
        with Session(id="hutch-test-a", storage=two, memory_mb=256, steal=True) as t:
            assert not t.has("x") and s.has("x")
        with pytest.raises(SessionBusy):
            Session(id="hutch-test-a", storage=one)
    unnamed = Bucket()
    with Session(id="hutch-test-b", storage=unnamed, memory_mb=256) as s:
        s.exec("x = 1")
        with pytest.raises(SessionBusy):
            Session(id="hutch-test-b", storage=unnamed)
    until(lambda: hutch.sessions.list(unnamed)[0].holder is None)
