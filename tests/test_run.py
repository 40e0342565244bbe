# SPDX-License-Identifier: Apache-2.0
"""The verdicts of tests/run.py, on tests that are made for it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import until

from hutch import _core

RUN = Path(__file__).with_name("run.py")
COMMAND = [sys.executable, str(RUN), "--processes", "1"]
# Without the plugins that tests made here have no use for: a third of the time of a start.
QUICK = os.environ | {"PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:anyio -p no:cacheprovider"}
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


@pytest.fixture(scope="module", autouse=True)
def _no_home_is_left() -> Iterator[None]:
    """Of the runs that run within this one. Another run's homes stay, with what is built there."""
    yield
    own = Path(str(_core.paths()["state_dir"]))
    if own.name.partition("-tests")[1]:
        for home in own.parent.glob(f"{own.name}-tests*"):
            shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder of tests."""
    made = RUN.parents[1] / "build" / f"verdicts-{tmp_path.name}-{tmp_path.parent.name}"
    made.mkdir(parents=True)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def run(tmp_path: Path, place: Path) -> TestRun:
    """Runs a file of tests: the exit code, and the lines that are printed."""

    def of(source: str) -> tuple[int, list[str]]:
        (place / "test_it.py").write_text(source)
        command = [*COMMAND, "--logs", str(tmp_path / "logs"), str(place)]
        done = subprocess.run(command, capture_output=True, text=True, env=QUICK)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout.splitlines()

    return of


def test_what_passes_when_it_is_repeated_is_unstable_and_named(
    run: TestRun, tmp_path: Path
) -> None:
    skipped = "import pytest\n@pytest.mark.skip('no moon')\ndef test_skipped(): pass\n"
    alone = "@pytest.mark.alone\ndef test_alone(): pass\n"
    code, lines = run(PASSES + skipped + alone + ONCE.format(1))
    assert code == 0 and lines[-1] == "3 passed, 0 failed, 1 skipped"
    assert lines[-2].startswith("UNSTABLE ") and "test_it.py::test_once" in lines[-2]
    assert "the first time" in lines[-2]
    assert "SKIPPED    1 : no moon" in lines
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


CRASH = "import os, signal\n{0}def test_crash(): os.kill(os.getpid(), signal.SIGSEGV)\n"
ALONE = "import os, pytest\n" + PASSES + "@pytest.mark.alone\ndef test_ends({0}): {1}\n"
WRONG_ALONE = "@pytest.mark.alone\ndef test_wrong(): assert 0\n"
MOVES = """
import os, pytest
alone = pytest.mark.alone if os.environ.get("PYTEST_XDIST_WORKER") else (lambda test: test)
@alone
def test_moves(): pass
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(PASSES + CRASH.format(""), id="crash beside"),
        pytest.param(ALONE.format("", "os.kill(os.getpid(), 11)"), id="crash alone"),
        pytest.param(ALONE.format("", "os._exit(0)"), id="the last ends its process"),
        pytest.param(ALONE.format("", "pytest.exit('bye', 0)") + WRONG_ALONE, id="exit 0"),
        pytest.param(ALONE.format("", "pytest.exit('bye', 1)") + WRONG_ALONE, id="exit 1"),
        pytest.param(ALONE.format("", "os.closerange(3, 256)") + WRONG_ALONE, id="report closed"),
        pytest.param(
            ALONE.format("request", "os.unlink(request.config.getoption('report_log'))"),
            id="report removed",
        ),
        pytest.param(
            ALONE.format("request", "os.truncate(request.config.getoption('report_log'), 5)"),
            id="report cut",
        ),
        pytest.param(
            ALONE.format("request", "request.session.shouldfail = 'enough'") + WRONG_ALONE,
            id="stopped",
        ),
        pytest.param(PASSES + MOVES, id="in no step"),
        pytest.param("import os\nos._exit(0)\n" + PASSES, id="ends as it is imported"),
        pytest.param("", id="no test"),
    ],
)
def test_a_run_without_an_outcome_of_each_test_is_broken(run: TestRun, source: str) -> None:
    code, lines = run(source)
    assert code == 2 and any("is broken" in line for line in lines)
    assert not any("run once more" in line or " passed, 0 failed" in line for line in lines)


def test_a_test_that_another_one_takes_away_is_missed(run: TestRun, place: Path) -> None:
    takes = "def pytest_collection_modifyitems(items): del items[1:]\n"
    (place / "conftest.py").write_text(takes)
    code, lines = run(PASSES + FAILS)
    assert code == 2 and any("test_wrong" in line for line in lines)


def test_a_file_that_cannot_be_collected_breaks_the_run(run: TestRun) -> None:
    code, lines = run("def test_fine(): pass\nthis is no Python\n")
    assert code == 2 and any("could not be collected" in line for line in lines)


def test_a_file_that_is_skipped_counts(run: TestRun, place: Path) -> None:
    (place / "test_skipped.py").write_text("import pytest\npytest.importorskip('nosuch')\n")
    code, lines = run(PASSES)
    assert code == 0 and lines[-1] == "1 passed, 0 failed, 1 skipped"
    assert any(line.startswith("SKIPPED    1 : could not import 'nosuch'") for line in lines)


def test_what_several_share_is_repeated_with_all_of_them(run: TestRun) -> None:
    """Its teardown fails after two tests, and not after one."""
    shared = """
import pytest
@pytest.fixture(scope="module")
def shared():
    used = []
    yield used
    assert len(used) < 2
def test_a(shared): shared.append(1)
def test_b(shared): shared.append(1)
"""
    code, lines = run(shared)
    assert code == 1 and lines[-2].startswith("FAILED ")


def test_failures_are_shown_though_repeating_them_broke(run: TestRun) -> None:
    again = FAILS + ONCE.format(1).replace(
        "    if not seen.exists():", "    if seen.exists(): os._exit(0)\n    else:"
    )
    code, lines = run("import os\n" + again)
    assert code == 2 and sum(line.startswith("FAILED ") for line in lines) == 2


def test_one_that_hangs_fails(run: TestRun) -> None:
    hangs = "import pytest, time\n@pytest.mark.timeout(1)\ndef test_hangs(): time.sleep(1000)\n"
    code, lines = run(PASSES + hangs)
    assert code == 1 and lines[-1] == "1 passed, 1 failed, 0 skipped"
    assert "Timeout" in lines[-2]


def test_an_option_of_pytest_is_no_path() -> None:
    command = [sys.executable, str(RUN), "--", "-k", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "no option of pytest" in done.stderr


def test_what_it_has_started_ends_when_it_is_told_to_end(place: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    source = (
        f"import os, time\ndef test_long():\n    open({str(begun)!r}, 'w').write(str(os.getpid()))"
    )
    (place / "test_it.py").write_text(source + "\n    time.sleep(200)\n")
    command = [*COMMAND, "--logs", str(tmp_path / "logs"), str(place)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until(lambda: begun.exists() and begun.read_text())
    running.terminate()
    assert running.wait(60) == 128 + signal.SIGTERM
    until(lambda: not Path(f"/proc/{begun.read_text()}").exists())


CTEST = """\
Test project /build
      Start  1: fine.0
      Start  2: broken.0
1: Note: This is test shard 1 of 4.
1: [==========] Running 3 tests from 1 test suite.
2: [==========] Running 4 tests from 2 test suites.
1: [ RUN      ] Fine.Passes
2: [ RUN      ] Broken.Passes/0
1: [       OK ] Fine.Passes (0 ms)
1: [ RUN      ] Fine.Skips
1: /code/fine_test.cc:12: Skipped
1: only root can do that
1: [  SKIPPED ] Fine.Skips (0 ms)
1: [ RUN      ] Fine.SkipsToo
1: [  SKIPPED ] Fine.SkipsToo (0 ms)
1: [==========] 3 tests from 1 test suite ran. (0 ms total)
1/2 Test  #1: fine.0 ..........   Passed    0.01 sec
2: [       OK ] Broken.Passes/0 (3 ms)
2: [ RUN      ] Broken.Fails/1
2: what it logs before an end of line[  FAILED  ] Broken.Fails/1, where GetParam() = 7 (1 ms)
2: [ RUN      ] Broken.Dies
2: Segmentation fault
2/2 Test  #2: broken.0 ..........***Failed    0.01 sec
    Start  2: broken.0
2: [==========] Running 4 tests from 2 test suites.
2: [ RUN      ] Broken.Passes/0
2: [       OK ] Broken.Passes/0 (3 ms)
2: [ RUN      ] Broken.Fails/1
2: [       OK ] Broken.Fails/1 (1 ms)
2: [ RUN      ] Broken.Dies
2: [       OK ] Broken.Dies (1 ms)
2: [ RUN      ] Broken.ComesAfterIt
2: [       OK ] Broken.ComesAfterIt (1 ms)
2: [==========] 4 tests from 2 test suites ran. (6 ms total)
    Test  #2: broken.0 ..........   Passed    0.01 sec
"""


def loaded(file: Path, patch: pytest.MonkeyPatch) -> ModuleType:
    name = f"{file.stem}_of_tests"
    loader = importlib.machinery.SourceFileLoader(name, str(file))
    found = importlib.util.spec_from_loader(name, loader)
    assert found is not None
    module = importlib.util.module_from_spec(found)
    patch.syspath_prepend(RUN.parent)
    patch.setitem(sys.modules, name, module)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run_of_tests() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        yield loaded(RUN, patch)


def test_what_the_programs_of_cpp_tests_print_is_read(run_of_tests: ModuleType) -> None:
    cpp = run_of_tests.Cpp(CTEST)
    assert (len(cpp.names("OK")), len(cpp.names("SKIPPED")), cpp.told) == (5, 2, 7)
    assert cpp.reasons == {"only root can do that": 1, "no reason is said": 1}
    assert cpp.unstable == {"Broken.Fails/1": "FAILED", "Broken.Dies": "did not end"}
    assert cpp.texts["Broken.Dies"].startswith("Broken.Dies\nSegmentation fault")
    at_its_exit = CTEST.replace("fine.0 ..........   Passed", "fine.0 ..........***Failed")
    assert run_of_tests.Cpp(at_its_exit).unstable == {**cpp.unstable, "fine.0": "Failed"}
    first_attempt = run_of_tests.Cpp(CTEST[: CTEST.rindex("Start  2")])
    assert first_attempt.names("FAILED", "did not end") == ["Broken.Fails/1", "Broken.Dies"]
    assert first_attempt.told == 7 and len(first_attempt.outcomes) == 6


@pytest.mark.parametrize(
    ("said", "code", "why"),
    [
        (CTEST[: CTEST.rindex("Start  2")], 8, "Segmentation fault"),
        (
            CTEST.replace("2: [ RUN      ] Broken.ComesAfterIt\n", ""),
            0,
            "7 C\\+\\+ tests were to run, 4",
        ),
    ],
    ids=["fails twice", "is lost"],
)
def test_a_run_in_which_a_cpp_test_fails_twice_or_is_lost_is_broken(
    run_of_tests: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    said: str, code: int, why: str,
) -> None:  # fmt: skip
    (tmp_path / "said").write_text(said)
    (tmp_path / "ctest").write_text(f"#!/bin/sh\ncat {tmp_path}/said\nexit {code}\n")
    (tmp_path / "ctest").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(run_of_tests.Broken, match=why):
        run_of_tests.ctest(run_of_tests.Run(tmp_path))


def test_a_container_is_known_by_the_id_that_conmon_is_given(run_of_tests: ModuleType) -> None:
    containers = run_of_tests.Containers()
    code = "print(flush=True); input()"  # stands where the id of a container does
    conmon = subprocess.Popen(
        ["conmon", "-c", code], executable=sys.executable, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert conmon.stdout is not None and conmon.stdout.readline() == b"\n"
    containers.look()
    assert code in containers.started and containers.most >= 1
    conmon.communicate(b"\n")
    assert code not in run_of_tests.Containers()._before


def test_each_file_is_in_one_part(run_of_tests: ModuleType) -> None:
    folders = [RUN.parents[1] / name for name in ("bindings", "images", "tests")]
    files = [file for folder in folders for file in folder.rglob("test_*.py")]
    paths = [RUN.parents[1] / path for part in run_of_tests.PARTS.values() for path in part]
    assert len(files) > 100
    for file in files:
        assert sum(path == file or path in file.parents for path in paths) == 1, file


def test_nightly_goes_on_after_a_red_job_and_keeps_how_each_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nightly = loaded(RUN.parents[1] / "scripts" / "nightly", monkeypatch)
    table = tmp_path / "nightly.md"
    table.write_text("| job | begun |\n|---|---|\n| wrong | long ago | the last row of it |\n")
    fails = ["sh", "-c", "echo 'a | b'; exit 3"]
    jobs = {
        "wrong": [fails, ["touch", str(tmp_path / "done")]],
        "fine": [["echo", "all well"]],
        "nothing": [["echo", "2 skipped, 3 deselected in 0.1s"]],
    }
    monkeypatch.setattr("homes.home_of_tests", lambda: str(tmp_path / "home"))
    monkeypatch.setattr("homes.stop_agents", lambda home: None)
    for name, value in {"JOBS": jobs, "TABLE": table, "LOGS": tmp_path / "logs"}.items():
        monkeypatch.setattr(nightly, name, value)
    monkeypatch.setattr(sys, "argv", ["nightly"])
    assert nightly.main() == 1
    lines = capsys.readouterr().out.splitlines()
    said = [line.split()[1:3] for line in lines[:3]]
    assert said == [["wrong", "RED"], ["fine", "passed"], ["nothing", "RED"]]
    assert not (tmp_path / "done").exists(), "a job ends with its first command that fails"
    rows = [row.strip("| ").split(" | ") for row in table.read_text().splitlines()[2:]]
    assert [(row[0], row[3], row[5]) for row in rows] == [
        ("wrong", "RED", "a   b"),
        ("fine", "passed", "all well"),
        ("nothing", "RED", "2 skipped, 3 deselected in 0.1s"),
    ]
    monkeypatch.setattr(sys, "argv", ["nightly", "fine"])
    assert nightly.main() == 0


def test_nightly_ends_what_it_has_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nightly = loaded(RUN.parents[1] / "scripts" / "nightly", monkeypatch)
    job = ["sh", "-c", "sleep 600 & echo $!; wait"]
    monkeypatch.setattr(nightly, "JOBS", {"long": [job]})
    monkeypatch.setattr(nightly, "LOGS", tmp_path)
    log = tmp_path / "long.log"

    wait = subprocess.Popen.wait

    def interrupted(running: subprocess.Popen[Any]) -> int:
        monkeypatch.setattr(subprocess.Popen, "wait", wait)
        until(lambda: log.read_text().endswith("\n"), "the job does not begin")
        raise SystemExit(1)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(SystemExit):
        nightly.run("long", dict(os.environ))
    child = Path("/proc", log.read_text().strip(), "cmdline")

    def ended() -> bool:
        try:
            return not child.read_bytes()  # as of one that nobody has waited for
        except FileNotFoundError:
            return True

    until(ended, "its child lives on")
