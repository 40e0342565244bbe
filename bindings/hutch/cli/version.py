# SPDX-License-Identifier: Apache-2.0
"""`hutch version`: what belongs to a report of a mistake. Starts nothing."""

from __future__ import annotations

import argparse
import json
import os
import platform
from typing import Any

from hutch._connect.progress import escape
from hutch.cli import inventory
from hutch.cli.output import print_json


def run(options: argparse.Namespace) -> int:
    found = facts()
    if options.json:
        print_json(found)
        return 0
    agent = "none runs"
    if found["agent"]:
        agent = found["agent"]
        if agent != found["hutch"]:
            agent += f"; `hutch agent stop` lets the next call start {found['hutch']}"
    podman = found["podman"] or "none: `hutch doctor` says how to install it"
    for name, value in {**found, "agent": agent, "podman": podman}.items():
        print(f"{name:8}{'none yet' if value is None else escape(str(value))}")
    return 0


def facts() -> dict[str, Any]:
    """Text by name; of `agent` and `podman` None where there is none."""
    import hutch
    from hutch._connect import launcher

    checks = json.loads(launcher.capture("--doctor"))["checks"]
    podman = next(check for check in checks if check["name"] == "podman")
    paths = inventory.paths()
    return {
        "hutch": hutch.__version__,
        "package": os.path.dirname(hutch.__file__),
        "python": f"{platform.python_version()}, {launcher.interpreter()}",
        "podman": podman["detail"].removeprefix("Podman ") if podman["ok"] else None,
        "system": f"Linux {platform.release()}, {platform.machine()}, {_glibc()}",
        "agent": hutch.status().get("version"),
        "state": None if paths is None else str(paths["state_dir"]),
    }


def _glibc() -> str:
    return " ".join(platform.libc_ver()).strip() or "no glibc"
