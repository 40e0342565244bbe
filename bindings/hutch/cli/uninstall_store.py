# SPDX-License-Identifier: Apache-2.0
"""Podman's own store of an ordinary user, where it has nothing in it but Hutch's base images."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from hutch.cli.inventory import Thing, bytes_of, from_podman, podman, remove_tree

_AT_RUN_TIME = (  # in the directory of its sockets; each is made anew by its next command
    *("containers", "crun", "libpod", "netns", "overlay-containers", "overlay-layers"),
    *("overlay-locks", "runc", "vfs-containers", "vfs-layers", "vfs-locks"),
)


def empty_store(runtime_dir: Path, ours: set[str]) -> Iterator[Thing]:
    """The store, if it is at its usual place and holds nothing but `ours`, the ids of images.

    `runtime_dir`: what XDG_RUNTIME_DIR is for Podman.
    """
    given = os.environ.get("XDG_DATA_HOME", "")
    above = Path(given if given.startswith("/") else os.path.expanduser("~/.local/share"))
    place = above / "containers" / "storage"
    if from_podman("info")["store"]["graphRoot"] != str(place) or _has_others(place, ours):
        return
    size = bytes_of(place)

    def remove() -> None:
        _remove(place, runtime_dir)

    yield Thing("Podman's store (nothing else is in it)", str(place), size, remove)


def _has_others(place: Path, ours: set[str]) -> bool:
    containers = from_podman("ps", "--all")
    images = from_podman("images", "--all")
    if any("hutch.instance" not in (one.get("Labels") or {}) for one in containers):
        return True
    if any(one["Id"] not in ours for one in images):
        return True
    networks = [*(place / "networks").glob("*.json"), *Path.home().glob(".config/cni/net.d/*list")]
    kept = [podman(kind, "ls", "--quiet").stdout.split() for kind in ("volume", "secret")]
    return any(kept) or any(network.stem != "podman" for network in networks)


def _remove(place: Path, runtime_dir: Path) -> None:
    program = shutil.which("podman")
    if program:  # layers have owners that are the user's inside alone
        surroundings = {**os.environ, "XDG_RUNTIME_DIR": str(runtime_dir)}
        command = [program, "unshare", "sh", "-c", 'rm -rf -- "$1"/* "$1"/.[!.]*', "sh", str(place)]
        subprocess.run(command, env=surroundings, stdin=subprocess.DEVNULL, capture_output=True)
    _end_pause(runtime_dir)  # it holds a mount in the store
    remove_tree(place)
    for file in (place.parent / "cache").glob("blob-info-cache*"):
        file.unlink()
    for name in _AT_RUN_TIME:
        remove_tree(runtime_dir / name)
    remove_tree(f"/dev/shm/libpod_rootless_lock_{os.getuid()}")
    settings = Path.home() / ".config"
    remove_tree(settings / "cni" / "net.d" / "cni.lock")
    empty = [place.parent / "cache", place.parent]
    empty += [settings / "cni" / "net.d", settings / "cni", settings]
    if runtime_dir.name.startswith("podman-run-"):
        empty.append(runtime_dir)
    for directory in empty:
        with contextlib.suppress(OSError):  # what others have put there stays
            directory.rmdir()


def _end_pause(runtime_dir: Path) -> None:
    """Podman's process that keeps the user namespace."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((runtime_dir / "libpod" / "tmp" / "pause.pid").read_text())
        name = Path(f"/proc/{pid}/comm").read_text()
        if pid > 1 and name.startswith(("podman", "catatonit")):
            os.kill(pid, signal.SIGKILL)
