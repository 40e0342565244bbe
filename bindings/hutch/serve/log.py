# SPDX-License-Identifier: Apache-2.0
"""The server's log on stderr: bounded lines, and few of a kind, since whoever sends requests may
cause as many as they like. What they send is never a part of one, but for an X-Request-Id of few
and plain characters. With `log_requests` there is a line for each request.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hutch._text import escape, one_line, shortened

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

SERVER = logging.getLogger("hutch.serve")
_REQUESTS = logging.getLogger("hutch.serve.requests")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

_APART_SEC = 10.0  # two lines of the same kind
_MOST_KINDS = 100
_MOST_LINE = 500  # characters
_PLACES = 3  # of an error's traceback, the innermost


class Entry:
    """One request: its id, which its client may choose and the answer tells, and its end."""

    def __init__(self, request: Request, path: str) -> None:
        given = request.headers.get("x-request-id", "")
        self._id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        self._begun = time.monotonic()
        self._request = request
        self._path = path

    def end(self, response: Response, error: Exception | None, is_wanted: bool) -> None:
        """A fault has a line in any case, few of a kind."""
        response.headers["X-Request-Id"] = self._id
        status = response.status_code
        if is_wanted:
            client = getattr(self._request.state, "client", None)
            _REQUESTS.info(
                "%s %s %s tenant=%s %.3fs", self._id, self._path, status,
                client.name if client is not None else "", time.monotonic() - self._begun,
            )  # fmt: skip
        if status >= 500 and error is not None:  # else what made the answer has said it
            kind = type(error).__name__
            SERVER.warning(f"{status} of {self._path}, {kind}: %s (request %s)", error, self._id)

    def fail(self, error: Exception) -> None:
        """Of a mistake in this code."""
        SERVER.error(f"500 of {self._path} (request %s)", self._id, exc_info=error)


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
        "handlers": {
            **handlers,
            "default": {**handlers["default"], "filters": ["sparse"]},
            "each": {"class": "logging.StreamHandler", "formatter": "default"},
        },
        "loggers": {
            **LOGGING_CONFIG["loggers"],
            "asyncio": {"handlers": ["default"], "level": "WARNING", "propagate": False},
            "hutch.serve": {"handlers": ["default"], "level": "WARNING", "propagate": False},
            "hutch.serve.requests": {"handlers": ["each"], "level": "INFO", "propagate": False},
        },
    }
