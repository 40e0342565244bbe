# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401
"""Put before each file of probes. Runs inside a cell: only the standard library."""

import ctypes
import errno
import functools
import os
import signal
import socket
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def name_of(number):
    return errno.errorcode.get(number, str(number))


def attempt(action, *args):
    """ "done", or the name of what refused it."""
    try:
        action(*args)
    except OSError as error:
        return name_of(error.errno) if error.errno else type(error).__name__
    except Exception as error:
        return type(error).__name__
    return "done"


def syscall(number, *args):
    """ "done", or the errno's name. Arguments: int, bytes, None or a ctypes object."""
    ctypes.set_errno(0)
    given = [ctypes.c_long(number)]
    for arg in args:
        given.append(ctypes.c_long(arg) if isinstance(arg, int) else arg)
    result = libc.syscall(*given)
    return name_of(ctypes.get_errno()) if result == -1 else "done"


def in_child(action, seconds=5.0):
    """The answer (text) of an action in a child of its own, or "signal N", "status N", "hung"."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            os.write(write, str(action()).encode()[:4096])
        except BaseException as error:
            os.write(write, type(error).__name__.encode())
        os._exit(0)
    os.close(write)
    end = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)
            return "hung"
        time.sleep(0.002)
    text = os.read(read, 4096).decode()
    os.close(read)
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return text if text else f"status {os.WEXITSTATUS(status)}"


def opens(path, flags=os.O_RDONLY):
    def action():
        os.close(os.open(path, flags | os.O_NONBLOCK))

    return attempt(action)


def text_of(path, size=65536):
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(size).decode(errors="replace")
    except OSError as error:
        return "!" + name_of(error.errno)


X86 = os.uname().machine == "x86_64"
