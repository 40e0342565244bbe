# SPDX-License-Identifier: Apache-2.0
"""Named sessions in storages that are full, fail half-way, cannot be written to or are slow, and on
a machine whose clock is set back.
"""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import until

from hutch import Session, StorageError, sessions


class Faulty:
    """A storage of the user's. `left`: bytes that it has room for; `code`: what it fails with."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}
        self.left = 1 << 30
        self.code = errno.ENOSPC
        self.tears = True  # it keeps what it had room for
        self.slow: threading.Event | None = None
        self.waits = threading.Event()

    def get(self, name: str) -> bytes | None:
        return self.items.get(name)

    def put(self, name: str, data: bytes) -> None:
        if self.slow is not None and "~s" in name:
            self.waits.set()
            self.slow.wait(60)
        if len(data) > self.left:
            if self.tears and self.left:
                self.items[name] = data[: self.left]
            raise OSError(self.code, os.strerror(self.code))
        self.items[name] = data

    def delete(self, name: str) -> None:
        self.items.pop(name, None)

    def list(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.items if name.startswith(prefix))


def opened(storage: Any, id: str = "report") -> Session:
    return Session(id=id, storage=storage, memory_mb=256, timeout_sec=60)


def size_of_state(storage: Faulty) -> int:
    return max(len(data) for name, data in storage.items.items() if "~s" in name)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_save_that_stops_half_way_costs_nothing_that_was_saved(share: float) -> None:
    storage = Faulty()
    with opened(storage) as s:
        s.exec("x = 1; open('a', 'w').write('1' * 10_000)")
        s.kv.set("step", "1")
    s = opened(storage)
    s.exec("x = 2; open('a', 'w').write('2' * 10_000)")
    storage.left = int(size_of_state(storage) * share)
    with pytest.raises(StorageError, match="'report' cannot be saved: No space left") as failed:
        s.close()
    assert "free some space" in failed.value.hint
    storage.left = 1 << 30
    with opened(storage) as s:
        assert s["x"] == 1 and s.files.read("a") == "1" * 10_000 and s.kv.get("step") == "1"
        s.exec("x = 3")
    with opened(storage) as s:  # also where a torn one was left, which is older by now
        assert s["x"] == 3


def test_a_storage_that_has_room_again_is_saved_to(capfd: pytest.CaptureFixture[str]) -> None:
    storage = Faulty()
    with opened(storage) as s:
        s.exec("x = 1")
        assert s._life.save_idle()
        storage.left = 100
        s.exec("x = 2")
        with pytest.raises(StorageError, match="No space left"):
            s._life.save_idle()
        assert s.exec("x").value == 2 and s.info()["version"] == 1
        storage.left = 1 << 30
        assert s._life.save_idle()
    with opened(storage) as s:
        assert s["x"] == 2 and s.lost == []


def test_a_key_that_has_no_room_is_not_there() -> None:
    storage = Faulty()
    storage.tears = False
    with opened(storage) as s:
        s.kv.set("a", "1")
        storage.left = 10
        with pytest.raises(StorageError, match="key cannot be kept: No space left"):
            s.kv.set("a", "2")
        inside = s.exec("from hutch_tools import kv; kv.set('b', '3')")
        assert inside.error is not None and inside.error.type == "OSError"
        assert "No space left" in inside.error.message
        assert s.kv.items() == [("a", "1")]
        storage.left = 1 << 30


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir(0o700)
    made = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(made, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("url", ["{}/kept", "sqlite://{}/kept/kept.db"])
def test_a_full_disk(disk: Path, url: str) -> None:
    place = url.format(disk)
    with opened(place) as s:
        s.exec("x = 1")
    s = opened(place)
    s.exec("import os; x = os.urandom(20 << 20)")
    with pytest.raises(StorageError):
        s.close()
    with opened(place) as s:
        assert s["x"] == 1
        s.exec("x = 2")
    with opened(place) as s:
        assert s["x"] == 2


def test_a_storage_that_became_read_only() -> None:
    storage = Faulty()
    with opened(storage) as s:
        s.exec("x = 1")
    s = opened(storage)
    s.exec("x = 2")
    storage.left, storage.code = 0, errno.EROFS
    with pytest.raises(StorageError, match="Read-only file system") as failed:
        s.close()
    assert "can be written to" in failed.value.hint
    storage.left = 1 << 30
    with opened(storage) as s:
        assert s["x"] == 1


def is_remounted(disk: Path, how: str) -> bool:
    """Not while the system still calls it busy, which it may just after a file in it is removed and
    a cell has begun in mounts of its own.
    """
    made = ["mount", "-o", f"remount,{how}", str(disk)]
    return subprocess.run(made, check=False, capture_output=True).returncode == 0


def test_a_disk_that_is_read_only(disk: Path) -> None:
    place = f"{disk}/kept"
    with opened(place) as s:
        s.exec("x = 1")
    until(lambda: is_remounted(disk, "ro"))
    with pytest.raises(StorageError, match="Read-only file system"):
        opened(place)
    assert [one.version for one in sessions.list(place)] == [1]
    until(lambda: is_remounted(disk, "rw"))
    with opened(place) as s:
        assert s["x"] == 1


def test_a_slow_storage_keeps_its_own_session_waiting_and_no_other() -> None:
    slow, fast = Faulty(), Faulty()
    with opened(slow) as s, opened(fast, "other") as other:
        s.exec("x = 1")
        other.exec("y = 1")
        slow.slow = threading.Event()
        saving = threading.Thread(target=s._life.save_idle)
        saving.start()
        assert slow.waits.wait(60)
        assert other.exec("y + 1").value == 2 and other._life.save_idle()
        values: list[Any] = []
        waiting = threading.Thread(target=lambda: values.append(s.exec("x + 1").value))
        waiting.start()
        slow.slow.set()
        saving.join(60)
        waiting.join(60)
        assert values == [2]
        slow.slow = None
    with opened(slow) as s:
        assert s["x"] == 1


@pytest.mark.parametrize("to", [-10_000.0, -1e9, -4e9])
def test_a_clock_that_is_set_back_makes_nothing_older(
    to: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Faulty()
    with opened(storage) as s:
        s.exec("x = 1")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + to)
    for value in (2, 3):
        with opened(storage) as s:
            assert s["x"] == value - 1 and s.lost == []
            s.exec(f"x = {value}")
            s.kv.set("x", str(value))
    monkeypatch.undo()
    with opened(storage) as s:
        assert s["x"] == 3 and s.kv.get("x") == "3"
        assert [e.source for e in s.history()] == ["x = 1", "x = 2", "x = 3"]
    assert [one.version for one in sessions.list(storage)] == [3]


@pytest.mark.parametrize("method", ["get", "list"])
@pytest.mark.parametrize("gives", [7, "text", [7], {"a": 1}, 1.5])
def test_a_storage_that_gives_what_is_none_is_an_error(method: str, gives: Any) -> None:
    storage = Faulty()
    with opened(storage) as s:
        s.exec("x = 1")
        s.kv.set("a", "1")
    honest = getattr(storage, method)
    setattr(storage, method, lambda *_: gives)
    for use in (lambda: opened(storage), lambda: sessions.show("report", storage)):
        with pytest.raises(StorageError, match=rf"{method}\(\) of the storage gave"):
            use()
    setattr(storage, method, honest)
    with opened(storage) as s:
        assert s["x"] == 1 and s.kv.get("a") == "1"


def test_a_storage_may_give_any_bytes() -> None:
    storage = Faulty()
    with opened(storage) as s:
        s.exec("x = 1")
        s.kv.set("a", "1")
    kept = storage.get
    storage.get = lambda name: memoryview(kept(name) or b"")  # type: ignore[method-assign]
    with opened(storage) as s:
        assert s["x"] == 1 and s.kv.get("a") == "1"
