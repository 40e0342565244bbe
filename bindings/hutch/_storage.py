# SPDX-License-Identifier: Apache-2.0
"""`Storage`: where what outlives a process is kept: bytes by name. A name is not a path: it says
nothing about where its bytes are.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Union, runtime_checkable

from hutch._errors import StorageError
from hutch._text import brief_repr

_NAME = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,199}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", re.ASCII)
Place = Union[str, "os.PathLike[str]"]  # of the host


@runtime_checkable
class Storage(Protocol):
    """Bytes by name. `DirectoryStorage`, `SqliteStorage` and `FsspecStorage` are such; so is any
    object with these four methods that holds to this:

    - A name is up to 200 letters, digits, `.`, `_`, `-` and `~` of ASCII, of which the first is no
      dot; anything else is a ValueError.
    - What `put` is given takes the place of what there was at once and as a whole, or not at all,
      whatever becomes of the process; nobody ever gets a part of it.
    - Methods may be called on any thread.

    What processes of this machine know it by is `place`, a text, if it has such an attribute: the
    same for all that reach one storage, and no other's; else its class. Named sessions are held by
    it, one process at a time.
    """

    def get(self, name: str) -> bytes | None:
        """None where there is nothing of that name. Raises StorageError."""

    def put(self, name: str, data: bytes) -> None:
        """Raises StorageError; then there is what there was."""

    def delete(self, name: str) -> None:
        """Nothing happens where there is nothing of that name. Raises StorageError."""

    def list(self, prefix: str = "") -> list[str]:
        """The names that begin with `prefix`, sorted. Raises StorageError."""


Storage.__module__ = "hutch"


def required_name(name: Any) -> str:
    """Raises TypeError or ValueError for what is not a name of a Storage."""
    if not isinstance(name, str):
        raise TypeError(f"a name in a storage is text, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{brief_repr(name)} is not a valid name in a storage: it must be up to 200 ASCII "
            "letters, digits and . _ - ~, and must not begin with a dot"
        )
    return str(name)


def required_id(id: Any) -> str:
    """Raises TypeError or ValueError for what is not an id of a session."""
    if not isinstance(id, str):
        raise TypeError(f"id= is text, not {type(id).__name__}")
    if not _ID.fullmatch(id):
        raise ValueError(
            f"id={brief_repr(id)}: an id must be up to 128 ASCII letters, digits and . _ -, "
            "and must not begin with a dot"
        )
    return str(id)


def required_data(data: Any) -> bytes:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"a storage keeps bytes, not {type(data).__name__}")
    return bytes(data)


def read_of(storage: Storage, name: str) -> bytes | None:
    """What it has of that name. Raises StorageError, also for what is no bytes."""
    found: Any = storage.get(name)
    if found is None or type(found) is bytes:
        return found
    if isinstance(found, (bytearray, memoryview)):
        return bytes(found)
    raise _not_a_storage("get", "bytes or None", found)


def names_of(storage: Storage, prefix: str = "") -> list[str]:
    """Raises StorageError, also for what is no list of names."""
    found: Any = storage.list(prefix)
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, str) for one in found):
        raise _not_a_storage("list", "a list of names", found)
    return list(found)


def _not_a_storage(method: str, wanted: str, found: Any) -> StorageError:
    kind = type(found).__name__
    return StorageError(f"{method}() of the storage gave {kind}, and is to give {wanted}")


def is_name(name: Any) -> bool:
    """Of something that was found: what is none is not ours."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def required_prefix(prefix: Any) -> str:
    if not isinstance(prefix, str):
        raise TypeError(f"a prefix is text, not {type(prefix).__name__}")
    return str(prefix)


@contextmanager
def as_storage_error(what: str) -> Iterator[None]:
    """Raises a StorageError for an OSError. `what`: as in "it cannot be written"."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{what}: {error.strerror or error}", hint=_HINTS.get(error.errno or 0, "")
        ) from error


_HINTS = {
    errno.ENOSPC: "free some space there, or take another place for the storage",
    errno.EDQUOT: "free some space there, or take another place for the storage",
    errno.EFBIG: "the limit of the size of files (ulimit -f) is lower than what is to be kept",
    errno.EROFS: "take a place for the storage that can be written to",
    errno.EACCES: "take a place for the storage that you may write to",
}
