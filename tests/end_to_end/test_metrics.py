# SPDX-License-Identifier: Apache-2.0
"""What the agent counts adds up to the calls that were made, and says so in every form."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support import until

import hutch

HUTCH = str(Path(sys.executable).with_name("hutch"))
MARK = f'test "of\\{os.getpid()}\n'  # a label that needs every kind of escape; a pool of our own


@hutch.sandbox(labels={"mark": MARK}, timeout_sec=1, result_mb=1)
def act(what: str) -> Any:
    import os
    import time

    if what == "raise":
        raise ValueError(what)
    if what == "exit":
        os._exit(3)
    if what == "sleep":
        time.sleep(60)
    return bytearray(4 << 20) if what == "large" else what


EXPECTED = {"returned": 5, "raised": 2, "limit:time": 1, "limit:result": 1, "died": 2}


def make_calls() -> None:
    for what in ["x"] * 5 + ["raise"] * 2 + ["sleep", "large"] + ["exit"] * 2:
        act.run(what)


def pool_of(status: hutch.Status) -> hutch.PoolStatus:
    return next(pool for pool in status.get("pools", []) if pool["labels"].get("mark") == MARK)


def counted(calls: int) -> hutch.PoolStatus:
    """Once the agent has read what clients reported to it: nobody waits for that."""
    deadline = time.monotonic() + 20
    while True:
        pool = pool_of(hutch.status())
        if pool["calls"] >= calls or time.monotonic() > deadline:
            return pool
        time.sleep(0.05)


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(text: str) -> Samples:
    """Every sample, after what Prometheus's own parser and these rules make of the text."""
    assert text.endswith("\n")
    samples: Samples = {}
    seen = set()
    for family in text_string_to_metric_families(text):
        assert family.name not in seen, "all samples of a family stand together"
        seen.add(family.name)
        assert family.documentation and family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            assert re.fullmatch(r"[a-z_]+", sample.name)
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, "no sample twice"
            samples[key] = sample.value
            if family.type == "counter":
                assert sample.name.endswith("_total") and sample.value >= 0
    heads = re.findall(r"^# (HELP|TYPE) (\S+)", text, re.M)
    assert heads[::2] == [("HELP", name) for _, name in heads[::2]]
    assert heads[1::2] == [("TYPE", name) for _, name in heads[::2]]
    return samples


def chosen(samples: Samples, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
    return {
        key: value
        for (found, key), value in samples.items()
        if found == name and labels.items() <= dict(key).items()
    }


@pytest.fixture(scope="module")
def pool() -> hutch.PoolStatus:
    hutch.agent.stop()  # its counts begin anew
    make_calls()
    return counted(sum(EXPECTED.values()))


def test_calls_are_counted_by_how_they_ended(pool: hutch.PoolStatus) -> None:
    assert pool["outcomes"] == EXPECTED
    assert pool["calls"] == sum(EXPECTED.values())


def test_a_pool_has_its_figures(pool: hutch.PoolStatus) -> None:
    assert pool["p50_ms"] is not None and pool["p99_ms"] is not None
    assert 0 < pool["p50_ms"] <= pool["p99_ms"]
    assert pool["p99_ms"] >= 800, "one slept until its limit of a second"
    assert pool["hit_rate"] is not None and 0 < pool["hit_rate"] < 1, "the first had to ask"
    assert pool["cells_made"] >= pool["calls"]
    assert pool["worker_starts"] >= 1 and pool["worker_failures"] == 0
    assert set(pool) == set(hutch.PoolStatus.__annotations__)


def test_the_agent_has_its_figures(pool: hutch.PoolStatus) -> None:
    status = hutch.status()
    assert status["running"] and set(status) == set(hutch.Status.__annotations__)
    assert status["calls"] >= pool["calls"]
    assert status["memory_bytes"] > 1_000_000 and status["descriptors"] > 5


def test_prometheus_reads_it(pool: hutch.PoolStatus) -> None:
    samples = scraped(hutch.metrics())
    name = pool["key"][:12]
    by_status: dict[str, float] = {}
    for key, value in chosen(samples, "hutch_calls_total", pool=name).items():
        labels = dict(key)
        ending = f"limit:{labels['limit']}" if labels["limit"] else labels["status"]
        by_status[ending] = value
    assert {ending: n for ending, n in by_status.items() if n} == EXPECTED
    assert by_status["fault"] == 0, "what has not happened is there as 0"
    info = chosen(samples, "hutch_pool_info", pool=name)
    assert [dict(key)["label_mark"] for key in info] == [MARK]
    assert chosen(samples, "process_open_fds") and chosen(samples, "hutch_builds_total")


def test_buckets_add_up(pool: hutch.PoolStatus) -> None:
    samples = scraped(hutch.metrics())
    name, calls = pool["key"][:12], sum(EXPECTED.values())
    stages = {dict(key)["stage"] for key in chosen(samples, "hutch_call_stage_seconds_count")}
    assert stages == {"queue", "send", "run", "receive"}
    for family, more in [("hutch_call_seconds", {})] + [
        ("hutch_call_stage_seconds", {"stage": stage}) for stage in stages
    ]:
        labels = {"pool": name, **more}
        buckets = sorted(
            (float(dict(key)["le"]), value)
            for key, value in chosen(samples, f"{family}_bucket", **labels).items()
        )
        assert [value for _, value in buckets] == sorted(value for _, value in buckets)
        assert buckets[-1] == (float("inf"), calls)
        assert set(chosen(samples, f"{family}_count", **labels).values()) == {calls}
    total = sum(chosen(samples, "hutch_call_seconds_sum", pool=name).values())
    staged = sum(chosen(samples, "hutch_call_stage_seconds_sum", pool=name).values())
    assert total == pytest.approx(staged, abs=1e-4) and total > 1
    leases = chosen(samples, "hutch_call_leases_total", pool=name)
    assert sum(leases.values()) == calls


def hutch_cli(*args: str) -> str:
    done = subprocess.run([HUTCH, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_says_the_same(pool: hutch.PoolStatus) -> None:
    name = pool["key"][:12]
    text = chosen(scraped(hutch_cli("metrics")), "hutch_calls_total", pool=name)
    families = {family["name"]: family for family in json.loads(hutch_cli("metrics", "--json"))}
    told = {
        frozenset(sample["labels"].items()): sample["value"]
        for sample in families["hutch_calls_total"]["samples"]
        if sample["labels"]["pool"] == name
    }
    assert told == text and families["hutch_calls_total"]["type"] == "counter"


@pytest.mark.parametrize("args", [("status",), ("top", "--once")])
def test_a_table_of_pools(pool: hutch.PoolStatus, args: tuple[str, ...]) -> None:
    head, columns, *rows = hutch_cli(*args).splitlines()
    assert head.startswith("agent ") and " calls" in head
    assert columns.split()[:5] == ["ENVIRONMENT", "MEMORY_MB", "ISOLATION", "LABELS", "WORKERS"]
    row = next(row for row in rows if "mark=test" in row)
    assert row.startswith("(no packages)") and row.split()[2:4] == ["1024", "cell"]
    assert pool_of(json.loads(hutch_cli(*args, "--json")))["outcomes"] == EXPECTED


def test_watching_in_a_pipe_is_plain_lines_until_ctrl_c(pool: hutch.PoolStatus) -> None:
    with subprocess.Popen([HUTCH, "top", "--json"], stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        seen = [json.loads(top.stdout.readline()) for _ in range(3)]
        top.send_signal(signal.SIGINT)
        assert top.wait(20) == 0
    assert [pool_of(status)["calls"] for status in seen] == [pool["calls"]] * 3


def test_watching_on_a_terminal_renews_itself_until_ctrl_c(pool: hutch.PoolStatus) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    top = subprocess.Popen([HUTCH, "status", "--watch"], stdout=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while shown.count(b"(no packages)") < 2 and select.select([ours], [], [], 30)[0]:
        shown += os.read(ours, 65536)
    top.send_signal(signal.SIGINT)
    rest = b""
    try:
        while select.select([ours], [], [], 20)[0]:
            rest += os.read(ours, 65536)
    except OSError:
        pass  # the other end is closed
    os.close(ours)
    assert top.wait(20) == 0
    assert shown.count(b"(no packages)") >= 2, shown
    assert b"Traceback" not in shown + rest
    assert rest.endswith(b"\x1b[?25h") or b"\x1b[?25h" in rest, "the cursor is there again"


def test_counts_begin_anew_with_the_agent(pool: hutch.PoolStatus) -> None:
    hutch.agent.stop()
    assert hutch.status() == {"running": False}
    assert hutch.metrics() == ""
    assert hutch_cli("metrics") == ""
    assert "no agent runs" in hutch_cli("status")
    assert act.run("x").ok
    pool = counted(1)
    assert pool["outcomes"] == {"returned": 1}
    samples = scraped(hutch.metrics())
    assert sum(chosen(samples, "hutch_call_seconds_count", pool=pool["key"][:12]).values()) == 1


def test_a_call_that_found_no_cell_is_counted_as_refused() -> None:
    busy = act.options(pool=hutch.Pool(max_cells=1), timeout_sec=30)
    first = busy.submit("sleep")

    def marked() -> list[hutch.PoolStatus]:
        return [pool for pool in hutch.status()["pools"] if pool["labels"].get("mark") == MARK]

    until(lambda: any(pool["leased"] for pool in marked() if pool["slots"] == 1))
    with pytest.raises(hutch.SandboxBusy):
        busy.options(queue_sec=0.3).run("x")
    assert sum(pool["refused"] for pool in marked()) == 1
    first.cancel()
    assert first.outcome().status == "cancelled"
