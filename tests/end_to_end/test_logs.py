# SPDX-License-Identifier: Apache-2.0
"""`hutch logs`: what the agent writes, and the last words of a zygote that died."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import sandbox

HUTCH = str(Path(sys.executable).with_name("hutch"))
ENTRY = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (error|warn|info|debug) (agent|egress): [ -~]+"
)
VALUE = "a-value-of-env-4711"


def logged() -> list[str]:
    done = subprocess.run(
        [HUTCH, "logs", "--json"], capture_output=True, text=True, check=True, timeout=60
    )
    return list(json.loads(done.stdout)["lines"])


def entries_with(text: str, wait_sec: float = 10) -> list[str]:
    deadline = time.monotonic() + wait_sec
    while True:
        found = [line for line in logged() if text in line]
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def agent_kb() -> int:
    found = re.search(r"^process_resident_memory_bytes ([\d.e+]+)$", hutch.metrics(), re.M)
    assert found is not None
    return int(float(found[1])) >> 10


def crash_with_a_traceback() -> None:
    import sys
    import traceback

    def a_function_of_the_setup() -> None:
        traceback.print_stack()
        print("the value is", os.environ["SETTING"], file=sys.stderr)
        os._exit(3)

    import os

    a_function_of_the_setup()


def write_a_gigabyte_of_escapes() -> None:
    import os

    chunk = b"\x1b[2J\x1b]0;owned\x07\n2026-01-01T00:00:00.000Z error agent: forged\n" * 1000
    for _ in range((1 << 30) // len(chunk)):
        os.write(2, chunk)
    os.write(2, b"the last word of a hostile zygote\n")
    os._exit(1)


def print_and_go_on() -> None:
    import sys

    print("what a setup printed that went well", file=sys.stderr)


def answer() -> int:
    return 42


def fail_to_start(setup: Callable[[], None], **options: Any) -> None:
    with pytest.raises(hutch.SandboxStartupError, match=r"setup= failed.*ended the process"):
        sandbox(answer, setup=setup, **options)()


def test_each_line_has_time_level_and_component() -> None:
    assert sandbox(answer)() == 42
    lines = logged()
    assert any("listening" in line for line in lines)
    assert [line for line in lines if not ENTRY.fullmatch(line)] == []


def test_a_zygote_that_crashes_leaves_its_traceback_without_the_values_of_env() -> None:
    fail_to_start(crash_with_a_traceback, env={"SETTING": VALUE})
    (entry,) = entries_with("a_function_of_the_setup")
    assert ENTRY.fullmatch(entry) and " warn agent: " in entry
    assert re.search(r'worker=hutch-worker-\S+ why="exit code 3"', entry)
    assert "the value is [env]" in entry
    assert not any(VALUE in line for line in logged())


def test_a_zygote_that_writes_a_gigabyte_of_escapes_leaves_one_bounded_entry() -> None:
    assert sandbox(answer)() == 42
    before = agent_kb()
    fail_to_start(write_a_gigabyte_of_escapes)
    (entry,) = entries_with("the last word of a hostile zygote")
    assert len(entry) <= 4096 and ENTRY.fullmatch(entry)
    assert "\\x1b[2J" in entry and "\\n2026-01-01" in entry
    assert not any(line.startswith("2026-01-01") for line in logged())
    assert agent_kb() - before < 64 << 10, "of a gigabyte, and what sanitizers and glibc keep"


def test_what_a_cell_or_a_setup_prints_that_goes_well_is_in_no_log() -> None:
    import sys as _sys

    def noisy() -> None:
        for stream in (_sys.stdout, _sys.stderr):
            print("what a call printed", file=stream, flush=True)
        import os as _os

        _os.abort()

    outcome = sandbox(noisy, setup=print_and_go_on).run()
    assert outcome.status == "died" and "what a call printed" in outcome.stderr
    time.sleep(1)
    text = "\n".join(logged())
    assert "what a call printed" not in text and "what a setup printed" not in text


TRACED = """
import hutch

outcome = hutch.run("print(1)")
print(outcome.call_id)
"""


def test_a_trace_follows_one_call_by_its_ids() -> None:
    def run(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", TRACED],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **env},
        )

    done = run(HUTCH_TRACE="1")
    call = done.stdout.split()[-1]
    stages = {line.split()[3]: line for line in done.stderr.splitlines() if f"call={call}" in line}
    assert list(stages) == ["sent", "reply", "done"]
    lease = re.findall(r" lease=(\d+)", stages["sent"])[0]
    assert f"lease={lease} " in stages["done"] and "run_us=" in stages["done"]
    assert re.search(rf"hutch trace \S+ leased lease={lease} worker=\S+ us=\d+", done.stderr)
    assert "hutch trace" not in run().stderr


def test_the_agents_level_is_that_of_hutch_log() -> None:
    hutch.agent.stop()
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRACED],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "HUTCH_LOG": "debug"},
        )
        assert re.search(r" info launcher: starting the agent", done.stderr)
        call = done.stdout.split()[-1]
        ended = next(line for line in entries_with(f"call={call}") if ": done " in line)
        lease = re.findall(r" lease=(\d+)", ended)[0]
        for text in (f"a cell is ready lease={lease} ", f"leased lease={lease} "):
            assert entries_with(text), text
    finally:
        hutch.agent.stop()
