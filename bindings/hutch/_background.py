# SPDX-License-Identifier: Apache-2.0
"""Programs of a session that run on between its calls: what `start()` gives.

What they reply comes from the sandbox: it may be anything.
"""

from __future__ import annotations

import asyncio
import signal as signals
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol, TypeVar

from hutch._calls.printed import Decoder
from hutch._errors import SerializationError
from hutch._options.checks import quoted
from hutch._outcome import Outcome
from hutch._twins import awaits, result_of

T = TypeVar("T")
_MOST_OF_LINE = 1 << 20  # characters: a longer one is given in pieces
_MOST_READ = 1 << 20  # bytes of one reply, as images/worker/background.py has it
_PATIENCE_MS = 250  # that the session waits for what is printed before others may use it


class Asked(Protocol):
    """The commands of the session that a process belongs to."""

    def ask(self, finish: Callable[[Any], T], verb: str, *args: Any) -> T: ...

    def tell(self, verb: str, process: tuple[int, int], command: str, *args: Any) -> None: ...

    def wait_for(
        self, process: tuple[int, int], command: str, timeout_sec: float | None
    ) -> Outcome[None]: ...


class Process:
    """A program that `start()` has started: `pid`, its number inside, and `command`, its text. It
    runs until it ends or is killed, or its interpreter does. What it prints is kept in the scratch
    of the session. Each method is a call of the session, but for `kill` and `signal`, which are
    done beside whatever it does.
    """

    def __init__(self, of: Asked, session: object, pid: int, begun: int, command: str) -> None:
        """`session`: which is not closed before this ends as an object."""
        self.pid = pid
        self.command = command
        self._of = of
        self._session = session
        self._begun = begun

    def wait(self, timeout_sec: float | None = None) -> Outcome[None]:
        """Its Outcome, as that of a command, once it has ended; it goes on at the time limit. The
        session waits with it.
        """
        return self._of.wait_for(self.key, self.command, timeout_sec)

    def kill(self) -> None:
        """With all that it has started. Nothing happens where it has ended."""
        return self._of.tell("kill", self.key, self.command)

    def signal(self, number: int | signals.Signals) -> None:
        """Sends a signal to it alone. Nothing happens where it has ended."""
        if not isinstance(number, int) or not 0 < number < signals.NSIG:
            raise ValueError(f"{quoted(number)} is not the number of a signal")
        return self._of.tell("signal", self.key, self.command, int(number))

    def write(self, data: str | bytes) -> None:
        """To its standard input; waits until there is room for all of it."""
        if not isinstance(data, (str, bytes)):
            raise TypeError(f"write() takes text or bytes, not {type(data).__name__}")
        content = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
        return self._ask(_nothing, "write", content)

    def close_stdin(self) -> None:
        """Ends its standard input."""
        return self._ask(_nothing, "close")

    def lines(self) -> Iterator[str]:
        """Those that it has printed on stdout and prints, until it has ended and all are given. One
        of more than a million characters comes in pieces.
        """
        reader = _Lines()
        while not reader.is_over:
            begun = time.monotonic()
            yield from reader.take(self._read(reader))
            time.sleep(reader.pause_since(begun))

    def __repr__(self) -> str:
        return f"<hutch process {self.pid}: {self.command[:60]!r}>"

    @property
    def key(self) -> tuple[int, int]:
        """Its number, and when it began, which no other one has."""
        return self.pid, self._begun

    def _ask(self, finish: Callable[[Any], T], verb: str, *args: Any) -> T:
        return self._of.ask(finish, "process." + verb, self.key, *args)

    def _read(self, reader: _Lines) -> Any:
        return self._ask(lambda reply: reply, "read", 0, reader.offset, _PATIENCE_MS)


class AsyncProcess:
    """A Process whose methods are awaited; `lines()` is an async iterator."""

    def __init__(self, process: Process) -> None:
        self._process = process  # whose methods give awaitables
        self.pid = process.pid
        self.command = process.command

    @awaits(Process.wait)
    async def wait(self, timeout_sec: float | None = None) -> Outcome[None]:
        return await result_of(self._process.wait, timeout_sec)

    @awaits(Process.kill)
    async def kill(self) -> None:
        await result_of(self._process.kill)

    @awaits(Process.signal)
    async def signal(self, number: int | signals.Signals) -> None:
        await result_of(self._process.signal, number)

    @awaits(Process.write)
    async def write(self, data: str | bytes) -> None:
        await result_of(self._process.write, data)

    @awaits(Process.close_stdin)
    async def close_stdin(self) -> None:
        await result_of(self._process.close_stdin)

    async def lines(self) -> AsyncIterator[str]:
        """An async iterator of the lines that it has printed on stdout and prints, until it has
        ended and all are given. One of more than a million characters comes in pieces.
        """
        reader = _Lines()
        while not reader.is_over:
            begun = time.monotonic()
            for line in reader.take(await result_of(self._process._read, reader)):
                yield line
            await asyncio.sleep(reader.pause_since(begun))

    def __repr__(self) -> str:
        return repr(self._process)


class _Lines:
    """Makes lines of what was read."""

    def __init__(self) -> None:
        self.offset = 0
        self.is_over = False
        self._got = 0  # bytes, at last
        self._decoder = Decoder()
        self._rest = ""

    def take(self, reply: Any) -> list[str]:
        if type(reply) is not tuple or len(reply) != 2 or type(reply[0]) is not bytes:
            raise not_said()
        if len(reply[0]) > _MOST_READ:
            raise not_said()
        data, self.is_over = reply[0], reply[1] is True
        self._got = len(data)
        self.offset += len(data)
        *lines, self._rest = (self._rest + self._decoder.decode(data, self.is_over)).split("\n")
        if self._rest and (self.is_over or len(self._rest) >= _MOST_OF_LINE):
            lines.append(self._rest)
            self._rest = ""
        return lines

    def pause_since(self, begun: float) -> float:
        """Seconds, where there was nothing, and the session has not waited for that."""
        if self._got or self.is_over:
            return 0.0
        return max(0.0, begun + _PATIENCE_MS / 1000 - time.monotonic())


def not_said() -> SerializationError:
    return SerializationError(
        "the session's code has replaced what runs its commands",
        hint="reset() gives a fresh interpreter",
        path="result",
    )


def _nothing(_: Any) -> None:
    pass
