# SPDX-License-Identifier: Apache-2.0
"""A Storage that is any place which fsspec knows: an object store, another host.

Who may reach it is for its own rights to say. It is not believed to write or move a file as a
whole: each begins with its checksum, and is written beside its place first.
"""

from __future__ import annotations

import hashlib
import posixpath
import secrets
from contextlib import suppress
from typing import Any

from hutch._errors import StorageError
from hutch._storage import is_name, required_data, required_name, required_prefix

_BEGUN = ".begun-"
_CHECKSUM = 32  # bytes


class FsspecStorage:
    """What is below a URL of fsspec's, as "s3://bucket/sessions". `options`: what its file system
    takes. ImportError, where fsspec or what it needs for that URL is not installed; StorageError
    where it cannot be used.

        storage = FsspecStorage("memory://sessions")
    """

    __module__ = "hutch"

    def __init__(self, url: str, **options: Any) -> None:
        if not isinstance(url, str):
            raise TypeError(f"the URL of a storage is text, not {type(url).__name__}")
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise ImportError(f"{url!r:.200} needs fsspec: pip install fsspec") from None
        self.url = url
        self._fs, self._top = url_to_fs(url, **options)
        self._top = self._top.rstrip("/")
        # The same for all URLs that mean it; perhaps for some others.
        kind = self._fs.protocol
        kinds = [kind] if isinstance(kind, str) else kind
        self.place = f"{'+'.join(kinds)}:{posixpath.normpath(self._top)}"
        self._try(self._fs.makedirs, self._top, exist_ok=True)

    def get(self, name: str) -> bytes | None:
        place = self._place(required_name(name))
        found = self._try(self._fs.cat_file, place)
        if found is None:
            return None
        data = bytes(found[_CHECKSUM:])
        if hashlib.sha256(data).digest() != found[:_CHECKSUM]:
            raise StorageError(f"{name} in {self.url} is damaged: it is not what was written there")
        return data

    def put(self, name: str, data: bytes) -> None:
        place, data = self._place(required_name(name)), required_data(data)
        begun = f"{self._top}/{_BEGUN}{secrets.token_hex(8)}"
        try:
            self._try(self._fs.pipe_file, begun, hashlib.sha256(data).digest() + data)
            self._try(self._move, begun, place)
        except BaseException:
            with suppress(Exception):
                self._fs.rm_file(begun)
            raise

    def delete(self, name: str) -> None:
        self._try(self._fs.rm_file, self._place(required_name(name)))

    def list(self, prefix: str = "") -> list[str]:
        prefix = required_prefix(prefix)
        self._fs.invalidate_cache()
        found = self._try(self._fs.ls, self._top, detail=False) or []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in found)
        return sorted(name for name in names if name.startswith(prefix) and is_name(name))

    def __repr__(self) -> str:
        return f"FsspecStorage({self.url!r})"

    def _move(self, begun: str, place: str) -> None:
        try:
            self._fs.mv(begun, place)
        except FileNotFoundError as error:
            raise OSError(f"what was written there is gone: {error}") from error

    def _place(self, name: str) -> str:
        return f"{self._top}/{name}"

    def _try(self, do: Any, *args: Any, **kwargs: Any) -> Any:
        """None where there is nothing; an object store has no empty directories."""
        try:
            return do(*args, **kwargs)
        except FileNotFoundError:
            return None
        except Exception as error:  # each file system has its own
            raise StorageError(f"{self.url} cannot be used: {error}") from error
