# SPDX-License-Identifier: Apache-2.0
"""The history of a named session. Each of its states has it; what came since is written to its
storage as entries end, in parts of some entries each, which the next state makes needless.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from hutch._calls.history import MOST_JSON, MOST_KEPT, History, Note, entry_of, json_of
from hutch._calls.threads import shared_threads
from hutch._storage import Storage, names_of, read_of

_PART = re.compile(r"[^~]+~h(?P<number>\d{12})", re.ASCII)
_MOST_ENTRIES = 32  # of a part, which is written anew with each of them
_MOST_BYTES = 128 << 10  # after which another one begins
_MOST_PARTS = 64  # without a state that has them
_SELDOM_SEC = 0.05  # so often entries of tools are written, which a cell may call as it likes
_DIGEST = hashlib.sha256().digest_size


class StoredHistory(History):
    """Of one session, by who holds it."""

    def __init__(
        self,
        storage: Storage,
        id: str,
        saved: bytes | None,
        tell: Callable[[BaseException], None],
    ) -> None:
        """`saved`: what the newest state has of it. `tell`: gets the error of a part that could
        not be written, which is no failure of the calls in it. Raises ValueError where `saved` is
        no history, and StorageError.
        """
        super().__init__()
        self._storage = storage
        self._id = id
        self._tell = tell
        self.is_on_loop = False  # an event loop drives its session, which waits for no storage
        self._texts: list[str] = []  # of the part that is being written
        self._parts: list[int] = []  # those before it
        self._written = 0.0
        self._has_failed = False
        self._is_closed = False
        self._is_waiting = False  # a thread is about to write
        self._writing = threading.RLock()
        if saved is not None:
            self.take(saved)
        for name in sorted(names_of(storage, f"{id}~h")):
            match = _PART.fullmatch(name)
            if match is not None:
                self._parts.append(int(match["number"]))
                with suppress(ValueError):  # it is not as it was written
                    self.take(_opened(read_of(storage, name)))
        self._part = max(self._parts, default=0) + 1
        self.give_up_running()

    def sealed(self) -> tuple[bytes, int]:
        """The history for a state, and for forget(): the first part of what comes later."""
        with self._writing:
            if self._texts:
                self._next_part(len(self._texts))
            return self.to_json(), self._part

    def forget(self, before: int) -> None:
        """The parts before that one: a state has what is in them."""
        with self._writing:
            for number in [one for one in self._parts if one < before]:
                with suppress(Exception):  # it has nothing that the state has not
                    self._storage.delete(self._name(number))
                    self._parts.remove(number)

    def close(self) -> None:
        """Nothing is written from then on: somebody else may have it."""
        with self._writing:
            self._is_closed = True

    def _keep(self, note: Note) -> None:
        if len(self._texts) >= 2 * MOST_KEPT:
            return  # a storage that takes long: they are in the next state
        self._texts.append(json.dumps(entry_of(note).to_dict()))
        if note["within"] is not None and time.monotonic() < self._written + _SELDOM_SEC:
            return
        if not self.is_on_loop:
            self._write()
        elif not self._is_waiting:
            self._is_waiting = True
            shared_threads().start(self._write)

    def _write(self) -> None:
        with self._writing:
            self._is_waiting = False
            if self._is_closed:
                return
            texts = list(self._texts)
            self._put(json_of(texts))
            if len(texts) >= _MOST_ENTRIES or sum(map(len, texts)) >= _MOST_BYTES:
                self._next_part(len(texts))
            if len(self._parts) >= _MOST_PARTS and self._put(self.to_json()):
                self._next_part(0)
                self.forget(self._parts[-1])

    def _next_part(self, written: int) -> None:
        """Without the first so many entries, which the present one has."""
        self._parts.append(self._part)
        self._part += 1
        del self._texts[:written]

    def _put(self, data: bytes) -> bool:
        try:
            self._storage.put(self._name(self._part), hashlib.sha256(data).digest() + data)
        except Exception as error:
            if not self._has_failed:
                self._tell(error)
            self._has_failed = True
            return False
        self._has_failed = False
        self._written = time.monotonic()
        return True

    def _name(self, number: int) -> str:
        return f"{self._id}~h{number:012}"


def _opened(data: bytes | None) -> bytes:
    if data is None or len(data) > 2 * MOST_JSON:
        raise ValueError("is not there, or too large")
    digest, content = data[:_DIGEST], data[_DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError("is damaged")
    return content
