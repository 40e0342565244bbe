# SPDX-License-Identifier: Apache-2.0
"""What is kept of sessions with a name: listed, shown, deleted, pruned, by hand and by function."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hutch
from hutch import DirectoryStorage, Session, SessionBusy, SessionNotFound
from hutch._saved_states import States


@pytest.fixture
def storage(tmp_path: Path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path / "kept")


def put(storage: DirectoryStorage, id: str, saved: int, size: int, version: int = 1) -> None:
    storage.put(f"{id}~s{version:012}-{saved}-{size}-0123abcd", bytes(size))


def ids(found: Any) -> list[str]:
    return [one.id for one in found]


def command(storage: DirectoryStorage, *words: str) -> Any:
    line = [sys.executable, "-m", "hutch", "sessions", *words, "--storage", storage.path]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def used(storage: DirectoryStorage) -> DirectoryStorage:
    with Session(id="report-7", storage=storage, memory_mb=256) as s:
        s.exec("x = 1; import threading; lock = threading.Lock(); open('f', 'w').write('1')")
        s.kv.set("k", "v")
    put(storage, "old", 1000, 5000)
    storage.put("foreign", b"not ours")
    return storage


def test_they_are_listed_and_shown(used: DirectoryStorage) -> None:
    one, other = hutch.sessions.list(used)
    assert (one.id, one.saved, one.size, one.version, one.holder) == ("old", 1000, 5000, 1, None)
    assert other.id == "report-7" and other.saved > 1000 and other.size > 1000
    shown = hutch.sessions.show("report-7", used)
    assert shown["keys"] == 1 and list(shown["left_out"]) == ["lock"] and shown["execs"] == 1
    assert set(shown["sections"]) == {"files", "globals", "history"}
    with Session(id="report-7", storage=used, memory_mb=256):
        holder = hutch.sessions.list(used)[1].holder
        assert holder is not None and holder["pid"] == os.getpid()
        with pytest.raises(SessionBusy):
            hutch.sessions.delete("report-7", used)
    assert hutch.sessions.list(used)[1].holder is None
    with pytest.raises(hutch.SnapshotError):
        hutch.sessions.show("old", used)


def test_what_is_deleted_is_gone_with_all_of_it(used: DirectoryStorage) -> None:
    hutch.sessions.delete("report-7", used)
    assert ids(hutch.sessions.list(used)) == ["old"]
    assert not [one for one in os.listdir(used.path) if "report" in one]
    for id in ("report-7", "report", "none"):
        with pytest.raises(SessionNotFound):
            hutch.sessions.delete(id, used)
    with pytest.raises(ValueError, match="id="):
        hutch.sessions.delete("../kept", used)
    assert used.get("foreign") == b"not ours"


def test_the_old_and_the_many_are_pruned(used: DirectoryStorage) -> None:
    for n in range(5):
        put(used, f"s{n}", 2_000_000_000 + n, 1000)
    prune = hutch.sessions.prune
    assert ids(prune(older_than=3600, dry_run=True, storage=used)) == ["old"]
    assert ids(prune(timedelta(days=1), storage=used)) == ["old"]
    size = next(one.size for one in hutch.sessions.list(used) if one.id == "report-7")
    with Session(id="s0", storage=DirectoryStorage(used.path + "2"), memory_mb=256):
        assert ids(prune(max_bytes=2500, dry_run=True, storage=used)) == [
            "report-7",
            "s0",
            "s1",
            "s2",
        ]
    assert ids(prune(max_bytes=size + 5000, storage=used)) == []
    assert ids(prune(max_bytes=3000, storage=used)) == ["report-7", "s0", "s1"]
    assert ids(hutch.sessions.list(used)) == ["s2", "s3", "s4"]
    with pytest.raises(ValueError, match="older_than"):
        prune(storage=used)
    for wrong in (-1, "7d", float("nan")):
        with pytest.raises(ValueError, match="older_than="):
            prune(older_than=wrong, storage=used)  # type: ignore[arg-type]


def test_one_that_is_open_is_not_pruned(used: DirectoryStorage) -> None:
    with Session(id="report-7", storage=used, memory_mb=256):
        assert ids(hutch.sessions.prune(max_bytes=0, storage=used)) == ["old"]
    assert ids(hutch.sessions.prune(max_bytes=0, storage=used)) == ["report-7"]


def test_the_command_does_the_same(used: DirectoryStorage) -> None:
    code, out, _ = command(used, "list")
    assert code == 0 and out.split("\n")[0].split() == "ID SAVED SIZE VERSION HOLDER".split()
    assert [line.split()[0] for line in out.split("\n")[1:3]] == ["old", "report-7"]
    found = json.loads(command(used, "list", "--json")[1])
    assert [one["id"] for one in found] == ["old", "report-7"]
    shown = json.loads(command(used, "show", "report-7", "--json")[1])
    assert shown["python"] == ".".join(map(str, sys.version_info[:2]))
    assert "left_out" in command(used, "show", "report-7")[1]
    assert json.loads(command(used, "show", "report-7", "report-7", "--json")[1]) == [shown] * 2
    assert "old" in command(used, "prune", "--older-than", "1h", "--dry-run")[1]
    assert len(hutch.sessions.list(used)) == 2
    assert command(used, "delete", "report-7")[0] == 0
    code, _, err = command(used, "delete", "report-7")
    assert code != 0 and "no session 'report-7'" in err and "`hutch sessions list`" in err
    assert command(used, "prune", "--max-bytes", "1K")[0] == 0
    assert command(used, "list")[1] == "no sessions are kept\n"
    missing: Any = SimpleNamespace(path=f"{used.path}/nowhere")
    code, out, err = command(missing, "list")
    assert code != 0 and out == "" and "there is no such directory" in err
    for words in (["prune"], ["show"], ["prune", "--older-than", "x"]):
        assert command(used, *words)[0] != 0


def test_what_comes_from_a_sandbox_does_not_reach_the_terminal(storage: DirectoryStorage) -> None:
    with Session(id="a", storage=storage, memory_mb=256) as s:
        s.exec("import os; os.mkfifo('\\x1b[31m')")
    out = command(storage, "show", "a")[1]
    assert "\x1b" not in out and "31m" in out


def test_a_state_is_put_before_older_ones_are_deleted(storage: DirectoryStorage) -> None:
    class Stopping(DirectoryStorage):
        def delete(self, name: str) -> None:
            raise KeyboardInterrupt

    States(storage, "a").save(b"first")
    states = States(Stopping(storage.path), "a")
    assert list(states.read()) == [b"first"]
    with pytest.raises(KeyboardInterrupt):
        states.save(b"second")
    assert list(States(storage, "a").read()) == [b"second", b"first"]
