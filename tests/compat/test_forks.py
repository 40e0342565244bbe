# SPDX-License-Identifier: Apache-2.0
"""A process that a program forks is a process of its own: the reply is its parent's."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

import hutch
from hutch import sandbox

RUNGS = ["cell", "shared", "container", "gvisor"]

FALLS_OFF = """
import os
pid = os.fork()
if pid == 0:
    print("child", flush=True)
else:
    _, status = os.waitpid(pid, 0)
    print("parent", os.waitstatus_to_exitcode(status))
"""
RAISES = """
import os
pid = os.fork()
if pid == 0:
    raise ValueError("in child")
_, status = os.waitpid(pid, 0)
print("parent", os.waitstatus_to_exitcode(status))
"""
EXITS = """
import atexit, os, sys
pid = os.fork()
if pid == 0:
    atexit.register(print, "at exit", flush=True)
    sys.exit(3)
_, status = os.waitpid(pid, 0)
print("parent", os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("isolation", RUNGS)
@pytest.mark.parametrize(
    ("text", "printed"),
    [(FALLS_OFF, "child\nparent 0\n"), (RAISES, "parent 1\n"), (EXITS, "at exit\nparent 3\n")],
    ids=["falls off", "raises", "exits"],
)
def test_the_parent_of_a_forked_process_ends_the_program(
    isolation: Any, text: str, printed: str
) -> None:
    times = 1 if isolation == "gvisor" else 2
    for options in ({}, {"args": ["given"]}):  # loaded ahead, and not
        for _ in range(times):
            outcome = hutch.run(text, isolation=isolation, **options)
            assert outcome.ok, outcome
            assert outcome.stdout == printed
            assert ("ValueError: in child" in outcome.stderr) == (text is RAISES)


@pytest.mark.parametrize("isolation", ["cell", "shared"])
def test_the_parent_of_a_forked_process_returns(isolation: Any) -> None:
    @sandbox(isolation=isolation)
    def forks(x: int) -> str:
        import os
        import time

        if os.fork() == 0:
            if x % 2:
                raise ValueError(x)
            return "child"
        time.sleep(0.1)
        return f"parent {x}"

    assert [forks(x) for x in range(4)] == [f"parent {x}" for x in range(4)]
    assert list(forks.map(range(6), chunksize=3)) == [f"parent {x}" for x in range(6)]


@pytest.mark.parametrize("isolation", ["cell", "container", "gvisor"])
def test_children_started_anew_find_the_program(isolation: Any) -> None:
    """Also where a package imports multiprocessing ahead of the program."""
    text = """
        import joblib, multiprocessing

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            for method in ("spawn", "forkserver"):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(pool.map(double, [1, 2, 3]), flush=True)
    """
    outcome = hutch.run(textwrap.dedent(text), dependencies=["joblib"], isolation=isolation)
    assert outcome.stdout == "[2, 4, 6]\n[2, 4, 6]\n", outcome
