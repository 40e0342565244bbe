# SPDX-License-Identifier: Apache-2.0
"""What became of a call, as frames: its result or its error, as data."""

from __future__ import annotations

import mmap
import os
import traceback
from collections.abc import Iterator
from typing import Any

import encode as encoding
import failures
import session
from _hutch_cell import (  # type: ignore[import-not-found,unused-ignore]
    IN_MEMFD,
    IN_PARTS,
    LIMIT_DISK,
    MAX_PAYLOAD,
    MEMFD,
    MOST_IN_PARTS,
    NEED,
    PART,
    RAISED,
    RESULT,
    TOO_LARGE,
    UNENCODABLE,
    USAGE_SIZE,
)
from encode_refusals import path_for_caller

BALLAST = 4 << 20  # bytes of address space, never touched: room to report a MemoryError in
INLINE = MAX_PAYLOAD - USAGE_SIZE

_exit = os._exit
_close = os.close
_pwrite = os.pwrite

_ballast = mmap.mmap(-1, BALLAST, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Replies:
    """`fd`: the call socket."""

    def __init__(self, cell: Any, fd: int) -> None:
        self.cell = cell
        self.fd = fd

    def reply_value(
        self, call_id: int, value: Any, max_bytes: int, of_session: dict[str, Any] | None = None
    ) -> None:
        """`of_session`: its meta data; the value is then the first of a pair."""
        cell = self.cell
        if of_session and cell.reply_pair(self.fd, call_id, value, max_bytes):
            return

        def path_of(error: Any) -> Any:
            return path_for_caller(of_session, error.path) if of_session else error.path

        try:
            named = of_session is None or of_session["verb"] == "call"
            payload = encoding.encode(value, max_bytes, named)
        except encoding.Unencodable as error:
            fields = {
                "path": path_of(error),
                "type": error.type_name,
                "hint": error.hint,
                "message": str(error),
            }
            payload = None
            shows = of_session is not None and not error.is_data()
        except encoding.TooLarge as error:
            body = bytes(encoding.encode({"path": path_of(error)}, 1 << 24).body)
            cell.reply(self.fd, TOO_LARGE, 0, call_id, error.size, 0, body[:INLINE])
            return
        if payload is None:  # what its repr raises has no error of ours as its context
            instead = shows and session.shown_instead(of_session, call_id, value)
            if instead:
                self.reply_value(call_id, instead, max_bytes, of_session)
                return
            body = bytes(encoding.encode(fields, 1 << 24).body)
            cell.reply(self.fd, UNENCODABLE, 0, call_id, len(body), len(body), body)
            return
        cell.encoded()
        size = payload.size
        if size <= INLINE:
            cell.reply(self.fd, RESULT, 0, call_id, size, size, payload.body)
        else:
            self.reply_large(call_id, RESULT, len(payload.body), size, payload.chunks())

    def reply_large(
        self,
        call_id: int,
        kind: int,
        body_size: int,
        size: int,
        chunks: Iterator[tuple[int, Any]],
    ) -> None:
        if size <= MOST_IN_PARTS:
            for part in joined(chunks):
                self.cell.send(self.fd, PART, 0, call_id, 0, size, part)
            self.cell.reply(self.fd, kind, IN_PARTS, call_id, body_size, size)
            return
        self.cell.send(self.fd, NEED, 0, call_id, size, 0)
        frame = self.cell.recv(self.fd)
        if frame is None:
            _exit(0)
        if frame[0] != MEMFD or len(frame[6]) != 1:
            self.cell.reply(self.fd, TOO_LARGE, 0, call_id, size, 0)
            return
        fd = frame[6][0]
        for offset, chunk in chunks:
            view = memoryview(chunk).cast("B")
            while view:
                written = _pwrite(fd, view[: 1 << 30], offset)
                view = view[written:]
                offset += written
        _close(fd)
        self.cell.reply(self.fd, kind, IN_MEMFD, call_id, body_size, size)

    def reply_error(self, call_id: int, error: BaseException, sources: dict[str, str]) -> None:
        limit = failures.limit_of(error, self.cell)
        if limit:
            self.cell.hit_limit(limit)
            _ballast.close()
        no_files = limit == LIMIT_DISK and failures.full_scratch() == "files"
        try:
            fields = failures.describe(error, sources)
        except BaseException:
            traceback.clear_frames(error.__traceback__)
            bases = encoding.builtin_bases(type(error))
            fields = encoding.error_fields(type(error).__name__, "", "", None, "", bases)
        if no_files:
            fields["no_files"] = True
        body = encoding.encode_error(fields)
        if len(body) <= INLINE:
            self.cell.reply(self.fd, RAISED, 0, call_id, len(body), len(body), body)
        else:
            self.reply_large(call_id, RAISED, len(body), len(body), iter([(0, body)]))


def joined(chunks: Iterator[tuple[int, Any]]) -> Iterator[bytearray]:
    """The bytes of chunks, which are at these offsets, in pieces that fit a frame. Each is to be
    used before the next one is asked for."""
    piece = bytearray()
    end = 0
    for offset, chunk in chunks:
        for content in (bytes(offset - end), chunk):
            view = memoryview(content).cast("B")
            end += len(view)
            while view:
                taken = min(len(view), MAX_PAYLOAD - len(piece))
                piece += view[:taken]
                view = view[taken:]
                if len(piece) == MAX_PAYLOAD:
                    yield piece
                    del piece[:]
    if piece:
        yield piece
