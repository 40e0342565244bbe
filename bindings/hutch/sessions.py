# SPDX-License-Identifier: Apache-2.0
"""Sessions with a name that are kept in a storage: which there are, and the removing of some.

Each function takes `storage` as `Session(id=, storage=)` does: a path, a URL or a Storage; by
default the user's own.
"""

from __future__ import annotations

import builtins
import os
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any, Union

from hutch._carry.container import Container
from hutch._errors import SessionBusy, SessionNotFound
from hutch._options.checks import quoted
from hutch._saved_states import SavedSession as SavedSession, States, delete_all, saved_sessions
from hutch._session_hold import Hold, holder_of
from hutch._session_named import default_storage
from hutch._storage import Storage, names_of, required_id
from hutch._storage_of import storage_of

Place = Union[str, "os.PathLike[str]", Storage, None]


def list(storage: Place = None) -> builtins.list[SavedSession]:
    """Those that were saved, by id, each with who has it open. Raises StorageError.

    for one in hutch.sessions.list():
        print(one.id, one.size, one.holder)
    """
    kept = _opened(storage)
    return [replace(one, holder=holder_of(kept, one.id)) for one in saved_sessions(kept)]


def show(id: str, storage: Place = None) -> dict[str, Any]:
    """All that is known of one without opening it, for JSON: the fields of SavedSession, `keys`
    (how many it has in `kv`), and of its state `python`, `environment`, `execs`, `left_out`, and
    the bytes of `sections`. Raises SessionNotFound, SnapshotError for one that is damaged,
    StorageError.
    """
    kept = _opened(storage)
    found = _found(kept, id)
    keys = len(names_of(kept, f"{found.id}~k"))
    shown = {**replace(found, holder=holder_of(kept, found.id)).to_dict(), "keys": keys}
    for data in States(kept, found.id).read():
        state = Container(data)
        sections = {name: state.size_of(name) for name in state}
        return {**shown, **vars(state.notes), "sections": sections}
    return shown


def delete(id: str, storage: Place = None) -> None:
    """With its files, names, keys and values, and history. Raises SessionNotFound, StorageError,
    and SessionBusy where a process has it open.
    """
    kept = _opened(storage)
    _delete(kept, _found(kept, id).id)


def prune(
    older_than: float | timedelta | None = None,
    max_bytes: int | None = None,
    *,
    dry_run: bool = False,
    storage: Place = None,
) -> builtins.list[SavedSession]:
    """Deletes those that were last saved more than `older_than` ago (seconds, or a timedelta), and
    then the ones that were saved longest ago until the states of all take no more than `max_bytes`.
    Returns those, with `dry_run` without deleting them. One that a process has open stays, as does
    one of which no state is there. Raises StorageError.
    """
    if older_than is None and max_bytes is None:
        raise ValueError("prune() takes older_than=, max_bytes= or both")
    age = _seconds(older_than)
    if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 0):
        raise ValueError(f"max_bytes={quoted(max_bytes)} is not a number of bytes")
    kept = _opened(storage)
    found = sorted(saved_sessions(kept), key=lambda one: (one.saved, one.id))
    total = sum(one.size for one in found)
    before = None if age is None else time.time() - age
    pruned = []
    for one in found:
        is_old = before is not None and one.saved < before
        is_much = max_bytes is not None and total > max_bytes
        if not one.version or not (is_old or is_much) or holder_of(kept, one.id) is not None:
            continue
        if not dry_run:
            try:
                _delete(kept, one.id)
            except SessionBusy:
                continue  # it was opened just now
        total -= one.size
        pruned.append(one)
    return pruned


def _opened(storage: Place) -> Storage:
    return default_storage() if storage is None else storage_of(storage)


def _found(storage: Storage, id: str) -> SavedSession:
    id = required_id(id)
    for one in saved_sessions(storage, f"{id}~"):
        return one
    raise SessionNotFound(
        f"there is no session {id!r} in the storage",
        hint="hutch.sessions.list(), or `hutch sessions list`, has those that there are",
        may_have_run=False,
    )


def _delete(storage: Storage, id: str) -> None:
    hold = Hold(storage, id, False)
    try:
        delete_all(storage, id)
    finally:
        hold.release(is_saved=True)


def _seconds(age: Any) -> float | None:
    if isinstance(age, timedelta):
        age = age.total_seconds()
    if age is None:
        return None
    if type(age) not in (int, float) or not age >= 0:
        raise ValueError(f"older_than={quoted(age)} is neither a number of seconds nor a timedelta")
    return float(age)
