# SPDX-License-Identifier: Apache-2.0
"""Piston's protocol: `POST /api/v2/execute`, `GET /api/v2/runtimes`. Times are in milliseconds,
memory in bytes.
"""

from __future__ import annotations

import signal
from typing import Any

from hutch.serve import fields
from hutch.serve.gate import Refused
from hutch.serve.runner import Ended, Job
from hutch.serve.settings import Settings

VERSION = "3"
_ALIASES = ("py", "py3", "python3")


def runtimes() -> list[dict[str, Any]]:
    return [{"language": "python", "version": VERSION, "aliases": [*_ALIASES]}]


def job_of(body: dict[str, Any], settings: Settings) -> Job:
    """The first file is the program. Raises Refused."""
    language = fields.text(body, "language")
    if language not in ("python", *_ALIASES):
        raise Refused(400, f"{language[:100]}-* runtime is unknown")
    given = body.get("files")
    if type(given) is not list or not given or not all(type(one) is dict for one in given):
        raise Refused(400, "files must be a list of objects with a name and content")
    if len(given) > settings.files:
        raise Refused(400, f"files has more than {settings.files} names")
    files = {}
    for number, one in enumerate(given[1:], 1):
        name = fields.path(fields.text(one, "name", f"file{number}"), "files")
        files[name] = fields.text(one, "content").encode()
    timeout, memory = body.get("run_timeout"), body.get("run_memory_limit")
    if timeout is not None and type(timeout) in (int, float):
        timeout = timeout / 1000
    if memory is not None and type(memory) in (int, float):
        memory = memory / (1 << 20)
    return Job(
        source=fields.text(given[0], "content"),
        timeout_sec=fields.seconds(timeout, "run_timeout", settings.timeout_sec),
        memory_mb=fields.memory_mb(memory, "run_memory_limit", settings.memory_mb),
        stdin=fields.text(body, "stdin", ""),
        args=fields.texts(body.get("args"), "args", 1000),
        files=files,
    )


def answer(ended: Ended) -> dict[str, Any]:
    code, name, message, status = ended.exit_code, None, None, None
    if code is not None and code < 0:
        name, code = _signal(-code), None
    if ended.limit:
        name, message = "SIGKILL", f"the program hit its limit: {ended.limit}"
        status = "TO" if ended.limit in ("time", "cpu_time") else "SG"
    usage = ended.outcome.usage
    return {
        "language": "python",
        "version": VERSION,
        "run": {
            "stdout": ended.stdout,
            "stderr": ended.stderr,
            "output": ended.stdout + ended.stderr,
            "code": code,
            "signal": name,
            "message": message,
            "status": status,
            "wall_time": round(1000 * ended.seconds),
            "cpu_time": round(1000 * usage.cpu_sec),
            "memory": usage.peak_memory_bytes,
        },
    }


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
