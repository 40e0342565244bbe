# SPDX-License-Identifier: Apache-2.0
"""`storage_of`: the Storage that a path or a URL means."""

from __future__ import annotations

import os
import re

from hutch._storage import Storage
from hutch._storage_directory import DirectoryStorage
from hutch._storage_fsspec import FsspecStorage
from hutch._storage_sqlite import SqliteStorage

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def storage_of(place: str | os.PathLike[str] | Storage) -> Storage:
    """What `place` says: a directory by its path, which is made where there is none;
    "sqlite:///home/me/hutch.db" (three slashes and an absolute path); any other URL that fsspec
    knows, as "s3://bucket/below"; a Storage itself.

    Raises ValueError or TypeError for what is none of these, StorageError where it cannot be used.
    """
    if isinstance(place, os.PathLike):
        place = os.fspath(place)
    elif isinstance(place, Storage) and not isinstance(place, type):
        return place
    if not isinstance(place, str):
        raise TypeError(
            f"a storage is a path, a URL, or an object with get, put, delete and list, not "
            f"{type(place).__name__}"
        )
    url = _URL.fullmatch(place)
    if url is None or url[1].lower() in ("file", "local"):
        return DirectoryStorage(place if url is None else _absolute(place, url[2]))
    if url[1].lower() == "sqlite":
        return SqliteStorage(_absolute(place, url[2]))
    return FsspecStorage(place)


def _absolute(url: str, path: str) -> str:
    if not path.startswith("/"):
        scheme = url.partition(":")[0]
        raise ValueError(f"{url!r:.200} has no absolute path: {scheme}:///home/me/… has")
    return path


storage_of.__module__ = "hutch"
