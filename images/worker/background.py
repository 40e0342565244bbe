# SPDX-License-Identifier: Apache-2.0
"""Programs of a session that run on between its calls. What they print is kept in nameless files of
the scratch, so that they never wait for a reader. One thread starts them and waits for them; any
may signal and kill them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
from collections.abc import Callable
from typing import Any

import commands
from session_files import nameless_file

MOST_READ = 1 << 20  # bytes at once
MOST_ENDED = 64  # that are known with what they printed
PAUSE_MS = 20  # between two looks at what it has printed
_started: dict[int, Started] = {}


class Started:
    """`begun`: in ticks since the machine began, which tells it from another one of its number.
    `code`: its exit code, once that is known.
    """

    def __init__(self, pid: int, stdin: int, output: tuple[int, int], label: str) -> None:
        self.pid = pid
        self.stdin = stdin
        self.output = output
        self.label = label
        self.begun = commands.begun_of(pid)
        self.code: int | None = None
        self.lock = threading.RLock()

    def look(self) -> int | None:
        with self.lock:
            if self.code is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.code = commands.exit_code(status) if pid else None
            return self.code

    def wait(self) -> int:
        code = self.look()
        while code is None:
            with contextlib.suppress(ChildProcessError):  # kill() has waited for it
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            code = self.look()
        return code

    def close_stdin(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def printed(self, stream: int, offset: int, most: int) -> tuple[bytes, int]:
        """From there on, and the size of all."""
        size = os.fstat(self.output[stream]).st_size
        return os.pread(self.output[stream], max(0, min(most, size - offset)), offset), size


def answer(verb: str, cwd: str, flush: Callable[[], None], args: Any) -> Any:
    if verb == "start":
        flush()
        return start(cwd, *args)
    if verb == "list":
        return [(one.pid, one.begun, one.label, one.look()) for one in _started.values()]
    (pid, begun), *rest = args
    one = _started.get(pid)
    if one is None or one.begun != begun:
        text = "it was started before the interpreter was restarted or restored, or not by start()"
        raise ProcessLookupError(errno.ESRCH, text)
    return VERBS[verb](one, *rest)


def start(cwd: str, what: Any, directory: str | None, env: dict[str, str]) -> tuple[int, int, str]:
    """Its number, when it began, and what it is called. Raises what says why it cannot be."""
    commands.require_directory(cwd)
    forget_ended()
    words = ["bash", "-c", what] if isinstance(what, str) else what
    environment = commands.environment_with(env)
    output: list[int] = []
    stdin, feeder = os.pipe()
    try:
        output += [nameless_file(b""), nameless_file(b"")]
        arguments = [os.fsencode(word) for word in words]
        descriptors = (stdin, output[0], output[1])
        pid = commands.start(arguments, directory, environment, descriptors, None)
    except BaseException:
        for fd in (feeder, *output):
            os.close(fd)
        raise
    finally:
        os.close(stdin)
    label = what if isinstance(what, str) else os.fsdecode(b" ".join(arguments))
    _started[pid] = Started(pid, feeder, (output[0], output[1]), label[:1000])
    return pid, _started[pid].begun, label[:1000]


def end_all() -> None:
    """And all else that this process has started, or that was left behind."""
    commands.end_all()
    while _started:
        _, one = _started.popitem()
        with contextlib.suppress(OSError):  # the code has closed it
            one.close_stdin()
        for fd in one.output:
            with contextlib.suppress(OSError):
                os.close(fd)


def forget_ended() -> None:
    """But for the latest."""
    ended = [one for one in _started.values() if one.look() is not None]
    for one in ended[:-MOST_ENDED]:
        one.close_stdin()
        for fd in one.output:
            os.close(fd)
        del _started[one.pid]


def wait(one: Started, most: int) -> list[Any]:
    """Its exit code, and of either stream what it printed, up to `most` bytes, and how much."""
    try:
        code = one.wait()
    except ChildProcessError:
        raise RuntimeError(commands.LOST) from None
    return [code, *one.printed(0, 0, most), *one.printed(1, 0, most)]


def read(one: Started, stream: int, offset: int, patience_ms: int) -> tuple[bytes, bool]:
    """What it has printed from there on, once there is some, and whether that is all."""
    end = -1
    if one.look() is None:
        with contextlib.suppress(OSError):  # gVisor has none
            end = os.pidfd_open(one.pid)
    try:
        poll = select.poll()
        if end >= 0:
            poll.register(end, select.POLLIN)
        while True:
            is_over = one.look() is not None
            data, size = one.printed(stream, offset, MOST_READ)
            if data or is_over or patience_ms <= 0:
                return data, is_over and offset + len(data) >= size
            poll.poll(PAUSE_MS)
            patience_ms -= PAUSE_MS
    finally:
        if end >= 0:
            os.close(end)


def send(one: Started, number: int) -> None:
    with one.lock:
        if one.look() is None:
            os.kill(one.pid, number)


def kill(one: Started) -> None:
    """With all that it has started."""
    with one.lock:
        if one.look() is None:
            one.code = commands.end_tree(one.pid)


def write(one: Started, data: bytes) -> None:
    if one.stdin < 0:
        raise BrokenPipeError(errno.EPIPE, "its standard input was closed")
    view = memoryview(data)
    while view:
        view = view[os.write(one.stdin, view) :]


VERBS: dict[str, Callable[..., Any]] = {
    "wait": wait,
    "read": read,
    "signal": send,
    "kill": kill,
    "write": write,
    "close": Started.close_stdin,
}
