# SPDX-License-Identifier: Apache-2.0
"""The verdicts of tests/run.py, on tests that are made for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
TestRun = Callable[[str], tuple[int, list[str]]]

PASSES = "def test_fine(): pass\n"
FAILS = "def test_wrong(): assert 1 == 2\n"
ONCE = """
import pathlib
def test_once():
    seen = pathlib.Path(__file__).with_name("seen-{0}")
    print("looked at", seen.name)
    if not seen.exists():
        seen.write_text("")
        assert False, "the first time"
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[TestRun]:
    """Runs a file of tests: the exit code, and the lines that are printed."""
    place = RUN.parents[1] / "build" / f"verdicts-{tmp_path.name}-{tmp_path.parent.name}"
    place.mkdir(parents=True)

    def of(source: str) -> tuple[int, list[str]]:
        (place / "test_it.py").write_text(source)
        command = [sys.executable, str(RUN), "--logs", str(tmp_path / "logs"), str(place)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout.splitlines()

    yield of
    shutil.rmtree(place)


def test_what_passes_when_it_is_repeated_is_unstable_and_named(
    run: TestRun, tmp_path: Path
) -> None:
    skipped = "import pytest\n@pytest.mark.skip\ndef test_skipped(): pass\n"
    alone = "@pytest.mark.alone\ndef test_alone(): pass\n"
    code, lines = run(PASSES + skipped + alone + ONCE.format(1))
    assert code == 0 and lines[-1] == "3 passed, 0 failed, 1 skipped"
    assert lines[-2].startswith("UNSTABLE ") and "test_it.py::test_once" in lines[-2]
    assert "the first time" in lines[-2]
    (both,) = (tmp_path / "unstable").iterdir()
    text = both.read_text()
    assert "the first time" in text and text.count("looked at seen-1") == 2


def test_what_fails_twice_has_failed(run: TestRun) -> None:
    code, lines = run(PASSES + FAILS)
    assert code == 1 and lines[-1] == "1 passed, 1 failed, 0 skipped"
    assert lines[-2].startswith("FAILED ") and "test_wrong" in lines[-2]


def test_more_than_a_few_unstable_tests_fail_the_run(run: TestRun) -> None:
    six = "".join(ONCE.format(n).replace("test_once", f"test_once_{n}") for n in range(6))
    code, lines = run(six)
    assert code == 1 and lines[-1] == "6 passed, 0 failed, 0 skipped"
    assert sum(line.startswith("UNSTABLE ") for line in lines) == 6


@pytest.mark.parametrize("mark", ["", "@__import__('pytest').mark.alone\n"])
def test_a_crash_is_not_repeated(run: TestRun, mark: str) -> None:
    crash = f"import os, signal\n{mark}def test_crash(): os.kill(os.getpid(), signal.SIGSEGV)\n"
    code, lines = run(PASSES + crash)
    assert code == 2 and any("is broken" in line for line in lines)
    assert not any("run once more" in line for line in lines)


def test_a_file_that_cannot_be_collected_breaks_the_run(run: TestRun) -> None:
    code, lines = run("def test_fine(): pass\nthis is no Python\n")
    assert code == 2 and any("could not be collected" in line for line in lines)


def test_one_that_hangs_fails(run: TestRun) -> None:
    hangs = "import pytest, time\n@pytest.mark.timeout(1)\ndef test_hangs(): time.sleep(1000)\n"
    code, lines = run(PASSES + hangs)
    assert code == 1 and lines[-1] == "1 passed, 1 failed, 0 skipped"
    assert "Timeout" in lines[-2]
