# SPDX-License-Identifier: Apache-2.0
"""The server's log on stderr: bounded lines, and few of a kind, since whoever sends requests may
cause as many as they like. What they send is never a part of one.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from typing import Any

from hutch._text import escape, one_line, shortened

_APART_SEC = 10.0  # two lines of the same kind
_MOST_KINDS = 100
_MOST_LINE = 500  # characters
_PLACES = 3  # of an error's traceback, the innermost


class Sparse(logging.Filter):
    """Lets through the first of a kind, and later ones that many seconds apart, each with how many
    were left out. An exception is its class and where it was raised, without what it says.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}  # when next, and how many since

    def filter(self, record: logging.LogRecord) -> bool:
        what = str(record.msg).partition("\n")[0]  # asyncio shows what failed in further lines
        line = record.getMessage().partition("\n")[0]
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line = f"{what}: {_places_of(error)}"
        kind = line if error is not None else what
        now = self._clock()
        due, left_out = self._kinds.get(kind, (now, 0))
        if now < due:
            self._kinds[kind] = due, left_out + 1
            return False
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = now + _APART_SEC, 0
        more = f" ({left_out} more like this one were left out)" if left_out else ""
        record.msg, record.args = shortened(one_line(escape(line)), _MOST_LINE) + more, ()
        record.exc_info = record.exc_text = record.stack_info = None
        return True


def _places_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-_PLACES:]
    places = [f"{one.filename.rpartition('/')[2]}:{one.lineno} {one.name}" for one in frames]
    return f"{type(error).__qualname__} in {', '.join(reversed(places))}"


def config() -> dict[str, Any]:
    """For uvicorn, in each process."""
    from uvicorn.config import LOGGING_CONFIG

    handlers = LOGGING_CONFIG["handlers"]
    return {
        **LOGGING_CONFIG,
        "filters": {"sparse": {"()": "hutch.serve.log.Sparse"}},
        "handlers": {**handlers, "default": {**handlers["default"], "filters": ["sparse"]}},
        "loggers": {
            **LOGGING_CONFIG["loggers"],
            "asyncio": {"handlers": ["default"], "level": "WARNING", "propagate": False},
        },
    }
