# SPDX-License-Identifier: Apache-2.0
"""What a named session keeps in a Storage: its states, each under a name of its own with a version,
and its keys and values; its history: _saved_history.py.

A state is put under a new name before those of older versions are deleted: one that is written late
or by somebody else never takes the place of a newer one. What is newer its version says, and no
clock.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from struct import Struct
from typing import Any, NamedTuple

from hutch._errors import SandboxStartupError, StorageError
from hutch._key_values import KeyValues
from hutch._storage import Storage, as_storage_error, names_of, read_of

_STATE = re.compile(
    r"(?P<id>[^~]+)~s(?P<version>\d{12})-(?P<saved>\d{1,12})-(?P<size>\d{1,15})-[0-9a-f]{8}",
    re.ASCII,
)
_MOST_VERSION = 10**12 - 1
_KEY = re.compile(r"(?P<id>[^~]+)~k[0-9a-f]{48}", re.ASCII)
_BESIDE = re.compile(r"(?P<id>[^~]+)~(k[0-9a-f]{48}|h\d{12})", re.ASCII)
_ANEW = "take a snapshot(to=…) of it, and open it anew"
_HEAD = Struct("<32sBI")  # of a key and its value: SHA-256 of the rest, whether text, length of key


class StateName(NamedTuple):
    name: str  # in the storage
    id: str
    version: int
    saved: int  # seconds since 1970
    size: int  # bytes


def state_names(storage: Storage, prefix: str = "") -> list[StateName]:
    """The oldest version of a session first."""
    found = []
    for name in names_of(storage, prefix):
        match = _STATE.fullmatch(name)
        if match is not None:
            numbers = (int(match[field]) for field in ("version", "saved", "size"))
            found.append(StateName(name, match["id"], *numbers))
    return sorted(found, key=lambda one: (one.id, one.version, one.name))


@dataclass(frozen=True)
class SavedSession:
    """A named session in a storage. `saved`: when, in seconds since 1970; `size`: bytes of its
    state, without its keys and values; `version`: how often it was saved; these are 0 where it has
    keys, values and history alone. `holder`: `pid` and `since` of the process that has it open, or
    None.
    """

    id: str
    saved: int
    size: int
    version: int
    holder: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """All its fields, for JSON."""
        return asdict(self)


SavedSession.__module__ = "hutch.sessions"


def saved_sessions(storage: Storage, prefix: str = "") -> list[SavedSession]:
    """By id; who holds them is not looked up."""
    newest = {one.id: one for one in state_names(storage, prefix)}
    found = {id: SavedSession(id, one.saved, one.size, one.version) for id, one in newest.items()}
    for name in names_of(storage, prefix):
        match = _BESIDE.fullmatch(name)
        if match is not None:
            found.setdefault(match["id"], SavedSession(match["id"], 0, 0, 0))
    return [found[id] for id in sorted(found)]


def delete_all(storage: Storage, id: str) -> None:
    """The newest state last of the states, and keys after these: what is left where this is
    interrupted is never an older session.
    """
    names = names_of(storage, f"{id}~")
    for name in sorted(names, key=lambda name: (not _STATE.fullmatch(name), name)):
        storage.delete(name)


class States:
    """The saved states of one session, for who holds it. `version`: of the newest that was read or
    saved.
    """

    def __init__(self, storage: Storage, id: str) -> None:
        self._storage = storage
        self._id = id
        self._known: set[str] = set()  # the names of those that it was read from or saved as
        self.version = 0

    def read(self) -> Iterator[bytes]:
        """The newest first; one that cannot be used is followed by the one before it."""
        names = state_names(self._storage, f"{self._id}~s")
        if names:
            self.version = names[-1].version
            self._known.update(one.name for one in names)
        for one in reversed(names):
            data = read_of(self._storage, one.name)
            if data is not None and len(data) == one.size:
                yield data

    def save(self, data: bytes) -> None:
        """Raises StorageError, also where somebody else, on another machine, has saved since."""
        with as_storage_error(f"the session {self._id!r} cannot be saved"):
            self._save(data)

    def _save(self, data: bytes) -> None:
        before = self._required_known()
        version = max([self.version, *(one.version for one in before)]) + 1
        if version > _MOST_VERSION:
            raise StorageError(
                f"the session {self._id!r} has the last version that there can be: what it is here "
                "is not saved",
                hint="take a snapshot(to=…) of it, and hutch.sessions.delete() it",
            )
        size = f"{max(0, int(time.time()))}-{len(data)}-{secrets.token_hex(4)}"
        name = f"{self._id}~s{version:012}-{size}"
        self._known.add(name)
        self._storage.put(name, data)
        try:
            self._required_known()  # two that saved at once both find the other one's here
        except StorageError:
            self._storage.delete(name)
            raise
        self.version = version
        for one in before:
            self._storage.delete(one.name)

    def _required_known(self) -> list[StateName]:
        """The states that there are, of which none that somebody else saved is as new as ours."""
        names = state_names(self._storage, f"{self._id}~s")
        for one in names:
            if one.version >= self.version and one.name not in self._known:
                raise StorageError(
                    f"the session {self._id!r} was saved elsewhere meanwhile, as version "
                    f"{one.version}: what it is here is not saved",
                    hint=_ANEW,
                )
        return names


class StoredKeyValues(KeyValues):
    """Keys and values that are written to a storage before they are there, each under the digest of
    its key.
    """

    __module__ = "hutch"

    waits_to_change = True

    def __init__(self, storage: Storage, id: str) -> None:
        super().__init__()
        self._storage = storage
        self._id = id
        self._writing = threading.RLock()
        self._is_closed = False
        for name in names_of(storage, f"{id}~k"):
            kept = _key_value(read_of(storage, name)) if _KEY.fullmatch(name) else None
            if kept is not None and self._name(kept[0]) == name:
                super().set(*kept)

    def set(self, key: str, value: str | bytes) -> None:
        with self._writing:
            self._require_open()
            before = self.get(key)
            super().set(key, value)
            try:
                with as_storage_error("the key cannot be kept"):
                    self._storage.put(self._name(key), _packed(key, value))
            except BaseException:
                if before is None:
                    super().delete(key)
                else:
                    super().set(key, before)
                raise

    def delete(self, key: str) -> bool:
        with self._writing:
            self._require_open()
            if self.get(key) is None:
                return False
            with as_storage_error("the key cannot be deleted"):
                self._storage.delete(self._name(key))
            return super().delete(key)

    def close(self) -> None:
        """Nothing is written from then on: somebody else may have them."""
        with self._writing:
            self._is_closed = True

    def _require_open(self) -> None:
        if self._is_closed:
            raise SandboxStartupError(
                f"the session {self._id!r} is closed: its keys and values can only be read",
                hint="open it again",
                may_have_run=False,
            )

    def _name(self, key: str) -> str:
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self._id}~k{digest[:48]}"


def _packed(key: str, value: str | bytes) -> bytes:
    name = key.encode("utf-8", "surrogatepass")
    data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    rest = name + data
    head = _HEAD.pack(bytes(32), not isinstance(value, bytes), len(name))
    return hashlib.sha256(head[32:] + rest).digest() + head[32:] + rest


def _key_value(data: bytes | None) -> tuple[str, str | bytes] | None:
    """None: it is not as it was written."""
    if data is None or len(data) < _HEAD.size or hashlib.sha256(data[32:]).digest() != data[:32]:
        return None
    _, is_text, length = _HEAD.unpack_from(data)
    name, value = data[_HEAD.size :][:length], data[_HEAD.size + length :]
    try:
        key = name.decode("utf-8", "surrogatepass")
        return key, value.decode("utf-8", "surrogatepass") if is_text else value
    except UnicodeDecodeError:
        return None
