# SPDX-License-Identifier: Apache-2.0
"""The processes and containers of this instance of Hutch, as Podman and /proc tell them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def podman(*arguments: str) -> str:
    command = [sys.executable, "-m", "hutch", "podman", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def containers(role: str) -> list[dict[str, Any]]:
    """`role`: agent or worker."""
    from hutch import _core

    instance = _core.paths()["instance"] or "default"
    listed = json.loads(podman("ps", "--format", "json") or "[]") or []
    wanted = {"hutch.role": role, "hutch.instance": instance}
    return [c for c in listed if wanted.items() <= (c.get("Labels") or {}).items()]


def children(pid: int) -> list[int]:
    try:
        return [int(t) for t in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def memory(pid: int) -> dict[str, int]:
    """Bytes by the names of smaps_rollup. Raises PermissionError where only root may look."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        found[name] = int(value.split()[0]) * 1024
    return found


def private(pid: int) -> int:
    told = memory(pid)
    return told["Private_Clean"] + told["Private_Dirty"]


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def is_warden(pid: int) -> bool:
    """False for the first process of a worker under gVisor, whose processes are not the host's."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/opt/hutch/hutch-warden\0")


@dataclass
class WorkerTree:
    """One worker: host pids of its warden, zygote, slots, and of the processes that calls run in.
    PID 1 of a cell is left out: it shares its slot's memory.
    """

    warden: int
    zygote: int = 0
    slots: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)


def worker_tree(warden: int) -> WorkerTree:
    tree = WorkerTree(warden)
    depth = len(status(warden)["NSpid"].split())
    for pid in children(warden):
        try:
            deeper = len(status(pid)["NSpid"].split()) > depth
        except OSError:
            continue
        if deeper:
            tree.cells += children(pid)
        elif not tree.zygote:
            tree.zygote = pid
        else:
            tree.slots.append(pid)
    return tree
