"""A pytest plugin: one line for each test, to the machine's second serial port."""

from __future__ import annotations

import json
import os

import pytest

PORT = "/dev/ttyS1"
LONGEST = 6000  # characters of a failure's text: the port is slow


def say(line: str) -> None:
    port = os.open(PORT, os.O_WRONLY | os.O_NOCTTY)
    os.write(port, line.encode() + b"\n")
    os.close(port)


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
