# SPDX-License-Identifier: Apache-2.0
"""Going through directories."""

from __future__ import annotations

import datetime
import errno
import os
import re
from collections.abc import Iterator
from fnmatch import translate
from typing import Literal, Union

from sandbox_utils._paths import (
    OnError,
    Path,
    checked_count,
    confined,
    entries,
    error_at,
    is_directory,
    report,
    shown,
    type_of,
)

Type = Literal["file", "directory", "link", "other", "f", "d", "l"]
LONG = {"f": "file", "d": "directory", "l": "link"}
Moment = Union[float, datetime.datetime, Path]


def descend(
    start: str, function: str, on_error: OnError, max_depth: int | None = None
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """The path of all that is below a directory, each before what is in it, by name. Never through
    a link. `function`: whose errors these are.
    """
    start = "" if start in (".", "./") else start
    waiting = [iter(listed(start or ".", function, on_error))]
    places = [start]
    while waiting:
        entry = next(waiting[-1], None)
        if entry is None:
            waiting.pop()
            places.pop()
            continue
        path = os.path.join(places[-1], entry.name)
        yield path, entry
        if is_directory(entry) and (max_depth is None or len(waiting) < max_depth):
            waiting.append(iter(listed(path, function, on_error)))
            places.append(path)


def listed(path: str, function: str, on_error: OnError) -> list[os.DirEntry[str]]:
    try:
        return entries(path)
    except OSError as error:
        report(function, error, on_error)
        return []


def find(
    path: Path = ".",
    name: str | None = None,
    *,
    type: Type | None = None,
    min_size: int | None = None,
    max_size: int | None = None,
    newer: Moment | None = None,
    older: Moment | None = None,
    max_depth: int | None = None,
    ignore_case: bool = False,
    outside: bool = False,
    on_error: OnError = None,
) -> Iterator[str]:
    """The paths below a directory, hidden ones too, sorted by name; of a file, its own.

    `name`: a glob (`*.py`) for the last part of the path. `type`: "file", "directory", "link" or
    "other" ("f", "d" and "l" are the first three). `min_size`, `max_size`: of files, in bytes;
    there is nothing else then. `newer`, `older`: than a path, a datetime, or seconds since 1970,
    by the time of the last change. `max_depth`: 1 is the directory itself.

    Raises FileNotFoundError, PermissionError where it is outside, ValueError.

        for path in find("src", "*.py", newer="build/stamp"):
            print(path)
    """
    start = confined(path, outside)
    wanted = None if type is None else LONG.get(type, type)
    if wanted not in (None, "file", "directory", "link", "other"):
        raise ValueError(f'type={type!r}: it is "file", "directory", "link" or "other"')
    if max_depth is not None:
        checked_count("max_depth", max_depth, 1)
    matches = matcher(name, ignore_case)
    after, before = moment(newer, outside), moment(older, outside)
    of_status = (min_size, max_size, after, before) != (None, None, None, None)

    def is_wanted(label: str, place: str) -> bool:
        if matches is not None and not matches.match(label):
            return False
        if wanted is None and not of_status:
            return True
        found = os.lstat(place)
        kind = type_of(found.st_mode)
        if wanted not in (None, kind):
            return False
        if min_size is not None or max_size is not None:
            most = found.st_size if max_size is None else max_size
            if kind != "file" or not (min_size or 0) <= found.st_size <= most:
                return False
        return (after is None or found.st_mtime > after) and (
            before is None or found.st_mtime < before
        )

    def searched() -> Iterator[str]:
        if not os.path.isdir(start):
            if is_wanted(os.path.basename(start), start):
                yield start
            return
        for place, entry in descend(start, "find", on_error, max_depth):
            try:
                if is_wanted(entry.name, place):
                    yield place
            except OSError as error:  # it has gone
                report("find", error, on_error)

    os.lstat(start)
    return searched()


def matcher(name: str | None, ignore_case: bool) -> re.Pattern[str] | None:
    if name is None:
        return None
    if "/" in name:
        raise ValueError(
            f'name={name!r}: it is for the last part of a path, such as "*.py"; directories are '
            "searched at every depth"
        )
    return re.compile(translate(name), re.I if ignore_case else 0)


def moment(given: Moment | None, outside: bool) -> float | None:
    """In seconds."""
    if given is None or isinstance(given, (int, float)):
        return given
    if isinstance(given, datetime.datetime):
        return given.timestamp()
    return os.stat(confined(given, outside)).st_mtime


def walk(
    path: Path = ".",
    *,
    max_depth: int | None = None,
    outside: bool = False,
    on_error: OnError = None,
) -> Iterator[tuple[str, list[str], list[str]]]:
    """(directory, names of directories, names of the rest) for each directory, as `os.walk` has
    them, sorted. What is removed from the first list is not entered. Links to directories are
    among them, and never entered. `max_depth`: 1 is the directory itself.

    Raises FileNotFoundError, NotADirectoryError, PermissionError where it is outside.
    """
    start = confined(path, outside)
    must_be_directory(start)
    if max_depth is not None:
        checked_count("max_depth", max_depth, 1)

    def walked() -> Iterator[tuple[str, list[str], list[str]]]:
        waiting = [(start, 1)]
        while waiting:
            place, depth = waiting.pop()
            directories: list[str] = []
            others: list[str] = []
            inner: set[str] = set()
            for entry in listed(place, "walk", on_error):
                if is_directory(entry):
                    inner.add(entry.name)
                leads = entry.name in inner or leads_to_directory(entry)
                (directories if leads else others).append(entry.name)
            yield place, directories, others
            if max_depth is None or depth < max_depth:
                names = [name for name in reversed(directories) if name in inner]
                waiting += [(os.path.join(place, name), depth + 1) for name in names]

    return walked()


def leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def must_be_directory(path: str) -> None:
    os.stat(path)
    if not os.path.isdir(path):
        raise error_at(errno.ENOTDIR, path)


def tree(
    path: Path = ".",
    *,
    max_depth: int | None = None,
    max_entries: int = 1000,
    hidden: bool = False,
    outside: bool = False,
    on_error: OnError = None,
) -> str:
    """A directory drawn as text: directories end with "/", links show where they lead.

    At most `max_entries` lines; the last one says if there is more. `hidden`: whether names that
    begin with a dot are shown. `max_depth`: 1 is the directory itself.

        print(tree(max_depth=2))
    """
    start = confined(path, outside)
    must_be_directory(start)
    if max_depth is not None:
        checked_count("max_depth", max_depth, 1)
    checked_count("max_entries", max_entries, 1)

    def level(place: str) -> list[os.DirEntry[str]]:
        found = listed(place, "tree", on_error)
        return [one for one in found if hidden or not one.name.startswith(".")]

    lines = [shown(start.rstrip("/") + "/")]
    waiting = [(level(start)[::-1], "")]  # the next entry last, and what its line begins with
    while waiting:
        rest, before = waiting[-1]
        if not rest:
            waiting.pop()
            continue
        if len(lines) > max_entries:
            lines.append(f"… (there is more than max_entries={max_entries})")
            break
        entry = rest.pop()
        is_dir = is_directory(entry)
        lines.append(f"{before}{'├── ' if rest else '└── '}{label_of(entry, is_dir)}")
        if is_dir and (max_depth is None or len(waiting) < max_depth):
            waiting.append((level(entry.path)[::-1], before + ("│   " if rest else "    ")))
    return "\n".join(lines)


def label_of(entry: os.DirEntry[str], is_dir: bool) -> str:
    label = shown(entry.name)
    if is_dir:
        return label + "/"
    if not entry.is_symlink():
        return label
    try:
        return f"{label} -> {shown(os.readlink(entry.path))}"
    except OSError:
        return f"{label} -> ?"
