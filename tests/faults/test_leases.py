# SPDX-License-Identifier: Apache-2.0
"""Leases and places in the queue when clients die, crowd, or descriptors run out."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import until

import hutch
from hutch import Pool, _core, sandbox


def python(source: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def pool_of(label: str) -> dict[str, Any]:
    found = [p for p in hutch.status()["pools"] if p["labels"] == {"test": label}]
    return found[0] if found else {"waiting": 0, "leased": 0, "workers": [], "ready": 0}


# A process with many calls at once on a pool of few cells; `label` is the pool's, of one test.
CROWD = """
    import sys, threading, time
    from hutch import Pool, sandbox

    @sandbox(pool=Pool(max_cells=2), labels={{"test": {label!r}}})
    def nap(seconds):
        import time
        time.sleep(seconds)

    nap(0)
    threads = [threading.Thread(target=nap, args=({seconds},)) for _ in range({calls})]
    for thread in threads:
        thread.start()
    print("begun", flush=True)
    for thread in threads:
        thread.join()
    print("all done", flush=True)
"""


@pytest.fixture
def label() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def few(label: str) -> Any:
    """A function on the pool of CROWD, which says that it has begun."""

    def nap(seconds: float) -> None:
        import time

        print("begun", flush=True)
        time.sleep(seconds)

    return sandbox(nap, pool=Pool(max_cells=2), labels={"test": label}, timeout_sec=100)


def occupied(few: Any) -> list[Any]:
    """Calls that run in all cells of its pool until they are cancelled."""
    begun = threading.Semaphore(0)
    running = [few.options(on_stdout=lambda _: begun.release()).submit(90) for _ in range(2)]
    for _ in running:
        assert begun.acquire(timeout=60), "it has no cell"
    return running


# ---- clients ----


def test_one_call_is_not_kept_waiting_by_another_processs_hundred(label: str, few: Any) -> None:
    few(0)
    crowd = python(CROWD.format(label=label, calls=100, seconds=0.15))
    try:
        assert said(crowd) == "begun\n"
        until(lambda: pool_of(label)["waiting"] > 80, "nobody waits")
        few(0)
        assert pool_of(label)["waiting"] > 50, "its turn came after most of the others'"
        assert said(crowd) == "all done\n", "and all of theirs came"
    finally:
        crowd.kill()
        crowd.communicate()


def test_killed_client_gives_up_its_places_and_its_cells(label: str, few: Any) -> None:
    few(0)
    crowd = python(CROWD.format(label=label, calls=100, seconds=60))
    assert said(crowd) == "begun\n"
    until(lambda: pool_of(label)["waiting"] > 90, "nobody waits")
    crowd.kill()
    crowd.communicate()
    few(0)
    assert pool_of(label)["waiting"] == 0


def test_a_client_that_stops_keeps_no_cell_that_it_does_not_use(label: str, few: Any) -> None:
    running = occupied(few)
    crowd = python(CROWD.format(label=label, calls=2, seconds=0))
    until(lambda: pool_of(label)["waiting"] == 1, "it does not wait for its first call")
    crowd.send_signal(signal.SIGSTOP)
    try:
        for future in running:
            future.cancel()
        lasting = few.options(timeout_sec=120).submit(100)  # and the other cell is the client's now
        few.options(queue_sec=15)(0)
        assert not lasting.done()
        lasting.cancel()
    finally:
        crowd.send_signal(signal.SIGCONT)
    assert crowd.communicate(timeout=30)[0] == "begun\nall done\n", "its own call goes on"


def test_forked_child_does_not_keep_its_dead_parents_cells(label: str, few: Any) -> None:
    parent = python(
        f"""
        import os, time
        from hutch import Pool, sandbox

        @sandbox(pool=Pool(max_cells=2), labels={{"test": {label!r}}}, timeout_sec=None)
        def nap(seconds):
            import time
            time.sleep(seconds)

        nap(0)
        running = [nap.submit(600) for _ in range(2)]
        time.sleep(0.5)
        child = os.fork()
        if child == 0:
            time.sleep(600)
        print(child, flush=True)
        time.sleep(600)
        """
    )
    child = int(said(parent))
    try:
        parent.kill()
        parent.wait()
        few.options(queue_sec=10)(0)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_full_cells_are_a_clear_refusal_with_the_numbers(few: Any) -> None:
    running = occupied(few)
    with pytest.raises(hutch.SandboxBusy) as caught:
        few.options(queue_sec=0.2)(0)
    error = caught.value
    assert (error.queued, error.capacity, error.may_have_run) == (0, 2, False)
    assert error.waited_sec is not None and error.waited_sec >= 0.2
    assert error.hint
    for future in running:
        future.cancel()


def test_a_call_is_refused_for_want_of_its_own_patience_alone(few: Any) -> None:
    patient, hasty = few.options(queue_sec=60), few.options(queue_sec=0.3)
    few(0)
    patient(0)
    hasty(0)  # so that its pool is known, and it waits in one line with the others
    running = occupied(few)
    waiting = [patient.submit(0)]
    early = hasty.submit(0)
    waiting += [patient.submit(0) for _ in range(70)]  # more than the agent is asked for at once
    late = hasty.submit(0)
    for refused in (early, late):
        with pytest.raises(hutch.SandboxBusy) as caught:
            refused.result()
        error = caught.value
        assert error.queued is not None and error.queued >= 1 and error.capacity == 2
        assert error.waited_sec is not None and error.waited_sec > 0.25
        assert not error.may_have_run
    assert not any(future.done() for future in running), "it waited for longer than it wanted"
    for future in running:
        future.cancel()
    for future in waiting:
        future.result()


def test_a_key_used_twice_at_once_runs_once(label: str) -> None:
    @sandbox(labels={"test": label})
    def slow_dice() -> str:
        import time
        import uuid

        time.sleep(0.3)
        return str(uuid.uuid4())

    slow_dice()
    before = pool_of(label)["calls"]
    keyed = slow_dice.options(key=label)
    together = threading.Barrier(8)

    def run(_: int) -> Any:
        together.wait()
        return keyed.run()

    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(run, range(8)))
    assert all(outcome is outcomes[0] for outcome in outcomes) and outcomes[0].ok
    # Leased cells are counted, and those leased ahead of calls among them: at most three here.
    assert pool_of(label)["calls"] - before <= 3


def test_a_key_is_one_functions() -> None:
    @sandbox
    def one(n: int) -> int:
        return n

    @sandbox
    def other() -> str:
        return "other"

    key = uuid.uuid4().hex
    assert one.options(key=key)(1) == 1
    assert one.options(key=key)(2) == 1, "whatever its arguments: the key names the first call"
    with pytest.raises(ValueError, match="names a call of one"):
        other.options(key=key)()
    with pytest.raises(ValueError, match="names a call of one"):
        hutch.run("print()", key=key)
    assert other.options(key=uuid.uuid4().hex)() == "other"


def test_who_waits_for_a_keys_call_can_be_cancelled_alone(label: str) -> None:
    @sandbox(key=label)
    def slow() -> int:
        import time

        time.sleep(3)
        return 5

    first = slow.submit()
    time.sleep(0.3)
    second = slow.submit()
    time.sleep(0.2)
    second.cancel()
    assert second.outcome().status == "cancelled" and not first.done()
    assert first.result() == 5


def test_a_forked_child_waits_for_no_keys_call_of_its_parents(label: str) -> None:
    child = python(
        f"""
        import os, time
        from hutch import sandbox

        @sandbox(key={label!r})
        def slow(seconds):
            import time
            time.sleep(seconds)
            return seconds

        first = slow.submit(2)
        time.sleep(0.5)
        if os.fork() == 0:
            print(slow(0), flush=True)
            os._exit(0)
        os.wait()
        print(first.result(), flush=True)
        """
    )
    assert child.communicate(timeout=30)[0] == "0\n2\n"


def test_cells_leased_ahead_of_calls_that_do_not_come_are_taken_back(label: str, few: Any) -> None:
    few(0)
    until(lambda: pool_of(label)["leased"] == 2, "none is leased ahead of the next call")
    other = python(CROWD.format(label=label, calls=2, seconds=0))
    assert other.communicate(timeout=30)[0] == "begun\nall done\n"
    few(0)


def test_a_thousand_calls_at_once_are_all_answered(label: str) -> None:
    @sandbox(labels={"test": label})
    def double(n: int) -> int:
        return 2 * n

    async def thousand() -> list[int]:
        return await asyncio.gather(*(double.aio(n) for n in range(1000)))

    assert asyncio.run(thousand()) == [2 * n for n in range(1000)]
    with ThreadPoolExecutor(64) as threads:
        assert list(threads.map(double, range(256))) == [2 * n for n in range(256)]


# ---- cells ----


def test_zygote_killed_while_eight_cells_are_parked_fails_no_call(host: Any, label: str) -> None:
    @sandbox(labels={"test": label}, pool=Pool(max_cells=16))
    def square(n: int) -> int:
        return n * n

    assert square.warm(8) >= 8
    before = pool_of(label)["workers"]
    [container] = [c for c in host.containers("worker") if before[0] in c["Names"]]
    # The zygote is the oldest child of the warden; slots have its name too.
    host.kill(host.children(container["Pid"], "zygote.py")[0])
    until(lambda: pool_of(label)["workers"] != before, "the dead worker is kept")
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(square, range(8))) == [n * n for n in range(8)]
    assert square.warm(8) >= 8


# ---- descriptors ----


class Limit:
    """The running agent's limit of open files, for as long as a test wants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        limits = Path(f"/proc/{pid}/limits").read_text()
        soft, hard = re.search(r"Max open files +(\d+) +(\d+)", limits).groups()  # type: ignore[union-attr]
        self.before = (int(soft), int(hard))

    def open(self) -> set[int]:
        return {int(entry.name) for entry in Path(f"/proc/{self.pid}/fd").iterdir()}

    def lower(self, limit: int) -> None:
        # As its own user: root of another user namespace may not everywhere.
        subprocess.run(
            ["prlimit", "--pid", str(self.pid), f"--nofile={limit}:{self.before[1]}"],
            user=_core.paths()["uid"],
            group=_core.paths()["gid"],
            check=True,
        )

    def restore(self) -> None:
        self.lower(self.before[0])

    def cpu_sec(self) -> float:
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def limit(host: Any) -> Iterator[Limit]:
    hutch.run("pass")
    made = Limit(host.agent_pid())
    yield made
    made.restore()


def connection() -> socket.socket:
    """One that the agent takes for a client's, which says nothing."""
    paths = _core.paths()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.seteuid(paths["uid"])
    try:
        made.connect(paths["agent_socket"])
    finally:
        os.seteuid(0)
    return made


ONE_CALL = """
    import hutch
    try:
        print(hutch.run("print('fine')").stdout, end="", flush=True)
    except hutch.SandboxBusy as error:
        print("busy", error.queued, error.capacity, error.may_have_run, error, flush=True)
"""


def test_agent_has_as_many_descriptors_as_it_may(limit: Limit) -> None:
    assert limit.before[0] == limit.before[1]


def test_new_client_is_refused_while_descriptors_are_short_and_the_old_ones_work(
    limit: Limit,
) -> None:
    used = limit.open()
    low = (max(used) + 1) * 3 // 2
    limit.lower(low)
    for_clients = low - low // 4  # a quarter is kept for cells
    crowd = [connection() for _ in range(for_clients - len(used) + 8)]
    try:
        for _ in range(8):  # the agent may have given back some of its own since
            text = python(ONE_CALL).communicate(timeout=30)[0]
            if text.startswith("busy"):
                break
            crowd += [connection() for _ in range(8)]
        assert text.startswith("busy") and "False" in text and "descriptors" in text, text
        for _ in range(20):
            assert hutch.run("print('fine')").stdout == "fine\n"
    finally:
        for each in crowd:
            each.close()
    until(
        lambda: python(ONE_CALL).communicate(timeout=30)[0] == "fine\n", "clients are still refused"
    )


def test_agent_without_any_descriptor_does_not_spin_and_comes_back(limit: Limit) -> None:
    limit.lower(3)
    client = python(ONE_CALL)
    time.sleep(1.5)  # it has imported, connected, and waits
    used, begin = limit.cpu_sec(), time.monotonic()
    time.sleep(1)
    assert limit.cpu_sec() - used < 0.5 * (time.monotonic() - begin), "of a spin it is nearly all"
    limit.restore()
    assert client.communicate(timeout=30)[0] == "fine\n"


def test_cells_that_cannot_be_made_are_refused_and_made_when_they_can(
    limit: Limit, label: str
) -> None:
    @sandbox(labels={"test": label}, pool=Pool(warm=2, max_cells=4), queue_sec=5)
    def triple(n: int) -> int:
        return 3 * n

    assert triple(1) == 3
    before = pool_of(label)["workers"]
    limit.lower(3)
    with pytest.raises(hutch.SandboxBusy) as caught:
        for n in range(40):  # what is parked still serves
            assert triple(n) == 3 * n
    assert "descriptors" in str(caught.value)
    assert caught.value.capacity == 4 and caught.value.waited_sec is not None
    limit.restore()
    assert triple(2) == 6
    until(lambda: pool_of(label)["ready"] >= 1, "no cell is made again")
    assert pool_of(label)["workers"] == before, "nothing that worked was given up"
