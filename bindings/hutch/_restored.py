# SPDX-License-Identifier: Apache-2.0
"""The receipt of a restore: what came back, and what did not.

Sums of files are made here, of what is sent; those of names are as the session's process says.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

from hutch._carry.container import MOST_NAME, MOST_REASON
from hutch._carry.trees import Content, Entry
from hutch._session_transfers import not_said
from hutch._text import one_line, shortened

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RestoredPart:
    """`size`: in bytes. `sha256`: of these bytes, in hexadecimal. Of a file both are of its
    content, of a name of what the snapshot has of it, as the session's process says.
    """

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore brought back. `names` and `files` (regular ones, by their paths in the
    session's directory): each with its size and SHA-256. `packages`: those of the snapshot that
    `install` had added, as "name==version". `left_out`: what is not there, by name, with why: what
    could not travel into the snapshot, and what was dispensable and could not come back. Files
    begin with "./" there.

        receipt = s.restore(saved)
        assert receipt.files["data.csv"].size == 12
    """

    names: dict[str, RestoredPart]
    files: dict[str, RestoredPart]
    packages: list[str]
    left_out: dict[str, str]

    def __repr__(self) -> str:
        size = sum(one.size for part in (self.names, self.files) for one in part.values())
        counts = f"names={len(self.names)}, files={len(self.files)}, packages={len(self.packages)}"
        return f"Restored({counts}, left_out={len(self.left_out)}: {size:,} bytes)"


for _kind in (RestoredPart, Restored):
    _kind.__module__ = "hutch"


@dataclass(frozen=True, slots=True)
class Dispensable:
    """What its caller can do without: names and packages, and paths in the session's directory,
    with all that is below them.
    """

    names: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()

    def has_package(self, pin: str) -> bool:
        from packaging.utils import canonicalize_name

        wanted = canonicalize_name(pin.partition("==")[0])
        return any(canonicalize_name(name) == wanted for name in self.names)

    def has_path(self, path: str) -> bool:
        return any(one in (".", path) or path.startswith(one + "/") for one in self.paths)


NOTHING = Dispensable()


def dispensable_of(given: Collection[str]) -> Dispensable:
    """Of the keyword. Raises TypeError."""
    if (
        not isinstance(given, Collection)
        or isinstance(given, (str, bytes))
        or not all(isinstance(one, str) for one in given)
    ):
        raise TypeError(
            'dispensable= takes names, and paths that begin with "./", as in ["model", "./cache"]'
        )
    paths = tuple(os.path.normpath(one) for one in given if one.startswith("./"))
    return Dispensable(frozenset(one for one in given if not one.startswith("./")), paths)


class Sums:
    """Of files that are sent to below `place`, which is not in their names."""

    def __init__(self, place: str) -> None:
        self.files: dict[str, RestoredPart] = {}
        self._place = place

    def of(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The same, of which sums are made as they are read."""
        for entry in entries:
            name = os.path.relpath(entry.path, self._place)
            if entry.open is not None:
                yield entry._replace(open=partial(self._opened, name, entry.open))
            else:
                if entry.kind == "hard link":
                    self.files[name] = self.files[os.path.relpath(entry.target, self._place)]
                yield entry

    def _opened(self, name: str, open_it: Callable[[], Content]) -> Content:
        return _Summed(open_it(), partial(self.files.__setitem__, name))


class _Summed:
    def __init__(self, content: Content, tell: Callable[[RestoredPart], None]) -> None:
        self.size = content.size
        self._content = content
        self._tell = tell
        self._sum = hashlib.sha256()

    def next_data(self, offset: int) -> tuple[int, int]:
        return offset, self.size  # as a stream has it: with its holes

    def read(self, view: memoryview, offset: int) -> None:
        self._content.read(view, offset)
        self._sum.update(view)

    def check(self) -> None:
        self._content.check()
        self._tell(RestoredPart(self.size, self._sum.hexdigest()))

    def close(self) -> None:
        self._content.close()


def names_said(reply: Any) -> tuple[dict[str, RestoredPart], dict[str, str]]:
    """What the session's process says of its names: those that came back, and the others with
    why.
    """
    if type(reply) is not tuple or len(reply) != 2 or [type(one) for one in reply] != [list, list]:
        raise not_said()
    names, left_out = {}, {}
    for one in reply[0]:
        if type(one) is not tuple or [type(part) for part in one] != [str, int, str]:
            raise not_said()
        name, size, digest = one
        if size < 0 or not _SHA256.fullmatch(digest):
            raise not_said()
        names[name] = RestoredPart(size, digest)
    for one in reply[1]:
        if type(one) is not tuple or [type(part) for part in one] != [str, str]:
            raise not_said()
        left_out[one[0][:MOST_NAME]] = shortened(one_line(one[1]), MOST_REASON)
    return names, left_out
