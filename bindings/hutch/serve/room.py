# SPDX-License-Identifier: Apache-2.0
"""Memory that each client's requests take: bodies until what they ask for has ended, and answers
until they are sent. All of it belongs to one event loop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from hutch.serve.settings import Client

_RESERVE = 1 / 8  # of what all may have: for small bodies, whatever large ones there are


class Total:
    """The bytes that all clients have in this process, of `most`. `freed` is called when they are
    less.
    """

    def __init__(self, most: float = math.inf, freed: Callable[[], None] = lambda: None) -> None:
        self.taken = 0
        self.reserve = 0.0 if math.isinf(most) else most * _RESERVE
        self._most = most
        self._freed = freed

    def left(self) -> float:
        return self._most - self.taken

    def add(self, size: int) -> None:
        self.taken += size
        if size < 0:
            self._freed()


class Shares:
    """The bytes that each client has, of `most`, and of what all have: as long as others could have
    as much. What it asks for first may be more, but for a reserve.
    """

    def __init__(self, most: int, total: Total | None = None) -> None:
        self.taken: Counter[Client] = Counter()
        self.total = total or Total()
        self._most = most

    def is_full(self, client: Client) -> bool:
        """Whether it has more than its share."""
        taken = self.taken[client]
        return taken > self._most or (taken > 0 and taken > self.total.left())

    def has_room(self, client: Client, size: int, is_first: bool) -> bool:
        """For `size` more. `is_first`: it has nothing else."""
        left = self.total.left() - size
        if is_first and left >= self.total.reserve:
            return True
        return self.taken[client] + size <= min(self._most, left)

    def add(self, client: Client, size: int) -> None:
        self.taken[client] += size
        if not self.taken[client]:
            del self.taken[client]
        self.total.add(size)


class Room:
    """What one body takes of its client's share, as long as anybody holds it: its request within
    `with`, and each work that it has begun.
    """

    def __init__(self, bodies: Shares, client: Client) -> None:
        self.client = client
        self._bodies = bodies
        self._size = 0
        self._holders = 0

    def grow(self, size: int) -> bool:
        """False: there is no room. A body that is its client's only one may have more than the
        share, as what is parsed of it is known late.
        """
        is_first = self._bodies.taken[self.client] == self._size
        if not self._bodies.has_room(self.client, size, is_first):
            return False
        self._add(size)
        return True

    def shrink(self, size: int) -> None:
        self._add(-size)

    @property
    def is_alone(self) -> bool:
        """Nobody has anything else, so that waiting gives no room."""
        return self._bodies.total.taken == self._size

    def hold(self) -> None:
        self._holders += 1

    def leave(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._add(-self._size)

    def _add(self, size: int) -> None:
        self._size += size
        self._bodies.add(self.client, size)

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
