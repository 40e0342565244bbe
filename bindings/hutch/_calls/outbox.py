# SPDX-License-Identifier: Apache-2.0
"""In which order something is handed on between the loop's thread and others: large answers to a
call's code, and what the code prints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from hutch import _core
from hutch._calls.dialogue import Feed


class Outbox:
    """Answers to the code of a call. Those that `acknowledges` go one after another where they are
    large: each lies in memory that the next one would take.
    """

    def __init__(self, acknowledges: bool, send: Callable[[int, bytes | None], None]) -> None:
        self._acknowledges = acknowledges
        self._send = send
        self._unread = False
        self._waiting: list[tuple[int, bytes, bool]] = []

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def places(self) -> int:
        """How many of these have a place, as calls of async tools do."""
        return sum(has_place for _, _, has_place in self._waiting)

    def add(self, number: int, answer: bytes | None, has_place: bool) -> None:
        if answer is not None and len(answer) > _core.MAX_PAYLOAD and self._acknowledges:
            self._waiting.append((number, answer, has_place))
            self._send_next()
        else:
            self._send(number, answer)

    def acknowledge(self) -> None:
        self._unread = False
        self._send_next()

    def _send_next(self) -> None:
        if self._waiting and not self._unread:
            self._unread = True
            number, answer, _ = self._waiting.pop(0)
            self._send(number, answer)


class LaterFeed:
    """What gets the output of a call on the loop's thread alone."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, bytes]] | None = None

    def of(self, feed: Feed) -> Feed:
        """The same, except where it is called on another thread: within `later`."""

        def fed(stream: int, data: bytes) -> None:
            if self._kept is None:
                feed(stream, data)
            else:
                self._kept.append((stream, data))

        return fed

    @contextlib.contextmanager
    def later(self, feed: Feed | None) -> Iterator[None]:
        kept: list[tuple[int, bytes]] = []
        self._kept = kept
        yield
        self._kept = None
        for stream, data in kept:
            if feed is not None:
                feed(stream, data)
