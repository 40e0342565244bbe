# SPDX-License-Identifier: Apache-2.0
"""What `make wheels` built, and virtual environments in which it is installed."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
MACHINE = os.uname().machine
SYSTEM = ROOT / "scripts" / "wheels" / "system"
NEWEST_PYTHON = "3.14"  # of debian-newest


def versions(machine: str = MACHINE) -> list[str]:
    """The Pythons that there are wheels for: "3.11"."""
    wheels = DIST.glob(f"hutch-*_{machine}.whl")
    found = [int(wheel.name.split("-")[2].removeprefix("cp3")) for wheel in wheels]
    return [f"3.{minor}" for minor in sorted(found)]


def interpreters() -> dict[str, str]:
    """Those of this machine, on PATH or pyenv's, that there are wheels for."""
    found: dict[str, str] = {}
    for version in versions():
        pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        for python in [f"python{version}", *map(str, pyenv)]:
            told = said(python, "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)")
            if told.startswith(version + " "):
                found[version] = told.partition(" ")[2]
                break
    return found


@contextmanager
def system(name: str, shared: Path | None = None) -> Iterator[tuple[str, ...]]:
    """The words before a command that root is to run in a tree of another system, which sees the
    directory `shared`. What was started there has ended after it.
    """
    seen = ["--share", shared] if shared else []
    command = [SYSTEM, name, *seen, "sh", "-c", "echo entered; exec sleep infinity"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout and holder.stdout.readline(), "the tree cannot be made or entered"
            of_it = f"/proc/{holder.pid}/ns"
            yield ("nsenter", f"--mount={of_it}/mnt", f"--pid={of_it}/pid_for_children")
        finally:
            holder.kill()


def said(python: str, code: str) -> str:
    """What a program prints; "" where there is no such interpreter."""
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


def environment(instance: str) -> dict[str, str]:
    """What programs see: wheels of dist/ and no compiler; an agent of their own."""
    found = {k: v for k, v in os.environ.items() if not k.startswith(("HUTCH_", "PYTHON"))}
    home = Path("/var/lib/hutch" if os.geteuid() == 0 else "~/.local/share").expanduser()
    return found | {
        "CC": "false",
        "CXX": "false",
        "PIP_ONLY_BINARY": ":all:",
        "PIP_FIND_LINKS": str(DIST),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "HUTCH_HOME": str(home / f"wheels-{instance}-{os.getpid()}"),
    }


def examples() -> list[str]:
    """The programs of the README."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)


def first_example() -> str:
    return examples()[0]


@dataclass
class Installed:
    """A virtual environment in which nothing but `hutch` was asked for."""

    directory: Path
    environment: dict[str, str]
    inside: tuple[str, ...] = ()  # the words before each command that is to run where it is

    def run(self, *command: str, ok: bool = True, prefix: tuple[str, ...] = ()) -> str:
        """What a program of the environment prints; stderr where it is not to end well."""
        done = subprocess.run(
            [*self.inside, *prefix, str(self.directory / "bin" / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.directory,
            timeout=500,
        )
        assert (done.returncode == 0) == ok, done.stdout + done.stderr
        return done.stdout if ok else done.stderr
