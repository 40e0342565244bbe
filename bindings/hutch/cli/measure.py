# SPDX-License-Identifier: Apache-2.0
"""What `hutch bench` and benchmarks/ measure with: timed actions, and the floors beside them.

A floor is what this machine asks for less than a call: an echo over a Unix socket, or a bare fork
of a process that has imported the same modules. Each runs in an interpreter of its own (`-I -S`, as
the zygote), so that the caller's threads and size do not count, and is measured in turns with what
it is compared to, so that a noisy moment meets both. Times are seconds. One measurement at a time.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

Action = Callable[[int], object]  # given the number of the turn


class Times:
    """Seconds of each of many turns, and of all of them together where that was measured."""

    def __init__(self, taken: Sequence[float] = (), whole: float = 0.0) -> None:
        self.taken = list(taken)
        self.whole = whole

    def add(self, more: Times) -> None:
        self.taken += more.taken
        self.whole += more.whole

    @property
    def p50(self) -> float:
        return statistics.median(self.taken)

    @property
    def p99(self) -> float:
        if len(self.taken) < 2:
            return self.p50
        return statistics.quantiles(self.taken, n=100, method="inclusive")[98]

    @property
    def rate(self) -> float:
        """Turns a second."""
        return len(self.taken) / (self.whole or sum(self.taken))


def each(action: Action, count: int, every: float = 0.0, offset: float = 0.0) -> Times:
    """`every`: seconds from the start of one turn to that of the next; 0: no pause."""
    clock = time.perf_counter
    taken = []
    start = clock() + offset
    for n in range(count):
        if every and (wait := start + n * every - clock()) > 0:
            time.sleep(wait)
        begin = clock()
        action(n)
        taken.append(clock() - begin)
    return Times(taken, clock() - start)


def in_turns(rounds: int, *measures: Callable[[], Times]) -> list[Times]:
    """Each measure `rounds` times, one after another."""
    found = [Times() for _ in measures]
    for _ in range(rounds):
        for sum_, measure in zip(found, measures):
            sum_.add(measure())
    return found


def by_threads(action: Action, callers: int, seconds: float) -> Times:
    """As often as `callers` threads can in that time, each once at least; the wall time of the
    whole is theirs.
    """
    parts: list[list[float]] = [[] for _ in range(callers)]
    failed: list[BaseException] = []
    clock = time.perf_counter
    start = clock()

    def work(part: list[float]) -> None:
        try:
            while not part or clock() - start < seconds:
                begin = clock()
                action(len(part))
                part.append(clock() - begin)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return Times([taken for part in parts for taken in part], clock() - start)


_ECHO = """
import socket, sys
peer = socket.socket(fileno=int(sys.argv[1]))
while text := peer.recv(4096):
    peer.send(text)
"""


class Echo:
    """Floor of a call: as many bytes to a waiting Python and back. A context manager."""

    def __init__(self, size: int = 200) -> None:
        self._text = b"x" * size
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-I", "-S", "-c", _ECHO, str(number)]
            self._process = subprocess.Popen(command, pass_fds=[number])
        each(self, 10)

    def __call__(self, turn: int = 0) -> None:
        self._socket.send(self._text)
        self._socket.recv(4096)

    def __enter__(self) -> Echo:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()


_FORKS = """
import gc, json, os, sys, time
names, paths = json.loads(sys.argv[1])
sys.path += paths
missing = 0
for name in names:
    try:
        __import__(name)
    except BaseException:
        missing += 1
def once():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
once()  # which ends the threads of OpenBLAS and its like
gc.collect()
gc.freeze()
clock = time.perf_counter
print(json.dumps({"missing": missing}), flush=True)
for line in sys.stdin:
    seconds = float(line)
    taken = []
    start = now = clock()
    while now - start < seconds:
        once()
        then, now = now, clock()
        taken.append(now - then)
    print(json.dumps([taken, now - start]), flush=True)
"""


class Forks:
    """Floor of a fresh process: os.fork + os._exit + wait in `processes` interpreters at once, each
    with these modules imported. A context manager.
    """

    def __init__(
        self, processes: int = 1, modules: Sequence[str] = (), paths: Sequence[str] = ()
    ) -> None:
        given = json.dumps([list(modules), list(paths)])
        command = [sys.executable, "-I", "-S", "-c", _FORKS, given]
        self._children = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(processes)
        ]
        self.missing = max(int(self._answer(child)["missing"]) for child in self._children)

    def _answer(self, child: subprocess.Popen[bytes]) -> Any:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise RuntimeError(f"the floor's process ended with {child.wait()}")
        return json.loads(line)

    def __call__(self, seconds: float) -> Times:
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(f"{seconds}\n".encode())
            child.stdin.flush()
        found = [self._answer(child) for child in self._children]
        return Times([t for taken, _ in found for t in taken], max(whole for _, whole in found))

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.communicate()


_MODULES = "def modules():\n    import sys\n    return sorted(sys.modules)\n"


def trivial(dependencies: Sequence[str] = (), **keywords: Any) -> Any:
    """The sandboxed function that is measured: it does nothing, where these are imported."""
    from hutch._sandbox import sandbox

    def double(x: int) -> int:
        return 2 * x

    return sandbox(double, dependencies=list(dependencies), **keywords)


def zygote_modules(dependencies: Sequence[str]) -> tuple[list[str], list[str]]:
    """What a zygote has imported then, as a cell reports, and where its packages lie on this host:
    the arguments of `Forks`.
    """
    from hutch import _core
    from hutch._connect import connection, launcher
    from hutch._program import function

    list_modules = function(_MODULES, "modules", dependencies=list(dependencies))
    names = [name for name in list_modules() if not name.startswith(("_hutch", "__main__"))]
    digest = connection.ensure_current().pool(list_modules._resolved().request).digest
    state = _core.paths()["state_dir"]
    # Not this interpreter's own packages: pandas imports more where there is more.
    return names, [
        f"{state}/environments/{digest}/tree",
        f"{state}/runtime/{launcher.runtime_id()}",
    ]


def parked(function: Any) -> int:
    """How many cells are ready, once the pool has made what it keeps ready."""
    time.sleep(0.3)
    return int(function.warm())


def cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))
