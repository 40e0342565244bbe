# SPDX-License-Identifier: Apache-2.0
"""A Storage that is a SQLite database, in a directory that is the caller's alone: what SQLite puts
beside its file (a journal) has no other protection. What the file holds may be anybody's: it is the
one table, and no view or trigger, which run; and what SQLite does with it is bounded.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count

from hutch._errors import StorageError
from hutch._storage import Place, is_name, required_data, required_name, required_prefix
from hutch._storage_directory import require_own_place

_WAIT_SEC = 30.0  # for another process that writes
_TABLE = "hutch (name TEXT PRIMARY KEY, data BLOB) WITHOUT ROWID"
_MAKE = f"CREATE TABLE IF NOT EXISTS {_TABLE}"
_MADE = ("table", f"CREATE TABLE {_TABLE}")
_STEPS = 1_000_000  # of SQLite's machine, some five for a row
_MOST_STEPS = 20 * _STEPS  # of what is done within one transaction
_PUT = "INSERT INTO hutch VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET data = excluded.data"


class SqliteStorage:
    """A SQLite database at `path`, which is made where there is none. Its directory has to be the
    caller's alone, as that of a DirectoryStorage has; so has the file. StorageError otherwise.

        storage = SqliteStorage("/home/me/sessions/hutch.db")
    """

    __module__ = "hutch"

    def __init__(self, path: Place) -> None:
        path = os.fspath(path)
        if not isinstance(path, str):
            raise TypeError(f"the path of a storage is text, not {type(path).__name__}")
        if not path or path.endswith("/") or "\0" in path:
            raise ValueError("the path of a database is that of a file, without a zero byte")
        self.path = os.path.abspath(os.path.expanduser(path))
        with self._opened(make=True):
            pass

    def get(self, name: str) -> bytes | None:
        name = required_name(name)
        with self._opened() as database:
            row = database.execute("SELECT data FROM hutch WHERE name = ?", (name,)).fetchone()
        if row is not None and type(row[0]) is not bytes:
            raise StorageError(f"{self.path} has something under {name!r} that Hutch did not write")
        return None if row is None else row[0]

    def put(self, name: str, data: bytes) -> None:
        name, data = required_name(name), required_data(data)
        with self._opened() as database:
            database.execute(_PUT, (name, data))

    def delete(self, name: str) -> None:
        name = required_name(name)
        with self._opened() as database:
            database.execute("DELETE FROM hutch WHERE name = ?", (name,))

    def list(self, prefix: str = "") -> list[str]:
        prefix = required_prefix(prefix)
        with self._opened() as database:
            rows = database.execute("SELECT name FROM hutch ORDER BY name").fetchall()
        return [name for (name,) in rows if is_name(name) and name.startswith(prefix)]

    def __repr__(self) -> str:
        return f"SqliteStorage({self.path!r})"

    @contextmanager
    def _opened(self, make: bool = False) -> Iterator[sqlite3.Connection]:
        """For one statement: a connection belongs to one thread, and to no child of the process.
        What is done within it is done as a whole.
        """
        require_own_place(self.path, make)
        try:
            with closing(sqlite3.connect(self.path, timeout=_WAIT_SEC)) as database:
                rounds = count(1)
                database.set_progress_handler(lambda: next(rounds) * _STEPS > _MOST_STEPS, _STEPS)
                database.execute("PRAGMA synchronous = FULL")
                with database:
                    if make:
                        database.execute(_MAKE)
                    _require_own(self.path, database)
                    yield database
        except (sqlite3.Error, OverflowError) as error:
            raise StorageError(
                f"{self.path} cannot be used: {error}",
                hint="free some space, wait for who has it locked, or take another file",
            ) from error


def _require_own(path: str, database: sqlite3.Connection) -> None:
    found = database.execute("SELECT type, sql FROM sqlite_master LIMIT 2").fetchall()
    if found != [_MADE]:
        raise StorageError(
            f"{path} is not a storage of Hutch's: it holds something else than its one table",
            hint="take another file",
        )
