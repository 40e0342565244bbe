# SPDX-License-Identifier: Apache-2.0
"""Packages that the caller of a session has added to it. Each addition is a directory of the
scratch, so that it outlives the interpreter; it comes after everything else that the interpreter
and the commands find. One thread.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys

INFO = re.compile(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
ROOT = "/tmp/.packages"
# Named by PYTHONPATH, which comes before all else, it gives interpreters that are started here what
# was added after all else.
STARTED = f"{ROOT}/start"
AT_START = """import os, sys
root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
try:
    numbers = sorted(int(name) for name in os.listdir(root) if name.isdecimal())
    sys.path += [os.path.join(root, str(number)) for number in numbers]
except OSError:
    pass
"""


def begin() -> None:
    """In a fresh user process: with what was added before."""
    for number in numbers():
        use(number)


def numbers() -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(ROOT) if name.isdecimal())
    except OSError:
        return []


def distributions(_: str) -> list[tuple[str, str]]:
    """Name and version of all that can be imported here, as the directories that describe them are
    called: to import what reads these takes longer than all else of an addition.
    """
    found = []
    for place in sys.path:
        try:
            names = sorted(os.listdir(place or "."))
        except OSError:
            continue  # it is not there, or an archive
        found += [match.groups() for match in map(INFO.fullmatch, names) if match]
    return [(name, version) for name, version in found]


def take(made: str) -> int:
    """Adds a directory of packages that was put beside those of before, and gives its number."""
    os.makedirs(STARTED, exist_ok=True)
    with open(f"{STARTED}/sitecustomize.py", "w") as file:
        file.write(AT_START)
    number = max(numbers(), default=0) + 1
    os.rename(made, f"{ROOT}/{number}")
    use(number)
    return number


def drop(place: str) -> None:
    """Takes away one that was added, and what was imported from it."""
    shutil.rmtree(place)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{place}/"):
            del sys.modules[name]
    if place in sys.path:
        sys.path.remove(place)
    importlib.invalidate_caches()
    places = os.environ.get("PATH", "").split(":")
    os.environ["PATH"] = ":".join(one for one in places if one != f"{place}/bin")


def use(number: int) -> None:
    place = f"{ROOT}/{number}"
    if place not in sys.path:
        sys.path.append(place)
    importlib.invalidate_caches()
    if os.path.isdir(f"{place}/bin"):
        append("PATH", f"{place}/bin")
    append("PYTHONPATH", STARTED)


def append(variable: str, place: str) -> None:
    places = list(filter(None, os.environ.get(variable, "").split(":")))
    if place not in places:
        os.environ[variable] = ":".join([*places, place])
