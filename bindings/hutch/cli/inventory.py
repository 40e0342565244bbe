# SPDX-License-Identifier: Apache-2.0
"""What Hutch has made on this host outside its package: directories, images, containers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
from collections.abc import Callable, Mapping
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
_IMAGE_ID = re.compile(r"(sha256:)?[0-9a-f]{64}")


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
    chosen = os.environ.pop("HUTCH_HOME", None)
    try:
        return current()
    finally:
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
        start_new_session=True,  # what root runs as another has no part of root's terminal
    )


def from_podman(*arguments: str) -> Any:
    """What it prints as JSON. Raises OSError with the last line that it says."""
    done = podman(*arguments, "--format", "json")
    _require(done, arguments[0])
    try:
        return json.loads(done.stdout or "null") or []
    except (RecursionError, ValueError):
        raise OSError(f"podman {arguments[0]}: it printed no JSON") from None


@dataclass(frozen=True)
class Image:
    id: str
    name: str
    base: str  # the id that environments and workers name it by
    bytes: int
    created: float


def images() -> list[Image]:
    """The base images that were made of interpreters of this host. Raises OSError, also for an
    answer that is none of Podman's.
    """
    try:
        return _images()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise OSError(f"podman images: not an answer of Podman's: {error!r}") from None


def _images() -> list[Image]:
    found = []
    for one in from_podman("images", "--filter", "label=hutch.base"):
        if _IMAGE_ID.fullmatch(one["Id"]) is None:
            raise ValueError(f"podman images: {one['Id']!r} is no id")
        names = [name for name in one.get("Names") or [] if name.startswith(_IMAGE)]
        base = str((one.get("Labels") or {}).get("hutch.base", ""))
        name = names[0] if names else one["Id"][:12]
        found.append(Image(one["Id"], name, base, int(one["Size"]), float(one["Created"])))
    return found


def lines_from_podman(*arguments: str) -> list[str]:
    """The lines that it prints. Raises OSError as `from_podman`."""
    done = podman(*arguments)
    _require(done, arguments[0])
    return done.stdout.splitlines()


def _require(done: subprocess.CompletedProcess[str], what: str) -> None:
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise OSError(f"podman {what}: {said[-1]}")


def in_use(directory: Path) -> set[str]:
    """Those of its entries that containers have, or that a program runs from. Raises OSError where
    Podman does not say it: then any may be in use.
    """
    form = "{{range .Mounts}}{{println .Source}}{{end}}"
    for attempt in range(5):
        ids = lines_from_podman("ps", "--all", "--quiet")
        try:
            found = lines_from_podman("inspect", "--format", form, *ids) if ids else []
            break
        except OSError:  # a container may have ended meanwhile
            if attempt == 4:
                raise
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(process / "exe"))
    places = (Path(place) for place in found)
    real = directory.resolve()
    return {
        place.relative_to(above).parts[0]
        for place in places
        for above in (directory, real)
        if above in place.parents
    }
