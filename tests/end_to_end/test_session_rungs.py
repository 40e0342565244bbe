# SPDX-License-Identifier: Apache-2.0
"""Sessions with a container of their own. Where the container is the cell, as under gVisor, a user
process cannot be replaced: its end is the session's.
"""

from __future__ import annotations

import shutil
import time
from typing import Any

import pytest

import hutch
from hutch import Session


def shout(text: str) -> str:
    return text.upper()


def test_names_files_tools_and_output_last(container_rung: Any) -> None:
    with Session(isolation=container_rung, tools=[shout], files={"a.txt": "hello"}) as s:
        assert s.exec("x = 1; print('printed')").stdout == "printed\n"
        assert s.exec("x += 1\nshout(open('a.txt').read())").value == "HELLO"
        assert s["x"] == 2 and s.names() == ["x"]
        s.files.write("b/c.txt", "y")
        assert s.exec("open('b/c.txt').read()").value == "y"
        assert s.exec("import subprocess; subprocess.run(['echo', 'x'], text=True, "
                      "capture_output=True).stdout").value == "x\n"  # fmt: skip
        assert s.exec("1 / 0").error.type == "ZeroDivisionError"  # type: ignore[union-attr]
        assert s["x"] == 2


def test_a_time_limit_that_is_heard_costs_nothing(container_rung: Any) -> None:
    with Session(isolation=container_rung) as s:
        s.exec("x = 1")
        assert s.exec("while True: pass", timeout_sec=0.5).limit == "time"
        assert s["x"] == 1


def test_many_interrupts_end_no_worker(container_rung: Any) -> None:
    import threading

    over = threading.Event()
    with Session(isolation=container_rung) as s:
        s.exec("n = 0")

        def interrupt() -> None:
            while not over.is_set():
                s.interrupt()
                time.sleep(0.0001)

        thread = threading.Thread(target=interrupt)
        thread.start()
        for _ in range(200):
            assert s.exec("for i in range(100): n += 1").status in ("returned", "raised")
        over.set()
        thread.join()
        assert s.exec("1 + 1").value == 2


def test_in_a_container_a_dead_process_is_replaced() -> None:
    with Session(isolation="container", files={"a.txt": "hello"}) as s:
        assert s.info()["restartable"] is None  # not known before it is started
        s.exec("x = 1")
        assert s.info()["restartable"] is True
        outcome = s.exec("import os; os._exit(3)")
        assert outcome.restarted and s.lost == ["x"]
        assert s.files.read("a.txt") == "hello"


@pytest.mark.skipif(shutil.which("runsc") is None, reason="runsc is not installed")
def test_where_the_container_is_the_cell_its_end_is_the_sessions() -> None:
    with Session(isolation="gvisor") as s:
        s.exec("x = 1")
        assert s.info()["restartable"] is False
        assert s.exec("import os; os._exit(3)").exit_code == 3
        with pytest.raises(hutch.SandboxError, match="the session has ended"):
            s.exec("1")
        assert s.info()["closed"]
    with Session(isolation="gvisor", files={"a.txt": "hello"}) as s:
        s.exec("x = 1; open('b', 'w').close()")
        with pytest.raises(hutch.SandboxError, match=r"reset\(files=True\)"):
            s.reset()
        assert s.exec("x").value == 1
        s.reset(files=True)
        assert s.names() == [] and s.files.list() == ["a.txt"]


BETWEEN = """
import os, threading, time
def work():
    time.sleep(0.3)
    {0}
threading.Thread(target=work).start()
"""


@pytest.mark.skipif(shutil.which("runsc") is None, reason="runsc is not installed")
@pytest.mark.parametrize(
    ("work", "end"),
    [
        ("os._exit(3)", ("died", None, 3)),
        ("os.kill(os.getpid(), 9)", ("died", 9, None)),
        ("x = b'x' * (1 << 31)", ("limit", None, None)),
    ],
)
def test_what_its_code_did_between_two_calls_is_no_fault(work: str, end: tuple[Any, ...]) -> None:
    with Session(isolation="gvisor", memory_mb=128) as s:
        assert s.exec(BETWEEN.format(work)).ok
        while (outcome := s.exec("1")).ok:
            time.sleep(0.2)
        assert (outcome.status, outcome.signal, outcome.exit_code) == end
        assert outcome.limit == ("memory" if end[0] == "limit" else None)
        with pytest.raises(hutch.SandboxError, match="the session has ended"):
            s.exec("1")
