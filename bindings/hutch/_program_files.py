# SPDX-License-Identifier: Apache-2.0
"""A program whose files are read once it has ended, however it did. It runs as the one call of a
session, whose files outlast its process; they are read by a process of their own, in which nothing
of the program is left.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hutch import _core
from hutch._calls.dialogue import Callbacks
from hutch._calls.loops import OnThread
from hutch._calls.session_call import Operation
from hutch._calls.threads import THREADS, CallThreads
from hutch._calls.within import is_within_tool
from hutch._errors import (
    LimitExceeded,
    SandboxDied,
    SandboxError,
    SandboxExecutionError,
    SandboxStartupError,
    SerializationError,
)
from hutch._options.checks import quoted
from hutch._outcome import ErrorInfo
from hutch._session_contents import BeginsAs
from hutch._session_engine import Engine
from hutch._session_life import Life
from hutch._session_turn import Surely
from hutch._tool_late import LateCalls

if TYPE_CHECKING:
    from hutch._calls.echo import Streams
    from hutch._calls.session_call import SessionCall
    from hutch._calls.target import ProgramTarget, Target
    from hutch._outcome import Outcome

MOST_FILES = 10_000
# What code may do to a verb that reads its files, where it still runs.
OF_THE_CODE = (LimitExceeded, SandboxDied, SandboxExecutionError, SerializationError)
_threads = CallThreads(THREADS)  # on which programs are waited for


@dataclass(frozen=True)
class Wanted:
    """Files: the patterns of `fetch=`. `all_of_them`: those that are too large are a limit that was
    met; else they are left out, as are those not read in `patience_sec` after the program's end.
    """

    patterns: Sequence[str]
    all_of_them: bool = True
    patience_sec: float = math.inf


def checked(fetch: Sequence[str] | str) -> tuple[str, ...]:
    """The patterns of `fetch=`. Raises TypeError, ValueError."""
    patterns = (fetch,) if isinstance(fetch, str) else tuple(fetch)
    for one in patterns:
        if not isinstance(one, str):
            raise TypeError(f"fetch= takes paths and globs as str, not {type(one).__name__}")
        if not _is_name(one):
            raise ValueError(f"fetch= has {quoted(one)}: half characters are in no name of a file")
        if not _is_inside(one):
            raise ValueError(
                f"fetch= has {quoted(one)}: paths and globs are relative to the working directory"
            )
    return patterns


def run(
    target: ProgramTarget, given: dict[str, Any], patterns: Sequence[str], streams: Streams | None
) -> Outcome[None]:
    """The Outcome, with `.files`. `given`: the program's input; `streams`: get what it prints, in
    place of those that the options ask for.
    """
    with closing(_OneProgram(target, streams, Wanted(patterns))) as program:
        return program.run(given)


async def run_aio(target: ProgramTarget, given: dict[str, Any], wanted: Wanted) -> Outcome[None]:
    """The same. Where this is cancelled the program is killed, and this ends when its cell has."""
    with closing(_OneProgram(target, None, wanted)) as program:
        start = None if is_within_tool() else _threads.start  # which may all wait for such a tool
        thread = OnThread(lambda: program.run(given), daemon=True, start=start)
        try:
            return await thread.result()
        except asyncio.CancelledError:
            program.token.cancel()
            await thread.wait()
            raise


class _Engine(Engine):
    """`program`: its one call. `streams`: get what it prints. `token`: ends what runs."""

    def __init__(
        self, program: ProgramTarget, streams: Streams | None, token: _core.Cancel
    ) -> None:
        options = program.options
        tools = {tool.name: tool for tool in options.tools}
        callbacks = Callbacks(tools, None, None, False, LateCalls())
        super().__init__(options, {}, "/work", 0, callbacks, BeginsAs())
        self._program = program
        self._streams = streams
        self._token = token

    def _fields(self, operation: Operation) -> dict[str, Any]:
        fields = super()._fields(operation)
        if operation.verb == "program":
            fields.update(self._program.fields())
        return fields

    def _call_of(self, begun: float, operation: Operation, target: Target) -> SessionCall:
        call = super()._call_of(begun, operation, target)
        call.cancel = self._token
        if self._streams is not None and operation.verb == "program":
            call.streams, call.feed = self._streams, self._streams.feed
        return call


class _OneProgram:
    def __init__(self, target: ProgramTarget, streams: Streams | None, wanted: Wanted) -> None:
        options = target.options
        if options.isolation not in ("cell", "container"):
            raise ValueError(
                f'isolation="{options.isolation}" keeps no files of a program that has ended: '
                'fetch= goes with "cell" and "container"'
            )
        for tool in options.tools:
            if tool.needs_loop:
                raise TypeError(f"{tool.name}() is async: fetch= goes with tools that are not")
        self.token = _core.Cancel()
        self._target = target
        self._wanted = wanted
        self._engine = _Engine(target, streams, self.token)
        self._life = Life(self._engine)
        self._files = self._engine.files

    def close(self) -> None:
        self._life.close()

    def run(self, given: dict[str, Any]) -> Outcome[None]:
        target, engine = self._target, self._engine
        operation = Operation(engine.space, "program", target.code(), kwargs=given, target=target)
        with Surely(engine.turn), engine.turn:
            outcome = engine.send(operation)
        outcome.restarted = False
        has_ended = outcome.status in ("limit", "died")
        if has_ended:
            outcome.error = None  # which is for the code of a session
        core = engine.cell.core
        assert core is not None
        if core.restartable:
            self._life.reset(files=False)
        elif has_ended:
            return outcome  # and its files with it
        else:
            engine.cell.has_begun = False  # it begins in the program's process, to read its files
        if not self.token.cancelled:
            self._fetch(outcome)
        return outcome

    def _fetch(self, outcome: Outcome[None]) -> None:
        """A limit that is met then is the outcome's: the program chose what there is to be read."""
        try:
            self._read(outcome.files)
        except SandboxStartupError as error:
            error.may_have_run = True
            raise
        except OF_THE_CODE as met:
            if not self._wanted.all_of_them:
                return
            if not isinstance(met, LimitExceeded):
                raise
            message = f"the files of fetch= were not all read: {met.message}"
            failure = LimitExceeded(message, hint="fetch fewer files, or raise the limit")
            failure.limit = met.limit
            outcome.status, outcome.limit = "limit", met.limit
            outcome.error = ErrorInfo("LimitExceeded", message, hint=failure.hint)
            outcome.fail(failure)

    def _read(self, files: dict[str, bytes]) -> None:
        left = self._engine.usual.terms.result_bytes
        until = time.monotonic() + self._wanted.patience_sec
        for path in self._matching():
            if path in files:
                continue
            if time.monotonic() > until:
                return
            try:
                status = self._files.stat(path)
                if status["type"] != "file":
                    continue
                size = status["size"]
                content = self._files.read_bytes(path) if size <= left else b""
            except SandboxError:  # some are an OSError, too
                raise
            except OSError:  # a link to nothing, or not to be read
                continue
            taken = max(size, len(content))
            if taken <= left and len(files) < MOST_FILES:
                left -= taken
                files[path] = content
            elif self._wanted.all_of_them:
                raise self._too_large(taken > left)

    def _too_large(self, in_size: bool) -> LimitExceeded:
        most = f"larger than result_mb={self._target.options.result_mb:g}"
        failure = LimitExceeded(f"they are {most if in_size else f'more than {MOST_FILES:,}'}")
        failure.limit = "result"
        return failure

    def _matching(self) -> Iterator[str]:
        """What the code claims, which may be anything, but for a name outside its directory."""
        for pattern in self._wanted.patterns:
            for path in dict.fromkeys(self._files.glob(pattern)):
                if _is_inside(path) and _is_name(path):
                    yield path


def _is_name(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return bool(path) and not path.startswith("/") and "\0" not in path and ".." not in parts
