# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzz targets of build/sanitized over their corpora: for a while, or so many times.

    run.py --seconds 60            in all, two targets at a time
    run.py --executions 10000000   in all; what is found new is kept in build/sanitized/corpus

Fails when an input crashes, hangs, takes more time or memory than its size explains (budget.h), or
allocates more at once than anything of its size may (it is kept in build/sanitized/found/, and
`build/sanitized/tests/fuzz/<target>_fuzz FILE` runs it again), and when too few mutants of what a
target reads can be read: such a run would have tested the first check alone.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
BUILD = ROOT.parent.parent / "build" / "sanitized"
SEED = 20_240_229
LARGEST = 16  # MiB allocated at once, by inputs of 8 KiB at most
MEMORY = 1024  # MiB of the process, with the sanitizer's own
HANG = 60  # seconds of one input, on a machine that is busy with other things


@dataclass
class Target:
    name: str
    share: float  # of the executions
    program: str = ""
    at_least: float = 0.0  # of the inputs are accepted

    @property
    def path(self) -> Path:
        return BUILD / "tests" / "fuzz" / f"{self.program or self.name}_fuzz"

    @property
    def log(self) -> Path:
        return BUILD / f"{self.name}.log"


TARGETS = [
    Target("decode", 0.3, at_least=0.3),
    Target("decode_arrays", 0.05, "decode", at_least=0.3),
    Target("worker", 0.05),
    Target("lease", 0.1),
    Target("channel", 0.1),
    Target("message", 0.15),
    Target("sni", 0.05, at_least=0.3),
    Target("http", 0.05),
    Target("proxy", 0.05, at_least=0.3),
    Target("gate", 0.05),
    Target("cell", 0.02),
    Target("control", 0.03, at_least=0.3),
]


def command(target: Target, seconds: float, executions: int) -> list[str]:
    found = BUILD / "found"
    found.mkdir(exist_ok=True)
    line = [str(target.path), f"-seed={SEED}", f"-artifact_prefix={found}/{target.name}-"]
    line += ["-max_len=8192", f"-timeout={HANG}", f"-rss_limit_mb={MEMORY}"]
    line += [f"-malloc_limit_mb={LARGEST}", "-detect_leaks=0", "-print_funcs=0"]
    line += ["-print_final_stats=1"]
    kept = BUILD / "corpus" / target.name
    if executions:
        line.append(f"-runs={executions}")
    else:  # short runs are all alike: nothing is left for the next one
        line.append(f"-max_total_time={max(1, round(seconds))}")
        shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True, exist_ok=True)
    return [*line, str(kept), str(ROOT / "corpus" / target.name)]


def run(target: Target, seconds: float, executions: int) -> str:
    """What went wrong, "" if nothing."""
    env = {
        **os.environ,
        "PYTHONMALLOC": "malloc",  # so that the sanitizer sees every object's end
        "ASAN_OPTIONS": "quarantine_size_mb=32:detect_leaks=0",
    }
    with target.log.open("w") as log:
        line = command(target, seconds, executions)
        code = subprocess.run(line, env=env, stdout=log, stderr=log).returncode
    said = target.log.read_text(errors="replace")
    if code != 0:
        return (
            f"{target.name}: ended with {code}; see {target.log} and {BUILD / 'found'}\n"
            + said[-3000:]
        )
    tally = re.search(r"^tally: (\d+) of (\d+) accepted", said, re.M)
    if tally is None:
        return f"{target.name}: said nothing of its inputs; see {target.log}"
    accepted, inputs = int(tally[1]), int(tally[2])
    peak = re.search(r"peak_rss_mb:\s+(\d+)", said)
    print(
        f"fuzz: {target.name}: {inputs:,} inputs, {100 * accepted / inputs:.0f} % accepted, "
        f"{peak[1] if peak else '?'} MiB at most, nothing found",
        flush=True,
    )
    if accepted < target.at_least * inputs:
        return f"{target.name}: of the mutants only {accepted} of {inputs} could be read"
    return ""


def show_progress(targets: list[Target]) -> None:
    shown = []
    for target in targets:
        counts = re.findall(r"^#(\d+)", target.log.read_text(errors="replace")[-4000:], re.M)
        shown.append(f"{target.name} {int(counts[-1]):,}" if counts else target.name)
    print("fuzz: " + ", ".join(shown), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--executions", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="one target's name")
    asked = parser.parse_args()
    targets = [t for t in TARGETS if t.path.exists() and asked.only in ("", t.name)]
    for missing in [t.name for t in TARGETS if not t.path.exists()]:
        print(f"fuzz: {missing} was not built (see what cmake said) and is left out", flush=True)
    if not targets or not (asked.seconds or asked.executions):
        print("fuzz: nothing to run: `make fuzz` builds the targets", file=sys.stderr)
        return 2
    jobs = min(asked.jobs, len(targets))
    all_shares = sum(target.share for target in targets)
    with ThreadPoolExecutor(jobs) as pool:
        runs = [
            pool.submit(
                run,
                target,
                asked.seconds * jobs / len(targets),
                round(asked.executions * target.share / all_shares),
            )
            for target in targets
        ]
        shown = time.monotonic()
        while not all(done.done() for done in runs):
            time.sleep(0.2)
            if time.monotonic() - shown > 30:
                shown = time.monotonic()
                begun = zip(targets, runs)
                show_progress([t for t, r in begun if r.running() and t.log.exists()])
    wrong = [text for text in (done.result() for done in runs) if text]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
