# SPDX-License-Identifier: Apache-2.0
"""Sandboxed functions in other processes: those of joblib, multiprocessing and
ProcessPoolExecutor, where the function's module is `__main__`. Without a pool of processes:
bindings/test_pickles.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
from __future__ import annotations
import dataclasses, json, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import joblib
import hutch
from hutch import sandbox

@dataclasses.dataclass
class Point:
    x: int

FACTOR = 3

def helper(x): return FACTOR * x

@sandbox
def f(x): return helper(x)

@sandbox
def factorial(n): return 1 if n < 2 else n * factorial(n - 1)

@sandbox
def point(x) -> Point: return Point(x)

@sandbox
def yields(x): yield x

def mentions(x): return f(x) + sum(yields(x))

class Model:
    def __init__(self, rate): self.rate = rate

    @sandbox
    def predict(self, x): return self.rate * x

def scope(offset):
    @sandbox
    def nested(x) -> Point: return Point(x + offset)
    return nested

nested = scope(100)
unnamed = sandbox(lambda x: x + 1)
text = hutch.function("def g(x): return x + 2", "g")
program = hutch.Program("print(input())")

def prints(x): return program.run(stdin=str(x)).stdout

FUNCTIONS = [
    f, factorial, f.options(timeout_sec=20), mentions, Model(4).predict, unnamed, text, prints,
    point, nested,
]
PLAIN = [f, factorial, f.options(timeout_sec=20), mentions, Model(4).predict, unnamed, text]

if __name__ == "__main__":
    if sys.argv[1] == "loky":
        tasks = (joblib.delayed(one)(4) for one in FUNCTIONS)
        found = joblib.Parallel(2)(tasks)
        assert all(type(one) is Point for one in found[-2:])
        print(json.dumps(found[:-2] + [one.x for one in found[-2:]]))
    else:
        context = multiprocessing.get_context(sys.argv[1])
        with ProcessPoolExecutor(1, context) as processes:
            futures = [processes.submit(one, 4) for one in PLAIN]
            print(json.dumps([one.result() for one in futures]))
"""


def run(script: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", ["loky", "fork", "spawn", "forkserver"])
def test_functions_of_main_travel_as_plain_ones_do(tmp_path: Path, how: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    expected: list[Any] = [12, 24, 12, 16, 16, 5, 6]
    assert run(script, how) == (expected + ["4\n", 4, 104] if how == "loky" else expected)


def test_calls_from_a_directory_that_was_removed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import json, os, tempfile
os.chdir(tempfile.mkdtemp())
os.rmdir(os.getcwd())
import sys
sys.path.insert(0, "")
import hutch

FACTORS = [3]

@hutch.sandbox
def times(x): return FACTORS[0] * x

@hutch.sandbox(setup=lambda: None)
def fails(): raise ValueError("inside")

found = [times(2), list(times.map([1, 2])), hutch.run("print(5)").stdout]
found.append(str(fails.run().error.type))
with hutch.Session() as s:
    s.files.write("a.txt", "text")
    found += [s.exec("open('a.txt').read()").value, s.bash("cat a.txt").stdout]
print(json.dumps(found))
""")
    assert run(script) == [6, [3, 6], "5\n", "ValueError", "text", "text"]


FORKED_EXECUTOR = """
import os, signal
import hutch

with hutch.Executor(1) as executor:
    assert executor.submit(abs, -1).result() == 1
    slow = executor.submit(eval, "__import__('time').sleep(600)")
    while not slow.running():
        pass
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        print(executor.submit(abs, -2).result(), flush=True)
        executor.shutdown()
        os._exit(0)
    print(os.waitpid(pid, 0)[1], slow.cancel(), executor.submit(abs, -3).result())
"""


def test_an_executor_runs_calls_in_a_forked_child() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED_EXECUTOR], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split("\n") == ["2", "0 True 3", ""], done


FORKED = """
import os, threading, time
import hutch

called = []
slow = hutch.Program("import sys; sys.stdin.read(); import time; time.sleep(600)").submit()
done = hutch.Program("print(1)").submit()
done.result()
slow.add_done_callback(lambda future: called.append(os.getpid()))
waiting = threading.Thread(target=lambda: slow.exception(), daemon=True)
waiting.start()
pid = os.fork()
if pid == 0:
    try:
        slow.result()
    except hutch.SandboxStartupError as error:
        print(error.hint, done.result().stdout, called, flush=True)
        print(hutch.run("print(2)").stdout, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(slow.done(), flush=True)
slow.cancel()
waiting.join()
print(slow.cancelled(), called == [os.getpid()])
"""


def test_a_future_of_the_parent_fails_at_once_in_a_forked_child() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120
    )
    hint = "make the call in the child, or wait for it in the parent"
    assert done.stdout.split("\n") == [f"{hint} 1", " []", "2", "", "False", "True True", ""], done
