# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: one line for each test, to the machine's second serial port, and a deadline for
each, so that one that hangs is known by its name.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

PORT = "/dev/ttyS1"
LONGEST = 6000  # characters of a failure's text: the port is slow
DEADLINE_SEC = 600  # of a test; a first call makes the base image, and the processor is emulated


def say(line: str) -> None:
    port = os.open(PORT, os.O_WRONLY | os.O_NOCTTY)
    os.write(port, line.encode() + b"\n")
    os.close(port)


def too_late(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"the test did not end within {DEADLINE_SEC} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    say("@at " + item.nodeid)
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(DEADLINE_SEC)
    # For code that never comes back to the interpreter.
    faulthandler.dump_traceback_later(DEADLINE_SEC + 60, exit=True)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    text = str(report.longreprtext if report.outcome == "failed" else report.longrepr or "")
    for _, section in report.sections:
        text += "\n" + section
    told = {
        "name": report.nodeid,
        "outcome": report.outcome,
        "seconds": round(report.duration, 2),
        "text": text[-LONGEST:],
    }
    say("@test " + json.dumps(told))
