# SPDX-License-Identifier: Apache-2.0
"""`hutch uninstall`: lists all that Hutch has made on this host, asks, and removes it.

What other programs may use stays: Podman itself, its store where anything else is in it, sessions
in a storage that the user named.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hutch import _apparmor
from hutch._connect.progress import escape
from hutch.cli import inventory, trees
from hutch.cli.asking import wanted
from hutch.cli.inventory import Instance, Thing
from hutch.cli.output import print_json, print_table
from hutch.cli.uninstall_store import empty_store

_NOT_KEPT = [name for name in inventory.IN_STATE if name not in inventory.KEPT]
_SERVICE_HOME = "/var/lib/hutch"
_STOP = """
import sys
sys.path[:] = sys.argv[1:]
from hutch import cli
sys.exit(cli.main(["agent", "stop"]))
"""
_STOP_SEC = 300.0  # the user whose agent it is may keep it from ever ending
_OUR_CONTAINERS = ("ps", "--all", "--quiet", "--filter", "label=hutch.instance")
_INSTEAD = "add --yes, or --dry-run to look"


def run(options: argparse.Namespace) -> int:
    import hutch

    was_running = hutch.status()["running"]
    things = [*_things(options.keep_sessions)]
    is_wanted = False
    try:
        is_wanted = _is_wanted(things, options)
    finally:
        if things and not is_wanted and not was_running and inventory.paths() is not None:
            with contextlib.suppress(OSError):
                _stop(inventory.current())  # Podman's service, which was started to be asked
    if not is_wanted:
        return 0 if options.dry_run or not things else 1
    failed = _remove(things, quiet=options.json)
    if options.json:
        left = [one for one, _ in failed]
        removed = [_row(one) for one in things if one not in left]
        print_json({"removed": removed, "left": [text for _, text in failed]})
    elif things and not failed:
        print(f"Nothing of Hutch is left but its package, which goes by:\n  {_package_command()}")
    return 1 if failed else 0


def _is_wanted(things: list[Thing], options: argparse.Namespace) -> bool:
    """Shows them; whether they are to be removed."""
    rows = [_row(one) for one in things]
    if options.json:
        if options.dry_run:
            print_json(rows)
        elif not options.yes:
            raise ValueError(f"hutch uninstall --json asks nobody: {_INSTEAD}")
        return not options.dry_run
    _print(rows)
    if options.dry_run or not rows:
        return False
    return options.yes or wanted("Remove all of it?", "hutch uninstall", _INSTEAD)


def _row(one: Thing) -> dict[str, object]:
    return {"what": one.what, "where": one.where, "bytes": one.bytes}


def _print(rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        shown = [{**row, "bytes": "" if row["bytes"] is None else row["bytes"]} for row in rows]
        print_table(shown, ["what", "where", "bytes"])
    else:
        print(f"Hutch has made nothing here. Its package goes by:\n  {_package_command()}")


def _remove(things: list[Thing], quiet: bool) -> list[tuple[Thing, str]]:
    """What could not be removed, each with a sentence on why."""
    failed = []
    for one in things:
        try:
            one.remove()
        except OSError as error:
            failed.append((one, f"{one.what}: {error}"))
            print(f"hutch: left: {escape(failed[-1][1])}", file=sys.stderr)
        else:
            if not quiet:
                print(f"removed: {escape(one.what)}", flush=True)
    return failed


def _things(keep_sessions: bool) -> Iterator[Thing]:
    """In the order in which they can be removed."""
    paths = inventory.paths()
    if paths is None:
        yield from _own_sessions(keep_sessions)
        return
    found = [one for one in inventory.instances() if _is_there(one)]
    is_mine = not paths["service_user"]
    store: list[Thing] = []
    if found and shutil.which("podman"):
        for one in found:
            yield Thing(_agent_of(one), one.run_dir, None, functools.partial(_stop, one))
        images = inventory.images() if is_mine else []  # root's go with the service user
        if images:
            yield _of_images(images, found[0])
            store = [*empty_store(Path(found[0].run_dir).parent, {one.id for one in images})]
    for one in found:
        yield from _of_state(one, keep_sessions)
    for one in found:
        yield Thing("sockets, locks", one.run_dir, None, functools.partial(_remove_run_dir, one))
    yield from store
    yield from _profile()
    if not is_mine:
        yield from _own_sessions(keep_sessions)
        yield from _service_user(str(paths["home"]), [one.state_dir for one in found])


def _of_images(images: list[inventory.Image], current: Instance) -> Thing:
    names = [image.name for image in images]

    def remove() -> None:
        try:
            left = inventory.lines_from_podman(*_OUR_CONTAINERS)
            if left:  # of an instance that is found no more
                inventory.lines_from_podman("rm", "--force", *left)
            inventory.lines_from_podman("rmi", *names)  # refused where others' containers have one
        finally:
            _stop(current)  # for this, Podman's service was started again

    return Thing("base images", " ".join(names), sum(one.bytes for one in images), remove)


def _profile() -> Iterator[Thing]:
    """What `hutch doctor --fix` may have installed."""
    if not _apparmor.is_installed():
        return

    def remove() -> None:
        if not _apparmor.is_installed():
            raise OSError(f"{_apparmor.PROFILE_FILE} is not Hutch's any more")
        command = _apparmor.removal(os.geteuid() == 0)
        if subprocess.run(["sh", "-c", command]).returncode != 0:
            raise OSError(f"run: {command}")

    yield Thing("AppArmor's profile", _apparmor.PROFILE_FILE, None, remove)


def _service_user(home: str, counted: list[str]) -> Iterator[Thing]:
    """Root's, with all that it has; one that was there before Hutch has another home."""
    if home != _SERVICE_HOME:
        return
    user = _user("hutch")
    if user is None:  # another uninstall was quicker
        return

    def remove() -> None:
        now = _user(user.pw_name)
        if now not in (user, None):  # somebody was asked, and took their time
            raise OSError(f"the user {user.pw_name} is not the one that it was: look again")
        if now is not None:  # the uid may be anybody's else
            _end_processes(user.pw_uid)
            lock = f"/dev/shm/libpod_rootless_lock_{user.pw_uid}"  # anybody may put a file there
            trees.remove_tree(lock, (user.pw_uid, user.pw_gid))
        for place in (home, "/run/hutch", "/run/hutch-user.lock"):
            trees.remove_tree(place)
        done = subprocess.run(["userdel", user.pw_name], capture_output=True, text=True)
        if done.returncode != 0 and _user(user.pw_name) is not None:
            raise OSError(f"userdel {user.pw_name}: {done.stderr.strip()}")

    within = [place for place in counted if Path(home) in Path(place).parents]
    size = max(0, trees.bytes_of(home) - trees.bytes_of(*within))
    yield Thing(f"the user {user.pw_name}, its Podman", home, size, remove)


def _user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _end_processes(uid: int) -> None:
    """Those of the service user that are left: Podman's pause process. Raises OSError."""
    for _ in range(100):
        _end_all_of(uid)  # first: one that has just made another may be seen as neither of the two
        if all(_owner(one) != uid for one in Path("/proc").glob("[0-9]*")):
            return
        time.sleep(0.05)
    raise OSError(f"processes of uid {uid} do not end")


def _end_all_of(uid: int) -> None:
    """All at once, so that none of them makes another one meanwhile."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresuid(uid, uid, uid)
            if uid != 0 and os.getresuid() == (uid, uid, uid):
                os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _owner(process: Path) -> int:
    """-1: it has ended, if only its parent has not noticed."""
    try:
        state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return -1 if state in ("Z", "X") else process.stat().st_uid
    except OSError:
        return -1


def _is_there(one: Instance) -> bool:
    return os.path.isdir(one.state_dir) or os.path.isdir(one.run_dir)


def _agent_of(one: Instance) -> str:
    return "agent and workers" if one == inventory.default() else f"agent of {one.state_dir}"


def _stop(one: Instance) -> None:
    """As `hutch agent stop` does: named sessions are saved first."""
    with subprocess.Popen(
        [sys.executable, "-c", _STOP, *sys.path],  # never from the directory that we are in
        env={**os.environ, "HUTCH_HOME": one.state_dir},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        start_new_session=True,
    ) as process:
        try:
            said = process.communicate(timeout=_STOP_SEC)[1].strip().splitlines()
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # what it has started would start more later
            if isinstance(error, subprocess.TimeoutExpired):
                raise OSError(f"it does not stop within {_STOP_SEC:g} s") from None
            raise
    if process.returncode != 0:
        raise OSError(said[-1] if said else "no answer")


def _of_state(one: Instance, keep_sessions: bool) -> Iterator[Thing]:
    """All that is Hutch's in a state directory, and the directory once it is empty."""
    place = Path(one.state_dir)
    names = [name for name in inventory.IN_STATE if os.path.lexists(place / name)]
    sessions = [name for name in names if name in inventory.KEPT]
    others = [name for name in names if name not in inventory.KEPT]
    if sessions and not keep_sessions:
        yield from _sessions(place, one.owner)
    size = trees.bytes_of(*(place / name for name in others))

    def remove() -> None:
        for name in others:
            trees.remove_tree(place / name, one.owner)
        trees.remove_if_empty(place, one.owner)

    what = "environments, log, settings" if "agent.toml" in others else "environments, log"
    yield Thing(what, one.state_dir, size, remove)


def _sessions(place: Path, owner: tuple[int, int] | None) -> Iterator[Thing]:
    size = trees.bytes_of(*(place / name for name in inventory.KEPT))

    def remove() -> None:
        for name in inventory.KEPT:
            trees.remove_tree(place / name, owner)
        trees.remove_if_empty(place, owner)

    yield Thing("named sessions", str(place / "sessions"), size, remove)


def _own_sessions(keep_sessions: bool) -> Iterator[Thing]:
    """Root's own, which are not in the service user's directories."""
    from hutch._session_hold import data_directory

    place = Path(data_directory())
    if not keep_sessions and any((place / name).is_dir() for name in inventory.KEPT):
        yield from _sessions(place, None)


def _remove_run_dir(one: Instance) -> None:
    """Last: without it, another uninstall would not find the instance."""
    if any(os.path.lexists(Path(one.state_dir) / name) for name in _NOT_KEPT):
        raise OSError(f"it leads to what is left of {one.state_dir}")
    trees.remove_tree(one.run_dir)


def _package_command() -> str:
    import importlib.metadata

    packages = ["hutch"]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.distribution("hutch-runtime")
        packages.append("hutch-runtime")
    installer = ""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        about = importlib.metadata.distribution("hutch")
        installer = (about.read_text("INSTALLER") or "").strip()
    if installer == "uv":
        return f"uv pip uninstall --python {sys.executable} {' '.join(packages)}"
    return f"{sys.executable} -m pip uninstall {' '.join(packages)}"
