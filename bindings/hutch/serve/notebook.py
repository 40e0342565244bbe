# SPDX-License-Identifier: Apache-2.0
"""Cells of a notebook in one session: SandboxFusion's `POST /run_jupyter`, and each script of
open-r1's `POST /execute_batch`, which is a notebook of one cell.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hutch._async_session import AsyncSession
from hutch._display import form_as_json
from hutch._errors import SandboxBusy, SandboxStartupError
from hutch._outcome import Outcome, SandboxError
from hutch._program_files import OF_THE_CODE
from hutch._text import shown
from hutch.serve.aside import Aside
from hutch.serve.encode import size_of
from hutch.serve.public import public
from hutch.serve.runner import MOST_RESULT_MB, Job, keywords_of
from hutch.serve.settings import Client, Settings

_MOST_TEXT = 100_000  # characters of a value
_MOST_OF_CHARACTER = 12  # characters in JSON
_LATER_SEC = 2.0  # for all files to be fetched
_NO_TIME = "there was no time left"
_NO_INTERPRETER = "the interpreter ended in an earlier cell"


@dataclass
class Ran:
    """`outcomes`: of each cell, up to the last that ran; `seconds`: that all of it took.
    `cut`: why the rest did not run, "" where nothing would have kept it from that.
    """

    outcomes: list[Outcome[Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    cut: str = ""


async def run_cells(
    job: Job,
    cells: list[str],
    cell_sec: float,
    settings: Settings,
    aside: Aside,
    client: Client,
    room: int | None = None,
) -> Ran:
    """Cells run also after one that raised, until their interpreter is lost or the time is over.
    What all of it takes here is bounded by `room`, else by `body_mb`: what is shown, and files,
    beyond that are left out, and a cell whose value is larger has met a limit. Raises SandboxBusy,
    and SandboxError of faults, which once code has run may have run. Where this is cancelled, the
    cell that runs is killed, and this ends when the session has.
    """
    begun = time.monotonic()
    ran = Ran()
    keywords = keywords_of(settings, client, job.memory_mb)
    keywords["result_mb"] = min(settings.body_mb, MOST_RESULT_MB)  # also of a file
    room = settings.body_mb << 20 if room is None else room
    try:
        async with AsyncSession(files=job.files, on_install=_adds_none, **keywords) as session:
            session._of._engine.is_notebook = True
            for cell in cells:
                left = job.timeout_sec - (time.monotonic() - begun)
                if left <= 0 and ran.outcomes:
                    ran.cut = _NO_TIME
                    break
                outcome = await session.exec(cell, timeout_sec=max(0.01, min(left, cell_sec)))
                if outcome.status == "fault":
                    outcome.unwrap()
                ran.outcomes.append(outcome)
                room = await aside.do(client, _shown(outcome), partial(_bounded, outcome, room))
                if outcome.restarted or session.info()["closed"]:
                    ran.cut = _NO_INTERPRETER
                    break
            if job.fetch and not session.info()["closed"]:
                left = job.timeout_sec + _LATER_SEC - (time.monotonic() - begun)
                try:
                    await asyncio.wait_for(_fetch(session, job.fetch, ran.files, room), left)
                except (asyncio.TimeoutError, TimeoutError):
                    pass  # the code keeps what reads them
    except SandboxStartupError as error:
        if not ran.outcomes or error.may_have_run:
            raise
        raise SandboxStartupError(error.message, hint=error.hint, may_have_run=True) from None
    ran.seconds = time.monotonic() - begun
    return ran


def _adds_none(requirements: list[str]) -> bool:
    """Is printed, and the cell goes on: what it asks for may be there."""
    raise PermissionError("this server adds no packages to those of `hutch serve --with`")


async def _fetch(
    session: AsyncSession, paths: list[str], into: dict[str, bytes], room: int
) -> None:
    for path in paths:
        try:
            content = await session.files.read_bytes(path)
        except (OSError, *OF_THE_CODE):
            if session.info()["closed"]:  # code that ran on ended it
                return
            continue
        room -= len(content)
        if room >= 0:
            into[path] = content


def _text_of(value: Any) -> str:
    text = shown(value, _MOST_TEXT + 1)
    if len(text) <= _MOST_TEXT:
        return text
    return f"{text[:_MOST_TEXT]}… (cut after {_MOST_TEXT:,} characters)"


def _shown(outcome: Outcome[Any]) -> int:
    """About how many bytes it shows, beside its value."""
    return size_of([outcome.stdout, outcome.stderr, [*outcome.display]])


def _bounded(outcome: Outcome[Any], room: int) -> int:
    """Makes the value the text that is shown of it, and leaves out what has no room; the rest of
    the room.
    """
    error = outcome.error
    if outcome.status == "returned" and outcome.value is not None:
        outcome.value = _text_of(outcome.value)
        room -= _size_of(outcome.value)
    kept = []
    for forms in outcome.display if room > 0 else ():
        sent = {kind: form_as_json(one) for kind, one in forms.items()}
        size = sum(map(_size_of, sent.values()))
        if size <= room:
            room -= size
            kept.append(sent)
    outcome.display = kept
    outcome.stdout, outcome.stderr = _cut(outcome.stdout, room), _cut(outcome.stderr, room)
    room -= _size_of(outcome.stdout) + _size_of(outcome.stderr)
    if error is not None:
        room -= _size_of(error.traceback) + _size_of(error.message)
        if room < 0:
            error.traceback, error.message = error.traceback[-1000:], error.message[:1000]
    return room


def _size_of(form: Any) -> int:
    """Characters of its JSON."""
    return len(json.dumps(form))


def _cut(text: str, room: int) -> str:
    if _size_of(text) <= room:
        return text
    kept = text[: max(0, room) // _MOST_OF_CHARACTER]
    return f"{kept}\n[{len(text) - len(kept)} characters have no room in this answer]\n"


def value_text(outcome: Outcome[Any]) -> str | None:
    """What a notebook shows of the last expression."""
    if outcome.status != "returned" or outcome.value is None:
        return None
    text: str = outcome.value
    return text


def error_of(outcome: Outcome[Any]) -> dict[str, str] | None:
    if outcome.ok:
        return None
    error = outcome.error
    if error is not None and (error.traceback or outcome.status == "raised"):
        hint = f"hint: {error.hint}\n" if error.hint else ""
        return {"name": error.type, "value": error.message, "traceback": error.traceback + hint}
    name = "TimeoutError" if outcome.limit in ("time", "cpu_time") else "SystemError"
    text = f"the code hit its limit: {outcome.limit}" if outcome.limit else "its process ended"
    if outcome.limit == "result":
        text = "the value of the last expression is too large to be shown: show less of it"
    return {"name": name, "value": text, "traceback": ""}


def fusion_answer(ran: Ran, cells: int) -> dict[str, Any]:
    """An error is its cell's alone, as in the kernel of a notebook: "Failed" is one whose
    interpreter was lost, or that met a limit of time. Each cell has an answer in any case.
    """
    timed_out = any(one.limit in ("time", "cpu_time") for one in ran.outcomes)
    timed_out = timed_out or ran.cut == _NO_TIME
    ok = not ran.cut and not timed_out
    left_out = [_left_out(ran.cut) for _ in range(cells - len(ran.outcomes))]
    return {
        "status": "Success" if ok else "Failed",
        "message": "",
        "driver": {
            "status": "TimeLimitExceeded" if timed_out else "Finished",
            "execution_time": ran.seconds,
            "return_code": None if timed_out else 0 if ok else 1,
            "stdout": "",
            "stderr": "",
        },
        "cells": [*map(_cell, ran.outcomes), *left_out],
        "executor_pod_name": None,
        "files": ran.files,
    }


def _left_out(why: str) -> dict[str, Any]:
    name = "TimeoutError" if why == _NO_TIME else "DeadKernelError"  # as nbclient calls it
    error = {"ename": name, "evalue": f"this cell did not run: {why}", "traceback": []}
    return {"stdout": "", "stderr": "", "display": [], "error": [error]}


def _cell(outcome: Outcome[Any]) -> dict[str, Any]:
    display = [*outcome.display]
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


async def e2b_answer(
    job: Job, settings: Settings, aside: Aside, client: Client, room: int
) -> dict[str, Any]:
    """Of one script, as E2B's Execution, and `text` as Morph's. `room`: bytes for it. Raises
    SandboxBusy.
    """
    try:
        ran = await run_cells(job, [job.source], job.timeout_sec, settings, aside, client, room)
    except SandboxBusy:
        raise
    except SandboxError as error:
        return no_verdict(public(error, settings).message)
    outcome = ran.outcomes[0]
    if outcome.limit in ("time", "cpu_time"):
        return no_verdict("the script took too long")
    text, raised = value_text(outcome), error_of(outcome)
    execution = {
        "results": [] if text is None else [{"text": text, "is_main_result": True}],
        "logs": {"stdout": _lines(outcome.stdout), "stderr": _lines(outcome.stderr)},
        "error": raised,
        "execution_count": 1,
    }
    said = outcome.stdout if text is None else text
    if raised is not None:
        said = f"Error: {raised['name']}: {raised['value']}"
    return {"execution": execution, "text": said, "exception_str": None}


def no_verdict(why: str) -> dict[str, Any]:
    """With a text: a client that finds none gives the whole batch up."""
    return {"execution": None, "text": "", "exception_str": why}


def no_room(settings: Settings) -> dict[str, Any]:
    """For a script whose answer has no room beside those of the others."""
    most = settings.body_mb
    return no_verdict(f"the answers of this request take more than {most} MiB: send fewer scripts")


def _lines(text: str) -> list[str]:
    return [text] if text else []
