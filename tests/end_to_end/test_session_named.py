# SPDX-License-Identifier: Apache-2.0
"""Sessions with a name: found by a later process, held by one at a time, saved by themselves."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import until

import hutch
from hutch import (
    AsyncSession,
    DirectoryStorage,
    Session,
    SessionBusy,
    SnapshotError,
    StorageError,
    _status,
)


@pytest.fixture(params=["{}/kept", "sqlite://{}/kept/kept.db"], ids=["directory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    text: str = request.param
    return text.format(tmp_path)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "kept")


def opened(place: Any, id: str = "report-7", **keywords: Any) -> Session:
    return Session(id=id, storage=place, memory_mb=256, timeout_sec=20, **keywords)


def ran(s: Session, source: str) -> Any:
    return s.exec(source).unwrap()


HEAD = """
import os, sys, time
from hutch import Session
s = Session(id='report-7', storage={place!r}, memory_mb=256)
"""


def process(place: str, source: str) -> subprocess.Popen[str]:
    """Another one, which has opened the session."""
    text = HEAD.format(place=place) + textwrap.dedent(source)
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line_of(other: subprocess.Popen[str]) -> str:
    assert other.stdout is not None and other.stderr is not None
    return other.stdout.readline() or other.stderr.read()


@pytest.fixture
def holder(directory: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds it, and has not saved."""
    other = process(directory, "s.exec('x = 1'); print('holds', flush=True)\ninput()")
    assert line_of(other) == "holds\n"
    yield other
    other.kill()
    other.communicate()


# ---- found again


def test_all_that_can_travel_is_found_again(place: str) -> None:
    with opened(place, files={"a.txt": "1"}) as s:
        assert s.id == "report-7" and s.lost == []
        ran(s, "x = [1]; y = x; import threading; lock = threading.Lock()")
        ran(s, "from hutch_tools import kv; kv.set('inside', b'2')\ndef f(): return len(x)")
        s.kv.set("outside", "1")
        s.kv.set("gone", "1")
        s.kv.delete("gone")
    assert list(s.left_out) == ["lock"] and s.kv.get("outside") == "1"
    with opened(place) as s:
        assert s.lost == ["lock"]
        assert ran(s, "x.append(2); y is x, f()") == (True, 2) and s.files.read("a.txt") == "1"
        assert s.kv.items() == [("inside", b"2"), ("outside", "1")]
        kinds = [(one.id, one.source[:5]) for one in s.history()]
        assert kinds == [(1, "x = ["), (2, "from "), (3, "x.app")]
    with opened(place) as s:
        assert s["x"] == [1, 2] and s.info()["version"] == 2
    with opened(place, "another") as s:
        assert s.names() == [] and s.kv.keys() == [] and s.history() == []


def test_one_name_that_cannot_be_loaded_again_costs_no_other(directory: str) -> None:
    with opened(directory) as s:
        ran(s, "class v:\n    def __new__(cls, a): return super().__new__(cls)")
        ran(s, "w = v(1); x = [w]; n = 1")
    with opened(directory) as s:
        assert s.lost == ["w", "x"] and s["n"] == 1
        assert ran(s, "type(v(2)) is v")


@pytest.mark.parametrize("does", ["__import__('os')._exit(3)", "__import__('os').kill(2, 9)"])
def test_names_that_end_the_interpreter_when_it_is_saved_cost_no_files(
    directory: str, does: str, capfd: pytest.CaptureFixture[str]
) -> None:
    source = f"class Ends:\n    def __reduce__(self):\n        {does}\nends = Ends()"
    with opened(directory) as s:
        ran(s, "x = 1; open('f', 'w').write('saved')")
    with opened(directory) as s:
        ran(s, f"{source}\n_ = open('f', 'w').write('newer'); y = 2")
    assert "is saved without its names" in capfd.readouterr().err
    with opened(directory) as s:
        assert s.files.read("f") == "newer" and s.info()["version"] == 2
        assert {"x", "y", "ends"} <= set(s.lost) and s.names() == []

    async def awaited() -> None:
        async with AsyncSession(id="awaited", storage=directory, memory_mb=256) as t:
            await t.exec(f"{source}\n_ = open('f', 'w').write('newer')")
        async with AsyncSession(id="awaited", storage=directory, memory_mb=256) as t:
            assert await t.files.read("f") == "newer" and "ends" in t.lost

    asyncio.run(awaited())


def test_a_process_that_only_ends_has_saved(directory: str) -> None:
    other = process(directory, "s.exec('x = 1')")
    assert other.communicate(timeout=60)[1] == ""
    with opened(directory) as s:
        assert s["x"] == 1 and s.lost == []


STUCK = """
from hutch import _session_engine
_session_engine._SAVE_SEC = 1.0
for n in range(3):
    t = Session(id=f"stuck-{n}", storage=s._engine.named.storage, memory_mb=256, timeout_sec=None)
    t.exec("class Stuck:\\n    def __reduce__(self):\\n        while True: pass\\nx = Stuck()")
    globals()[f"t{n}"] = t
s.exec("x = 1")
"""


def test_code_that_never_ends_does_not_keep_its_process_from_ending(directory: str) -> None:
    said = process(directory, STUCK).communicate(timeout=120)[1]
    lines = [line for line in said.splitlines() if "could not be saved" in line]
    assert sorted(line.split("'")[1] for line in lines) == ["stuck-0", "stuck-1", "stuck-2"]
    assert all("timeout_sec=1 allowed" in line for line in lines)
    with opened(directory) as s:
        assert s["x"] == 1


def test_it_is_saved_when_it_is_idle_and_calls_wait_for_that(directory: str) -> None:
    with opened(directory) as s:
        ran(s, "x = 1; _ = open('large', 'wb').write(bytes(50 << 20))")
        assert s.info()["version"] == 0
        while s.info()["version"] == 0:
            assert s["x"] == 1  # also while it is saved
        ran(s, "x = 2")
        until(lambda: s.info()["version"] == 2)
        s.names()
        assert ran(s, "x") == 2


def test_one_that_is_reset_with_its_files_is_a_new_one(directory: str) -> None:
    with opened(directory) as s:
        ran(s, "x = 1; open('f', 'w').close()")
        s.kv.set("k", "v")
    with opened(directory, files={"g": "1"}) as s:
        assert s["x"] == 1 and s.files.list() == ["f", "g"]
        s.reset(files=True)
        assert s.names() == [] and s.files.list() == ["g"]
        ran(s, "y = 2")
    with opened(directory) as s:
        assert s.names() == ["y"] and s.files.list() == ["g"] and s.kv.get("k") == "v"


def test_it_is_saved_before_it_expires(directory: str) -> None:
    s = opened(directory, idle_sec=1.5)
    ran(s, "x = 1")
    until(lambda: s.info()["version"] == 1)
    until(lambda: not _status.sessions() or s.info()["closed"])
    with pytest.raises(hutch.SandboxError):
        ran(s, "x = 2")
    s.close()
    with opened(directory) as t:
        assert t["x"] == 1 and t.lost == []


def test_what_a_kill_costs_is_reported(holder: subprocess.Popen[str], directory: str) -> None:
    holder.kill()
    holder.wait()
    with opened(directory) as s:
        assert s.lost == ["x"] and s.names() == []
        ran(s, "y = 1")
    other = process(directory, "s.exec('y = 2; z = 3'); os.kill(os.getpid(), 9)")
    other.communicate(timeout=60)
    with opened(directory) as s:
        assert s.lost == ["z"] and s["y"] == 1
    other = process(directory, "s.exec('y += 1'); os.kill(os.getpid(), 9)")
    other.communicate(timeout=60)
    with opened(directory) as s:  # its names are those that were saved
        assert s.lost == [] and s["y"] == 1


def test_an_awaited_one_is_the_same(directory: str) -> None:
    async def first() -> None:
        async with AsyncSession(id="report-7", storage=directory, memory_mb=256) as s:
            await s.exec("x = 1")
            while s.info()["version"] == 0:
                assert await s.get("x") == 1
                await asyncio.sleep(0.001)
            await s.exec("x = 2")
            await s.kv.set("k", "v")

    async def second() -> None:
        s = AsyncSession(id="report-7", storage=directory, memory_mb=256)
        assert await s.get("x") == 2 and await s.kv.get("k") == "v"
        await s.exec("x = 3")
        with pytest.raises(SessionBusy):
            AsyncSession(id="report-7", storage=directory)
        loop = asyncio.get_running_loop()
        taken = await loop.run_in_executor(None, lambda: opened(directory, steal=True))
        with pytest.raises(hutch.SandboxError, match="has taken it"):
            await s.exec("1")
        assert await loop.run_in_executor(None, lambda: taken["x"]) == 3
        await loop.run_in_executor(None, taken.close)

    asyncio.run(first())
    asyncio.run(second())


def test_an_awaited_one_that_is_in_use_when_it_is_to_be_saved_is_saved_later(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch._session_named._AGAIN_SEC", 0.05)

    async def main() -> None:
        async with AsyncSession(id="report-7", storage=directory, memory_mb=256) as s:
            await s.exec("x = 1")
            call = asyncio.ensure_future(s.get("x"))
            await asyncio.sleep(0)  # it has begun
            named = s._of._engine.named
            assert named is not None
            named.due = None  # as whoever asks the loop leaves it
            s._of._life._begin_saving()
            assert await call == 1
            while s.info()["version"] == 0:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), 60))


# ---- one holder


def test_one_process_at_a_time(holder: subprocess.Popen[str], directory: str) -> None:
    before = time.time()
    with pytest.raises(SessionBusy, match=f"process {holder.pid}") as error:
        opened(directory)
    assert error.value.holder is not None
    assert error.value.holder["pid"] == holder.pid
    assert before - 600 < error.value.holder["since"] < before
    assert "steal=True" in error.value.hint
    with opened(directory, "another") as s:
        assert s.names() == []
    holder.communicate("\n", timeout=60)
    with opened(directory) as s:
        assert s["x"] == 1


def test_stealing_has_it_saved_first(directory: str) -> None:
    other = process(
        directory,
        """
        s.exec('x = 1'); print('holds', flush=True)
        try:
            while True: s.exec('x += 1; import time; time.sleep(0.01)').unwrap()
        except Exception as error: print(error, flush=True)
        """,
    )
    assert line_of(other) == "holds\n"
    with opened(directory, steal=True) as s:
        assert s["x"] >= 1 and s.lost == []
    printed = other.communicate(timeout=60)[0]
    assert f"process {os.getpid()} has taken it" in printed or "KeyboardInterrupt" in printed


def test_a_holder_that_is_stopped_keeps_it(
    holder: subprocess.Popen[str], directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch._session_hold.STEAL_SEC", 0.5)
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        with pytest.raises(SessionBusy, match=f"process {holder.pid}") as error:
            opened(directory, steal=True)
        assert f"kill {holder.pid}" in error.value.hint
    finally:
        os.kill(holder.pid, signal.SIGCONT)
    with opened(directory, steal=True) as s:  # it was asked, and has let go
        assert s["x"] == 1


def test_of_many_threads_that_open_it_one_has_it(directory: str) -> None:
    found: list[Session] = []
    refused: list[SessionBusy] = []
    start = threading.Barrier(8)

    def open_it() -> None:
        start.wait()
        try:
            found.append(opened(directory))
        except SessionBusy as error:
            refused.append(error)

    for _ in range(5):
        threads = [threading.Thread(target=open_it) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 1 and len(refused) == 7
        found.pop().close()
        refused.clear()


def test_a_forked_child_neither_holds_nor_frees_it(directory: str) -> None:
    with opened(directory) as s:
        ran(s, "x = 1")
        child = os.fork()
        if child == 0:
            try:
                s.close()
                os._exit(0)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(SessionBusy):
            opened(directory)
        assert s["x"] == 1


def test_it_is_free_when_its_holder_was_killed_though_a_child_lives(directory: str) -> None:
    other = process(
        directory,
        """
        s.exec('x = 1')
        child = os.fork()
        if child == 0:
            time.sleep(120)
            os._exit(0)
        print(child, flush=True)
        os.kill(os.getpid(), 9)
        """,
    )
    child = int(line_of(other))
    try:
        other.wait(60)
        with opened(directory) as s:
            assert s.lost == ["x"]
    finally:
        os.kill(child, signal.SIGKILL)
        other.communicate()


async def let_go(place: str, name: str) -> None:
    """Leaves one that is awaited without its end."""
    s = AsyncSession(id="report-7", storage=place, memory_mb=256)
    (await s.exec(f"{name} = 1")).unwrap()


def is_free(place: str) -> bool:
    try:
        opened(place).close()
    except SessionBusy:
        return False
    return True


def test_one_that_is_awaited_and_that_nothing_refers_to_is_saved(directory: str) -> None:
    async def within() -> None:
        await let_go(directory, "y")
        while not is_free(directory):
            await asyncio.sleep(0.01)

    gc.disable()  # it is in no cycle
    try:
        asyncio.run(let_go(directory, "x"))
        until(lambda: is_free(directory))
        asyncio.run(within())
    finally:
        gc.enable()
    with opened(directory) as s:
        assert s.names() == ["x", "y"]


LET_GO = """
import asyncio, sys
from hutch import AsyncSession

async def main():
    s = AsyncSession(id="report-7", storage=sys.argv[1], memory_mb=256)
    await s.exec("x = 1")

asyncio.run(main())
"""


def test_the_end_of_the_process_waits_until_it_is_saved(directory: str) -> None:
    command = [sys.executable, "-c", LET_GO, directory]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    with opened(directory) as s:
        assert s.names() == ["x"]


COLLECTED = """
import gc, sys
from hutch import Session
gc.set_threshold(1)
for n in range(50):
    s = Session(id=f"a{n % 7}", storage=sys.argv[1])
    s.close()
    s.circle = s
    del s
"""


def test_those_that_the_collector_of_garbage_finds_block_nobody(directory: str) -> None:
    """It may run within any line, also of what looks after them."""
    command = [sys.executable, "-c", COLLECTED, directory]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- what is in the storage


class Failing(DirectoryStorage):
    """A storage whose writes fail when it is asked to."""

    fails = False

    def put(self, name: str, data: bytes) -> None:
        if self.fails:
            raise StorageError("it is full")
        super().put(name, data)


def test_a_storage_that_fails_loses_nothing_that_was_there(directory: str) -> None:
    storage = Failing(directory)
    with opened(storage) as s:
        ran(s, "x = 1")
        s.kv.set("k", "1")
    s = opened(storage)
    ran(s, "x = 2")
    storage.fails = True
    with pytest.raises(StorageError, match="full"):
        s.kv.set("k", "2")
    assert s.kv.get("k") == "1"
    inside = s.exec("from hutch_tools import kv; kv.set('k', '3')")
    assert inside.error is not None and inside.error.type == "OSError"
    with pytest.raises(StorageError, match="full"):
        s.close()
    storage.fails = False
    with opened(storage) as s:
        assert s["x"] == 1 and s.kv.get("k") == "1"


def test_a_state_that_is_torn_is_never_read(directory: str) -> None:
    with opened(directory) as s:
        ran(s, "x = 1")
    (state,) = (one for one in os.listdir(directory) if "~s" in one)
    path = Path(directory, state)
    whole = path.read_bytes()
    for torn in (whole[:-9], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(torn)
        with pytest.raises(SnapshotError, match="cannot be opened"):
            opened(directory)
    older = Path(directory, f"report-7~s000000000000-1-{len(whole)}-00000000")
    older.write_bytes(whole)
    older.chmod(0o600)
    with opened(directory) as s:  # and it goes on after the torn one
        assert s["x"] == 1
        ran(s, "x = 2")
    with opened(directory) as s:
        assert s["x"] == 2 and s.info()["version"] == 2


def test_an_older_state_never_takes_the_place_of_a_newer_one(directory: str) -> None:
    with opened(directory) as s:
        ran(s, "x = 1")
        # As another machine would, which has locks of its own.
        newer = "report-7~s000000000005-1-3-00000000"
        DirectoryStorage(directory).put(newer, b"abc")
        with pytest.raises(StorageError, match="saved elsewhere"):
            s.close()
    assert [one for one in os.listdir(directory) if "~s" in one] == [newer]


@pytest.mark.parametrize("id", ["", ".", "..", "../x", "a/b", "a~s1", "a" * 129, "é", "a b", "a\0"])
def test_an_id_is_a_name(tmp_path: Path, id: str) -> None:
    with pytest.raises(ValueError, match="id="):
        opened(tmp_path / "kept", id)
    assert not (tmp_path / "kept").exists()


def test_what_does_not_go_together_is_refused(directory: str) -> None:
    with pytest.raises(ValueError, match="id="):
        Session(storage=directory)
    with pytest.raises(ValueError, match="id="):
        Session(steal=True)
    with pytest.raises(ValueError, match="restore"):
        opened(directory, snapshot=b"")
    with pytest.raises(TypeError, match="text"):
        Session(id=7)  # type: ignore[arg-type]


def test_nothing_is_kept_of_sessions_that_are_closed(directory: str) -> None:
    before: set[str] = set()
    for n in range(6):
        with opened(directory) as s:
            ran(s, "x = 1")
        until(lambda: "hutch-sessions" not in {one.name for one in threading.enumerate()})
        now = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
               if os.path.exists(f"/proc/self/fd/{fd}")}  # fmt: skip
        if n == 2:
            before = now
    assert {one for one in now - before if directory in one} == set()
    assert [one[:10] for one in sorted(os.listdir(directory))] == ["report-7~s"]


def test_one_that_is_closed_while_it_is_due_to_be_saved_says_nothing(
    directory: str, capfd: pytest.CaptureFixture[str]
) -> None:
    class Slow(DirectoryStorage):
        def put(self, name: str, data: bytes) -> None:
            if threading.current_thread() is threading.main_thread() and "~s" in name:
                until(lambda: "hutch-session" in {one.name for one in threading.enumerate()})
            super().put(name, data)

    with opened(Slow(directory)) as s:
        ran(s, "x = 1")
    until(lambda: "hutch-session" not in {one.name for one in threading.enumerate()})
    assert "could not be saved" not in capfd.readouterr().err
    with opened(directory) as s:
        assert s["x"] == 1


def test_a_process_that_ends_while_its_session_is_taken_ends_as_it_would(directory: str) -> None:
    for _ in range(4):
        code = f"""
            from hutch import Session
            s = Session(id="report-7", storage={directory!r}, memory_mb=256)
            s.exec("x = 1")
            print("ready", flush=True)
            try:
                s.exec("while True: pass")
                s.exec("1")
            except Exception:
                s.close()
        """
        holder = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE
        )
        assert holder.stdout is not None and holder.stdout.readline() == b"ready\n"
        opened(directory, steal=True).close()
        holder.stdout.close()
        assert holder.wait(60) == 0
