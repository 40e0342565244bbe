# SPDX-License-Identifier: Apache-2.0
"""A virtual environment of the caller's as an environment: its directory of packages, as it is.

Only what is installed in it travels: what an editable install points to, or the system's own
packages, do not. Pure but for what is read.
"""

from __future__ import annotations

import os
import platform
import re

from hutch._options.mounts import Mount


def packages_of(place: str) -> str:
    """Its site-packages. Raises ValueError for what is no such environment of this interpreter's
    version.
    """
    config = os.path.join(place, "pyvenv.cfg")
    try:
        with open(config, encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 16)
    except OSError:
        raise ValueError(
            f"environment={place!r} is a directory but not a virtual environment: it has "
            "no readable pyvenv.cfg"
        ) from None
    match = re.search(r"(?mi)^version(?:_info)?\s*=\s*(\d+\.\d+)", text)
    have = ".".join(platform.python_version_tuple()[:2])
    if match is None or match[1] != have:
        raise ValueError(
            f"environment={place!r} is of Python {match[1] if match else 'an unknown version'}; "
            f"the sandbox has {have}, as this interpreter: call from the same version"
        )
    packages = os.path.join(place, "lib", f"python{have}", "site-packages")
    if not os.path.isdir(packages):
        raise ValueError(f"environment={place!r} has no {packages}")
    return Mount(packages).source


def names_of(packages: str) -> list[str]:
    """name==version of what is installed there."""
    names = []
    for entry in os.listdir(packages):
        match = re.fullmatch(r"(.+?)-([^-]+)\.dist-info", entry)
        if match:
            names.append(f"{re.sub(r'[-_.]+', '-', match[1]).lower()}=={match[2]}")
    return sorted(names)
