# SPDX-License-Identifier: Apache-2.0
"""Cells of a notebook in one session: SandboxFusion's `POST /run_jupyter`, and each script of
open-r1's `POST /execute_batch`, which is a notebook of one cell.
"""

from __future__ import annotations

import base64
import time
from typing import Any

from hutch._errors import SandboxBusy
from hutch._outcome import Outcome, SandboxError
from hutch._session import Session
from hutch.serve.runner import Job, keywords_of
from hutch.serve.settings import Client, Settings

_MOST_TEXT = 100_000  # characters of a value


def run_cells(
    job: Job, cells: list[str], cell_sec: float, settings: Settings, client: Client
) -> tuple[list[Outcome[Any]], dict[str, bytes], float]:
    """The Outcome of each cell, up to the first that does not return; the files that it fetched;
    the seconds that it took. Waits. Raises SandboxBusy, and SandboxError of faults.
    """
    begun = time.monotonic()
    outcomes: list[Outcome[Any]] = []
    files: dict[str, bytes] = {}
    keywords = keywords_of(settings, client, job.memory_mb)
    with Session(files=job.files, **keywords) as session:
        for cell in cells:
            left = job.timeout_sec - (time.monotonic() - begun)
            outcome = session.exec(cell, timeout_sec=max(0.01, min(left, cell_sec)))
            outcomes.append(outcome)
            if outcome.status == "fault":
                outcome.unwrap()
            if not outcome.ok:
                break
        for path in job.fetch:
            try:
                files[path] = session.files.read_bytes(path)
            except OSError:
                continue
    return outcomes, files, time.monotonic() - begun


def value_text(outcome: Outcome[Any]) -> str | None:
    """What a notebook shows of the last expression."""
    if outcome.status != "returned" or outcome.value is None:
        return None
    return repr(outcome.value)[:_MOST_TEXT]


def error_of(outcome: Outcome[Any]) -> dict[str, str] | None:
    if outcome.ok:
        return None
    if outcome.error is not None:
        error = outcome.error
        return {"name": error.type, "value": error.message, "traceback": error.traceback}
    name = "TimeoutError" if outcome.limit in ("time", "cpu_time") else "SystemError"
    text = f"the code hit its limit: {outcome.limit}" if outcome.limit else "its process ended"
    return {"name": name, "value": text, "traceback": ""}


def fusion_answer(
    outcomes: list[Outcome[Any]], cells: int, files: dict[str, bytes], took: float
) -> dict[str, Any]:
    timed_out = any(one.limit in ("time", "cpu_time") for one in outcomes)
    ok = len(outcomes) == cells and all(one.ok for one in outcomes)
    return {
        "status": "Success" if ok else "Failed",
        "message": "",
        "driver": {
            "status": "TimeLimitExceeded" if timed_out else "Finished",
            "execution_time": took,
            "return_code": None if timed_out else 0 if ok else 1,
            "stdout": "",
            "stderr": "",
        },
        "cells": [_cell(one) for one in outcomes],
        "executor_pod_name": None,
        "files": {path: base64.b64encode(one).decode() for path, one in files.items()},
    }


def _cell(outcome: Outcome[Any]) -> dict[str, Any]:
    display = [
        {
            kind: base64.b64encode(one).decode() if type(one) is bytes else one
            for kind, one in shown.items()
        }
        for shown in outcome.display
    ]
    text = value_text(outcome)
    if text is not None:
        display.append({"text/plain": text})
    error = error_of(outcome)
    return {
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "display": display,
        "error": [] if error is None else [
            {"ename": error["name"], "evalue": error["value"], "traceback": [error["traceback"]]}
        ],
    }  # fmt: skip


def e2b_answer(job: Job, settings: Settings, client: Client) -> dict[str, Any]:
    """Of one script, as E2B's Execution. Waits. Raises SandboxBusy."""
    try:
        outcomes, _, _ = run_cells(job, [job.source], job.timeout_sec, settings, client)
    except SandboxBusy:
        raise
    except SandboxError as error:
        return {"execution": None, "exception_str": str(error)}
    outcome = outcomes[0]
    if outcome.limit in ("time", "cpu_time"):
        return {"execution": None, "exception_str": "the script took too long"}
    text = value_text(outcome)
    execution = {
        "results": [] if text is None else [{"text": text, "is_main_result": True}],
        "logs": {"stdout": _lines(outcome.stdout), "stderr": _lines(outcome.stderr)},
        "error": error_of(outcome),
        "execution_count": 1,
    }
    return {"execution": execution, "exception_str": None}


def _lines(text: str) -> list[str]:
    return [text] if text else []
