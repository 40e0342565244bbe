# SPDX-License-Identifier: Apache-2.0
"""What tests of several folders wait and look with."""

from __future__ import annotations

import http.server
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

GVISOR = pytest.param(
    "gvisor",
    marks=pytest.mark.skipif(shutil.which("runsc") is None, reason="runsc is not installed"),
)


def until(holds: Callable[[], T], why: str = "it never came", sec: float = 60) -> T:
    """The first value of `holds()` that is true, asked again and again. Fails with `why` after
    `sec`: longer than any machine takes where what is tested does what it should, and shorter than
    what would come about without it, such as the time limit of a call that is to be ended.
    """
    deadline = time.monotonic() + sec
    while not (found := holds()):
        assert time.monotonic() < deadline, why
        time.sleep(0.01)
    return found


@contextmanager
def grows_by_less_than(mb: int) -> Iterator[None]:
    """Meanwhile this process never has so much more memory, whatever it had at any time before."""
    Path("/proc/self/clear_refs").write_text("5")  # the most that it had is what it has now
    before = _most_kb()
    yield
    more = (_most_kb() - before) >> 10
    assert more < mb, f"{more} MB more"


def _most_kb() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


class HttpServer(http.server.ThreadingHTTPServer):
    """Takes as many connections at once as clients make: beyond the five of the library, Linux may
    reset one of which its client has sent a request already.
    """

    request_queue_size = 512


def endings(label: str) -> Counter[str]:
    """How many calls of that label have ended in which way, and their cells with them."""
    import hutch  # not everything that is waited for has it

    found: Counter[str] = Counter()
    for pool in hutch.status()["pools"]:
        if label in pool["labels"].values():
            found.update(pool["outcomes"])
    return found
