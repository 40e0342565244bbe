# SPDX-License-Identifier: Apache-2.0
"""What Hutch has made on this host outside its package: directories, images, containers. Reads."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# All that is ever made in a state directory; nothing else in one is removed.
IN_STATE = (
    *("agent.toml", "audit", "copies", "environments", "gvisor", "held", "node", "runtime"),
    *("sessions", "store"),
)
KEPT = ("sessions", "held")  # named sessions, and who has them
_IMAGE = "localhost/hutch-base"


@dataclass(frozen=True)
class Instance:
    """The directories of one HUTCH_HOME: each has an agent of its own."""

    state_dir: str
    run_dir: str
    owner: tuple[int, int]  # uid and gid


@dataclass(frozen=True)
class Thing:
    """Something that can be removed."""

    what: str
    where: str
    bytes: int | None  # None: it takes none that count
    remove: Callable[[], object]  # raises OSError


def paths() -> Mapping[str, Any] | None:
    """As `_core.paths`; None where root has no service user yet, so that nothing was ever made."""
    from hutch import _core

    try:
        return _core.paths()
    except _core.Error as error:
        if os.geteuid() != 0 or error.code != "platform":
            raise
        return None


def instances() -> list[Instance]:
    """The user's own, that of HUTCH_HOME, and all that were used since the host started."""
    found = [current(), default()]
    owner = found[0].owner
    base = Path(found[-1].run_dir)
    for run_dir in sorted(base.parent.glob(f"{base.name}-*")):
        if not re.fullmatch(r"[0-9a-f]{8}", run_dir.name.removeprefix(f"{base.name}-")):
            continue
        state_dir = _target(run_dir / "state", owner[0])
        if state_dir:
            found.append(Instance(state_dir, str(run_dir), owner))
    return list(dict.fromkeys(found))


def default() -> Instance:
    """The one without HUTCH_HOME."""
    with home_at(None):
        return current()


@contextlib.contextmanager
def home_at(state_dir: str | None) -> Iterator[None]:
    """With that HUTCH_HOME, or with none; for this process and those that it starts."""
    chosen = os.environ.pop("HUTCH_HOME", None)
    if state_dir is not None:
        os.environ["HUTCH_HOME"] = state_dir
    try:
        yield
    finally:
        os.environ.pop("HUTCH_HOME", None)
        if chosen is not None:
            os.environ["HUTCH_HOME"] = chosen


def current() -> Instance:
    """That of HUTCH_HOME, if it is set. Raises `_core.Error` as `_core.paths`."""
    from hutch import _core

    paths = _core.paths()
    owner = (int(paths["uid"]), int(paths["gid"]))
    return Instance(str(paths["state_dir"]), str(paths["run_dir"]), owner)


def _target(link: Path, uid: int) -> str:
    """Where it leads, if that is a directory of this user; the user may be a hostile one."""
    try:
        place = os.readlink(link)
        status = os.lstat(place)
    except OSError:
        return ""
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == uid and os.path.isabs(place)
    return place if ours else ""


def podman(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Podman as whom Hutch uses it; starts its service."""
    from hutch._connect import launcher

    return subprocess.run(
        [launcher.PROGRAM, "--podman", "--", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        check=False,
    )


def from_podman(*arguments: str) -> Any:
    """What it prints as JSON. Raises OSError with the last line that it says."""
    done = podman(*arguments, "--format", "json")
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise OSError(f"podman {arguments[0]}: {said[-1]}")
    return json.loads(done.stdout or "null") or []


@dataclass(frozen=True)
class Image:
    id: str
    name: str
    base: str  # the id that environments and workers name it by
    bytes: int
    created: float


def images() -> list[Image]:
    """The base images that were made of interpreters of this host."""
    found = []
    for one in from_podman("images", "--filter", "label=hutch.base"):
        names = [name for name in one.get("Names") or [] if name.startswith(_IMAGE)]
        base = str((one.get("Labels") or {}).get("hutch.base", ""))
        name = names[0] if names else one["Id"][:12]
        found.append(Image(one["Id"], name, base, int(one["Size"]), float(one["Created"])))
    return found


def mounted() -> set[str]:
    """The directories of the host that containers have."""
    ids = podman("ps", "--all", "--quiet").stdout.split()
    if not ids:
        return set()
    form = "{{range .Mounts}}{{println .Source}}{{end}}"
    return set(podman("inspect", "--format", form, *ids).stdout.split("\n"))


def bytes_of(*paths: str | Path) -> int:
    """What files or trees take on the disk; each file once, however many names it has."""
    seen: set[tuple[int, int]] = set()
    total, places = 0, [str(path) for path in paths]
    while places:
        place = places.pop()
        try:
            status = os.lstat(place)
            if stat.S_ISDIR(status.st_mode):
                places += [f"{place}/{name}" for name in os.listdir(place)]
        except OSError:
            continue  # another user's, or gone
        key = (status.st_dev, status.st_ino)
        if key not in seen:
            seen.add(key)
            total += 512 * status.st_blocks
    return total


def remove_tree(path: str | Path, owner: tuple[int, int] | None = None) -> None:
    """Also one whose directories may not be written to, and one that is deeper than a path may be
    long. No link below `path` is followed. Raises OSError for what is left.

    `owner`: uid and gid of who removes it, where root is asked. Whoever may write to a directory
    above `path` can put a link there, so root removes nothing of a user's as root.
    """
    who: dict[str, Any] = {}
    if owner is not None and os.geteuid() == 0:
        who = {"user": owner[0], "group": owner[1], "extra_groups": []}
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        done = subprocess.run(
            [*command, "--", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            **who,
        )
        if not os.path.lexists(path):
            return
    said = done.stderr.strip().splitlines() or ["it is still there"]
    raise OSError(f"{path} cannot be removed: {said[0]}")
