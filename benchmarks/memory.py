# SPDX-License-Identifier: Apache-2.0
"""Rows of memory, by /proc: an agent, a zygote, a slot with its parked cell; and of importing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import processes
from calls import Bench
from table import BYTES, Row

import hutch
from hutch.cli import measure


def bare_interpreter() -> int:
    """Anonymous bytes of a Python that does nothing, started as the zygote is."""
    command = [sys.executable, "-I", "-S", "-B", "-X", "utf8=1", "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        time.sleep(0.3)
        found = processes.memory(process.pid)["Anonymous"]
        process.communicate(b"\n")
    return found


def rows(bench: Bench) -> Iterator[Row]:
    agent = Row("memory-agent", "an idle agent", unit=BYTES, target="≤ 15 MB")
    zygote = Row("memory-zygote", "a zygote", unit=BYTES, target="≤ 10 MB over its interpreter")
    parked = Row("memory-cell", "a slot with its parked cell", unit=BYTES, target="≤ 3 MB private")
    rows = [agent, zygote, parked]
    try:
        function = bench.function()
        worker = function.run(1).worker_id
        measure.parked(function)
        time.sleep(1)
        tree = next(
            processes.worker_tree(int(c["Pid"]))
            for c in processes.containers("worker")
            if worker in c["Names"]
        )
        agent.value = processes.memory(int(processes.containers("agent")[0]["Pid"]))["Pss"]
        zygote.floor, zygote.floor_is = bare_interpreter(), "interpreter"
        zygote.value = processes.memory(tree.zygote)["Anonymous"]
        count = len(tree.cells)
        parked.value = sum(map(processes.private, tree.slots + tree.cells)) / count
        parked.note = f"mean of {count}"
    except PermissionError:
        for row in rows:
            row.skipped = "seeing into the agent and its workers takes root"
    except (StopIteration, OSError, ZeroDivisionError, hutch.SandboxError) as error:
        for row in rows:
            row.skipped = f"{type(error).__name__}: {error}"
    else:
        agent.met = agent.value <= 15e6
        zygote.met = zygote.value - zygote.floor <= 10e6
        parked.met = parked.value <= 3e6
    yield from rows


def imports(bench: Bench) -> Iterator[Row]:
    def start(code: str) -> measure.Times:
        command = [sys.executable, "-c", code]
        return measure.each(lambda _: subprocess.run(command, check=True), 5)

    start("import hutch")
    turns = 2 if bench.quick else 6
    ours, floor = measure.in_turns(turns, lambda: start("import hutch"), lambda: start("pass"))
    yield Row(
        "import",
        "python -c 'import hutch'",
        ours.p50,
        floor=floor.p50,
        floor_is="python -c pass",
        target="≤ 40 ms over it",
        met=ours.p50 - floor.p50 <= 0.040,
    )


ROWS = {"memory": rows, "import": imports}
