"""Time: deadlines that user code cannot move, and clocks that do not jump."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hutch import sandbox

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("wire", "client", "pool", "agent", "images", "bindings")
# A clock that can be set. time.time() of Python, the system clock of C++, the kernel's own names.
SETTABLE = re.compile(r"\bsystem_clock\b|\bCLOCK_REALTIME\b|\btime\.time\(|\bgettimeofday\b")
# Where the time of day itself is said: a line of a log, the age of a file.
SAYS_THE_TIME = {"agent/main.cc", "agent/audit.cc", "bindings/hutch/cli/logs.py"}


def test_only_steady_clocks_decide() -> None:
    """Setting a clock needs a right that tests do not have: so who reads one is looked for."""
    found = set()
    for folder in FOLDERS:
        for path in [*(ROOT / folder).rglob("*.cc"), *(ROOT / folder).rglob("*.h"),
                     *(ROOT / folder).rglob("*.py")]:  # fmt: skip
            name = path.name
            if name.endswith("_test.cc") or name.startswith("test_") or name == "driver.py":
                continue
            if SETTABLE.search(path.read_text()):
                found.add(str(path.relative_to(ROOT)))
    assert found <= SAYS_THE_TIME, "a deadline or a duration must come from a steady clock"


def test_the_search_finds_a_settable_clock() -> None:
    assert SETTABLE.search("now = time.time()")
    assert not SETTABLE.search("now = time.monotonic()")


@sandbox(timeout_sec=1)
def own_timers(how: str) -> int:
    import faulthandler
    import signal
    import sys
    import time

    if how == "alarm":
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
    if how == "faulthandler":
        faulthandler.dump_traceback_later(3600, repeat=True)
        faulthandler.cancel_dump_traceback_later()
    if how == "profile":
        sys.setprofile(lambda *_: time.sleep(0.001))
    if how == "patched clock":
        time.monotonic = lambda: 0.0
        time.perf_counter = lambda: 0.0
    while True:
        pass


@pytest.mark.parametrize("how", ["alarm", "faulthandler", "profile", "patched clock"])
def test_timers_of_ones_own_move_no_deadline(how: str, next_call_works: None) -> None:
    outcome = own_timers.run(how)
    assert (outcome.status, outcome.limit) == ("limit", "time")


def test_a_timer_of_ones_own_works() -> None:
    """The honest twin."""

    @sandbox(timeout_sec=20)
    def alarm() -> str:
        import signal

        came: list[str] = []
        signal.signal(signal.SIGALRM, lambda *_: came.append("rang"))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        signal.pause()
        return came[0]

    assert alarm() == "rang"
