# SPDX-License-Identifier: Apache-2.0
"""A program whose files are read once it has ended, however it did. It runs as the one call of a
session, whose files outlast its process; they are read by a process of their own, in which nothing
of the program is left.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from hutch._calls.dialogue import Callbacks
from hutch._calls.session_call import Operation
from hutch._errors import LimitExceeded, SandboxError
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
    with closing(_OneProgram(target, streams)) as program:
        return program.run(given, patterns)


async def run_aio(
    target: ProgramTarget, given: dict[str, Any], patterns: Sequence[str]
) -> Outcome[None]:
    """The same. Where this is cancelled the program is interrupted, and its cell closed once it has
    ended.
    """
    with closing(_OneProgram(target, None)) as program:
        return await asyncio.to_thread(program.run, given, patterns)


class _Engine(Engine):
    """`program`: its one call. `streams`: get what it prints."""

    def __init__(self, program: ProgramTarget, streams: Streams | None) -> None:
        options = program.options
        tools = {tool.name: tool for tool in options.tools}
        callbacks = Callbacks(tools, None, None, False, LateCalls())
        super().__init__(options, {}, "/work", 0, callbacks, BeginsAs())
        self._program = program
        self._streams = streams

    def _fields(self, operation: Operation) -> dict[str, Any]:
        fields = super()._fields(operation)
        if operation.verb == "program":
            fields.update(self._program.fields())
        return fields

    def _call_of(self, begun: float, operation: Operation, target: Target) -> SessionCall:
        call = super()._call_of(begun, operation, target)
        if self._streams is not None and operation.verb == "program":
            call.streams, call.feed = self._streams, self._streams.feed
        return call


class _OneProgram:
    def __init__(self, target: ProgramTarget, streams: Streams | None) -> None:
        options = target.options
        if options.isolation not in ("cell", "container"):
            raise ValueError(
                f'isolation="{options.isolation}" keeps no files of a program that has ended: '
                'fetch= goes with "cell" and "container"'
            )
        for tool in options.tools:
            if tool.needs_loop:
                raise TypeError(f"{tool.name}() is async: fetch= goes with tools that are not")
        self._target = target
        self._engine = _Engine(target, streams)
        self._life = Life(self._engine)
        self._files = self._engine.files

    def close(self) -> None:
        self._life.close()

    def run(self, given: dict[str, Any], patterns: Sequence[str]) -> Outcome[None]:
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
        self._fetch(outcome, patterns)
        return outcome

    def _fetch(self, outcome: Outcome[None], patterns: Sequence[str]) -> None:
        """A limit that is met then is the outcome's: the program chose what there is to be read."""
        try:
            self._read(outcome.files, patterns)
        except LimitExceeded as met:
            message = f"the files of fetch= were not all read: {met.message}"
            failure = LimitExceeded(message, hint="fetch fewer files, or raise the limit")
            failure.limit = met.limit
            outcome.status, outcome.limit = "limit", met.limit
            outcome.error = ErrorInfo("LimitExceeded", message, hint=failure.hint)
            outcome.fail(failure)

    def _read(self, files: dict[str, bytes], patterns: Sequence[str]) -> None:
        left = self._engine.usual.terms.result_bytes
        for path in self._matching(patterns):
            if path in files:
                continue
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
            left -= max(size, len(content))
            if left < 0:
                raise _too_large(f"larger than result_mb={self._target.options.result_mb:g}")
            if len(files) == MOST_FILES:
                raise _too_large(f"more than {MOST_FILES:,}")
            files[path] = content

    def _matching(self, patterns: Sequence[str]) -> Iterator[str]:
        """What the code claims, which may be anything, but for a name outside its directory."""
        for pattern in patterns:
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


def _too_large(why: str) -> LimitExceeded:
    failure = LimitExceeded(f"they are {why}")
    failure.limit = "result"
    return failure
