# SPDX-License-Identifier: Apache-2.0
"""Lines of text files, which may be longer than memory."""

from __future__ import annotations

import codecs
import io
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from sandbox_utils._paths import MIB, Path, checked_count, confined, open_file

MOST_OF_LINE = 16 * MIB  # characters of one that is had at once
BLOCK = 1 << 16
CONTINUATION = bytes(range(0x80, 0xC0))  # the bytes of UTF-8 that begin no character
UTF_8 = "utf-8-sig"  # with or without a byte order mark


def as_text(file: BinaryIO, encoding: str, errors: str = "replace") -> io.TextIOWrapper:
    return io.TextIOWrapper(file, encoding, errors, newline="\n")


def lines(file: io.TextIOWrapper) -> Iterator[str]:
    """Without their ends; a long one is cut, and says so."""
    while True:
        line = file.readline(MOST_OF_LINE)
        if not line:
            return
        if len(line) == MOST_OF_LINE and not line.endswith("\n"):
            more = left_of_line(file)
            if more:
                line += f"… ({more:,} more characters are cut)"
        yield without_end(line)


def left_of_line(file: io.TextIOWrapper) -> int:
    """How many characters there are up to the end of the line, which is passed."""
    count = 0
    while True:
        part = file.readline(MOST_OF_LINE)
        count += len(part)
        if not part or part.endswith("\n"):
            return count - part.endswith("\n")


def without_end(line: str) -> str:
    line = line.removesuffix("\n")
    return line.removesuffix("\r")


def head(path: Path, lines: int = 10, *, encoding: str = UTF_8, outside: bool = False) -> list[str]:
    """The first lines of a file.

    Raises FileNotFoundError, IsADirectoryError, PermissionError where it is outside.
    """
    checked_count("lines", lines)
    with as_text(open_file(confined(path, outside)), encoding) as file:
        return list(islice(_lines(file), lines))


def tail(path: Path, lines: int = 10, *, encoding: str = UTF_8, outside: bool = False) -> list[str]:
    """The last lines of a file, of which no more is read than that.

    Raises FileNotFoundError, IsADirectoryError, PermissionError where it is outside.
    """
    checked_count("lines", lines)
    place = confined(path, outside)
    if lines == 0:
        return []
    with open_file(place) as file:
        if codecs.lookup(encoding).name == UTF_8 or "\n".encode(encoding) == b"\n":
            file.seek(start_of_last(file, lines))
        with as_text(file, encoding) as text:
            return list(deque(_lines(text), lines))


_lines = lines  # where a parameter has that name


def start_of_last(file: BinaryIO, lines: int) -> int:
    """The offset of so many lines before the end."""
    at = file.seek(0, io.SEEK_END)
    wanted = lines + 1  # the line before them ends there
    end = at
    while at > 0:
        size = min(BLOCK, at)
        at -= size
        file.seek(at)
        block = file.read(size)
        if at + size == end and not block.endswith(b"\n"):
            wanted -= 1
        place = len(block)
        while wanted > 0:
            place = block.rfind(b"\n", 0, place)
            if place < 0:
                break
            wanted -= 1
            if wanted == 0:
                return at + place + 1
    return 0


def wc(path: Path, *, outside: bool = False) -> dict[str, int]:
    """`lines`, `words`, `characters` and `bytes` of a file of any size.

    As `wc` counts: lines are ends of lines, so that a last one without an end is none; characters
    are those of UTF-8. Raises FileNotFoundError, IsADirectoryError, PermissionError where it is
    outside.

        wc("notes.txt")    # {'lines': 2, 'words': 7, 'characters': 39, 'bytes': 41}
    """
    counts = dict.fromkeys(("lines", "words", "characters", "bytes"), 0)
    in_word = False
    with open_file(confined(path, outside)) as file:
        while True:
            part = file.read(MIB)
            if not part:
                return counts
            counts["lines"] += part.count(b"\n")
            counts["words"] += len(part.split()) - (in_word and not part[:1].isspace())
            counts["characters"] += len(part.translate(None, CONTINUATION))
            counts["bytes"] += len(part)
            in_word = not part[-1:].isspace()
