# SPDX-License-Identifier: Apache-2.0
"""The benchmarks themselves: what they measure with, and what they write. No time is asserted."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hutch.cli import bench, main, measure

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import bare  # noqa: E402
import carry  # noqa: E402
import floors  # noqa: E402
import host  # noqa: E402
import page  # noqa: E402
import processes  # noqa: E402
import table  # noqa: E402
from table import Row  # noqa: E402

FACTS = {
    "cores": 2, "cpu": "C", "memory_gib": 1, "kernel": "6", "podman": "4", "python": "3",
    "load_before": 0.1, "load_after": 0.2, "throttled": None, "stolen_sec": 0.0, "compiled": None,
}  # fmt: skip


def figures(*rows: Row, too_busy: str = "") -> dict[str, Any]:
    rival = {"name": "a <b>", "lacks": "all", "p50": 0.5, "per_sec": None, "skipped": ""}
    told = [table.as_json(row, too_busy) for row in rows]
    return {
        "host": FACTS, "too_busy": too_busy, "too_busy_for_page": too_busy, "rows": told,
        "rivals": [rival],
    }  # fmt: skip


PACED = Row(
    "paced", "a | call", 1e-4, p99=1e-3, floor=5e-5, floor_is="fork", floor_p99=8e-4, met=True,
    p99_most=5e-4,
)  # fmt: skip


def test_measures_take_turns_and_floors_answer() -> None:
    order: list[str] = []
    with measure.Echo() as echo, measure.Forks(2, ["json", "no_such_module"]) as forks:
        ours, floor = measure.in_turns(
            2,
            lambda: (order.append("ours"), measure.each(echo, 3))[1],
            lambda: (order.append("floor"), forks(0.05))[1],
        )
    assert order == ["ours", "floor"] * 2
    assert len(ours.taken) == 6 and len(floor.taken) > 2
    assert forks.missing == 1
    assert 0 < ours.p50 <= ours.p99 and floor.rate > 0


def test_the_floor_of_a_fork_has_imported_what_the_zygote_has() -> None:
    names, paths = measure.zygote_modules([])
    assert {"pickle", "cloudpickle", "json"} <= set(names)
    assert not any("site-packages" in path for path in paths)  # which may hold more to import
    with measure.Forks(1, names, paths) as forks:
        assert forks.missing <= 1  # the module that asked


def test_each_call_of_a_parked_fork_is_answered_by_another_process() -> None:
    function = "def called(x):\n    return os.getpid(), 2 * x\n"
    with floors.Parked(["json", "no_such_module"], ahead=2, function=function) as parked:
        answers = [parked(n) for n in range(20)]
        zygote = parked.zygote
    assert parked.missing == 1
    assert [double for _, double in answers] == [2 * n for n in range(20)]
    pids = {pid for pid, _ in answers}
    assert len(pids) == 20 and not pids & {zygote, os.getpid()}


def test_a_parked_fork_serves_one_call_and_leaves_nothing_behind() -> None:
    with floors.Parked(ahead=3) as parked:
        leases = [parked.lease() for _ in range(3)]
        pids = [parked.zygote, *(int(pid) for _, pid in leases)]
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        with socket.socket(fileno=leases[0][0]) as connection:
            connection.send(pickle.dumps(21))
            connection.send(pickle.dumps(22))
            assert pickle.loads(connection.recv(4096)) == 42
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(4096)
    for descriptor, _ in leases[1:]:
        os.close(descriptor)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_parked_fork_runs_a_program_and_keeps_what_it_prints() -> None:
    with floors.Parked(ahead=1, function=floors.PROGRAM, dummy="pass") as parked:
        assert parked("print(6 * 7)") == "42\n"
        assert parked("x = 1") == ""
        assert parked("print('x' in globals())") == "False\n"


def test_the_floor_of_a_value_carries_all_of_it_both_ways() -> None:
    size = 1_000_000
    with carry.Carrier(size) as carrier:
        for _ in range(2):
            assert carrier.there(bytes(size)) == size
            assert carrier.back() == carrier.copied() == b"x" * size
            with carrier.mapped() as ours:
                ours[:3] = b"abc"  # what is written here is nobody else's
                assert ours[:5] == b"abcxx" and len(ours) == size


def test_the_floor_of_a_first_result_leaves_no_container() -> None:
    _, paths = measure.zygote_modules([])  # the agent runs
    processes.podman("ps")  # and Podman's service, which another test may have killed
    assert bare.container() > 0 and bare.importing("cloudpickle", paths) > 0
    assert "hutch-bench" not in processes.podman("ps", "--all", "--format", "{{.Names}}")
    with pytest.raises(subprocess.CalledProcessError):
        bare.importing("no_such_module", [])


def test_threads_that_fail_are_not_taken_for_quick_ones() -> None:
    def fails(_: int) -> None:
        raise LookupError("no")

    with pytest.raises(LookupError):
        measure.by_threads(fails, 2, 0)


def test_a_busy_host_gets_no_verdict_on_a_p99_or_a_throughput() -> None:
    assert PACED.verdict("") == "yes, p99 NO"
    assert PACED.verdict("busy") == "yes, p99 not judged"
    assert Row("k", "w", 1, met=True, takes_all=True).verdict("busy") == "not judged"
    assert Row("k", "w", 1, skipped="not there", met=True).verdict("") == ""


def test_the_page_and_its_plot_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert text.count(page.BEGIN) == text.count(page.END) == 1
    monkeypatch.setattr(page, "DOCS", tmp_path)
    (tmp_path / "benchmarks.md").write_text(text)
    for _ in range(2):  # the second replaces the first
        page.write(figures(PACED, Row("shared", "none", skipped="refused")))
    written = (tmp_path / "benchmarks.md").read_text()
    assert written.count("| a \\| call | 100 µs | 1 ms | 50 µs fork; p99 800 µs | 2 |") == 1
    assert written.startswith(text.partition(page.BEGIN)[0])
    svg = xml.etree.ElementTree.parse(tmp_path / "benchmarks.svg").getroot()
    labels = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "a <b>" in labels and "Hutch, 200 a second" in labels


def test_the_page_is_written_of_a_quiet_machine_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(page, "DOCS", tmp_path)
    with pytest.raises(page.NotQuiet, match="quiet machine only: the hypervisor"):
        page.write(figures(PACED, too_busy="the hypervisor gave 9% of the CPU time to others"))
    assert not list(tmp_path.iterdir())
    busy = tmp_path / "figures.json"
    busy.write_text(json.dumps(figures(PACED, too_busy="busy")))
    command = [sys.executable, str(ROOT / "benchmarks" / "bench.py"), "--write-docs"]
    done = subprocess.run([*command, "--from-json", str(busy)], capture_output=True, text=True)
    assert done.returncode == 2 and "quiet machine" in done.stdout


def test_a_busy_host_is_not_fit_for_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "load", lambda: 0.1)
    monkeypatch.setattr(host, "throttled", lambda: 3)
    monkeypatch.setattr(host, "stolen", lambda: 5.0)
    watch = host.Watch()
    assert watch.too_busy_for_page == ""
    monkeypatch.setattr(host.time, "monotonic", lambda began=watch._began: began + 100)
    monkeypatch.setattr(host, "stolen", lambda: 50.0)
    assert "hypervisor" in watch.too_busy_for_page and watch.too_busy == ""
    monkeypatch.setattr(host, "throttled", lambda: 4)
    assert "quota" in watch.too_busy_for_page
    monkeypatch.setattr(host, "load", lambda: 0.7)
    assert "not quiet" in host.Watch().too_busy_for_page


def test_a_missed_target_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_machine = Row("a", "slow", 2e-3, floor=1.9e-3, floor_is="a fork", target="1", met=False)
    ours = Row("b", "ours", 2e-3, floor=1e-4, floor_is="a fork", target="1", met=False)
    same = replace(ours, key="c", what="the same, twice")
    monkeypatch.setattr(page, "WHY", {"b": "two threads share one lock", "c": "so do four"})
    assert list(page.reasons(figures(slow_machine, ours, same, PACED))) == [
        "- slow: it is the machine's: its floor, a fork, is as slow here.",
        "- ours: two threads share one lock.",
        "- ours; the same, twice: so do four.",
        "- a | call: not explained yet.",
    ]


def test_one_row_can_be_measured_alone_and_goes_into_the_file(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "bench.py"), "--quick"]
    done = subprocess.run(
        [*command, "--only", "import,back-to-back,faults", "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(file.read_text())
    assert {row["key"] for row in told["rows"]} == {
        "back-to-back",
        "import",
        "faults",
        "faults-pandas",
    }
    for row in told["rows"]:
        assert not row["skipped"] and (row["value"] > 0 or row["unit"] == "count"), row
    assert told["host"]["cores"] > 0 and "back to back" in done.stdout


def test_the_short_form_shows_each_row_beside_its_floor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = measure.Times([1e-4, 2e-4, 3e-4])

    def measured(dependencies: list[str]) -> list[dict[str, Any]]:
        assert dependencies == ["pandas>=2,<4", "rich"]
        return [bench._row("paced", times, "echo", times)]

    monkeypatch.setattr(bench, "measured", measured)
    assert main(["bench", "--with", "pandas>=2,<4,rich"]) == 0
    assert "200 µs" in capsys.readouterr().out
    assert main(["bench", "--json", "--with", "pandas>=2,<4", "--with", "rich"]) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert row["p50_sec"] == row["floor_p50_sec"] == 2e-4
