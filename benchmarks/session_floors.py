# SPDX-License-Identifier: Apache-2.0
"""Floors of the rows of sessions: what a Python process that waits, a pipe, a signal and the host's
own files take without Hutch.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from hutch.cli.measure import Times

PIPED = "the bytes by a pipe"
SENT = "datagrams of as many bytes"
SIGNAL = "a signal to a process"
COPIED = "copies on the host"

_ITEMS = """
import socket, sys
theirs = socket.socket(fileno=int(sys.argv[1]))
item = bytes(int(sys.argv[3]))
for _ in range(int(sys.argv[2])): theirs.send(item)
"""
_PRINT = """
import os, sys
block = b"x" * (1 << 20)
for _ in range(int(sys.argv[1])): os.write(1, block)
"""
_INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
while True:
    try:
        os.write(1, b"+")
        while True: pass
    except KeyboardInterrupt:
        os.write(1, b"-")
"""


def _python(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program, *map(str, arguments)]


def items(count: int, size: int) -> float:
    """Seconds for so many items of that size, from the first one's arrival."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        command = _python(_ITEMS, theirs.fileno(), count + 1, size)
        with theirs:
            child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        ours.recv(size)
        begun = time.perf_counter()
        for _ in range(count):
            ours.recv(size)
        taken = time.perf_counter() - begun
    child.wait()
    return taken


def piped(size: int) -> float:
    """Seconds until as much text has come, from its first piece on."""
    command = _python(_PRINT, size >> 20)
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None
        got, begun = len(child.stdout.read(1 << 16)), time.perf_counter()
        while text := child.stdout.read(1 << 16).decode():
            got += len(text)
        taken = time.perf_counter() - begun
    assert got >= size >> 20 << 20
    return taken


def interrupted(count: int) -> Times:
    """From a SIGINT until a busy Python says that it has raised KeyboardInterrupt."""
    taken = []
    command = _python(_INTERRUPTED)
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None
        for _ in range(count):
            assert child.stdout.read(1) == b"+"
            time.sleep(0.05)
            begun = time.perf_counter()
            os.kill(child.pid, signal.SIGINT)
            assert child.stdout.read(1) == b"-"
            taken.append(time.perf_counter() - begun)
        child.kill()
    return Times(taken)


def copied(source: Path, target: Path) -> float:
    """Seconds of a copy of a file, or a tree, of which nothing is left."""
    begun = time.perf_counter()
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
    taken = time.perf_counter() - begun
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()
    return taken
