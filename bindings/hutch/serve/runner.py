# SPDX-License-Identifier: Apache-2.0
"""Runs what requests ask for, and says how it ended in a few plain fields."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from hutch._errors import SandboxBusy
from hutch._outcome import Outcome
from hutch._program import Program, function
from hutch.serve.settings import Client, Settings

# As text, since this module is not inside. The program is a child: what it leaves can be read
# however it ends.
_WITH_FILES = """
import os
import subprocess
import sys

def run(name, files, stdin, args, fetch, timeout, most):
    for path, content in files.items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    with subprocess.Popen([sys.executable, name, *args], stdin=subprocess.PIPE) as child:
        try:
            child.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return None, {}
    found = {}
    for path in fetch:
        try:
            with open(path, "rb") as file:
                content = file.read(most + 1)
        except OSError:
            continue
        most -= len(content)
        if most >= 0:
            found[path] = content
    return child.returncode, found
"""
_PYTEST = "import sys, pytest\nsys.exit(pytest.main(['-q', *sys.argv[1:], 'test_program.py']))\n"
_LATER_SEC = 2.0  # for what it left to be read


@dataclass
class Job:
    """One program. Times are in seconds, `memory_mb` in MiB."""

    source: str
    timeout_sec: float
    memory_mb: int
    language: str = "python"  # or "pytest"
    stdin: str | None = None
    args: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    fetch: list[str] = field(default_factory=list)


@dataclass
class Ended:
    """`exit_code`: None where it had none, -n where signal n ended it. `limit`: what it hit, ""
    for none. `fault`: why it is not known how it ended, "" where it is.
    """

    outcome: Outcome[Any]
    exit_code: int | None = None
    limit: str = ""
    fault: str = ""
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    files: dict[str, bytes] = field(default_factory=dict)


class Runner:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._with_files: dict[Any, Any] = {}

    async def run(self, job: Job, client: Client) -> Ended:
        """Raises SandboxBusy where the agent has no room."""
        settings = self._settings
        more = ("pytest",) if job.language == "pytest" else ()
        keywords = keywords_of(settings, client, job.memory_mb, more)
        keywords["timeout_sec"] = job.timeout_sec
        files = dict(job.files)
        source = job.source
        if job.language == "pytest":
            files["test_program.py"] = source.encode()
            source = _PYTEST
        begun = time.monotonic()
        if job.fetch:
            outcome = await self._run_with_files(job, source, files, keywords)
        else:
            outcome = await Program(source, **keywords).run_aio(
                stdin=job.stdin, args=job.args, files=files or None
            )
        if outcome.status == "fault" and isinstance(outcome.exception(), SandboxBusy):
            outcome.unwrap()
        return _ended(outcome, job, time.monotonic() - begun)

    async def _run_with_files(
        self, job: Job, source: str, files: dict[str, bytes], keywords: dict[str, Any]
    ) -> Outcome[Any]:
        keywords["timeout_sec"] += _LATER_SEC
        key = repr(sorted(keywords.items()))
        if key not in self._with_files:
            self._with_files[key] = function(_WITH_FILES, "run", **keywords)
        stdin = (job.stdin or "").encode()
        given = {**files, "program.py": source.encode()}
        outcome: Outcome[Any] = await self._with_files[key].run_aio(
            "program.py", given, stdin, job.args, job.fetch, job.timeout_sec,
            self._settings.body_mb << 20,
        )  # fmt: skip
        return outcome


def keywords_of(
    settings: Settings, client: Client, memory_mb: int, more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Those of `@sandbox` that hold for every request of a client."""
    keywords: dict[str, Any] = {
        "dependencies": [*settings.dependencies, *more],
        "isolation": settings.isolation,
        "memory_mb": memory_mb,
    }
    if settings.allow_network:
        keywords["allow_network"] = list(settings.allow_network)
    if client.labels:
        keywords["labels"] = dict(client.labels)
    return keywords


def _ended(outcome: Outcome[Any], job: Job, took: float) -> Ended:
    wall = outcome.usage.wall_sec if outcome.usage is not None else 0.0
    ended = Ended(outcome, stdout=outcome.stdout, stderr=outcome.stderr, seconds=wall or took)
    if outcome.status == "fault":
        ended.fault = str(outcome.exception())
    elif outcome.status == "limit":
        ended.limit = outcome.limit or "unknown"
        ended.stderr += f"the program hit its limit: {ended.limit}\n"
    elif outcome.signal is not None:
        ended.exit_code = -outcome.signal
    elif job.fetch and outcome.status == "returned":
        ended.exit_code, ended.files = _of_files(outcome.value, job)
        if ended.exit_code is None:
            ended.limit = "time"
    else:
        ended.exit_code = 1 if outcome.exit_code is None else outcome.exit_code
        if outcome.error is not None:
            ended.stderr += outcome.error.traceback
    return ended


def _of_files(value: Any, job: Job) -> tuple[int | None, dict[str, bytes]]:
    """What the cell says, which may be anything."""
    if type(value) is not tuple or len(value) != 2 or type(value[1]) is not dict:
        return 1, {}
    code = value[0] if value[0] is None or type(value[0]) is int else 1
    return code, {
        path: one for path, one in value[1].items() if path in job.fetch and type(one) is bytes
    }
