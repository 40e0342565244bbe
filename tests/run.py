# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of C++ and Python, and gives each of three verdicts: `make test`.

    run.py [--renew-durations] [--processes N] [--logs DIRECTORY] [--part PART] [PATH …]

PATH: only the Python tests there. PART: those of one of the PARTS below; `unit` has the C++ tests.

1. The C++ tests; a program of them in which one fails runs once more.
2. The Python tests that others may run beside, in PROCESSES processes: whole files, longest first
   by durations.json, which `--renew-durations` writes anew from this run.
3. Those marked `alone`, in one process, when the agents of the others have ended. Of a whole run,
   those of NO_AGENT run beside them, as they wait most of the time.
4. What failed in 2 or 3, once more, as in 3. Failed again, it is `failed`; passed, `unstable`.

A crash of pytest, a file that cannot be collected, a test that was found and has no outcome, and a
run that takes longer than MOST_MINUTES are not repeated. Skipped tests are counted by their reason.
Unstable ones are named last, with both outputs in build/unstable/; more than MOST_UNSTABLE of them
fail the run. build/tests/ has the log, the reports and the JUnit XML of each step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from containers import Containers
from cpp import FAILED, Cpp
from homes import PROCESSES, home_of_tests, stop_agents

ROOT = Path(__file__).resolve().parent.parent
DURATIONS = ROOT / "tests" / "durations.json"
NO_AGENT = ("bindings", "images/base", "images/environment", "tests/test_run.py", "tests/fuzz")
PARTS = {  # each test is in one of them
    "unit": (*NO_AGENT, "images/worker"),
    "cells": ("tests/end_to_end", "tests/docs", "tests/benchmarks", "tests/outside"),
    "rungs": ("tests/security", "tests/compat", "tests/pins"),
    "faults": ("tests/faults", "tests/host", "tests/wheels"),
}
MOST_UNSTABLE = 5
MOST_REPEATED = 40  # where more have failed, repeating them shows nothing
MOST_MINUTES = 75


class Broken(Exception):
    """There is no verdict on every test, and none is made up by repeating."""


@dataclass
class Test:
    """What is known of one test after a step."""

    outcome: str = "passed"  # or "failed", "skipped"
    ended: bool = False  # its teardown, too
    failed_in_teardown: bool = False  # perhaps of what it shares with others of its file
    text: str = ""  # of each part that failed
    reason: str = ""  # why it was skipped
    printed: str = ""
    seconds: float = 0.0
    crashed: bool = False

    def add(self, report: dict[str, Any]) -> None:
        self.seconds += report["duration"]
        self.printed = "\n".join(text for _, text in report["sections"])  # of all parts before, too
        if report["outcome"] == "failed":
            self.outcome = "failed"
            self.text += f"[{report['when']}] {described(report['longrepr'])}\n"
            self.crashed |= report["when"] == "???"  # xdist's word for a process that ended in it
            self.failed_in_teardown |= report["when"] == "teardown"
        elif report["outcome"] == "skipped" and self.outcome == "passed":
            self.outcome, self.reason = "skipped", reason_of(report["longrepr"])
        self.ended |= report["when"] == "teardown"

    @property
    def first_error(self) -> str:
        lines = [line for line in self.text.splitlines() if line.startswith("E ")]
        found = lines or self.text.splitlines() or [""]
        return found[0].removeprefix("E ").strip()[:200]


def reason_of(longrepr: Any) -> str:
    """That of a skipped test or file: the last of its file, line and reason."""
    return str(longrepr[-1] if isinstance(longrepr, list) else longrepr).removeprefix("Skipped: ")


def described(longrepr: Any) -> str:
    """A failure as pytest prints it, of its report as data."""
    if not isinstance(longrepr, dict):
        return str(longrepr)
    lines = [
        line
        for entry in (longrepr.get("reprtraceback") or {}).get("reprentries", [])
        for line in entry["data"].get("lines", [])
    ]
    crash = longrepr.get("reprcrash") or {}
    place = f"{crash.get('path')}:{crash.get('lineno')}: {crash.get('message')}" if crash else ""
    return "\n".join([*lines, place])


@dataclass
class Step:
    """One run of pytest."""

    name: str
    logs: Path
    tests: dict[str, Test] = field(default_factory=lambda: defaultdict(Test))
    broken: list[str] = field(default_factory=list)  # files that could not be collected
    skipped: dict[str, str] = field(default_factory=dict)  # whole files, and why
    code: int | None = None  # as the report has it
    found: set[str] = field(default_factory=set)
    deselected: set[str] = field(default_factory=set)
    chosen: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)  # to `alone`

    @property
    def report(self) -> Path:
        return self.logs / f"{self.name}.jsonl"

    @property
    def log(self) -> Path:
        return self.logs / f"{self.name}.log"

    @property
    def selection(self) -> Path:
        return self.logs / f"{self.name}.selection.json"

    def read(self) -> None:
        try:
            self._read()
        except (OSError, ValueError, KeyError) as error:
            raise Broken(f"{self.report} or {self.selection} cannot be read: {error!r}") from None

    def _read(self) -> None:
        for line in self.report.read_text().splitlines():
            report = json.loads(line)
            if report["$report_type"] == "TestReport":
                self.tests[report["nodeid"]].add(report)
            elif report["$report_type"] == "SessionFinish":
                self.code = report["exitstatus"]
            elif report["$report_type"] == "CollectReport" and report["outcome"] == "failed":
                self.broken.append(f"{report['nodeid']}\n{described(report['longrepr'])}")
            elif report["$report_type"] == "CollectReport" and report["outcome"] == "skipped":
                self.skipped[report["nodeid"]] = reason_of(report["longrepr"])
        if self.selection.exists():  # not of a run that could collect nothing
            names = json.loads(self.selection.read_text())
            self.found, self.deselected, self.chosen, self.left = (
                set(names[key]) for key in ("found", "deselected", "chosen", "left")
            )

    def require_all(self, code: int) -> None:
        """That pytest ended as it says, and every test that was found has an outcome of its own."""
        if self.broken:
            raise Broken("files could not be collected:\n" + "\n".join(self.broken))
        if crashed := [name for name, test in self.tests.items() if test.crashed]:
            raise Broken("a process of pytest ended in:\n" + "\n".join(crashed))
        if code not in (0, 1, 5) or code != self.code:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])
            raise Broken(
                f"pytest ended with {code} ({self.name}), its report with {self.code}:\n{tail}"
            )
        if code != (1 if self.failed() else 0 if self.tests else 5):
            raise Broken(f"pytest ended with {code}, and {len(self.failed())} tests have failed")
        ended = {name for name, test in self.tests.items() if test.ended}
        require_none("have no outcome", ended ^ self.chosen)
        require_none("were taken away", self.found ^ (self.chosen | self.deselected))

    def failed(self) -> list[str]:
        return [name for name, test in self.tests.items() if test.outcome == "failed"]


def require_none(what: str, names: set[str]) -> None:
    if names:
        raise Broken(f"{len(names)} tests {what}:\n" + "\n".join(sorted(names)[:40]))


Running = tuple[subprocess.Popen[bytes], Path]  # and its log


class Run:
    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.begun = time.monotonic()
        self.end = self.begun + MOST_MINUTES * 60
        self.containers = Containers()
        self.started: list[subprocess.Popen[bytes]] = []

    def say(self, text: str) -> None:
        print(f"tests: {(time.monotonic() - self.begun) / 60:4.1f} min: {text}", flush=True)

    def begin(self, command: list[Any], log: Path, **settings: Any) -> Running:
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True, **settings,
            )  # fmt: skip
        self.started.append(process)
        return process, log

    def wait(self, *begun: Running) -> None:
        """A line a minute says how far each is, by its log."""
        next_line = time.monotonic() + 60
        while running := [log for process, log in begun if process.poll() is None]:
            time.sleep(0.2)
            self.containers.look()
            if time.monotonic() > self.end:
                raise Broken(f"it has not ended in time: {progress(running[0])}")
            if time.monotonic() > next_line:
                next_line += 60
                self.say("; ".join(progress(log) for log in running))

    def kill(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def pytest(self, *jobs: tuple[Step, str, list[str]]) -> None:
        """Steps beside each other, each with the home of its agents and its arguments. Throws
        Broken where not every test that was found has an outcome of its own."""
        # A run that a test begins is none of xdist's processes.
        ours = {key: val for key, val in os.environ.items() if not key.startswith("PYTEST_XDIST_")}
        begun: list[Running] = []
        try:
            for step, home, arguments in jobs:
                environment = ours | {"HUTCH_HOME": home, "PYTHONUNBUFFERED": "1"}
                command = [
                    sys.executable, "-m", "pytest", "--durations=40",
                    f"--report-log={step.report}", f"--junitxml={self.logs / step.name}.xml",
                    f"--selection={step.selection}", *arguments,
                ]  # fmt: skip
                begun.append(self.begin(command, step.log, env=environment))
            self.wait(*begun)
        finally:
            self.kill()
            for _, home, _ in jobs:
                stop_agents(home)
        for (step, _, _), (process, _) in zip(jobs, begun):
            step.read()
            step.require_all(process.returncode)
            self.say(f"{step.name}: {last_line(step.log)}")


def progress(log: Path) -> str:
    """By the per cent of pytest's lines of dots, or else the last line."""
    shares = re.findall(r"\[ *(\d+)%\]", log.read_text(errors="replace"))
    if not shares:
        return f"{log.stem}: {last_line(log)}"
    report = log.with_suffix(".jsonl")
    failed = report.read_text().count('"outcome": "failed"') if report.exists() else 0
    return f"{log.stem}: {shares[-1]} %" + (f", {failed} failed" if failed else "")


def last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing yet")


def ctest(run: Run) -> tuple[int, Counter[str], dict[str, str]]:
    """How many passed, why others were skipped, and which of those that passed only when repeated.
    Broken if one failed twice.
    """
    log = run.logs / "ctest.log"
    running = run.begin(
        ["ctest", "--test-dir", "build/sanitized", "--verbose", "--no-tests=error",
         "--timeout", "120", "-j", "4", "--repeat", "until-pass:2"], log,
    )  # fmt: skip
    run.wait(running)
    code, cpp = running[0].returncode, Cpp(log.read_text(errors="replace"))
    if code != 0:
        failed = "\n".join(cpp.texts[name] for name in cpp.names(*FAILED))
        raise Broken(f"ctest ended with {code}: {log}\n{failed or last_line(log)}")
    passed, skipped = cpp.names("OK"), cpp.names("SKIPPED")
    if cpp.told != len(passed) + len(skipped):
        raise Broken(
            f"{cpp.told} C++ tests were to run, {len(passed)} passed, {len(skipped)} were skipped: "
            f"{log}"
        )
    run.say(f"C++: {len(passed)} passed, {len(cpp.unstable)} of them when repeated")
    unstable = {f"C++ {name}": f"{how}: {log}" for name, how in cpp.unstable.items()}
    return len(passed), cpp.reasons, unstable


def save_both(place: Path, name: str, first: Test, second: Test) -> None:
    place.mkdir(exist_ok=True)
    file = place / (re.sub(r"[^\w.-]+", "_", name)[-150:] + ".txt")
    parts = (
        "FIRST",
        first.text,
        first.printed,
        "AGAIN",
        second.outcome,
        second.text,
        second.printed,
    )
    file.write_text("\n".join([name, *parts]))


def renew(steps: Iterable[Step]) -> None:
    """Seconds of each file that takes one or more. Those of files that were not run stay."""
    files: dict[str, float] = defaultdict(float)
    for step in steps:
        for name, test in step.tests.items():
            files[name.partition("::")[0]] += test.seconds
    known = json.loads(DURATIONS.read_text()) | {name: round(sec) for name, sec in files.items()}
    there = {name: sec for name, sec in known.items() if sec >= 1 and (ROOT / name).exists()}
    DURATIONS.write_text(json.dumps(dict(sorted(there.items())), indent=0) + "\n")


@dataclass
class Verdicts:
    passed: int = 0  # at once
    skipped: Counter[str] = field(default_factory=Counter)  # by reason
    failed: dict[str, Test] = field(default_factory=dict)
    unstable: dict[str, str] = field(default_factory=dict)  # and what was first seen of each


def compiling(run: Run, home: str, paths: list[str]) -> Running:
    """What pytest makes of the sources of tests is kept: else each process makes it, at once."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *paths]
    return run.begin(command, run.logs / "compiling.log", env=os.environ | {"HUTCH_HOME": home})


def python_tests(
    run: Run, home: str, paths: list[str], units: list[str], processes: int, renewing: bool
) -> Verdicts:
    stop_agents(home)
    names = ("beside", "units", "alone", "repeated")
    beside, of_units, alone, repeated = (Step(name, run.logs) for name in names)
    files = ["--no-loadscope-reorder", "--dist=loadfile", "-n", str(processes)]
    run.pytest((beside, home, ["--alone=no", *files, *paths]))
    last = []
    if beside.left:
        last.append((alone, home, ["--alone=only", *sorted(beside.left)]))
    if units:
        last.append((of_units, home, ["--alone=no", *units]))
    if last:
        run.pytest(*last)
    require_none(
        "are in one step, and not in the other", (beside.left | of_units.left) ^ alone.chosen
    )
    steps = (beside, of_units, alone)
    if not any(step.tests or step.skipped for step in steps):
        raise Broken("there is no test")
    if renewing:
        renew(steps)
    first = {name: step.tests[name] for step in steps for name in step.failed()}
    tests = [test for step in steps for test in step.tests.values()]
    verdicts = Verdicts(sum(test.outcome == "passed" for test in tests))
    files_skipped = beside.skipped | of_units.skipped | alone.skipped  # each found by two steps
    verdicts.skipped = Counter(files_skipped.values())
    verdicts.skipped += Counter(test.reason for test in tests if test.outcome == "skipped")
    if len(first) > MOST_REPEATED:
        run.say(f"{len(first)} failed, which are too many to run once more")
    elif first:
        run.say(f"{len(first)} failed, and run once more, alone")
        try:
            run.pytest((repeated, home, sorted({repeated_with(*one) for one in first.items()})))
            require_none("were not repeated", set(first) - set(repeated.tests))
        except Broken:
            show(first)
            raise
    for name, test in first.items():
        second = repeated.tests.get(name, test)
        if test.failed_in_teardown and second.outcome != "failed":
            file = name.partition("::")[0]
            others = (repeated.tests[n] for n in repeated.failed() if n.partition("::")[0] == file)
            second = next(others, second)
        if second.outcome == "passed":
            verdicts.unstable[name] = test.first_error
            save_both(run.logs.with_name("unstable"), name, test, second)
        else:
            verdicts.failed[name] = test
    return verdicts


def repeated_with(name: str, test: Test) -> str:
    """Its whole file, where what failed may be shared."""
    return name.partition("::")[0] if test.failed_in_teardown else name


def show(failed: dict[str, Test]) -> None:
    for name, test in failed.items():
        print(f"\n{'_' * 20} {name}\n{test.text}\n{test.printed}")
    for name, test in failed.items():
        print(f"FAILED {name} : {test.first_error}")


def interrupt(number: int, _frame: Any) -> None:
    print(f"\ntests: interrupted by {signal.Signals(number).name}", flush=True)
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--renew-durations", action="store_true")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="of step 2")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "tests")
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("paths", nargs="*", metavar="PATH")
    asked = parser.parse_args()
    if asked.part and asked.paths:
        parser.error("a PART has paths of its own")
    if options := [path for path in asked.paths if path.startswith("-")]:
        parser.error(f"a PATH is a file, a folder or a test, and no option of pytest: {options}")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)  # what it has started ends with it
    for place in (asked.logs, asked.logs.with_name("unstable")):
        shutil.rmtree(place, ignore_errors=True)
    asked.logs.mkdir(parents=True)
    run = Run(asked.logs)
    try:
        home = home_of_tests()
        whole = not (asked.part or asked.paths)
        parts = PARTS if whole else [asked.part] if asked.part else []
        found = [path for part in parts for path in PARTS[part]] or asked.paths
        units = [path for path in found if whole and path in NO_AGENT]
        paths = [path for path in found if path not in units]
        begun = [] if asked.paths else [compiling(run, home, found)]
        passed, cpp_skipped, unstable = ctest(run) if "unit" in parts else (0, Counter(), {})
        run.wait(*begun)
        verdicts = python_tests(run, home, paths, units, asked.processes, asked.renew_durations)
    except Broken as broken:
        print(f"\ntests: the run is broken, and this is not repeated: {broken}")
        return 2
    finally:  # also of a run that is interrupted
        run.kill()
    unstable |= verdicts.unstable
    run.say(str(run.containers))
    reasons = verdicts.skipped + cpp_skipped
    for reason, count in reasons.most_common():
        print(f"SKIPPED {count:4} : {reason}")
    show(verdicts.failed)
    for name, why in unstable.items():
        print(f"UNSTABLE {name} : {why}")
    if len(unstable) > MOST_UNSTABLE:
        print(
            f"tests: {len(unstable)} are unstable, and {MOST_UNSTABLE} is the most that a run bears"
        )
    passed += verdicts.passed + len(verdicts.unstable)
    failed, skipped = len(verdicts.failed), reasons.total()
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if verdicts.failed or len(unstable) > MOST_UNSTABLE else 0


if __name__ == "__main__":
    sys.exit(main())
