# SPDX-License-Identifier: Apache-2.0
"""Where a thread cannot be started, a call runs once and is answered, and so are those after it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# The first start of a thread of that name fails.
PROGRAM = """
import sys, threading, time
import hutch

@hutch.sandbox(timeout_sec=60)
def twice(n):
    return 2 * n

@hutch.sandbox(timeout_sec=60)
def sleep(seconds):
    import time
    time.sleep(seconds)

assert twice(1) == 2 and sleep(0) is None  # so that there is a cell for the next call
time.sleep(1)
start, failed = threading.Thread.start, []

def start_or_fail(self):
    if self.name == sys.argv[1] and not failed:
        failed.append(self)
        raise RuntimeError("can't start new thread")
    start(self)

threading.Thread.start = start_or_fail
print("begins", file=sys.stderr, flush=True)
if sys.argv[1] == "hutch-call":
    late = sleep.submit(40)
    time.sleep(1)
    late.cancel()
    print(late.outcome(30).status)
else:
    print(twice.submit(2).result(30))
print(len(failed), [twice.submit(n).result(30) for n in range(3)])
"""


@pytest.mark.parametrize(
    ("thread", "said"), [("hutch-in-flight", "4"), ("hutch-call", "cancelled")]
)
def test_a_thread_that_cannot_be_started(thread: str, said: str) -> None:
    environment = {**os.environ, "HUTCH_TRACE": "1"}
    command = [sys.executable, "-c", PROGRAM, thread]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout == f"{said}\n1 [0, 2, 4]\n", done.stderr[-3000:]
    sent = done.stderr.partition("begins")[2].count("sent")
    assert sent == 4, "each call is sent to one cell"
