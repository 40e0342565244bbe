# SPDX-License-Identifier: Apache-2.0
"""Time: deadlines that user code cannot move, and clocks that do not jump."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hutch import sandbox

ROOT = Path(__file__).parent.parent.parent
FOLDERS = "wire client loop podman environments pool launcher agent images bindings".split()
# A clock that can be set. time.time() of Python, the system clock of C++, the kernel's own names.
SETTABLE = re.compile(r"\bsystem_clock\b|\bCLOCK_REALTIME\b|\btime\.time\(|\bgettimeofday\b")
# Where the time of day itself is said: a line of a log, an entry of a history, since when a
# session is held, the age of a file or a state.
SAYS_THE_TIME = {
    "agent/main.cc", "agent/audit.cc", "bindings/hutch/_calls/history.py",
    "bindings/hutch/_errors.py", "bindings/hutch/_saved_states.py",
    "bindings/hutch/_session_hold.py", "bindings/hutch/_storage_directory.py",
    "bindings/hutch/cli/logs.py", "bindings/hutch/cli/prune.py", "bindings/hutch/sessions.py",
    "client/trace.h", "wire/log.cc",
}  # fmt: skip


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


# The clock that can be set, off by what a file says, in one process: the machine's is everybody's.
SHIM = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long off(void) {
  long seconds = 0;
  FILE* file = fopen(getenv("CLOCK_IS_OFF_BY"), "r");
  if (file == NULL) return 0;
  if (fscanf(file, "%ld", &seconds) != 1) seconds = 0;
  fclose(file);
  return seconds;
}
int clock_gettime(clockid_t id, struct timespec* now) {
  int failed = syscall(SYS_clock_gettime, id, now);
  if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += off();
  return failed;
}
int gettimeofday(struct timeval* now, void* zone) {
  int failed = syscall(SYS_gettimeofday, now, zone);
  now->tv_sec += off();
  return failed;
}
time_t time(time_t* to) {
  struct timeval now;
  gettimeofday(&now, NULL);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}
"""
JUMPS = """
import os, threading, time
import hutch

def jump(seconds):
    with open(os.environ["CLOCK_IS_OFF_BY"] + ".new", "w") as file:
        file.write(str(seconds))
    os.replace(file.name, os.environ["CLOCK_IS_OFF_BY"])

sleep = hutch.Program("import time; print('begun', flush=True); time.sleep(1)", timeout_sec=60,
                      on_stdout=lambda _: began.set())
for seconds in (86400, -86400):
    jump(0)
    before, began = time.time(), threading.Event()
    flight = sleep.submit()
    assert began.wait(60)
    jump(seconds)
    assert abs(time.time() - before - seconds) < 3600  # this process sees it
    outcome = flight.outcome()
    assert outcome.ok, outcome
    told = [outcome.usage.wall_sec, outcome.usage.waited_sec, *outcome.timings.values()]
    assert outcome.usage.wall_sec >= 0.9 and all(0 <= figure < 3600 for figure in told), told
    jump(0)
    endless = hutch.Program("print('begun', flush=True); import time; time.sleep(600)",
                            timeout_sec=2, on_stdout=lambda _: jump(seconds))
    late = endless.run()
    assert late.limit == "time" and 1.9 <= late.usage.wall_sec < 3600, late
print("held")
"""


def test_a_clock_that_jumps_changes_no_duration_and_no_deadline(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a clock that jumps with")
    shim = tmp_path / "shim.so"
    (tmp_path / "shim.c").write_text(SHIM)
    line = [compiler, "-shared", "-fPIC", "-o", str(shim), str(tmp_path / "shim.c")]
    subprocess.run(line, check=True)
    env = {**os.environ, "LD_PRELOAD": str(shim), "CLOCK_IS_OFF_BY": str(tmp_path / "off")}
    done = subprocess.run(
        [sys.executable, "-c", JUMPS], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "held", done.stdout + done.stderr


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
    """The harmless counterpart."""

    @sandbox(timeout_sec=20)
    def alarm() -> str:
        import signal

        came: list[str] = []
        signal.signal(signal.SIGALRM, lambda *_: came.append("rang"))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        signal.pause()
        return came[0]

    assert alarm() == "rang"
