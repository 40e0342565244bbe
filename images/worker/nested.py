# SPDX-License-Identifier: Apache-2.0
"""A call of a session that runs within another one, which waits for the answer of a tool: the tool
wants it run first.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import encode as encoding
from _hutch_cell import MOST_IN_PARTS  # type: ignore[import-not-found,unused-ignore]
from encode_refusals import path_for_caller

AROUND = 4096  # bytes that a reply has around its data


def run(
    order: Any,
    worker: Any,
    verb_of: Callable[[Any], Callable[[], Any]],
    show: Callable[[Any], None],
) -> list[Any]:
    """What became of it ("returned", "raised" or "unencodable"), the data of that, and the size of
    their body. Raises KeyboardInterrupt, which is for the outermost call. `show` shows a value that
    is no data.
    """
    meta, code, arguments, buffers = order
    sources: dict[str, str] = {}
    meta["sources"] = sources
    try:
        call = worker.call_of((meta, code, arguments, b""), ())
        if buffers:
            call.arguments = lambda _: pickle.loads(arguments, buffers=buffers)
        value, names = verb_of(call)()
        if worker.cell.is_fork():
            worker.leave_fork(None)
        return reply(value, names, meta, show)
    except BaseException as error:
        if worker.cell.is_fork():
            worker.leave_fork(error)
        if isinstance(error, KeyboardInterrupt):
            raise
        return ["raised", *error_body(worker.describe(error, sources))]


def reply(value: Any, names: Any, meta: Any, show: Callable[[Any], None]) -> list[Any]:
    verb = meta["verb"]
    try:
        payload = encoding.encode((value, names), MOST_IN_PARTS - AROUND, verb == "call")
    except encoding.Unencodable as error:
        payload = None
        shows = verb == "exec" and not error.is_data()
        fields = {
            "path": path_for_caller(meta, error.path),
            "type": error.type_name,
            "hint": error.hint,
            "message": str(error),
        }
    except encoding.TooLarge as error:
        text = f"{error.size:,} bytes cannot be returned at once by what runs within another call"
        raise ValueError(f"{text}: at most {MOST_IN_PARTS - AROUND:,}") from None
    if payload is None:
        if not shows:
            return ["unencodable", *error_body(fields)]
        show(value)  # what its repr raises has no error of ours as its context
        return reply(None, names, meta, show)
    data = bytearray(payload.size)
    for at, chunk in payload.chunks():
        data[at : at + chunk.nbytes] = chunk
    return ["returned", bytes(data), len(payload.body)]


def error_body(fields: dict[str, Any]) -> tuple[bytes, int]:
    body = encoding.encode_error(fields)
    return body, len(body)
