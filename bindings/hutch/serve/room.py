# SPDX-License-Identifier: Apache-2.0
"""Memory that each client's requests take: bodies until what they ask for has ended, and answers
until they are sent. All of it belongs to one event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hutch.serve.settings import Client


class Shares:
    """The bytes that each client has, of `most`. `freed` is called when one has less."""

    def __init__(self, most: int, freed: Callable[[], None] = lambda: None) -> None:
        self.taken: Counter[Client] = Counter()
        self._most = most
        self._freed = freed

    def is_full(self, client: Client, size: int = 0) -> bool:
        """Whether with `size` more it has more than its share."""
        return self.taken[client] + size > self._most

    def add(self, client: Client, size: int) -> None:
        self.taken[client] += size
        if not self.taken[client]:
            del self.taken[client]
        if size < 0:
            self._freed()


class Room:
    """What one body takes of its client's share, as long as anybody holds it: its request within
    `with`, and each work that it has begun.
    """

    def __init__(self, bodies: Shares, client: Client) -> None:
        self._bodies = bodies
        self._client = client
        self._size = 0
        self._holders = 0

    def grow(self, size: int) -> bool:
        """False: its client's bodies would take more than their share."""
        if self._bodies.is_full(self._client, size):
            return False
        self._add(size)
        return True

    def grow_parsed(self, size: int) -> bool:
        """By what it takes beyond its text. It may be more than the share if it is the only one."""
        others = self._bodies.taken[self._client] > self._size
        if others and self._bodies.is_full(self._client, size):
            return False
        self._add(size)
        return True

    def hold(self) -> None:
        self._holders += 1

    def leave(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._add(-self._size)

    def _add(self, size: int) -> None:
        self._size += size
        self._bodies.add(self._client, size)

    def __enter__(self) -> Room:
        self.hold()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class Unsent:
    """What one request's answer takes of its client's share within `with`. It is there already, so
    it is not refused: the client's next requests are.
    """

    def __init__(self, answers: Shares, client: Client) -> None:
        self._answers = answers
        self._client = client
        self._size = 0
        self._is_over = False

    def add(self, size: int) -> None:
        """Below 0: so much was sent."""
        if not self._is_over:
            self._size += size
            self._answers.add(self._client, size)

    def __enter__(self) -> Unsent:
        return self

    def __exit__(self, *_: object) -> None:
        self.add(-self._size)
        self._is_over = True
