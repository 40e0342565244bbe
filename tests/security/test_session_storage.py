# SPDX-License-Identifier: Apache-2.0
"""What is in a storage may be anybody's, and who shares one may act at any moment: no state is lost
unseen, none takes the place of another one that its holder does not know, and nothing hangs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from contextlib import closing, suppress
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
    Storage,
    StorageError,
    _session_hold,
    _storage_sqlite,
    storage_of,
)
from hutch._calls.history import History
from hutch._saved_states import States, state_names
from hutch._session_hold import Hold

SLOW = """
import time
class Slow:
    def __reduce__(self):
        time.sleep(8)
        return int, ()
x = Slow()
"""


def test_a_session_that_takes_long_to_be_saved_keeps_no_other_one(tmp_path: Path) -> None:
    place = str(tmp_path / "kept")
    slow = Session(id="slow", storage=place, memory_mb=256)
    honest = Session(id="honest", storage=place, memory_mb=256)
    with slow, honest:
        honest.exec("y = 0").unwrap()
        until(lambda: honest.info()["version"] == 1)
        slow.exec(SLOW).unwrap()
        until(lambda: slow._engine.turn._saving_thread)
        honest.exec("y = 1").unwrap()
        until(lambda: honest.info()["version"] == 2)
        assert slow._engine.turn._saving_thread and slow.info()["version"] == 0
        slow.interrupt()  # code that runs, of which there is none
        until(lambda: slow.info()["version"] == 1)
        assert slow.exec("type(x).__name__").value == "Slow", "its names are there"
        slow.exec("del x").unwrap()


@pytest.mark.parametrize("source", ["from hutch_tools import kv; kv.set('k', 'v')", ""])
def test_a_storage_that_takes_long_stops_no_event_loop(tmp_path: Path, source: str) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(DirectoryStorage):
        def put(self, name: str, data: bytes) -> None:
            begun.set()
            assert goes_on.wait(20), "the loop did not go on"
            super().put(name, data)

    async def go_on() -> None:
        while not begun.is_set():
            await asyncio.sleep(0.001)
        goes_on.set()

    async def main() -> None:
        async with AsyncSession(id="a", storage=Slow(str(tmp_path / "kept")), memory_mb=256) as s:
            task = asyncio.ensure_future(go_on())
            if source:
                (await s.exec(source)).unwrap()
            else:
                await s.kv.set("k", "v")
            await task
            assert await s.kv.get("k") == "v"

    asyncio.run(main())


# ---- holders


def test_who_opens_a_session_just_as_it_is_let_go_can_be_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = storage_of(str(tmp_path / "kept"))
    first = Hold(storage, "a", False)
    second: list[Hold] = []
    unlink = os.unlink

    def opening(name: str, **keywords: Any) -> None:
        unlink(name, **keywords)
        with suppress(SessionBusy):
            second.append(Hold(storage, "a", False))

    with monkeypatch.context() as m:
        m.setattr(_session_hold.os, "unlink", opening)
        first.release(is_saved=True)
    assert len(second) == 1
    with pytest.raises(SessionBusy):
        Hold(storage, "a", False)
    assert second[0]._ask() and second[0].who_asked() == str(os.getpid())
    second[0].release(is_saved=True)
    assert storage.list() == [] and os.listdir(tmp_path / "kept") == []


@pytest.mark.parametrize("url", ["memory://held", "memory://held/", "memory:///held"])
def test_a_storage_has_one_lock_however_its_url_is_written(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    first = Hold(storage_of("memory://held"), "a", False)
    with pytest.raises(SessionBusy):
        Hold(storage_of(url), "a", False)
    Hold(storage_of("memory://other"), "a", False).release(is_saved=True)
    first.release(is_saved=True)


def test_a_directory_has_one_lock_however_it_is_named(tmp_path: Path) -> None:
    for url in ("", "file://", "local://"):
        assert isinstance(storage_of(f"{url}{tmp_path}/kept"), DirectoryStorage)


# ---- states


def newest(storage: Storage) -> bytes:
    return next(iter(States(storage, "a").read()))


def test_no_state_takes_the_place_of_one_that_was_saved_at_the_same_moment(tmp_path: Path) -> None:
    class Meeting(DirectoryStorage):
        """In which somebody else saves just as this one does."""

        others: States | None = None

        def put(self, name: str, data: bytes) -> None:
            others, self.others = self.others, None
            if others is not None:
                others.save(b"theirs")
            super().put(name, data)

    storage = Meeting(str(tmp_path / "kept"))
    States(storage, "a").save(b"first")
    ours, theirs = States(storage, "a"), States(storage, "a")
    assert list(ours.read()) == list(theirs.read()) == [b"first"]
    storage.others = theirs
    with pytest.raises(StorageError, match="saved elsewhere"):
        ours.save(b"ours")
    assert [newest(storage)] == list(States(storage, "a").read()) == [b"theirs"]
    theirs.save(b"more of theirs")
    assert newest(storage) == b"more of theirs"


def test_states_of_one_version_are_never_replaced_by_who_does_not_know_them(
    tmp_path: Path,
) -> None:
    storage = storage_of(str(tmp_path / "kept"))
    ours = States(storage, "a")
    ours.save(b"ours")
    name = state_names(storage)[0].name
    storage.put(name.rpartition("-")[0] + "-00000000", b"them")
    with pytest.raises(StorageError, match="saved elsewhere"):
        ours.save(b"more")
    assert len(state_names(storage)) == 2
    again = States(storage, "a")
    assert len(list(again.read())) == 2
    again.save(b"all of it")
    assert newest(storage) == b"all of it" and len(state_names(storage)) == 1


def test_a_version_beyond_all_versions_loses_no_state(tmp_path: Path) -> None:
    storage = storage_of(str(tmp_path / "kept"))
    storage.put("a~s999999999998-1-3-00000000", b"old")
    states = States(storage, "a")
    assert list(states.read()) == [b"old"]
    states.save(b"last")
    with pytest.raises(StorageError, match="last version"):
        states.save(b"lost")
    assert newest(storage) == b"last"


def entry(**fields: Any) -> bytes:
    entry = History().begin("exec", b"1")
    assert entry is not None
    return json.dumps({"entries": [{**entry, "source": "1", **fields}]}).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"id": 10**4299},
        {"start": 1e300},
        {"end": -1e300},
        {"kind": "x" * 1000},
        {"exit_code": 2**60},
    ],
)
def test_a_history_that_could_not_be_written_again_is_refused(fields: dict[str, Any]) -> None:
    history = History()
    with pytest.raises(ValueError, match="too large"):
        history.take(entry(**fields))
    history.take(entry(exit_code=-1))
    again = History()
    again.take(history.to_json())
    assert again.entries(5) == history.entries(5) and len(again.entries(5)) == 1


# ---- a database that somebody else made

ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
HOSTILE = {
    "a view": f"CREATE VIEW hutch (name, data) AS {ENDLESS} SELECT 'a', x'00' FROM c WHERE n < 0",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON hutch BEGIN INSERT INTO hutch "
    f"{ENDLESS} SELECT 'a' || n, x'00' FROM c; END",
    "a column that is computed": "CREATE TABLE hutch (name TEXT PRIMARY KEY, "
    "data BLOB AS (zeroblob(900000000))) WITHOUT ROWID",
}
TABLE = "CREATE TABLE hutch (name TEXT PRIMARY KEY, data BLOB) WITHOUT ROWID"


def database(path: Path, *statements: str) -> str:
    path.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(path)) as made, made:
        for statement in statements:
            made.execute(statement)
    path.chmod(0o600)
    return f"sqlite://{path}"


@pytest.mark.parametrize("what", HOSTILE)
def test_a_database_that_does_more_than_hold_is_refused(tmp_path: Path, what: str) -> None:
    first = [TABLE] if "trigger" in what else []
    url = database(tmp_path / "data" / "kept.db", *first, HOSTILE[what])
    with pytest.raises(StorageError, match="something else"):
        storage_of(url)


def test_what_became_hostile_later_is_refused_too(tmp_path: Path) -> None:
    url = database(tmp_path / "data" / "kept.db", TABLE)
    storage = storage_of(url)
    storage.put("a", b"1")
    assert storage.get("a") == b"1" and storage.list() == ["a"]
    with closing(sqlite3.connect(tmp_path / "data" / "kept.db")) as made, made:
        made.execute("CREATE TABLE more (x)")
    for use in (storage.list, lambda: storage.get("a"), lambda: storage.put("a", b"2")):
        with pytest.raises(StorageError, match="something else"):
            use()


def test_rows_without_end_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = database(tmp_path / "data" / "kept.db", TABLE)
    storage = storage_of(url)
    for number in range(1000):
        storage.put(f"a{number}", b"")
    assert len(storage.list()) == 1000
    monkeypatch.setattr(_storage_sqlite, "_STEPS", 100)
    monkeypatch.setattr(_storage_sqlite, "_MOST_STEPS", 1000)
    with pytest.raises(StorageError, match="interrupted"):
        storage.list()


def test_names_that_are_none_are_not_seen(tmp_path: Path) -> None:
    rows = "INSERT INTO hutch VALUES ('a~\x1b[31m\n', x'00'), (x'61', x'00'), ('a~k', x'00')"
    storage = storage_of(database(tmp_path / "data" / "kept.db", TABLE, rows))
    States(storage, "a").save(b"1")
    assert len(storage.list()) == 2
    hutch.sessions.delete("a", storage)
    assert storage.list() == []
