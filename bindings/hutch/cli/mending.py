# SPDX-License-Identifier: Apache-2.0
"""`hutch doctor --fix`: the commands that mend what a check found, shown, and run with consent."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hutch import _apparmor
from hutch._connect.progress import escape
from hutch._status import PROOFS
from hutch.cli.asking import wanted

# A fix is a command, or a sentence; a remark may follow a command after three spaces.
_COMMAND = re.compile(r"((?:sudo|chmod|mknod|useradd|usermod) .*?)(?: {3}\((.*)\))?", re.DOTALL)


def commands_of(checks: Sequence[Mapping[str, Any]], is_root: bool) -> list[str]:
    """Those for the checks that do not hold, in their order. What an agent advises is never run."""
    found = []
    for check in checks:
        fix = str(check.get("fix") or "")
        if check["ok"] or not fix or check["name"] in PROOFS:
            continue
        if fix.startswith("hutch doctor --fix"):
            found.append(_apparmor.installation(is_root))
        elif match := _COMMAND.fullmatch(fix):
            found.append(match[1])
    return [_as(is_root, command) for command in dict.fromkeys(found)]


def _as(is_root: bool, command: str) -> str:
    if is_root:
        return re.sub(r"(^|&& |\| )sudo ", r"\1", command)
    return (
        command
        if command.startswith(("sudo ", "printf "))
        else f"sudo sh -c {shlex.quote(command)}"
    )


def mend(checks: Sequence[Mapping[str, Any]], is_yes: bool) -> bool:
    """Whether something was done. Raises ValueError where nobody can be asked."""
    commands = commands_of(checks, os.geteuid() == 0)
    if not commands:
        return False
    print("\nThis would mend it:\n")
    for command in commands:
        print(f"  {escape(command)}\n")
    if not is_yes and not wanted("Run it?", "hutch doctor --fix", "add --yes"):
        return False
    for command in commands:
        done = subprocess.run(["sh", "-c", command])
        if done.returncode != 0:
            said = f"it ended with exit code {done.returncode}: {escape(command)}"
            print(f"hutch: {said}", file=sys.stderr)
    return True
