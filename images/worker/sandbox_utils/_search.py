# SPDX-License-Identifier: Apache-2.0
"""What is in files: searched, replaced and compared."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Union, overload

from sandbox_utils._paths import (
    OnError,
    Path,
    confined,
    open_file,
    read_whole,
    report,
    several,
)
from sandbox_utils._text import MOST_OF_LINE, UTF_8, as_text, lines, without_end
from sandbox_utils._walking import descend, matcher

Pattern = Union[str, "re.Pattern[str]"]
Replacement = Union[str, Callable[["re.Match[str]"], str]]
FIRST = 8192  # bytes of a file that are looked at for a NUL


def compiled(pattern: Pattern, ignore_case: bool, fixed: bool) -> re.Pattern[str]:
    if isinstance(pattern, re.Pattern):
        if fixed or ignore_case:
            raise ValueError(
                "a compiled pattern has flags of its own: leave out fixed=, ignore_case="
            )
        return pattern
    text = re.escape(pattern) if fixed else pattern
    try:
        return re.compile(text, re.I if ignore_case else 0)
    except re.error as error:
        raise ValueError(
            f"{pattern!r} is no regular expression ({error}): fixed=True takes it as plain text"
        ) from None


def grep(
    pattern: Pattern,
    paths: Path | Iterable[Path],
    *,
    recursive: bool = False,
    ignore_case: bool = False,
    fixed: bool = False,
    invert: bool = False,
    name: str | None = None,
    binary: bool = False,
    encoding: str = UTF_8,
    outside: bool = False,
    on_error: OnError = None,
) -> Iterator[tuple[str, int, str]]:
    """(path, number of the line, line) of each line in which the pattern is found.

    `pattern`: a regular expression of Python's `re`, or with `fixed=True` plain text. `paths`: one
    or several. `recursive`: in directories, all files that are below them. `invert`: the lines in
    which it is not found. `name`: a glob for the names of files in directories. `binary`: also in
    files that have a NUL in their first 8 KiB, which are passed over otherwise.

    Raises FileNotFoundError, IsADirectoryError without `recursive`, PermissionError where one is
    outside, ValueError for a pattern that is none.

        [path for path, _, _ in grep("def main", "src", recursive=True, name="*.py")]
    """
    found = compiled(pattern, ignore_case, fixed).search
    matches = matcher(name, False)
    given = [confined(path, outside) for path in several(paths)]
    for path in given:
        os.stat(path)
        if os.path.isdir(path) and not recursive:
            raise IsADirectoryError(f"{path!r} is a directory: recursive=True searches its files")

    def places() -> Iterator[str]:
        for path in given:
            if not os.path.isdir(path):
                yield path
                continue
            for place, entry in descend(path, "grep", on_error):
                if matches is None or matches.match(entry.name):
                    if entry.is_file(follow_symlinks=False):
                        yield place

    def searched() -> Iterator[tuple[str, int, str]]:
        for place in places():
            try:
                with open_file(place) as file:
                    if not binary and b"\0" in file.peek(FIRST)[:FIRST]:  # type: ignore[attr-defined]
                        continue
                    with as_text(file, encoding) as text:
                        for number, line in enumerate(lines(text), 1):
                            if (found(line) is None) is invert:
                                yield place, number, line
            except OSError as error:
                report("grep", error, on_error)

    return searched()


@overload
def sed(
    pattern: Pattern,
    replacement: Replacement,
    path: Path | None = None,
    *,
    text: str | None = None,
    in_place: Literal[False] = False,
    count: int = 0,
    ignore_case: bool = False,
    fixed: bool = False,
    max_mb: float = 16,
    outside: bool = False,
) -> str: ...
@overload
def sed(
    pattern: Pattern,
    replacement: Replacement,
    path: Path,
    *,
    in_place: Literal[True],
    count: int = 0,
    ignore_case: bool = False,
    fixed: bool = False,
    outside: bool = False,
) -> int: ...
def sed(
    pattern: Pattern,
    replacement: Replacement,
    path: Path | None = None,
    *,
    text: str | None = None,
    in_place: bool = False,
    count: int = 0,
    ignore_case: bool = False,
    fixed: bool = False,
    max_mb: float = 16,
    outside: bool = False,
) -> str | int:
    """Replaces what the pattern matches, in each line by itself.

    Of the file `path`, or of `text`; what comes of it is returned. `in_place`: the file is
    replaced, as a whole or not at all, and the number of replacements returned; bytes that are not
    UTF-8, ends of lines and the mode stay as they are. `pattern`, `replacement`: as `re.sub` has
    them (`\\1`, `\\g<name>`, a function of the match), or with `fixed=True` plain text. `count`:
    how many in each line, 0 for all.

    Raises FileNotFoundError, IsADirectoryError, PermissionError where it is outside, ValueError
    for a pattern that is none, a text of more than `max_mb` MiB, or a line of more than 16 MiB.

        sed(r"(\\w+)@old\\.example", r"\\1@new.example", "people.txt", in_place=True)
    """
    found = compiled(pattern, ignore_case, fixed)
    if fixed and isinstance(replacement, str):
        literal = replacement
        replacement = lambda _: literal  # noqa: E731
    if (path is None) is (text is None):
        raise TypeError("sed() takes a path, or text=")
    if in_place:
        if path is None:
            raise TypeError("in_place=True is for a path")
        return replace_in(confined(path, outside), found, replacement, count)
    if text is None:
        text = read_whole(confined(path or "", outside), max_mb).decode(UTF_8, "replace")
    given = io.StringIO(text, newline="")
    return "".join(line for line, _ in replaced(given, found, replacement, count))


def replaced(
    file: io.TextIOBase, found: re.Pattern[str], replacement: Replacement, count: int
) -> Iterator[tuple[str, int]]:
    """Each line with its end, and how often it was replaced in."""
    number = 0
    while True:
        line = file.readline(MOST_OF_LINE + 1)
        if not line:
            return
        number += 1
        if len(line) > MOST_OF_LINE and not line.endswith("\n"):
            raise ValueError(f"line {number} has more than {MOST_OF_LINE:,} characters")
        mark = "\ufeff" if number == 1 and line.startswith("\ufeff") else ""
        body = without_end(line[len(mark) :])
        new, times = found.subn(replacement, body, count)
        yield mark + new + line[len(mark) + len(body) :], times


def replace_in(path: str, found: re.Pattern[str], replacement: Replacement, count: int) -> int:
    target = os.path.realpath(path)
    made, total = "", 0
    try:
        with as_text(open_file(target), "utf-8", "surrogateescape") as file:
            fd, made = tempfile.mkstemp(prefix=".sed-", dir=os.path.dirname(target))
            with open(fd, "w", encoding="utf-8", errors="surrogateescape", newline="") as out:
                for line, times in replaced(file, found, replacement, count):
                    out.write(line)
                    total += times
        if total:
            shutil.copymode(target, made)
            os.replace(made, target)
            made = ""
    finally:
        if made:
            with contextlib.suppress(OSError):
                os.unlink(made)
    return total


def diff(
    before: Path,
    after: Path,
    *,
    context: int = 3,
    encoding: str = UTF_8,
    max_mb: float = 4,
    outside: bool = False,
) -> str:
    """How one file becomes another, as a unified diff; "" where both are the same.

    `context`: lines around each change. Files with a NUL in their first 8 KiB are said to differ,
    no more. Raises FileNotFoundError, IsADirectoryError, PermissionError where one is outside,
    ValueError where one has more than `max_mb` MiB.
    """
    places = [confined(path, outside) for path in (before, after)]
    one, other = (read_whole(place, max_mb) for place in places)
    if one == other:
        return ""
    if b"\0" in one[:FIRST] or b"\0" in other[:FIRST]:
        return f"Binary files {places[0]} and {places[1]} differ\n"
    texts = [ended(data.decode(encoding, "replace")) for data in (one, other)]
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(texts[0], texts[1], places[0], places[1], n=context)
    )


def ended(text: str) -> list[str]:
    """Its lines, with their ends, which are newlines alone."""
    return io.StringIO(text, newline="\n").readlines()
