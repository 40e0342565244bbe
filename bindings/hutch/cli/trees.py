# SPDX-License-Identifier: Apache-2.0
"""Trees of files that another user may own: what they take, and how they are removed or moved."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def bytes_of(*paths: str | Path) -> int:
    """What files or trees take on the disk; each file once, however many names it has."""
    there = [str(path) for path in paths if os.path.lexists(path)]
    if not there:
        return 0
    done = _run(["du", "-sck", "--", *there], {})  # what it cannot read it leaves out
    total = done.stdout.splitlines()[-1:]
    return 1024 * int(total[0].split()[0]) if total else 0


def remove_tree(path: str | Path, owner: tuple[int, int] | None = None) -> None:
    """Also one whose directories may not be written to, and one that is deeper than a path may be
    long. No link below `path` is followed, and nothing is removed where a disk, or another
    directory, is mounted below. Raises OSError for what is left.

    `owner`: uid and gid of who removes it, where root is asked. Whoever may write to a directory
    above `path` can put a link there, so root removes nothing of a user's as root. Default: the
    owner of the first directory on the way to `path` that is not root's.
    """
    if mounted := _mounted_below(path):
        raise OSError(f"{mounted} is mounted there: unmount it first")
    who = _who(path, owner)
    commands = [["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]]
    if os.geteuid() == 0 and not who:
        del commands[1:]  # root needs no rights, and chmod would follow a link
    for command in commands:
        done = _run([*command, "--", str(path)], who)
        if not os.path.lexists(path):
            return
    said = done.stderr.strip().splitlines() or ["it is still there"]
    raise OSError(f"{path} cannot be removed: {said[0]}")


def _mounted_below(path: str | Path) -> str:
    above = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path), "")
    with open("/proc/self/mountinfo", errors="surrogateescape") as lines:
        for line in lines:
            place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split(" ")[4])
            if place.startswith(above):
                return place
    return ""


def remove_if_empty(path: str | Path, owner: tuple[int, int] | None = None) -> None:
    """What others have put there stays. `owner` as for `remove_tree`."""
    _run(["rmdir", "--", str(path)], _who(path, owner))


def move(path: Path, name: str, owner: tuple[int, int] | None) -> Path:
    """Gives it another name in its directory. Raises OSError. `owner` as for `remove_tree`."""
    moved = path.with_name(name)
    done = _run(["mv", "-T", "--", str(path), str(moved)], _who(path, owner))
    if done.returncode != 0:
        raise OSError(done.stderr.strip() or f"{path} cannot be moved")
    return moved


def _who(path: str | Path, owner: tuple[int, int] | None) -> dict[str, Any]:
    """For `_run`; empty: as this process."""
    if os.geteuid() != 0:
        return {}
    if owner is None:
        owner = (0, 0)
        owner = next((one for one in _owners(path) if one[0] != 0), (0, 0))
    return {"user": owner[0], "group": owner[1], "extra_groups": []} if owner[0] != 0 else {}


def _owners(path: str | Path) -> Iterator[tuple[int, int]]:
    """Of the directories above it, and of the links to some of them."""
    for above in reversed(Path(path).parents):
        for look in (os.lstat, os.stat):
            with contextlib.suppress(OSError):
                status = look(above)
                yield status.st_uid, status.st_gid


def _run(command: list[str], who: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Without our environment and our terminal, which that user is to have no part of."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        cwd="/",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        start_new_session=True,
        **who,
    )
