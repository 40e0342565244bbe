# SPDX-License-Identifier: Apache-2.0
"""Single files and directories."""

from __future__ import annotations

import os
import shutil
import stat
from typing import Any, Literal, overload

from sandbox_utils._paths import (
    MIB,
    Path,
    confined,
    entries,
    must_be_regular,
    open_file,
    type_of,
)
from sandbox_utils._trees import copy_tree, remove_tree


@overload
def ls(
    path: Path = ".", *, long: Literal[False] = False, hidden: bool = False, outside: bool = False
) -> list[str]: ...
@overload
def ls(
    path: Path = ".", *, long: Literal[True], hidden: bool = False, outside: bool = False
) -> list[dict[str, Any]]: ...
def ls(
    path: Path = ".", *, long: bool = False, hidden: bool = False, outside: bool = False
) -> list[Any]:
    """The names in a directory, sorted; of a file, its own.

    `hidden`: with those that begin with a dot. `long`: for each a dict of `name`, `type` ("file",
    "directory", "link", "other"), `size` in bytes, `mtime` in seconds since 1970, and `mode`.

    Raises FileNotFoundError, PermissionError where it is outside.
    """
    start = confined(path, outside)
    if not os.path.isdir(start):
        found = os.lstat(start)
        return [described(start, found)] if long else [start]
    listed = [one for one in entries(start) if hidden or not one.name.startswith(".")]
    if not long:
        return [one.name for one in listed]
    return [described(one.name, one.stat(follow_symlinks=False)) for one in listed]


def described(name: str, found: os.stat_result) -> dict[str, Any]:
    return {
        "name": name,
        "type": type_of(found.st_mode),
        "size": found.st_size,
        "mtime": found.st_mtime,
        "mode": stat.S_IMODE(found.st_mode),
    }


def cat(
    *paths: Path, encoding: str = "utf-8-sig", max_mb: float = 16, outside: bool = False
) -> str:
    """The text of the files, one after another. Bytes that are no text become U+FFFD.

    Raises ValueError where they have more than `max_mb` MiB in all, FileNotFoundError,
    IsADirectoryError, PermissionError where one is outside.
    """
    places = [confined(path, outside) for path in paths]
    texts = []
    left = int(max_mb * MIB)
    for place in places:
        with open_file(place) as file:
            data = file.read(left + 1)
        left -= len(data)
        if left < 0:
            raise ValueError(
                f"these are more than {max_mb:g} MiB: give max_mb=, or read with head() and tail()"
            )
        texts.append(data.decode(encoding, "replace"))
    return "".join(texts)


def touch(*paths: Path, outside: bool = False) -> None:
    """Makes the files that are not there, and sets the time of the others to the present.

    Raises FileNotFoundError without their directory, PermissionError where one is outside.
    """
    for place in [confined(path, outside) for path in paths]:
        if os.path.exists(place):
            os.utime(place)
        else:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


def mkdir(*paths: Path, parents: bool = False, outside: bool = False) -> None:
    """Makes directories. `parents`: with those above them, and one may be there, as `mkdir -p`.

    Raises FileExistsError, FileNotFoundError, PermissionError where one is outside.
    """
    for place in [confined(path, outside) for path in paths]:
        os.makedirs(place, exist_ok=True) if parents else os.mkdir(place)


def rm(
    *paths: Path, recursive: bool = False, missing_ok: bool = False, outside: bool = False
) -> None:
    """Removes files and links, and with `recursive=True` directories with all that is in them.

    `missing_ok`: what is not there is passed over. Raises FileNotFoundError, IsADirectoryError,
    PermissionError where one is outside or may not be removed.
    """
    for place in [confined(path, outside, follow=False) for path in paths]:
        if os.path.isdir(place) and not os.path.islink(place):
            if not recursive:
                raise IsADirectoryError(f"{place!r} is a directory: recursive=True removes it")
            remove_tree(place, outside=outside)
        elif not missing_ok or os.path.lexists(place):
            os.unlink(place)


def cp(
    source: Path,
    target: Path,
    *,
    recursive: bool = False,
    overwrite: bool = True,
    outside: bool = False,
) -> str:
    """Copies a file, or with `recursive=True` a directory; returns the path of the copy.

    A `target` that is a directory gets the copy in it, under the name that it has. Times and modes
    are kept. `overwrite`: whether a file that is there is replaced. Raises FileExistsError,
    FileNotFoundError, IsADirectoryError, PermissionError where one is outside.
    """
    start = confined(source, outside)
    end = confined(within(start, confined(target, outside)), outside)
    if os.path.isdir(start):
        if not recursive:
            raise IsADirectoryError(f"{start!r} is a directory: recursive=True copies it")
        return copy_tree(start, end, overwrite=overwrite, outside=outside)
    must_be_regular(start)
    refuse_existing(end, overwrite)
    must_be_regular(end)
    shutil.copy2(start, end)
    return end


def mv(source: Path, target: Path, *, overwrite: bool = True, outside: bool = False) -> str:
    """Moves or renames a file, a link or a directory; returns its path.

    A `target` that is a directory gets it, under the name that it has. `overwrite`: whether a file
    that is there is replaced; a directory never is. Raises FileExistsError, FileNotFoundError,
    PermissionError where one is outside, ValueError for a directory that is to be moved into
    itself.
    """
    start = confined(source, outside, follow=False)
    end = within(start, confined(target, outside, follow=False))
    confined(end, outside, follow=False)
    os.lstat(start)
    is_dir = os.path.isdir(start) and not os.path.islink(start)
    if is_dir and is_below_itself(end, start):
        raise ValueError(f"{end!r} is in {start!r}, which is to be moved there")
    refuse_existing(end, overwrite and not is_dir and not os.path.isdir(end))
    shutil.move(start, end)
    return end


def is_below_itself(end: str, start: str) -> bool:
    there, here = os.path.realpath(end), os.path.realpath(start)
    return there == here or there.startswith(here + "/")


def within(start: str, end: str) -> str:
    """Where the copy of `start` stands."""
    if not os.path.isdir(end):
        return end
    named = os.path.realpath(start) if start.endswith((".", "/")) else start
    return os.path.join(end, os.path.basename(named))


def refuse_existing(path: str, overwrite: bool) -> None:
    if not overwrite and os.path.lexists(path):
        raise FileExistsError(f"{path!r} is there already")


def echo(
    *values: object,
    to: Path | None = None,
    append: bool = False,
    sep: str = " ",
    end: str = "\n",
    outside: bool = False,
) -> str:
    """The values as one line of text, which is returned, and not printed.

    `to`: a file that it is written to, as with `>` of a shell; `append`: at its end, as with `>>`.

        echo("name,age", to="people.csv")
        echo("Ada,36", to="people.csv", append=True)
    """
    text = sep.join(map(str, values)) + end
    if to is not None:
        place = confined(to, outside)
        must_be_regular(place)
        with open(place, "a" if append else "w", encoding="utf-8", newline="") as file:
            file.write(text)
    elif append:
        raise ValueError("append= is for to=, the file that is written to")
    return text
