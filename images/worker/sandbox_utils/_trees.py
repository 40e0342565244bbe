# SPDX-License-Identifier: Apache-2.0
"""Whole directories, copied and removed."""

from __future__ import annotations

import os
import shutil

from sandbox_utils._paths import Path, confined, is_below, is_directory, root, type_of
from sandbox_utils._walking import descend, must_be_directory


def stop(error: OSError) -> None:
    raise error


def copy_tree(source: Path, target: Path, *, overwrite: bool = False, outside: bool = False) -> str:
    """Copies a directory and all that is in it, and returns the path of the copy, `target`.

    Times and modes are kept, links copied as links. `overwrite`: whether `target` may be there
    already; it then keeps what the source does not have.

    Raises FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError where one is
    outside, ValueError where one is in the other, OSError for what is no file, directory or link.
    """
    start, end = confined(source, outside), confined(target, outside)
    must_be_directory(start)
    if is_below(os.path.realpath(end), os.path.realpath(start)):
        raise ValueError(f"{end!r} is in {start!r}, which is to be copied there")
    if os.path.lexists(end) and not overwrite:
        raise FileExistsError(f"{end!r} is there already: overwrite=True copies into it")
    os.makedirs(end, exist_ok=True)
    copied = [(start, end)]
    from_start = "" if start in (".", "./") else start.rstrip("/") + "/"
    for place, entry in descend(start, "copy_tree", stop):
        there = os.path.join(end, place[len(from_start) :])
        if is_directory(entry):
            if os.path.islink(there):
                raise FileExistsError(f"{there!r} is a link: remove it first")
            os.makedirs(there, exist_ok=True)
            copied.append((place, there))
        else:
            copy_entry(place, entry, there)
    for place, there in reversed(copied):
        shutil.copystat(place, there)
    return end


def copy_entry(place: str, entry: os.DirEntry[str], there: str) -> None:
    if os.path.islink(there):
        os.unlink(there)  # what it leads to may be outside
    if entry.is_symlink():
        if os.path.lexists(there):
            os.unlink(there)
        os.symlink(os.readlink(place), there)
        return
    if type_of(entry.stat(follow_symlinks=False).st_mode) != "file":
        raise OSError(f"{place!r} is no file, directory or link, and cannot be copied")
    shutil.copy2(place, there)


def remove_tree(path: Path, *, missing_ok: bool = False, outside: bool = False) -> None:
    """Removes a directory and all that is in it; of links, the links alone.

    `missing_ok`: nothing happens where there is nothing. Raises FileNotFoundError,
    NotADirectoryError for a file or a link (`rm` removes those), PermissionError where it is
    outside or may not be removed, ValueError for the working directory and what it is in.
    """
    start = confined(path, outside, follow=False)
    if missing_ok and not os.path.lexists(start):
        return
    if os.path.islink(start) or not os.path.isdir(start):
        os.lstat(start)
        raise NotADirectoryError(f"{start!r} is no directory: rm() removes it")
    real = os.path.realpath(start)
    if is_below(os.getcwd(), real) or is_below(root(), real):
        raise ValueError(f"{start!r} has the working directory in it: remove what is in it instead")
    directories = [start]
    for place, entry in descend(start, "remove_tree", stop):
        if is_directory(entry):
            directories.append(place)
        else:
            os.unlink(place)
    for place in reversed(directories):
        os.rmdir(place)
