# SPDX-License-Identifier: Apache-2.0
"""SandboxFusion's protocol: `POST /run_code`, `POST /run_jupyter`, `GET /v1/ping`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hutch.serve import fields
from hutch.serve.gate import Refused
from hutch.serve.runner import KEEP_FILES, Ended, Job
from hutch.serve.settings import Settings

_PATIENCE_SEC = 8.0
LANGUAGES = ("python", "pytest", "bash", "nodejs")


def job_of(body: dict[str, Any], settings: Settings) -> Job | str:
    """Or why there is none, which is the answer. Raises Refused."""
    language = fields.text(body, "language", "python")
    if language == "nodejs" and body.get("fetch_files") and settings.isolation not in KEEP_FILES:
        return "fetch_files is not supported for nodejs on this server"
    stdin = body.get("stdin")
    job = Job(
        source=fields.text(body, "code"),
        language=language,
        timeout_sec=fields.seconds(
            body.get("run_timeout", 10), "run_timeout", settings.timeout_sec
        ),
        memory_mb=fields.memory_mb(
            body.get("memory_limit_MB", -1), "memory_limit_MB", settings.memory_mb
        ),
        stdin=None if stdin is None else fields.text(body, "stdin"),
        args=fields.words(body.get("args"), "args"),
        files=fields.files(body, settings),
        fetch=fields.paths(body.get("fetch_files"), "fetch_files", settings.files),
    )
    patience_sec(body)  # whatever its language, a wrong request is refused
    if language not in LANGUAGES:
        return f"language {language[:100]!r} is not supported: {', '.join(LANGUAGES)} are"
    return job


def notebook_of(body: dict[str, Any], settings: Settings) -> tuple[Job, list[str], float]:
    """Its cells, and the seconds of each. Raises Refused."""
    cells = fields.required_texts(body, "cells", fields.MOST_SCRIPTS)
    if body.get("kernel", "python3") != "python3":
        raise Refused(422, "kernel may be python3 only")
    most = fields.seconds(body.get("total_timeout", 45), "total_timeout", settings.timeout_sec)
    job = Job(
        source="",
        timeout_sec=most,
        memory_mb=fields.memory_mb(
            body.get("memory_limit_MB"), "memory_limit_MB", settings.memory_mb
        ),
        files=fields.files(body, settings),
        fetch=fields.paths(body.get("fetch_files"), "fetch_files", settings.files),
    )
    return job, cells, fields.seconds(body.get("cell_timeout"), "cell_timeout", most)


def patience_sec(body: Mapping[str, Any]) -> float:
    """For its turn. Clients wait for run_timeout + compile_timeout and some 10 seconds, and ask
    again after a 504.
    """
    most = 3600.0
    return fields.seconds(body.get("compile_timeout", 10), "compile_timeout", most) + _PATIENCE_SEC


def answer(ended: Ended) -> dict[str, Any]:
    """What a program does is "Failed" at worst."""
    status = "TimeLimitExceeded" if ended.limit in ("time", "cpu_time") else "Finished"
    code = ended.exit_code
    if code is None and status == "Finished":
        code = -9  # as where the kernel ends what takes too much
    result = {
        "status": status,
        "execution_time": ended.seconds,
        "return_code": code,
        "stdout": ended.stdout,
        "stderr": ended.stderr,
        "stdout_truncated": ended.outcome.stdout_truncated,
        "stderr_truncated": ended.outcome.stderr_truncated,
    }
    return {
        "status": "Success" if code == 0 and status == "Finished" else "Failed",
        "message": "",
        "compile_result": None,
        "run_result": result,
        "executor_pod_name": None,
        "files": ended.files,
    }


def fault(text: str) -> dict[str, Any]:
    return {
        "status": "SandboxError",
        "message": text,
        "compile_result": None,
        "run_result": None,
        "executor_pod_name": None,
        "files": {},
    }
