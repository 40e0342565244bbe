# SPDX-License-Identifier: Apache-2.0
"""Piston's protocol: `POST /api/v2/execute`, `GET /api/v2/runtimes`. Times are in milliseconds,
memory in bytes.
"""

from __future__ import annotations

import base64
import re
import signal
from collections.abc import Mapping
from typing import Any

from hutch.serve import fields
from hutch.serve.gate import Refused
from hutch.serve.runner import Ended, Job
from hutch.serve.settings import Settings

VERSION = "3"
_ALIASES = ("py", "py3", "python3")
_VERSION = re.compile(r"\*|[\^~]?3(\.(x|[0-9]{1,3})){0,2}")  # which may be answered by a 3


def runtimes() -> list[dict[str, Any]]:
    return [{"language": "python", "version": VERSION, "aliases": [*_ALIASES]}]


def job_of(body: dict[str, Any], settings: Settings) -> Job:
    """The first file is the program. Raises Refused."""
    language = fields.text(body, "language")
    if language not in ("python", *_ALIASES):
        raise Refused(400, f"{language[:100]}-* runtime is unknown")
    version = fields.text(body, "version", "*")
    if _VERSION.fullmatch(version) is None:
        raise Refused(400, f"{language}-{version[:100]} runtime is unknown: {VERSION} is there")
    given = body.get("files")
    if type(given) is not list or not given or not all(type(one) is dict for one in given):
        raise Refused(400, "files must be a list of objects with a name and content")
    if len(given) > settings.files:
        raise Refused(400, f"files has more than {settings.files} names")
    files = {}
    for number, one in enumerate(given[1:], 1):
        name = fields.path(fields.text(one, "name", f"file{number}"), "files")
        if name in files:
            raise Refused(400, f"files has {name[:100]!r} twice")
        files[name] = _content(one)
    fields.apart(files)
    timeout = fields.scaled(body.get("run_timeout"), "run_timeout", "ms", 1000)
    memory = fields.scaled(body.get("run_memory_limit"), "run_memory_limit", "bytes", 1 << 20)
    return Job(
        source=_program(given[0]),
        timeout_sec=fields.seconds(timeout, "run_timeout", settings.timeout_sec),
        memory_mb=fields.memory_mb(memory, "run_memory_limit", settings.memory_mb),
        stdin=fields.text(body, "stdin", ""),
        args=fields.words(body.get("args"), "args"),
        files=files,
    )


def _content(file: Mapping[str, Any]) -> bytes:
    text, encoding = fields.text(file, "content"), fields.text(file, "encoding", "utf8")
    if encoding == "utf8":
        return text.encode()
    try:
        if encoding == "base64":
            return base64.b64decode(text, validate=True)
        if encoding == "hex":
            return bytes.fromhex(text)
    except ValueError:
        raise Refused(400, f"files has content that is not {encoding}") from None
    raise Refused(400, "encoding must be one of utf8, base64, hex")


def _program(file: Mapping[str, Any]) -> str:
    try:
        return _content(file).decode()
    except UnicodeDecodeError:
        raise Refused(400, "the program, the first of files, is not UTF-8 text") from None


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
