# SPDX-License-Identifier: Apache-2.0
"""The floor of a fresh process for each call: forks made ahead, without one wall.

An echo says what a call costs in a process that is there already. This says what a process of its
own costs, made as Hutch makes it: ahead, rehearsed, used once, and replaced behind the caller's
back. What a row takes beside that is Hutch's; what this takes, this machine's.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from hutch._connect import launcher

MOST = 4096  # bytes of a message
Lease = tuple[int, bytes]  # a child's socket, and its process id

PARKED = "parked fork, no walls"
DOUBLE = "def called(x):\n    return 2 * x\n"
CHUNK = "def called(items):\n    return [2 * x for x in items]\n"
PROGRAM = """
import io
def called(text):
    sys.stdout = io.StringIO()
    try:
        exec(compile(text, "<program>", "exec"), {"__name__": "__main__"})
        return sys.stdout.getvalue()
    finally:
        sys.stdout = sys.__stdout__
"""

_ZYGOTE = """
import array, gc, importlib.util, json, os, pickle, socket, sys, time
names, paths, pages, source, dummy, ahead, times, most, number = json.loads(sys.argv[1])
control = socket.socket(fileno=number)
spec = importlib.util.spec_from_file_location("_hutch_cell", pages)
cell = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cell)
cell.use_big_arenas()
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.register_at_fork = lambda **hooks: None  # they renew locks, which costs half as much as a fork
sys.path += paths
missing = 0
for name in names:
    try:
        __import__(name)
    except BaseException:
        missing += 1
exec(source)
request = pickle.dumps(dummy)
def serve(mine):
    mine.send(pickle.dumps(called(pickle.loads(mine.recv(most)))))
def rehearsed(times):
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for _ in range(times):
        theirs.send(request)
        serve(mine)
        theirs.recv(most)
    return mine, theirs
def be_child():
    mine, theirs = rehearsed(times)  # so that a call finds the pages that it changes copied already
    socket.send_fds(control, [b"%d" % os.getpid()], [theirs.fileno()])
    control.close()
    theirs.close()
    serve(mine)
    time.sleep(600)  # who ends here competes with the caller whom the answer has just woken
parked = set()
def park():
    pid = os.fork()
    if pid == 0:
        try:
            be_child()
        finally:
            os._exit(0)
    parked.add(pid)
pid = os.fork()  # which ends the threads of OpenBLAS and its like
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
rehearsed(8)  # as often as code has to run until the interpreter has specialized it
gc.collect()
gc.freeze()
cell.settle_pages()
control.send(b"%d" % missing)
try:
    for _ in range(ahead):
        park()
    while used := control.recv(most):
        os.kill(int(used), 9)
        park()
        while pid := os.waitpid(-1, os.WNOHANG)[0]:  # not waited for: it ends on another core
            parked.remove(pid)
finally:
    for pid in parked:
        os.kill(pid, 9)
    while parked:
        parked.remove(os.waitpid(-1, 0)[0])
"""
_PAGES = f"{launcher.RUNTIME}/worker/_hutch_cell.abi3.so"


class Parked:
    """Floor of a call in a process of its own: a fork made ahead, without one wall.

    A zygote with these modules imported, its memory in big pages as Hutch's, keeps `ahead` children
    that have walked a call on a dummy and wait, each on a socket that is handed out here ahead of
    the call. A call is pickled, served, and unpickled; then the zygote is told, and not waited for,
    to kill that child and to park another one. `function` is the text that defines `called`;
    `dummy` its argument. A context manager. For one thread, beside its own that takes what is
    handed out.
    """

    def __init__(
        self,
        modules: Sequence[str] = (),
        paths: Sequence[str] = (),
        ahead: int = 14,  # what a pool keeps at 200 calls a second
        function: str = DOUBLE,
        dummy: Any = 1,
        rehearsals: int = 2,
    ) -> None:
        self._ahead = ahead
        self._leases: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()
        self._used: list[int] = []
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            given = [list(modules), list(paths), _PAGES, function, dummy, ahead, rehearsals, MOST]
            told = json.dumps([*given, theirs.fileno()])
            command = [sys.executable, "-I", "-S", "-c", _ZYGOTE, told]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self.zygote = self._process.pid
        self.missing = int(self._control.recv(MOST) or -1)
        self._taker = threading.Thread(target=self._take)
        self._taker.start()
        self.parked()

    def _take(self) -> None:
        try:
            while True:
                pid, ancillary, _, _ = self._control.recvmsg(MOST, socket.CMSG_SPACE(4))
                while self._used:  # here, since closing is no part of a call
                    os.close(self._used.pop())
                if not pid:
                    break
                self._leases.put((int.from_bytes(ancillary[0][2], sys.byteorder), pid))
        finally:
            self._leases.put(None)

    def parked(self) -> int:
        """How many children wait, once all do."""
        while self._leases.qsize() < self._ahead and self._taker.is_alive():
            time.sleep(0.001)
        return self._ahead

    def lease(self) -> Lease:
        found = self._leases.get()
        if found is None:
            raise RuntimeError(f"the floor's zygote ended with {self._process.wait()}")
        return found

    def __call__(self, argument: Any) -> Any:
        connection, pid = self.lease()
        os.write(connection, pickle.dumps(argument))
        answer = pickle.loads(os.read(connection, MOST))
        self._control.send(pid)
        self._used.append(connection)
        return answer

    def __enter__(self) -> Parked:
        return self

    def __exit__(self, *_: object) -> None:
        # Not closed, which with leases in it would be an error over there.
        self._control.shutdown(socket.SHUT_WR)
        self._process.wait()
        self._taker.join()
        self._control.close()
        while (lease := self._leases.get()) is not None:
            os.close(lease[0])
