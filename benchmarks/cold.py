"""Rows of first results: from an agent without a worker, from nothing but Podman's service, and of
environments that are yet to be built.

The floor of the first two is one bare container of the same image by Podman's command.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calls import Bench
from table import Row

import hutch
from hutch import _measure

# Each setting of its own is a pool of its own, without a worker yet.
_memory_mb = iter(range(900 + os.getpid() % 400, 4000))


def _first(*dependencies: str, **keywords: Any) -> float:
    function = _measure.trivial(dependencies, memory_mb=next(_memory_mb), **keywords)
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
    taken = _measure.each(lambda _: subprocess.run(command, check=True, capture_output=True), 3)
    return taken.p50


def run_command(*arguments: str) -> list[str]:
    """`podman run` of the base image, in the view that Hutch's containers live in."""
    from hutch import _launcher

    command = [sys.executable, "-m", "hutch", "podman", "run", "--rm", "--network", "none"]
    return [*command, "--pull", "never", f"localhost/hutch-base:{_launcher.base_id()}", *arguments]


def first_results(bench: Bench) -> Iterator[Row]:
    repeats = 2 if bench.quick else 5
    bench.function()
    floor = container()
    for names, most in (((), 0.030), (("pandas",), 0.400)):
        bench.function(*names)  # its environment is built
        spare = Row(
            f"first-spare{'-pandas' if names else ''}",
            f"first result, a spare worker is there{', pandas' if names else ''}",
            target=f"≤ {most * 1000:.0f} ms",
        )
        taken = [seconds for _ in range(repeats) if (seconds := _with_spare(*names)) is not None]
        if taken:
            spare.value = statistics.median(taken)
            spare.met, spare.floor, spare.floor_is = spare.value <= most, floor, "podman run"
        else:
            spare.skipped = "the agent keeps none"
        yield spare
    service = [
        sys.executable,
        "-m",
        "hutch",
        "podman",
        "version",
    ]  # leaves Podman's service running
    targets = {(): (0.080, 0.160), ("pandas",): (0.400, 0.480)}
    for names, (running, nothing) in targets.items():
        with_pandas = ", pandas" if names else ""
        bench.function(*names)
        # A spare worker takes no pool that has mounts.
        with tempfile.TemporaryDirectory() as empty:
            mounts = {"/mnt": empty}
            value = statistics.median(_first(*names, mounts=mounts) for _ in range(repeats))
        yield Row(
            f"first{'-pandas' if names else ''}",
            f"first result, agent running, no worker{with_pandas}",
            value,
            floor=floor,
            floor_is="podman run",
            target=f"≤ {running * 1000:.0f} ms",
            met=value <= running,
        )
        taken = []
        for _ in range(repeats):
            hutch.close()
            hutch.agent.stop()
            subprocess.run(service, check=True, capture_output=True)
            taken.append(_first(*names))
        value = statistics.median(taken)
        yield Row(
            f"nothing{'-pandas' if names else ''}",
            f"first result, only Podman's service running{with_pandas}",
            value,
            floor=floor,
            floor_is="podman run",
            target=f"≤ {nothing * 1000:.0f} ms",
            met=value <= nothing,
        )
    bench.forget()


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


def _installed() -> tuple[float, float]:
    """Seconds that uv alone takes to install pandas: with nothing cached, and with its wheels."""
    from hutch import _index

    index = _index.settings()["index_url"]
    with tempfile.TemporaryDirectory(dir=Path.home()) as directory:
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "pandas"]
        command += ["--cache-dir", f"{directory}/cache", *(["--index-url", index] if index else [])]
        taken = _measure.each(
            lambda n: subprocess.run([*command, "--target", f"{directory}/{n}"], check=True), 2
        ).taken
    return taken[0], taken[1]


def builds(bench: Bench) -> Iterator[Row]:
    if bench.quick:
        return
    nothing = Row("build", "environment of pandas, nothing cached", target="≤ 6 s at 10 MB/s")
    cached = Row("build-cached", "environment of pandas, wheels cached", target="≤ 1.5 s")
    try:
        told = _built()
        nothing.floor, cached.floor = _installed()
    except (RuntimeError, ValueError, IndexError, subprocess.CalledProcessError) as error:
        nothing.skipped = cached.skipped = str(error)
    else:
        nothing.value, cached.value = told["nothing"], told["cached"]
        nothing.floor_is = cached.floor_is = "uv pip install"
        nothing.met, cached.met = nothing.value <= 6, cached.value <= 1.5
        files = told["files"]
        bench.known["compiled"] = (
            f"pandas' environment has {files['py']} .py, of which {files['pyc']} compiled "
            "(those that importing it needs)"
        )
    yield nothing
    yield cached


ROWS = {"first": first_results, "build": builds}
