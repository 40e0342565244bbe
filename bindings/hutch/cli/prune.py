# SPDX-License-Identifier: Apache-2.0
"""`hutch prune`: what was not used for long goes. The next call that needs it makes it again."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hutch._connect.progress import escape
from hutch.cli import inventory, trees
from hutch.cli.output import print_json, print_table


@dataclass(frozen=True)
class Unused:
    what: str
    name: str
    bytes: int
    last_used: float  # seconds since the epoch
    remove: Callable[[], object]  # False: it is used after all
    digest: str = ""  # of an environment


def run(options: argparse.Namespace) -> int:
    if options.cache:
        _require_no_agent()
    before = time.time() - options.older_than
    failed: list[str] = []
    found = _gone(_cache() if options.cache else [], options, failed)  # before an agent is started
    environments = [*_environments(before)]
    unused = [*environments, *_runtimes(before), *_images(before, environments)]
    found += _gone(unused, options, failed)
    rows = [
        {"what": one.what, "name": one.name, "bytes": one.bytes, "last_used": one.last_used}
        for one in found
    ]
    for text in failed:
        print(f"hutch: left: {escape(text)}", file=sys.stderr)
    if options.json:
        print_json(rows)
        return 1 if failed else 0
    if rows:
        print_table(rows, ["what", "name", "bytes", "last_used"])
    total = sum(one.bytes for one in found) / 1e6
    print(f"{total:.1f} MB {'would be removed' if options.dry_run else 'removed'}")
    return 1 if failed else 0


def _gone(unused: Iterable[Unused], options: argparse.Namespace, failed: list[str]) -> list[Unused]:
    """Those that are removed, or would be; `failed` is given a sentence for each that cannot be."""
    found = []
    for one in unused:
        try:
            if options.dry_run or one.remove() is not False:
                found.append(one)
        except OSError as error:
            failed.append(str(error))
    return found


def _environments(before: float) -> Iterator[Unused]:
    """Those that no pool has; the agent is asked, as it removes none of those."""
    import hutch
    from hutch import _status

    found = _status.environments()
    pooled = {pool.get("digest") for pool in hutch.status().get("pools", [])}
    for one in found:
        # An agent of another version may not say when it was used.
        digest, last_used = str(one.get("digest", "")), one.get("last_used", float("inf"))
        if last_used < before and digest not in pooled:

            def remove(digest: str = digest) -> bool:
                return _status.remove_environment(digest)

            name = f"{digest[:12]} {' '.join(one.get('requirements', []))[:60]}".strip()
            yield Unused("environment", name, one.get("bytes", 0), last_used, remove, digest)


def _runtimes(before: float) -> Iterator[Unused]:
    """What other versions of Hutch put into containers; a start of an agent notes its use."""
    from hutch._connect import launcher

    here = inventory.current()
    directory = Path(here.state_dir) / "runtime"
    if directory.is_symlink() or not directory.is_dir():
        return
    kept = {launcher.runtime_id(), *inventory.in_use(directory)}
    for place in sorted(directory.glob("*")):
        last_used = _changed(place)
        if last_used < before and place.name not in kept:

            def remove(place: Path = place) -> bool:
                with _no_start(here):
                    if _changed(place) >= before:  # an agent was started meanwhile
                        return False
                    name = f"{place.name[:32]}.part-{os.getpid()}"
                    gone = trees.move(place, name, here.owner)  # nobody finds half of it
                trees.remove_tree(gone, here.owner)
                return True

            size = trees.bytes_of(place)
            yield Unused("runtime", place.name, size, last_used, remove)


def _changed(place: Path) -> float:
    try:
        return place.lstat().st_mtime
    except FileNotFoundError:  # another prune was quicker
        return float("inf")


@contextlib.contextmanager
def _no_start(here: inventory.Instance) -> Iterator[None]:
    """No agent is started meanwhile: its launcher waits for the same lock."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        lock = os.open(f"{here.run_dir}/start.lock", flags)
    except FileNotFoundError:  # none was ever started
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _images(before: float, pruned: Iterable[Unused]) -> Iterator[Unused]:
    """Those of other interpreters, of which no environment is left."""
    from hutch import _status
    from hutch._connect import launcher

    gone = {one.digest for one in pruned}
    left = [one.get("base") for one in _status.environments() if one.get("digest") not in gone]
    kept = {launcher.base_id(), *left}
    for image in inventory.images():
        if image.created < before and image.base not in kept:

            def remove(image: inventory.Image = image) -> bool:  # one in use is refused
                return inventory.podman("rmi", image.name).returncode == 0

            yield Unused("base image", image.name, image.bytes, image.created, remove)


def _cache() -> Iterator[Unused]:
    here = inventory.current()
    place = Path(here.state_dir) / "store" / "cache"
    if place.exists():
        size, last_used = trees.bytes_of(place), place.stat().st_mtime

        def remove() -> None:
            with _no_start(here):
                _require_no_agent()
                trees.remove_tree(place, here.owner)

        yield Unused("downloads", str(place), size, last_used, remove)


def _require_no_agent() -> None:
    import hutch

    if hutch.status()["running"]:
        raise ValueError("hutch prune --cache: an agent runs, and may build: `hutch agent stop`")
