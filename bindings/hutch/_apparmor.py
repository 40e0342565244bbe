# SPDX-License-Identifier: Apache-2.0
"""AppArmor where it lets only programs that it knows make user namespaces, as Ubuntu's does.

Podman has a profile of its distribution's there, which its containers inherit. One that lies
elsewhere has none: then `profile()` is what allows it, and it alone.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PROFILE_FILE = "/etc/apparmor.d/hutch"
_FIRST_LINE = "# Made by `hutch doctor --fix`."
_SETTING = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_UNKNOWN = "unprivileged_userns"  # what a program that no profile knows becomes in its namespace
_PLAIN = re.compile(r"/[\w./+@-]+")


def restricts() -> bool:
    try:
        with open(_SETTING) as file:
            return file.read().strip() == "1"
    except OSError:
        return False


def judged(check: dict[str, Any], paths: dict[str, Any] | None) -> dict[str, Any]:
    """The check "user namespaces", as Podman finds it: it was made by a program of ours, which
    AppArmor does not know.
    """
    if check["ok"] or not restricts():
        return check
    if paths is not None and _podman_may(paths):
        return {**check, "ok": True, "detail": "usable by Podman, which AppArmor knows", "fix": ""}
    detail = "AppArmor lets only programs that it knows make user namespaces, and not this Podman"
    return {**check, "detail": detail, "fix": "hutch doctor --fix   (installs a profile for it)"}


def _podman_may(paths: dict[str, Any]) -> bool:
    program = shutil.which("podman")
    if program is None:
        return False
    who: dict[str, Any] = {}
    if paths["service_user"]:
        who = {"user": paths["uid"], "group": paths["gid"], "extra_groups": []}
    surroundings = {
        "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(paths["home"]),
        "XDG_RUNTIME_DIR": os.path.dirname(str(paths["run_dir"])),
    }
    done = subprocess.run(
        [program, "unshare", "true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=surroundings,
        cwd="/",
        **who,
    )
    if done.returncode != 0:
        return False
    # It ends well also without rights, which each later command takes back as it joins the first's
    # namespace: Podman's service, started first, is left without.
    label = _label_of_pause(surroundings["XDG_RUNTIME_DIR"])
    return not label.startswith(_UNKNOWN) or _has_profile_of(program)


def _label_of_pause(runtime_dir: str) -> str:
    """The profile of the process that keeps Podman's user namespace; "" where none says it."""
    try:
        return Path(f"/proc/{pause_process(runtime_dir)}/attr/current").read_text()
    except (OSError, ValueError):
        return ""


def pause_process(runtime_dir: str) -> int:
    """The pid of the process that keeps Podman's user namespace; `runtime_dir`: Podman's
    XDG_RUNTIME_DIR. Raises OSError or ValueError where there is none.
    """
    path = f"{runtime_dir}/libpod/tmp/pause.pid"
    # The service user may have put anything there: nothing is waited for.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
        return int(file.read(20))


def _has_profile_of(podman: str) -> bool:
    """Whether ours is installed, for this program."""
    line = f"profile hutch-podman {os.path.realpath(podman)} "
    try:
        return is_installed() and line in Path(PROFILE_FILE).read_text()
    except (OSError, ValueError):
        return False


def profile() -> str:
    """Of the Podman here and of the program that starts it. Each may make user namespaces, and is
    otherwise as free as without it. Raises ValueError for a path that no profile can have.
    """
    from hutch._connect import launcher

    podman = shutil.which("podman")
    programs = {"hutch": launcher.PROGRAM, "hutch-podman": podman}
    lines = [_FIRST_LINE, "abi <abi/4.0>,", "include <tunables/global>"]
    for name, program in programs.items():
        if program is None:
            continue
        path = os.path.realpath(program)
        if _PLAIN.fullmatch(path) is None:
            raise ValueError(f"no profile can be made for {path!r}: it has unusual characters")
        lines += ["", f"profile {name} {path} flags=(unconfined) {{", "  userns,", "}"]
    return "\n".join(lines) + "\n"


def is_installed() -> bool:
    """Whether a profile of ours is there; one that somebody else wrote is not ours."""
    try:
        with open(PROFILE_FILE) as file:
            return file.readline().rstrip() == _FIRST_LINE
    except (OSError, ValueError):
        return False


def installation(is_root: bool) -> str:
    """The command that puts `profile()` in its place, and ends what was started without it."""
    sudo = "" if is_root else "sudo "
    beside = Path(sys.executable).with_name("hutch")
    program = str(beside) if beside.exists() else "hutch"
    return (
        f"printf %s {shlex.quote(profile())} | {sudo}tee {PROFILE_FILE} >/dev/null && "
        f"{sudo}apparmor_parser --replace {PROFILE_FILE} && {shlex.quote(program)} stop"
    )


def removal(is_root: bool) -> str:
    sudo = "" if is_root else "sudo "
    return f"{sudo}apparmor_parser --remove {PROFILE_FILE}; {sudo}rm {PROFILE_FILE}"
