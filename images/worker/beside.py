# SPDX-License-Identifier: Apache-2.0
"""Commands of a session that run beside its calls, and beside each other: each in a thread that
ends with it, with a channel of its own to the client and pipes for what it prints (beside.h).

The other side believes nothing of what comes from here.
"""

from __future__ import annotations

import _thread
import os
import pickle
import signal
from typing import Any

import _hutch_cell as cell  # type: ignore[import-not-found,unused-ignore]
import background
import commands
import encode as encoding
import failures

NO_CODE = 256  # is none
_mask = signal.pthread_sigmask


class Beside(commands.Runner):
    """Its pipes are the client's. It is killed, also while no Python can run, once the client shuts
    the channel, or it has taken `cpu_ms` of CPU time (0: any).
    """

    lifts_cpu_limit = True  # of the call that runs

    def __init__(self, channel: int, pipes: list[int], says_more: bool, cpu_ms: int) -> None:
        """`says_more`: after its end."""
        super().__init__(pipes[0])
        self.err = pipes[1]
        self._pipes, self._says_more = pipes, says_more
        self.is_told = False  # to the client, that it has ended
        self._channel = channel
        self._cpu_ms = cpu_ms

    def wait(self, pid: int, mask: Any) -> int:
        close_all(self._pipes, self._says_more)  # it has them
        code: int = cell.await_command(pid, self._channel, self._cpu_ms)
        if code < 0:
            raise RuntimeError(commands.LOST)
        self.is_told = True
        return code

    def tell(self, text: str) -> None:
        try:
            os.write(self.err, f"{text}\n".encode("utf-8", "surrogateescape"))
        except OSError:
            pass  # nobody reads it any more


def begin() -> None:
    """In a fresh user process: from then on it takes commands."""
    cell.commands_by(_thread.start_new_thread, _thread.stack_size, run)
    signal.signal(signal.SIGURG, cell.take_commands)


def run(channel: int, out: int, err: int, order: int) -> None:
    """In a thread of its own. `order`: a memfd."""
    _mask(signal.SIG_BLOCK, signal.valid_signals())
    pipes = [out, err]
    try:
        cell.send(channel, cell.COMMAND_BEGUN, 0, 0, 0, 0)
        verb, cwd, args, cpu_ms = pickle.loads(os.pread(order, os.fstat(order).st_size, 0))
        runner = Beside(channel, pipes, verb == "bash", cpu_ms)
        code = answer(verb, cwd, args, runner)
        if not runner.is_told:
            known = code if type(code) is int and 0 <= code < NO_CODE else NO_CODE
            cell.send(channel, cell.COMMAND_ENDED, 0, 0, known, 0)
        close_all(pipes)  # at their end, but for what it has left in the background
        cell.send(channel, cell.COMMAND_DONE, 0, 0, 0, 0)
    except BaseException as error:
        report(channel, error)
    finally:
        for fd in (*pipes, channel, order):
            os.close(fd)


def answer(verb: str, cwd: str, args: Any, runner: Beside) -> int:
    if not verb.startswith("process."):
        return commands.answer(verb, cwd, lambda: None, args, runner)
    background.answer(verb.removeprefix("process."), cwd, lambda: None, args)
    return 0


def close_all(pipes: list[int], but_last: bool = False) -> None:
    while len(pipes) > but_last:
        os.close(pipes.pop(0))


def report(channel: int, error: BaseException) -> None:
    try:
        limit = failures.limit_of(error, cell)
        body = encoding.encode_error(failures.describe(error, {}))
        if len(body) > cell.MAX_PAYLOAD:
            fields = encoding.error_fields(type(error).__name__, "", "", None, "", ())
            body = encoding.encode_error(fields)
        cell.send(channel, cell.RAISED, limit, 0, len(body), len(body), body)
    except BaseException:
        pass  # the client has gone, or reads that the channel is closed
