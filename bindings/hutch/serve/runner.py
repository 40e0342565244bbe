# SPDX-License-Identifier: Apache-2.0
"""Runs what requests ask for, and says how it ended in a few plain fields."""

from __future__ import annotations

import glob
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from hutch._outcome import Outcome
from hutch._program import Program, _given, fetched_aio, function, with_source
from hutch._program_files import Wanted
from hutch.serve import fields
from hutch.serve.aside import Aside
from hutch.serve.gate import Refused
from hutch.serve.public import public
from hutch.serve.settings import Client, Settings
from hutch.serve.works import outcome_of

if TYPE_CHECKING:
    from hutch._sandbox import SandboxedFunction

# On a rung that keeps no files of a process that has ended: the program is a child. As text, since
# this module is not inside.
_WITH_FILES = """
import os
import stat
import subprocess
import sys

def run(words, files, stdin, args, fetch, timeout, most):
    for path, content in files.items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    command = [words[0] or sys.executable, *words[1:], *args]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        try:
            child.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            child.returncode = None
    found = {}
    for path in fetch:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with open(fd, "rb") as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    continue
                content = file.read(most + 1)
        except OSError:
            continue
        most -= len(content)
        if most >= 0:
            found[path] = content
    return child.returncode, found
"""
_PYTEST = "import sys, pytest\nsys.exit(pytest.main(['-q', *sys.argv[1:], {name!r}]))\n"
_LATER_SEC = 2.0  # for what it left to be read
KEEP_FILES = ("cell", "container")  # rungs, of a program that has ended
MOST_RESULT_MB = 512  # of what may come out of a cell at once
_LEAST_SEC = 0.001  # of a time limit
_REMEMBERED = 256  # sets of keywords
T = TypeVar("T")


@dataclass
class Job:
    """One program. Times are in seconds, `memory_mb` in MiB."""

    source: str
    timeout_sec: float
    memory_mb: int
    language: str = "python"  # or "pytest", "bash", "nodejs"
    stdin: str | bytes | None = None
    args: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    fetch: list[str] = field(default_factory=list)


@dataclass
class Ended:
    """`exit_code`: None where it had none, -n where signal n ended it. `limit`: what it hit, ""
    for none. Of an Outcome that is a fault, nothing of it is known.
    """

    outcome: Outcome[Any]
    exit_code: int | None = None
    limit: str = ""
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    files: dict[str, bytes] = field(default_factory=dict)


class Runner:
    def __init__(self, settings: Settings, aside: Aside) -> None:
        self.settings = settings
        self._aside = aside
        self._made: dict[Any, Any] = {}

    async def run(self, job: Job, client: Client) -> Ended:
        """Raises SandboxError where it certainly did not run. Where this is cancelled, the cell is
        killed, and this ends when the call has.
        """
        settings = self.settings
        more = ("pytest",) if job.language == "pytest" else ()
        keywords = keywords_of(settings, client, job.memory_mb, more)
        keywords["timeout_sec"] = _rounded(job.timeout_sec)
        files = dict(job.files)
        source = job.source
        if job.language == "pytest":
            name = _unused("test_program.py", files)
            files[name] = source.encode()
            source = _PYTEST.format(name=name)
        begun = time.monotonic()
        if job.fetch and settings.isolation in KEEP_FILES:
            keywords["result_mb"] = min(settings.body_mb, MOST_RESULT_MB)
            program = await self._program(job, source, client, keywords)
            outcome = await fetched_aio(program, _wanted(job), _given(job.args, job.stdin, files))
        elif job.fetch:
            outcome = await self._run_with_files(job, source, files, keywords)
        else:
            program = await self._program(job, source, client, keywords)
            call = program.submit(stdin=job.stdin, args=job.args, files=files or None)
            outcome = await outcome_of(call)
        if outcome.status == "fault":
            outcome.fail(public(outcome.exception(), settings))
            if not outcome.may_have_run:
                outcome.unwrap()
        return _ended(outcome, job, time.monotonic() - begun)

    async def _run_with_files(
        self, job: Job, source: str, files: dict[str, bytes], keywords: dict[str, Any]
    ) -> Outcome[Any]:
        keywords["timeout_sec"] += _LATER_SEC
        stdin = job.stdin if isinstance(job.stdin, bytes) else (job.stdin or "").encode()
        bash = job.language == "bash"
        name = _unused("program.sh" if bash else "program.py", files)
        given = {**files, name: source.encode()}
        words = ["bash" if bash else "", name]  # "": the interpreter that is there
        call = self._of(_runs_with_files, keywords).submit(
            words, given, stdin, job.args, job.fetch, job.timeout_sec,
            self.settings.body_mb << 20,
        )  # fmt: skip
        return await outcome_of(call)

    async def _program(
        self, job: Job, source: str, client: Client, keywords: dict[str, Any]
    ) -> Program:
        """Raises Refused for a text that is none of the language."""
        empty = self._of(_RUNS_NOTHING.get(job.language, _runs_nothing), keywords)

        def make() -> Program:
            made = with_source(empty, source)
            made._resolved().code()  # its digest
            return made

        try:
            return await self._aside.do(client, len(source), make)
        except ValueError as error:
            raise Refused(422, f"code: {error}") from None

    def _of(self, make: Callable[..., T], keywords: dict[str, Any]) -> T:
        """Made once for the same keywords, as long as it is remembered."""
        key = (make, repr(sorted(keywords.items())))
        if key not in self._made:
            if len(self._made) >= _REMEMBERED:
                self._made.clear()
            self._made[key] = make(**keywords)
        made: T = self._made[key]
        return made


def _runs_nothing(**keywords: Any) -> Program:
    return Program("", **keywords)


def _runs_no_bash(**keywords: Any) -> Program:
    return Program("", language="bash", **keywords)


def _runs_no_javascript(**keywords: Any) -> Program:
    return Program("", language="javascript", **keywords)


_RUNS_NOTHING = {"bash": _runs_no_bash, "nodejs": _runs_no_javascript}


def _runs_with_files(**keywords: Any) -> SandboxedFunction[..., Any]:
    return function(_WITH_FILES, "run", **keywords)


def _rounded(seconds: float) -> float:
    """Up, to three digits: the agent is sent each different limit once, and keeps it."""
    seconds = max(seconds, _LEAST_SEC)
    step = 10.0 ** (math.floor(math.log10(seconds)) - 2)
    return math.ceil(seconds / step - 1e-9) * step


def _unused(name: str, files: dict[str, bytes]) -> str:
    while name in files:
        name = f"test_{name}"
    return name


def keywords_of(
    settings: Settings, client: Client, memory_mb: int, more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Those of `@sandbox` that hold for every request of a client."""
    keywords: dict[str, Any] = {
        "dependencies": [*settings.dependencies, *more],
        "isolation": settings.isolation,
        "memory_mb": memory_mb,
        "echo": False,  # nothing of what a program prints is the server's to print
    }
    if settings.allow_network:
        keywords["allow_network"] = list(settings.allow_network)
    if client.labels:
        keywords["labels"] = dict(client.labels)
    return keywords


def _ended(outcome: Outcome[Any], job: Job, took: float) -> Ended:
    wall = outcome.usage.wall_sec if outcome.usage is not None else 0.0
    found = {path: outcome.files.get(fields.path(path, "")) for path in job.fetch}
    ended = Ended(outcome, stdout=outcome.stdout, stderr=outcome.stderr, seconds=wall or took)
    ended.files = {path: content for path, content in found.items() if content is not None}
    if outcome.status == "limit":
        ended.limit = outcome.limit or "unknown"
        ended.stderr += f"the program hit its limit: {ended.limit}\n"
    elif outcome.signal is not None:
        ended.exit_code = -outcome.signal
    elif type(outcome.value) is tuple:
        ended.exit_code, ended.files = _of_files(outcome.value, job)
        if ended.exit_code is None:
            ended.limit = "time"
    else:
        ended.exit_code = 1 if outcome.exit_code is None else outcome.exit_code
        if outcome.error is not None:
            ended.stderr += outcome.error.traceback
    return ended


def _wanted(job: Job) -> Wanted:
    """Its paths, which are no patterns."""
    patterns = [glob.escape(fields.path(one, "fetch_files")) for one in job.fetch]
    return Wanted(patterns, all_of_them=False, patience_sec=_LATER_SEC)


def _of_files(value: Any, job: Job) -> tuple[int | None, dict[str, bytes]]:
    """What the cell says, which may be anything."""
    if type(value) is not tuple or len(value) != 2 or type(value[1]) is not dict:
        return 1, {}
    code = value[0] if value[0] is None or type(value[0]) is int else 1
    asked = set(job.fetch)
    return code, {
        path: one for path, one in value[1].items() if path in asked and type(one) is bytes
    }
