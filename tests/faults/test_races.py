# SPDX-License-Identifier: Apache-2.0
"""Things that happen at the worst moment: cancelled as the answer comes, killed in the middle.

`HUTCH_TEST_MANY` (default 1) multiplies the rounds.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import hutch
from hutch import Pool, _core, sandbox

MANY = int(os.environ.get("HUTCH_TEST_MANY", "1"))


@sandbox(pool=Pool(max_cells=4), labels={"test": "races"})
def echo(number: int, seconds: float) -> int:
    import time

    time.sleep(seconds)
    return number


def test_a_call_cancelled_as_its_answer_comes_has_one_end() -> None:
    """Its own value or a cancellation, never another call's; and no cell is used again."""
    random.seed(14)
    echo(0, 0)
    ends = {"returned": 0, "cancelled": 0}
    for number in range(100 * MANY):
        flight = echo.submit(number, 0.002)
        time.sleep(random.uniform(0, 0.006))
        flight.cancel()
        outcome = flight.outcome()
        ends[outcome.status] += 1
        if outcome.status == "returned":
            assert outcome.value == number
        assert flight.done()
    assert min(ends.values()) > 0, f"the race was never one: {ends}"
    assert [echo(number, 0) for number in range(8)] == list(range(8))


def worker_directories() -> set[str]:
    place = Path(_core.paths()["run_dir"]) / "workers"
    return {entry.name for entry in place.iterdir()} if place.is_dir() else set()


def age(names: set[str]) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.utime(Path(_core.paths()["run_dir"]) / "workers" / name, (0, 0))


def test_an_agent_killed_at_any_moment_leaves_nothing_behind(host: Any) -> None:
    """While pools are made, used and dropped; whatever the next agent does not know is removed."""
    random.seed(6)
    stop = threading.Event()

    def load(name: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            labels = {"test": f"killed {name} {turn % 3}"}
            try:
                assert echo.options(labels=labels, queue_sec=20, max_calls=3)(turn, 0) == turn
            except hutch.SandboxStartupError:
                time.sleep(0.05)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5 * MANY):
            time.sleep(random.uniform(0, 0.7))
            try:
                host.kill(host.agent_pid())
            except IndexError:
                continue  # the last one is dead, the next one not there yet
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a call hangs"
    # What is young may be a worker's that is just being made: to the next agent, none of it is.
    # Until the agent is killed it may write there, so that is said once more afterwards.
    age(worker_directories())
    host.kill(host.agent_pid())
    age(worker_directories())
    assert hutch.run("print(1)").stdout == "1\n"
    deadline = time.monotonic() + 150  # what was left goes at the next look for it
    while True:
        status = hutch.status()
        known = {name for pool in status["pools"] for name in pool["workers"]}
        there = {name for c in host.containers("worker") for name in c["Names"]}
        strangers = {name for name in there - known if "-spare-" not in name}
        spares = {name for name in there if "-spare-" in name}
        left = worker_directories() - there
        agents = len(host.containers("agent"))
        if agents == 1 and not strangers and len(spares) <= 3 and len(left) <= 2:
            return
        assert time.monotonic() < deadline, (agents, strangers, spares, left)
        time.sleep(0.5)


def test_clients_that_start_the_agent_at_once_share_one(host: Any) -> None:
    hutch.agent.stop()
    call = "import hutch; print(hutch.run('print(6 * 7)').stdout, end='')"
    clients = [
        subprocess.Popen([sys.executable, "-c", call], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = [client.communicate(timeout=120)[0] for client in clients]
    assert said == ["42\n"] * 4
    assert len(host.containers("agent")) == 1
