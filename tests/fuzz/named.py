# SPDX-License-Identifier: Apache-2.0
"""Classes of a caller's own that the fuzzed results name, and values of every kind.

For the corpus and for decode_fuzz, which both import this module by this name.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclass
class Row:
    name: str
    point: Point
    tags: list[str] = field(default_factory=list)


TYPES = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in (Colour, Access, Point, Row)}
