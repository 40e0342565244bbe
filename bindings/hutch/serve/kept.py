# SPDX-License-Identifier: Apache-2.0
"""The file of idempotency keys and answers, which all servers of a user share.

Each server sees its own rows alone, in all of its processes; any of them removes expired rows.
Times are of the monotonic clock, so that a row of an earlier boot means nothing and is dropped.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hutch.serve.gate import Refused
from hutch.serve.settings import Settings

_LONGEST_START_SEC = 3600.0  # of a program, whose environment may have to be built
_CLEAN_SEC = 60.0  # how often rows are removed whose time is over
_AT_ONCE = 1000  # of them, since requests wait meanwhile
_TABLES = (
    # `until`: when its time is over, by time.monotonic. `status`: NULL while it runs. `answer`:
    # NULL where it was let go.
    "CREATE TABLE kept (tenant TEXT, key BLOB, request BLOB, owner TEXT, status INTEGER, "
    "answer BLOB, until REAL, PRIMARY KEY (tenant, key))",
    "CREATE INDEX by_age ON kept (tenant, until)",
    "CREATE INDEX with_answer ON kept (tenant, until) WHERE length(answer) > 0",
    "CREATE TABLE sizes (tenant TEXT PRIMARY KEY, keys INTEGER, bytes INTEGER)",
    "CREATE TRIGGER added AFTER INSERT ON kept BEGIN "
    "INSERT INTO sizes VALUES (new.tenant, 1, ifnull(length(new.answer), 0)) "
    "ON CONFLICT (tenant) DO UPDATE SET keys = keys + 1, bytes = bytes + excluded.bytes; END",
    "CREATE TRIGGER changed AFTER UPDATE ON kept BEGIN UPDATE sizes SET "
    "bytes = bytes + ifnull(length(new.answer), 0) - ifnull(length(old.answer), 0) "
    "WHERE tenant = new.tenant; END",
    "CREATE TRIGGER removed AFTER DELETE ON kept BEGIN UPDATE sizes SET keys = keys - 1, "
    "bytes = bytes - ifnull(length(old.answer), 0) WHERE tenant = old.tenant; END",
)

Name = tuple[str, bytes]  # of a server and its client; a hash of the key
Answer = tuple[int, bytes]  # status and body


class Row(NamedTuple):
    request: bytes  # a hash of what was asked
    owner: str  # the process that runs it, or ran it
    status: int | None = None  # None: there is no answer yet
    answer: bytes | None = None  # None, with a status: it was let go

    @property
    def whole(self) -> Answer | None:
        if self.status is None or self.answer is None:
            return None
        return self.status, self.answer


class Kept:
    """Raises sqlite3.Error. `path=None`: in the directory of the agent's sockets."""

    def __init__(self, settings: Settings, path: Path | None) -> None:
        self._settings = settings
        self._path = path
        self._opened: sqlite3.Connection | None = None
        self._clean_at = 0.0

    def row(self, name: Name) -> Row | None:
        found = self._database().execute(
            "SELECT request, owner, status, answer FROM kept "
            "WHERE tenant = ? AND key = ? AND until >= ?",
            (*name, time.monotonic()),
        ).fetchone()  # fmt: skip
        return None if found is None else Row(*found)

    def claim(self, name: Name, row: Row) -> Row | None:
        """None: the row is there now; else the one that was. Raises Refused where too many are."""
        with self._writing() as database:
            found = self.row(name)
            if found is not None:
                return found
            now = time.monotonic()
            self._clean(database, now)
            self._check_room(database, name[0], now)
            until = now + self._settings.kept_sec + (self._longest if row.status is None else 0)
            database.execute("DELETE FROM kept WHERE tenant = ? AND key = ?", name)
            database.execute("INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?, ?)", (*name, *row, until))
        return None

    def keep(self, name: Name, status: int, answer: bytes) -> None:
        """The answer of a row that has none."""
        with self._writing() as database:
            until = time.monotonic() + self._settings.kept_sec
            database.execute(
                "UPDATE kept SET status = ?, answer = ?, until = ? WHERE tenant = ? AND key = ?",
                (status, answer, until, *name),
            )
            self._make_room(database, name[0])

    def release(self, name: Name) -> None:
        """Removes a row that has no answer."""
        with self._writing() as database:
            database.execute(
                "DELETE FROM kept WHERE tenant = ? AND key = ? AND status IS NULL", name
            )

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _longest(self) -> float:
        """Seconds after which one that has no answer has no process either."""
        return _LONGEST_START_SEC + self._settings.queue_sec + self._settings.timeout_sec

    def _check_room(self, database: sqlite3.Connection, tenant: str, now: float) -> None:
        if _sizes(database, tenant)[0] < self._settings.kept:
            return
        _remove(database, "tenant = ? AND until < ?", tenant, now)
        keys = _sizes(database, tenant)[0]
        if keys >= self._settings.kept:
            text = f"{keys} keys are kept already, each for {self._settings.kept_sec:g} s"
            raise Refused(429, text, {"Retry-After": "60"})

    def _make_room(self, database: sqlite3.Connection, tenant: str) -> None:
        """Lets go of the oldest answers, as many as take too much."""
        excess = _sizes(database, tenant)[1] - (self._settings.kept_mb << 20)
        oldest = database.execute(
            "SELECT rowid, length(answer) FROM kept "
            "WHERE tenant = ? AND length(answer) > 0 ORDER BY until",
            (tenant,),
        )
        gone = []
        while excess > 0:
            place, size = oldest.fetchone()
            gone.append((place,))
            excess -= size
        oldest.close()
        database.executemany("UPDATE kept SET answer = NULL WHERE rowid = ?", gone)

    def _clean(self, database: sqlite3.Connection, now: float) -> None:
        if now < self._clean_at:
            return
        tenants = [name for (name,) in database.execute("SELECT tenant FROM sizes")]
        removed = [_remove(database, "tenant = ? AND until < ?", name, now) for name in tenants]
        database.execute("DELETE FROM sizes WHERE keys = 0")
        if all(count < _AT_ONCE for count in removed):
            self._clean_at = now + _CLEAN_SEC

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        database = self._database()
        with database:
            database.execute("BEGIN IMMEDIATE")
            yield database

    def _database(self) -> sqlite3.Connection:
        if self._opened is None:
            path = self._path
            if path is None:
                from hutch import _core

                path = Path(_core.paths()["run_dir"]) / "serve-keys.sqlite"
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            database = sqlite3.connect(path, timeout=10, isolation_level=None)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = OFF")
            _make_tables(database)
            self._opened = database
        return self._opened


def _make_tables(database: sqlite3.Connection) -> None:
    """Anew, where those that are there are of another boot, or of another version of Hutch."""
    wanted = f"{boot_id()} {hashlib.sha256(repr(_TABLES).encode()).hexdigest()}"
    with database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("CREATE TABLE IF NOT EXISTS made (of TEXT)")
        if database.execute("SELECT of FROM made").fetchone() == (wanted,):
            return
        for table in ("kept", "sizes", "made"):
            database.execute(f"DROP TABLE IF EXISTS {table}")
        for statement in (*_TABLES, "CREATE TABLE made (of TEXT)"):
            database.execute(statement)
        database.execute("INSERT INTO made VALUES (?)", (wanted,))


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _sizes(database: sqlite3.Connection, tenant: str) -> tuple[int, int]:
    """Its keys, and the bytes of their answers."""
    found = database.execute("SELECT keys, bytes FROM sizes WHERE tenant = ?", (tenant,)).fetchone()
    return (0, 0) if found is None else found


def _remove(database: sqlite3.Connection, which: str, *values: object) -> int:
    """Some of them; how many."""
    which = f"SELECT rowid FROM kept WHERE {which} LIMIT {_AT_ONCE}"
    return database.execute(f"DELETE FROM kept WHERE rowid IN ({which})", values).rowcount
