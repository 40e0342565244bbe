# SPDX-License-Identifier: Apache-2.0
"""Podman's own store of an ordinary user, where it has nothing in it but Hutch's base images."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from hutch._apparmor import pause_process
from hutch.cli.inventory import Thing, from_podman, lines_from_podman
from hutch.cli.trees import bytes_of, remove_if_empty, remove_tree

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
    try:
        if from_podman("info")["store"]["graphRoot"] != str(place):
            return
        if _has_others(place, ours, lines_from_podman):
            return
    except OSError:  # where Podman does not say what there is, all stays
        return
    size = bytes_of(place)

    def remove() -> None:
        _remove(place, runtime_dir, ours)

    yield Thing("Podman's store (nothing else is in it)", str(place), size, remove)


def _has_others(place: Path, ours: set[str], ask: Callable[..., list[str]]) -> bool:
    """`ask`: the lines that Podman prints. Raises OSError, as it does."""
    form = '{{.ID}} {{index .Labels "hutch.instance"}}'
    containers = ask("ps", "--all", "--external", "--format", form)  # also those of Buildah
    images = ask("images", "--all", "--quiet", "--no-trunc")
    if any(len(line.split()) != 2 for line in containers):
        return True
    known = {one.removeprefix("sha256:") for one in ours}
    if any(one.removeprefix("sha256:") not in known for one in images):
        return True
    if set(ask("network", "ls", "--quiet")) - {"podman"}:
        return True
    if any(ask(kind, "ls", "--quiet") for kind in ("volume", "secret", "pod")):
        return True
    return any((place / "artifacts").glob("blobs/*/*"))  # of `podman artifact`


def _remove(place: Path, runtime_dir: Path, ours: set[str]) -> None:
    program = shutil.which("podman")
    if program is None:
        raise OSError("Podman is not there, without which its store cannot be looked into")
    surroundings = {**os.environ, "XDG_RUNTIME_DIR": str(runtime_dir)}

    def ask(*arguments: str) -> list[str]:
        done = subprocess.run(
            [program, *arguments],
            env=surroundings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
        )
        if done.returncode != 0:
            raise OSError(f"podman {arguments[0]}: {done.stderr.strip()[-300:]}")
        return done.stdout.splitlines()

    if _has_others(place, ours, ask):
        raise OSError("something else was put into it meanwhile")
    with contextlib.suppress(OSError):  # layers have owners that are the user's inside alone
        ask("unshare", "sh", "-c", 'rm -rf -- "$1"/* "$1"/.[!.]*', "sh", str(place))
    _end_pause(runtime_dir)  # it holds a mount in the store
    remove_tree(place)
    for file in (place.parent / "cache").glob("blob-info-cache*"):
        file.unlink()
    for name in _AT_RUN_TIME:
        for entry in (runtime_dir / name).glob("*"):
            if entry.name != "auth.json":  # what `podman login` and others were told
                remove_tree(entry)
        remove_if_empty(runtime_dir / name)
    remove_tree(f"/dev/shm/libpod_rootless_lock_{os.getuid()}")
    settings = Path.home() / ".config"
    remove_tree(settings / "cni" / "net.d" / "cni.lock")
    empty = [place.parent / "cache", place.parent]
    empty += [settings / "cni" / "net.d", settings / "cni", settings]
    if runtime_dir.name.startswith("podman-run-"):
        empty.append(runtime_dir)
    for directory in empty:
        remove_if_empty(directory)


def _end_pause(runtime_dir: Path) -> None:
    """Podman's process that keeps the user namespace."""
    with contextlib.suppress(OSError, ValueError):
        pid = pause_process(str(runtime_dir))
        name = Path(f"/proc/{pid}/comm").read_text()
        if pid > 1 and name.startswith(("podman", "catatonit")):
            os.kill(pid, signal.SIGKILL)
