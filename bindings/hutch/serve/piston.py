# SPDX-License-Identifier: Apache-2.0
"""Piston's protocol: `POST /api/v2/execute`, `GET /api/v2/runtimes`. Times are in milliseconds,
memory in bytes.
"""

from __future__ import annotations

import base64
import re
import signal
import sys
from collections.abc import Mapping
from typing import Any

from hutch.serve import fields
from hutch.serve.gate import Refused
from hutch.serve.runner import Ended, Job
from hutch.serve.settings import Settings

VERSION = ".".join(map(str, sys.version_info[:3]))  # that of programs, too
_ALIASES = ("py", "py3", "python3")
LANGUAGES = ("python", *_ALIASES)
_COMPARED = re.compile(r"(>=|<=|>|<|=|\^|~)?v?([0-9]{1,3}|x|X|\*)(\.([0-9]{1,3}|x|X|\*)){0,2}")


def runtimes() -> list[dict[str, Any]]:
    return [{"language": "python", "version": VERSION, "aliases": [*_ALIASES]}]


def job_of(body: dict[str, Any], settings: Settings) -> Job:
    """The first file is the program. Raises Refused."""
    language = fields.text(body, "language")
    if language not in LANGUAGES:
        raise Refused(400, f"{language[:100]}-* runtime is unknown")
    version = fields.text(body, "version", "*")
    if not _may_be_python_3(version):
        raise Refused(400, f"{language}-{version[:100]} runtime is unknown: {VERSION} is there")
    given = body.get("files")
    if type(given) is not list or not given or not all(type(one) is dict for one in given):
        raise Refused(400, "files must be a list of objects with a name and content")
    if len(given) > settings.files:
        raise Refused(400, f"files has more than {settings.files} names")
    files = {}
    for number, one in enumerate(given):
        name = fields.text(one, "name", "") or f"file{number}"
        if number == 0:
            continue
        name = fields.path(name, "files")
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


def _may_be_python_3(selector: str) -> bool:
    """Whether a Python 3 may answer for it: by its major version alone."""
    ways = [way.split() for way in selector[:1000].split("||")]
    return any(way and all(_is_below_3(one) is False for one in way) for way in ways)


def _is_below_3(one: str) -> bool | None:
    """Of one comparison, whether it leaves Python 3 out; None: it is none."""
    found = _COMPARED.fullmatch(one)
    if found is None:
        return None
    sign, major = found[1] or "=", found[2]
    if not major.isdigit():
        return False
    number = int(major)
    if sign in (">=", ">"):
        return number > 3
    if sign == "<":
        return number < 3 or (number == 3 and found[3] is None)
    return number < 3 if sign == "<=" else number != 3


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
    code, name = ended.exit_code, None
    if ended.limit:
        name = "SIGKILL"
        status, message = "SG", f"the program hit its limit: {ended.limit}"
        if ended.limit in ("time", "cpu_time"):
            status = "TO"
    elif code is not None and code < 0:
        status, message = "SG", f"Caught fatal signal {-code}"
        name, code = _signal(-code), None
    elif code:
        status, message = "RE", f"Exited with error status {code}"
    else:
        status, message = None, None
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
            "memory": usage.peak_memory_bytes or None,
            "stdout_truncated": ended.outcome.stdout_truncated,
            "stderr_truncated": ended.outcome.stderr_truncated,
        },
    }


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
