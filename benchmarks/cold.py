# SPDX-License-Identifier: Apache-2.0
"""Rows of first results: from an agent without a worker, from nothing but Podman's service, and of
environments that are yet to be built.

The floors are what such a thing cannot do without: a container, the agent's too where there is none
yet, and the import of the packages; beside them, one container by Podman's own command.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bare
from calls import Bench
from table import Row, shown

import hutch
from hutch.cli import measure

# Each setting of its own is a pool of its own, without a worker yet.
_memory_mb = iter(range(900 + os.getpid() % 400, 4000))


def _first(*dependencies: str, **keywords: Any) -> float:
    function = measure.trivial(dependencies, memory_mb=next(_memory_mb), **keywords)
    begin = time.perf_counter()
    function(1)
    return time.perf_counter() - begin


def _with_spare(*dependencies: str) -> float | None:
    """None: the agent keeps no spare worker."""
    deadline = time.monotonic() + 5
    while not hutch.status().get("spares"):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.1)
    time.sleep(1)  # it may be starting still
    return _first(*dependencies)


def container() -> float:
    """Seconds of a bare container of the base image; the files are cached by the first one."""
    command = run_command("python3", "-I", "-S", "-c", "pass")
    subprocess.run(command, check=True, capture_output=True)
    taken = measure.each(lambda _: subprocess.run(command, check=True, capture_output=True), 3)
    return taken.p50


def run_command(*arguments: str) -> list[str]:
    """`podman run` of the base image, in the view that Hutch's containers live in."""
    from hutch._connect import launcher

    command = [sys.executable, "-m", "hutch", "podman", "run", "--rm", "--network", "none"]
    return [*command, "--pull", "never", f"localhost/hutch-base:{launcher.base_id()}", *arguments]


def _beside(repeats: int, ours: Callable[[], float], floor: Callable[[], float]) -> list[float]:
    """Medians of both, in turns."""

    def settled(action: Callable[[], float]) -> measure.Times:
        time.sleep(1)  # an agent that has a new pool makes ready more than was asked for
        return measure.Times([action()])

    return [
        times.p50
        for times in measure.in_turns(repeats, lambda: settled(ours), lambda: settled(floor))
    ]


def _without_agent(*dependencies: str) -> float:
    hutch.close()
    hutch.agent.stop()
    # Any command leaves Podman's service running.
    command = [sys.executable, "-m", "hutch", "podman", "version"]
    subprocess.run(command, check=True, capture_output=True)
    return _first(*dependencies)


def first_results(bench: Bench) -> Iterator[Row]:
    repeats = 2 if bench.quick else 5
    bench.function()
    by_command = container()
    for names, most in (((), 0.030), (("pandas",), 0.400)):
        yield _first_by_spare(bench, names, most, repeats, by_command)
    yield from _first_by_none(bench, (), (0.080, 0.160), repeats, by_command)
    yield from _first_by_none(bench, ("pandas",), (0.400, 0.480), repeats, by_command)
    bench.forget()


def _first_by_none(
    bench: Bench, names: tuple[str, ...], most: tuple[float, float], repeats: int, by_command: float
) -> Iterator[Row]:
    interpreter = _interpreter(bench, names)
    # A spare worker takes no pool that has mounts.
    with tempfile.TemporaryDirectory() as empty:
        running, one = _beside(
            repeats,
            lambda: _first(*names, mounts={"/mnt": empty}),
            lambda: bare.container() + interpreter(),
        )
    nothing, two = _beside(
        repeats,
        lambda: _without_agent(*names),
        lambda: bare.container() + bare.container() + interpreter(),
    )
    for key, what, value, bound, floor, containers in (
        ("first", "agent running, no worker", running, most[0], one, "a bare container"),
        ("nothing", "only Podman's service running", nothing, most[1], two, "two bare containers"),
    ):
        yield Row(
            f"{key}{'-pandas' if names else ''}",
            f"first result, {what}{', pandas' if names else ''}",
            value,
            floor=floor,
            floor_is=f"{containers} + an interpreter",
            target=f"≤ {bound * 1000:.0f} ms",
            met=value <= bound,
            note=f"podman run: {shown(by_command)}",
        )


def _interpreter(bench: Bench, names: tuple[str, ...]) -> Callable[[], float]:
    """A new one that can load a function, and has these packages."""
    bench.function(*names)  # the environment is built, and compiled
    _, paths = bench.modules(*names)
    return lambda: bare.interpreter(["cloudpickle", *names], paths)


def _first_by_spare(
    bench: Bench, names: tuple[str, ...], most: float, repeats: int, by_command: float
) -> Row:
    _, paths = bench.modules(*names)
    row = Row(
        f"first-spare{'-pandas' if names else ''}",
        f"first result, a spare worker is there{', pandas' if names else ''}",
        target=f"≤ {most * 1000:.0f} ms",
    )
    taken, imports = [], []
    for _ in range(repeats):
        if (seconds := _with_spare(*names)) is not None:
            taken.append(seconds)
            imports += [bare.importing(name, paths) for name in names]
    if not taken:
        row.skipped = "the agent keeps none"
        return row
    row.value = statistics.median(taken)
    row.met = row.value <= most
    row.floor, row.floor_is = by_command, "podman run"
    if names:
        row.floor, row.floor_is = statistics.median(imports), "the import"
    return row


BUILD = """
import json, time
import hutch
from hutch import sandbox
sandbox(lambda: 1)()
def look():
    import os, pandas
    top = os.path.dirname(os.path.dirname(pandas.__file__))
    count = {"py": 0, "pyc": 0}
    for folder, _, names in os.walk(top):
        for name in names:
            kind = name.rpartition(".")[2]
            if kind in count:
                count[kind] += 1
    return count
found = {}
for name, keywords in (("nothing", {}), ("cached", {"disable_cache": True})):
    function = sandbox(dependencies=["pandas"], timeout_sec=60, **keywords)(look)
    begin = time.perf_counter()
    function.warm()
    found[name] = time.perf_counter() - begin
    found["files"] = function()
print(json.dumps(found))
hutch.close()
hutch.agent.stop()
"""


def _built() -> dict[str, Any]:
    """pandas in a state directory of its own, so that the cache is empty at first."""
    parent = Path("/var/lib/hutch") if os.geteuid() == 0 else Path.home() / ".cache"
    home = parent / f"hutch-bench-{os.getpid()}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", BUILD],
            env={**os.environ, "HUTCH_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip()[-300:])
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _installed() -> list[tuple[float, float]]:
    """Seconds that uv alone takes to install pandas, with nothing cached and with its wheels; and
    that the first import then takes, which compiles what it needs.
    """
    from hutch._options import index as _index

    index = _index.settings()["index_url"]
    with tempfile.TemporaryDirectory(dir=Path.home()) as directory:
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "pandas"]
        command += ["--cache-dir", f"{directory}/cache", *(["--index-url", index] if index else [])]
        taken = measure.each(
            lambda n: subprocess.run([*command, "--target", f"{directory}/{n}"], check=True), 2
        ).taken
        return [(taken[n], bare.importing("pandas", [f"{directory}/{n}"])) for n in range(2)]


def builds(bench: Bench) -> Iterator[Row]:
    if bench.quick:
        return
    nothing = Row("build", "environment of pandas, nothing cached", target="≤ 6 s at 10 MB/s")
    cached = Row("build-cached", "environment of pandas, wheels cached", target="≤ 1.5 s")
    try:
        told = _built()
        installed = _installed()
    except (RuntimeError, ValueError, IndexError, subprocess.CalledProcessError) as error:
        nothing.skipped = cached.skipped = str(error)
    else:
        nothing.value, cached.value = told["nothing"], told["cached"]
        for row, (install, importing) in zip((nothing, cached), installed):
            row.floor, row.floor_is = install + importing, "uv pip install + the first import"
            row.note = f"uv pip install alone: {shown(install)}"
        nothing.met, cached.met = nothing.value <= 6, cached.value <= 1.5
        files = told["files"]
        bench.known["compiled"] = (
            f"pandas' environment has {files['py']} .py, of which {files['pyc']} compiled "
            "(those that importing it needs)"
        )
    yield nothing
    yield cached


ROWS = {"first": first_results, "build": builds}
