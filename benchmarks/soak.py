# SPDX-License-Identifier: Apache-2.0
"""Many calls, and what is more after them than before: memory of the agent, warden, zygote and
client, descriptors, processes, containers, files. As root, who may look everywhere.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import processes

import hutch
from hutch import _core
from hutch._calls import history
from hutch.cli import measure


def _tree(pid: int) -> list[int]:
    return [pid, *(below for child in processes.children(pid) for below in _tree(child))]


_DEEP = 3  # below are the trees of environments, which no call makes and which take long to walk


def _files(top: str, deep: int = _DEEP) -> int:
    """How many there are in so many levels of folders."""
    found = 0
    with suppress(FileNotFoundError), os.scandir(top) as entries:  # it goes in between
        for one in entries:
            found += 1
            if deep > 1 and one.is_dir(follow_symlinks=False):
                found += _files(one.path, deep - 1)
    return found


def counts() -> dict[str, int]:
    """What there is now of everything that could leak. Memory in KiB, anonymous."""
    agent = int(processes.containers("agent")[0]["Pid"])
    workers = processes.containers("worker")
    paths = _core.paths()
    found = {
        "containers": len(workers) + 1,
        "files in the run directory": _files(paths["run_dir"]),
        "files in the state directory": _files(paths["state_dir"]),
        "client: KiB": processes.memory(os.getpid())["Anonymous"] // 1024,
        "client: descriptors": processes.descriptors(os.getpid()),
        "client: threads": len(os.listdir("/proc/self/task")),
        "agent: KiB": processes.memory(agent)["Anonymous"] // 1024,
        "agent: descriptors": processes.descriptors(agent),
        "agent: threads": len(os.listdir(f"/proc/{agent}/task")),
        "processes of workers": 0,
    }
    for pid in (int(worker["Pid"]) for worker in workers):
        if not processes.is_warden(pid):
            continue
        tree = processes.worker_tree(pid)
        found["processes of workers"] += len(_tree(tree.warden))
        for name, pid in (("wardens", tree.warden), ("zygotes", tree.zygote)):
            told = {
                f"{name}: KiB": processes.memory(pid)["Anonymous"] // 1024,
                f"{name}: descriptors": processes.descriptors(pid),
            }
            for key, value in told.items():
                found[key] = found.get(key, 0) + value
    return found


def counted() -> dict[str, int]:
    """The same, once no worker ends in between, as those of pools that idle do."""
    for _ in range(10):
        try:
            return counts()
        except FileNotFoundError:
            time.sleep(1)
    return counts()


Counts = dict[str, int]


def settled(earlier: Counts | None = None, keep: Callable[[], object] = lambda: None) -> Counts:
    """Once two looks find the same but for memory: the pool is full again, and what ended is
    reaped. Where there were counts `earlier`, not before no more is there than may be, as threads
    and memory that idle go in ten seconds; 30 s at most, as what stays has grown.
    """
    deadline, found = time.monotonic() + 30, Counts()
    while time.monotonic() < deadline:
        keep()  # each time, so that the pool is none that nobody uses
        time.sleep(1)
        before, found = found, counted()
        if _steady(before) == _steady(found) and not (earlier and grown(_both(earlier, found))):
            break
    return found


def _steady(found: Counts) -> Counts:
    return {name: value for name, value in found.items() if "KiB" not in name}


def _both(before: Counts, after: Counts) -> dict[str, tuple[int, int]]:
    return {name: (before.get(name, 0), after.get(name, 0)) for name in sorted({*before, *after})}


def _begin_anew() -> None:
    """Stops the agent: it would take back the cells that are leased for earlier calls once they
    have been idle for a while, which may be in the middle of the counting.
    """
    hutch.agent.stop()


def soak(calls: int, report: bool = False) -> dict[str, tuple[int, int]]:
    """(before, after) of each count. A tenth as many warm up before, in as many parts."""
    _begin_anew()
    # A pool of a fixed size: one that adapts is larger when more was asked of it.
    function = measure.trivial(pool=hutch.Pool(warm=8, max_cells=8), max_calls=10 * calls + 1000)

    def some(count: int) -> None:
        measure.each(function, count // 2)
        sum(function.map(range(count - count // 2)))
        outcome = function.run("no", "such", "arguments")
        assert outcome.status == "raised"

    for _ in range(10):
        some(max(30, calls // 100))
    before = settled(keep=lambda: measure.parked(function))
    begin = time.perf_counter()
    for part in range(10):
        some(calls // 10)
        if report:
            rate = (part + 1) * calls / 10 / (time.perf_counter() - begin)
            print(f"  {(part + 1) * calls // 10} calls, {rate:,.0f}/s", flush=True)
    after = settled(before, lambda: measure.parked(function))
    return _both(before, after)


def soak_sessions(execs: int, sessions: int) -> dict[str, tuple[int, int]]:
    """The same of execs over so many open sessions, one in ten with a tool and a value that is
    shown, and some restarts.
    """
    _begin_anew()
    pool = hutch.Pool(warm=8, max_cells=sessions + 8)  # of a fixed size, as above
    with _short_histories():
        opened = [hutch.Session(memory_mb=128, tools=[_double], pool=pool) for _ in range(sessions)]

    def some(count: int) -> None:
        for number in range(count):
            session = opened[number % sessions]
            if (number // sessions + number) % 100 == 0:
                session.reset()
            elif (number // sessions + number) % 10 == 0:
                assert session.exec("display({'text/plain': 'x'}, raw=True); _double(4)").value == 8
            else:
                assert session.exec(f"x = {number}; x").value == number

    try:
        some(max(10 * sessions, execs // 10))
        before = settled()
        some(execs)
        after = settled(before)
    finally:
        for session in opened:
            session.close()
    return _both(before, after)


@contextmanager
def _short_histories() -> Iterator[None]:
    """Sessions that are made meanwhile keep few entries, so that they have all before the first
    look and grow no more.
    """
    most = history.MOST_KEPT
    history.MOST_KEPT = 5
    try:
        yield
    finally:
        history.MOST_KEPT = most


def soak_named(sessions: int) -> dict[str, tuple[int, int]]:
    """The same of so many named sessions, each opened, saved, closed, found again and deleted.
    "files in the storage" are those that are left of these.
    """
    _begin_anew()
    with tempfile.TemporaryDirectory() as top, hutch.Session(memory_mb=128) as another:
        place = os.path.join(top, "kept")
        another.exec("1")  # it keeps their pool, which would end where nobody uses it

        def some(count: int, earlier: Counts | None = None) -> Counts:
            for number in range(count):
                name = f"s{number}"
                with hutch.Session(id=name, storage=place, memory_mb=128) as session:
                    session.exec(f"x = {number}; open('a', 'w').write('1')").unwrap()
                    session.kv.set("n", str(number))
                    assert session.bash("cat a").stdout == "1"
                if number % 10 == 0:
                    with hutch.Session(id=name, storage=place, memory_mb=128) as session:
                        assert session["x"] == number and session.kv.get("n") == str(number)
                hutch.sessions.delete(name, place)
            return {**settled(earlier), "files in the storage": _files(place)}

        before = some(max(30, sessions // 10))
        after = some(sessions, before)
    return _both(before, after)


def soak_commands(calls: int) -> dict[str, tuple[int, int]]:
    """The same of so many calls, half of bash and half of Node, in two sessions; with what their
    own processes have.
    """
    _begin_anew()
    opened = [hutch.Session(memory_mb=512) for _ in range(2)]

    def some(count: int, earlier: Counts | None = None) -> Counts:
        for number in range(count):
            session = opened[number // 2 % 2]
            if number % 2 == 0:
                assert session.bash(f"echo {number} | cat").stdout == f"{number}\n"
            else:
                assert session.node(f"n = {number}; n + 1").value == number + 1
        found = settled(earlier)
        for session in opened:
            for name, value in session.exec(_INSIDE).unwrap().items():
                found[name] = found.get(name, 0) + value
        return found

    try:
        before = some(max(100, calls // 10))
        after = some(calls, before)
    finally:
        for session in opened:
            session.close()
    return _both(before, after)


# Of a session's user process, and of all in its cell.
_INSIDE = """
import os
def _kib(pid):
    with open(f"/proc/{pid}/status") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("RssAnon:"))
_pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
{
    "sessions: KiB": sum(map(_kib, _pids)),
    "sessions: descriptors": len(os.listdir("/proc/self/fd")),
    "sessions: processes": len(_pids),
    "sessions: files": sum(len(names) for _, _, names in os.walk("/tmp")),
}
"""


def _double(number: int) -> int:
    """Twice as much."""
    return 2 * number


# What may be more after any number of calls: threads that idle for ten seconds, KiB by which
# allocators vary, and a cell or two on their way.
ALLOWED = {
    "client: KiB": 2048,
    "agent: KiB": 1024,
    "wardens: KiB": 64,
    "zygotes: KiB": 256,
    "sessions: KiB": 16384,  # V8 collects when it has to
    "client: threads": 8,
    "processes of workers": 4,
    "agent: descriptors": 8,
    "agent: threads": 4,  # one for each request to Podman that is under way
    "wardens: descriptors": 8,
    "files in the state directory": 8,  # parts of the audit log
}


def grown(found: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Those that are more by more than may be."""
    return {
        name: (before, after)
        for name, (before, after) in found.items()
        if after - before > ALLOWED.get(name, 0)
    }


def main(calls: int) -> int:
    if os.geteuid() != 0 or not Path("/proc/1/smaps_rollup").exists():
        print("soak: seeing into the agent and its workers takes root", file=sys.stderr)
        return 1
    whole = 0
    for title, found in (
        (f"{calls:,} calls", soak(calls, report=True)),
        (f"{2 * calls:,} execs over 50 sessions", soak_sessions(2 * calls, 50)),
        (f"{calls // 10:,} named sessions", soak_named(calls // 10)),
        (f"{calls:,} calls of bash and Node", soak_commands(calls)),
    ):
        print(title)
        whole |= _show(found)
    return whole


def _show(found: dict[str, tuple[int, int]]) -> int:
    more = grown(found)
    for name, (before, after) in found.items():
        mark = "  GROWN" if name in more else ""
        print(f"{name:30} {before:>10,} {after:>10,} {after - before:>+8,}{mark}")
    return 1 if more else 0
