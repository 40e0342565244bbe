# SPDX-License-Identifier: Apache-2.0
"""The exchange of a session's files for those of a snapshot, which lie in a directory of its own
beside them: all of them or none, wherever it is ended.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator


def entries(place: str, *but: str) -> Iterator[str]:
    for name in os.listdir(place):
        if name not in but:
            yield name


def move(source: str, target: str, *but: str) -> None:
    for name in entries(source, *but):
        os.rename(os.path.join(source, name), os.path.join(target, name))


def exchange(cwd: str, staged: str) -> None:
    """What is in `staged`, a directory in `cwd`, takes the place of what is there, which is kept
    beside.
    """
    moving, aside = f"{staged}.moving", f"{staged}.aside"
    os.mkdir(os.path.join(cwd, moving))
    move(cwd, os.path.join(cwd, moving), staged, moving)
    os.rename(os.path.join(cwd, moving), os.path.join(cwd, aside))
    move(os.path.join(cwd, staged), cwd)


def undo(cwd: str, staged: str) -> None:
    """As it was before the exchange, however far that has come."""
    moving, aside = f"{staged}.moving", f"{staged}.aside"
    for kept in (moving, aside):
        place = os.path.join(cwd, kept)
        if not os.path.isdir(place):
            continue
        if kept is aside:
            for name in entries(cwd, staged, aside):
                remove(os.path.join(cwd, name))
        move(place, cwd)
        os.rmdir(place)
    finish(cwd, staged)


def finish(cwd: str, staged: str) -> None:
    """Nothing of before is brought back, once that has its last name."""
    aside, gone = os.path.join(cwd, f"{staged}.aside"), f"{staged}.gone"
    if os.path.isdir(aside):
        os.rename(aside, os.path.join(cwd, gone))
    for name in (staged, gone):
        if os.path.isdir(os.path.join(cwd, name)):
            remove(os.path.join(cwd, name))


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
