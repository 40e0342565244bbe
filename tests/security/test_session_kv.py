# SPDX-License-Identifier: Apache-2.0
"""What a hostile cell does with its keys and values ends in one clear error inside, and takes a
bounded amount of the host.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch import KeyValueLimit, Session

KV = "from hutch_tools import kv\nimport hutch_tools\n"
# Asks without a pause, and goes on from where it was asked to slow down, or not.
CAUGHT = """
def caught(do, count):
    for i in range(count):
        try: do(i)
        except Exception as error:
            return i, type(error).__name__, getattr(error, 'limit', ''), str(error)
"""
UNHURRIED = """
import time
def unhurried(do, count):
    for i in range(count):
        while True:
            try: do(i)
            except kv.Limit as error:
                if error.limit != 'rate': return i, error.limit, str(error)
                time.sleep(1)
                continue
            break
"""


@pytest.fixture
def s() -> Iterator[Session]:
    with Session(memory_mb=2560, timeout_sec=120, cpu_sec=None) as session:
        session.exec(KV + CAUGHT + UNHURRIED).unwrap()
        yield session


def resident() -> int:
    """Bytes of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_million_keys_end_at_ten_thousand(s: Session) -> None:
    for i in range(9_500):
        s.kv.set(f"the host's {i}", "")
    reached = s.exec("unhurried(lambda i: kv.set(str(i), ''), 10**6)").unwrap()
    assert reached[:2] == (500, "keys") and "at most 10,000" in reached[2]
    assert len(s.kv.keys()) == 10_000
    with pytest.raises(KeyValueLimit):
        s.kv.set("more", "")


def test_keys_and_values_of_any_size_are_refused_with_no_memory_of_the_host(s: Session) -> None:
    before = resident()
    for do, limit in (
        ("kv.set('k' * (1 << 20), '')", "key_bytes"),
        ("kv.set('k' * (1 << 30), '')", "key_bytes"),
        ("kv.set('a', bytes(1 << 30))", "value_bytes"),
        ("kv.set('a', 'v' * (1 << 30))", "value_bytes"),
    ):
        name, found, text = s.exec(f"caught(lambda _: {do}, 1)[1:]").unwrap()
        assert (name, found) == ("KeyValueLimit", limit) and "at most" in text, do
    # Past the check inside, as far as one message goes.
    for size, error in ((2 << 20, "limit"), (64 << 20, "ValueError"), (1 << 30, "ValueError")):
        ask = f"hutch_tools.kv._dialogue.ask('kv', 'set', 'a', bytes({size}))"
        found = s.exec(f"r = []\ncaught(lambda _: r.append({ask}), 1) or r[0]").unwrap()
        assert error in (found[0], found[1]), found
    assert s.kv.keys() == [] and resident() - before < 64 << 20


def test_all_that_it_keeps_is_bounded(s: Session) -> None:
    before = resident()
    for which in ("bytes(1 << 20)", "'\\U0001f600' + 'x' * ((1 << 20) - 4)"):
        reached = s.exec(f"unhurried(lambda i: kv.set(str(i), {which}), 10**6)").unwrap()
        assert reached[1] == "total_bytes" and reached[0] < 64
        keys = s.kv.keys()
        for key in keys:
            s.kv.delete(key)
    assert resident() - before < 160 << 20


def test_requests_without_a_pause_are_slowed_down(s: Session) -> None:
    reached = s.exec("caught(lambda _: kv.get('a'), 10**6)").unwrap()
    assert reached[0] >= 999 and reached[1:3] == ("KeyValueLimit", "rate"), reached
    assert "500 a second" in reached[3]
    reached = s.exec(
        "import time; time.sleep(0.5)\n"
        "found = [caught(lambda _: kv.set('a', 'x'), 10**6) for _ in range(3)]; found"
    ).unwrap()
    assert all(one[2] == "rate" for one in reached)
    # The host is under no such limit, and another session has its own.
    for _ in range(5000):
        s.kv.set("a", "x")
    with Session(memory_mb=256) as other:
        assert other.exec(KV + "[kv.get('a') for _ in range(900)][-1]").ok


def test_what_is_said_and_not_asked_changes_nothing(s: Session) -> None:
    before = resident()
    source = "for i in range(20_000): kv._dialogue.say('kv', 'set', str(i), 'x' * 10_000)"
    assert s.exec(source).ok
    assert s.kv.keys() == [] and resident() - before < 64 << 20


WRONG = ("", "'get'", "'set', 'a'", "'part', '', None, 10**12", "'__class__'", "'set', 1, 1",
         "['set'], 'a', 'x'", "'set', 'a', {'a': 1}", "'items', '', 3", "None",
         "'answer', []")  # fmt: skip


@pytest.mark.parametrize("request_", WRONG)
def test_a_request_that_is_none_is_an_error_inside(s: Session, request_: str) -> None:
    found = s.exec(f"caught(lambda _: kv._dialogue.ask('kv', {request_}), 1)").unwrap()
    assert found[1] == "TypeError" and s.exec("1").value == 1 and s.kv.keys() == []


def test_a_history_that_a_cell_fills_keeps_what_its_caller_ran() -> None:
    def look(text: str) -> None:
        pass

    with Session(memory_mb=512, timeout_sec=120, tools=[look]) as s:
        before = resident()
        s.exec("for i in range(3000): look('\\x1b[2J' * 100_000)")
        entries = s.history(10**6)
        assert entries[0].kind == "exec" and len(entries) == 1001
        assert all("\x1b" not in repr(one) for one in entries)
        assert resident() - before < 96 << 20


def test_an_honest_program_meets_none_of_it(s: Session) -> None:
    source = """
for i in range(400):
    kv.set(f'step {i}', f'done {i}')
kv.set('state', bytes(500_000))
[kv.get('step 7'), len(kv.keys('step')), len(kv.items()), kv.delete('state')]
"""
    assert s.exec(source).value == ["done 7", 400, 401, True]
    assert s.kv.get("step 399") == "done 399"
