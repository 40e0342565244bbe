# SPDX-License-Identifier: Apache-2.0
"""What this machine is and how busy it was: without it no figure means anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hutch.cli import measure


def load() -> float:
    """Runnable processes for each CPU, over the last minute."""
    return os.getloadavg()[0] / measure.cores()


def throttled() -> int | None:
    """How often this process's cgroup was held back for its CPU quota; None: it has no such."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        for root in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup"):
            if kinds and "cpu" not in kinds.split(","):
                continue
            for place in (path, "/"):
                try:
                    text = Path(f"{root}{place}/cpu.stat").read_text()
                except OSError:
                    continue
                for item in text.splitlines():
                    if item.startswith("nr_throttled"):
                        return int(item.split()[1])
    return None


def stolen() -> float:
    """Seconds of CPU time that a hypervisor has given to others, since the machine started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def _first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return "none"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout.strip() or "unknown").splitlines()[0]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


class Watch:
    """Facts of the host before, and what moved until `facts` is asked for."""

    def __init__(self) -> None:
        self._load = load()
        self._throttled = throttled()
        self._stolen = stolen()
        self._began = time.monotonic()
        self._fixed = {
            "cores": measure.cores(),
            "cpu": _cpu_model(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "kernel": os.uname().release,
            "python": sys.version.split()[0],
            "podman": _first_line("podman", "--version").removeprefix("podman version "),
        }

    @property
    def too_busy(self) -> str:
        """Why no p99 can be judged; "" if it can."""
        now = throttled()
        if self._load > 1:
            return f"the host was busy before it began: {self._load:.1f} runnable for each CPU"
        if now is not None and self._throttled is not None and now > self._throttled:
            return f"the CPU quota held it back {now - self._throttled} times"
        return ""

    @property
    def too_busy_for_page(self) -> str:
        """Why the figures are not worth being kept; "" if they are."""
        if self.too_busy:
            return self.too_busy
        if self._load > 0.5:
            return f"the host was not quiet before it began: {self._load:.1f} runnable for each CPU"
        had = (time.monotonic() - self._began) * measure.cores()
        share = (stolen() - self._stolen) / had if had > 1 else 0.0
        return f"the hypervisor gave {share:.0%} of the CPU time to others" if share > 0.02 else ""

    def facts(self) -> dict[str, Any]:
        now = throttled()
        moved = None if now is None or self._throttled is None else now - self._throttled
        return {
            **self._fixed,
            "load_before": round(self._load, 2),
            "load_after": round(load(), 2),
            "throttled": moved,
            "stolen_sec": round(stolen() - self._stolen, 1),
            "writes_bytecode": not sys.dont_write_bytecode,
            "p99_judged": not self.too_busy,
        }


def sentence(facts: dict[str, Any]) -> str:
    throttled_ = "unknown" if facts["throttled"] is None else f"{facts['throttled']} times"
    bytecode = "" if facts["compiled"] is None else f" Bytecode: {facts['compiled']}."
    return (
        f"{facts['cores']} cores of {facts['cpu']}, {facts['memory_gib']} GiB; Linux "
        f"{facts['kernel']}, Podman {facts['podman']}, Python {facts['python']}. Load for each "
        f"core {facts['load_before']} before, {facts['load_after']} after; throttled "
        f"{throttled_}; {facts['stolen_sec']} s stolen by the hypervisor.{bytecode}"
    )


def unjudged(too_busy: str) -> str:
    return (
        f"Neither a p99 nor a throughput is judged: {too_busy}. Times are of that moment; believe "
        "the ratios, and those with care."
    )


def warnings(watch: Watch) -> list[str]:
    found = []
    if sys.dont_write_bytecode:
        found.append(
            "PYTHONDONTWRITEBYTECODE is set: the caller's own imports measure several times slower"
        )
    if watch.too_busy:
        found.append(unjudged(watch.too_busy))
    return found
