# SPDX-License-Identifier: Apache-2.0
"""The files of an AsyncSession: the methods of `Session.files`, awaited. On the loop's thread."""

from __future__ import annotations

import os
import pathlib
from collections.abc import AsyncIterator
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from hutch._session_files import Entries, Names, SessionFiles, Walk, is_open_file, path_of
from hutch._twins import awaits, result_of

if TYPE_CHECKING:
    from hutch._awaited_session import Awaited


class AsyncSessionFiles:
    """As `Session.files`, to be awaited: paths are relative to the session's directory, or absolute
    inside, and errors are those of the system.

        await s.files.write("a/b.txt", "x")
        assert await s.files.read("a/b.txt") == "x"
    """

    def __init__(self, session: Awaited) -> None:
        self._session = session  # which ends with the last of what refers to it
        self._files: SessionFiles = session.files
        self._operate = session._engine.files.operate

    @awaits(SessionFiles.read)
    async def read(self, path: str, encoding: str = "utf-8") -> str:
        return await result_of(self._files.read, path, encoding)

    @awaits(SessionFiles.read_bytes)
    async def read_bytes(self, path: str) -> bytes:
        return await result_of(self._files.read_bytes, path)

    @awaits(SessionFiles.write)
    async def write(
        self,
        path: str,
        content: str | bytes | bytearray | memoryview | IO[str] | IO[bytes],
        *,
        append: bool = False,
    ) -> None:
        if is_open_file(content):
            await self._operate(lambda: self._files.write(path, content, append=append))
        else:
            await result_of(self._files.write, path, content, append=append)

    @awaits(SessionFiles.list)
    async def list(self, path: str = ".") -> Names:
        return await result_of(self._files.list, path)

    @awaits(SessionFiles.scan)
    async def scan(self, path: str = ".") -> Entries:
        return await result_of(self._files.scan, path)

    async def walk(self, path: str = ".") -> AsyncIterator[tuple[str, Names, Names]]:
        """An async iterator of what `Session.files.walk()` gives: each directory of a tree before
        those in it, with the names of the directories in it, and those of all else.
        """
        walk = Walk(path_of(path))
        while (top := walk.next()) is not None:
            try:
                found = await result_of(self._files.scan, top)
            except OSError as error:
                walk.leave_out(error)
            else:
                yield walk.step(found)

    @awaits(SessionFiles.glob)
    async def glob(self, pattern: str) -> Names:
        return await result_of(self._files.glob, pattern)

    @awaits(SessionFiles.exists)
    async def exists(self, path: str) -> bool:
        return await result_of(self._files.exists, path)

    @awaits(SessionFiles.stat)
    async def stat(self, path: str) -> dict[str, Any]:
        return await result_of(self._files.stat, path)

    @awaits(SessionFiles.delete)
    async def delete(self, path: str) -> None:
        await result_of(self._files.delete, path)

    @awaits(SessionFiles.remove)
    async def remove(self, path: str) -> None:
        await result_of(self._files.remove, path)

    @awaits(SessionFiles.mkdir)
    async def mkdir(self, path: str) -> None:
        await result_of(self._files.mkdir, path)

    @awaits(SessionFiles.rename)
    async def rename(self, source: str, target: str) -> None:
        await result_of(self._files.rename, source, target)

    @awaits(SessionFiles.realpath)
    async def realpath(self, path: str) -> str:
        return await result_of(self._files.realpath, path)

    # ---- what a thread does

    @awaits(SessionFiles.changed)
    async def changed(self) -> dict[str, str]:
        return await self._operate(self._files.changed)

    @awaits(SessionFiles.upload)
    async def upload(self, source: str | os.PathLike[str], path: str | None = None) -> None:
        await self._operate(lambda: self._files.upload(source, path))

    @awaits(SessionFiles.download)
    async def download(
        self, path: str, to: str | os.PathLike[str], *, limit_mb: float | None = None
    ) -> pathlib.Path:
        return await self._operate(lambda: self._files.download(path, to, limit_mb=limit_mb))

    @awaits(SessionFiles.tar)
    async def tar(self, path: str = ".") -> bytes:
        return await self._operate(lambda: self._files.tar(path))

    @awaits(SessionFiles.untar)
    async def untar(
        self,
        archive: bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO,
        path: str = ".",
        *,
        limit_mb: float | None = None,
    ) -> None:
        await self._operate(lambda: self._files.untar(archive, path, limit_mb=limit_mb))
