# SPDX-License-Identifier: Apache-2.0
"""Floors of a value's way: its bytes between this process and one that waits, and nothing else."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import time

_OTHER = """
import array, os, socket, sys
peer, size = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
value = b"x" * size
while what := peer.recv(1):
    if what == b"t":  # take
        got = peer.recv(size, socket.MSG_WAITALL)
        peer.send(b"%d" % len(got))
        del got
    elif what == b"g":  # give
        peer.sendall(value)
    else:
        memfd = os.memfd_create("value")
        left = memoryview(value)
        while left:
            left = left[os.write(memfd, left):]
        socket.send_fds(peer, [b"m"], [memfd])
        os.close(memfd)
"""


class Carrier:
    """A process that takes values of so many bytes, and gives them. A context manager."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._socket, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-I", "-S", "-c", _OTHER, str(number), str(size)]
            self._process = subprocess.Popen(command, pass_fds=[number])

    def there(self, value: bytes) -> int:
        """By the socket; how many came is the short answer."""
        self._socket.sendall(b"t")
        self._socket.sendall(value)
        return int(self._socket.recv(32))

    def back(self) -> bytes:
        self._socket.sendall(b"g")
        return self._socket.recv(self._size, socket.MSG_WAITALL)

    def mapped(self) -> mmap.mmap:
        """As much, in a memory file that was made for it, and is this process's to write."""
        self._socket.sendall(b"m")
        _, (memfd,), _, _ = socket.recv_fds(self._socket, 1, 1)
        try:
            return mmap.mmap(memfd, self._size, flags=mmap.MAP_PRIVATE)
        finally:
            os.close(memfd)

    def copied(self) -> bytes:
        """As bytes, which are no view of a file."""
        with self.mapped() as view:
            return view[:]

    def __enter__(self) -> Carrier:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()


def copy_of(size: int) -> float:
    """Seconds of a copy between two buffers that are in memory already."""
    source, target = bytearray(size), bytearray(size)
    view = memoryview(target)
    taken = []
    for _ in range(3):
        begin = time.perf_counter()
        view[:] = source
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[1]
