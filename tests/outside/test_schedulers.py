# SPDX-License-Identifier: Apache-2.0
"""What distributes calls, with sandboxed functions of a script: gevent, Dask and Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

GEVENT = """
from gevent import monkey; monkey.patch_all()
import gevent, gevent.event, hutch

@hutch.sandbox(timeout_sec=600)
def add(x, seconds=0.0):
    import time
    time.sleep(seconds)
    return x + 1

assert add(1) == 2
assert [f.result() for f in [add.submit(i) for i in range(4)]] == [1, 2, 3, 4]
assert list(add.map(range(4))) == [1, 2, 3, 4]
with hutch.Executor() as executor:
    assert executor.submit(pow, 2, 3).result() == 8
try:
    with gevent.Timeout(0.1):
        add.submit(1, 500.0).result()
    print("no timeout")
except gevent.Timeout:
    pass
ends = [gevent.event.Event() for _ in range(2)]
def wait_and_set(mine, other):
    add.submit(1).result()
    ends[mine].set()
    ends[other].wait()
both = [gevent.spawn(wait_and_set, 0, 1), gevent.spawn(wait_and_set, 1, 0)]
gevent.joinall(both, raise_error=True)
print("ok")
"""

FUNCTIONS = """
import dataclasses, hutch
from hutch import sandbox

@dataclasses.dataclass
class Point:
    x: int

FACTOR = 3
def helper(x): return FACTOR * x

@sandbox
def triple(x): return helper(x)

@sandbox
def point(x) -> Point: return Point(x)

class Model:
    def __init__(self, rate): self.rate = rate
    @sandbox
    def predict(self, x): return self.rate * x

def scope(offset):
    @sandbox
    def nested(x): return x + offset
    return nested

nested = scope(100)
text = hutch.function("def g(x): return x + 2", "g")
def mentions(x): return triple(x) + nested(x)

def told(call):
    assert call(triple, 2) == 6 and call(nested, 1) == 101 and call(mentions, 1) == 104
    assert call(point, 4).x == 4 and call(Model(5).predict, 2) == 10 and call(text, 1) == 3
    try:
        call(triple, None)
    except TypeError:
        print("ok")
"""

DASK = f"""{FUNCTIONS}
if __name__ == "__main__":
    from distributed import Client
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        told(lambda f, x: client.submit(f, x, pure=False).result())
"""

RAY = f"""{FUNCTIONS}
import ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
def call(f, x):
    try:
        return ray.get(ray.remote(lambda: f(x)).remote())
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
told(call)
"""


@pytest.mark.parametrize(
    "program,packages",
    [
        pytest.param(GEVENT, ["gevent==26.9.0"], id="gevent"),
        pytest.param(
            GEVENT.replace("patch_all", "patch_thread"), ["gevent==26.9.0"], id="gevent, threads"
        ),
        pytest.param(DASK, ["distributed==2026.8.0"], id="dask"),
        pytest.param(RAY, ["ray==2.60.0"], id="ray"),
    ],
)
def test_a_script_runs(
    program: str, packages: list[str], installed: Callable[..., Path], tmp_path: Path
) -> None:
    place = installed(*packages)
    script = tmp_path / "script.py"
    script.write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout == "ok\n", done.stdout + done.stderr[-4000:]
