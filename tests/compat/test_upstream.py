# SPDX-License-Identifier: Apache-2.0
"""What packages' own tests pass in a plain environment they pass in a cell, or it is explained."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hutch

# Notes what became of each test, and why it did not pass.
RECORDER = """
import json, os
RANKS = ["passed", "skipped", "failed"]
seen = {}
def note(report):
    file, rest = report.location[0], report.nodeid.split("::", 1)[1:]
    name = "::".join([file.split("site-packages/")[-1], *rest]).replace(os.getcwd(), ".")
    new = [report.outcome, "" if report.passed else str(report.longrepr)[-600:]]
    if name not in seen or RANKS.index(new[0]) > RANKS.index(seen[name][0]):
        seen[name] = new
pytest_runtest_logreport = note
def pytest_collectreport(report):
    if not report.passed:
        note(report)
def pytest_sessionfinish():
    with open("record.json", "w") as file:
        json.dump(seen, file)
"""
# Runs them in a copy of the suite, where one is given, or by the names of modules in the wheel.
PROGRAM = """
import os, shutil, subprocess, sys
source, *arguments = sys.argv[1:]
if source:
    shutil.copytree(source, "suite")
    shutil.copy("recorder.py", "suite")
    os.chdir("suite")
command = [sys.executable, "-m", "pytest", "-q", "-p", "recorder", "-p", "no:cacheprovider"]
done = subprocess.run([*command, *arguments], stdout=sys.stderr, stdin=subprocess.DEVNULL)
if not os.path.exists("record.json"):
    sys.exit(f"pytest ended with {done.returncode}")
print(open("record.json").read())
"""


class Suite(NamedTuple):
    requirements: list[str]
    arguments: list[str]
    sdist: str = ""  # has the tests where the wheel has not
    limits: dict[str, Any] = {}


TOOLS = ["pytest==9.2.0", "hypothesis==6.170.15"]
SUITES = {
    "numpy": Suite(
        ["numpy==2.4.6", "typing_extensions", *TOOLS],
        ["-m", "not slow", "--pyargs"]
        + """
            numpy.linalg numpy.fft numpy.lib numpy.ma numpy.testing numpy.polynomial
            numpy._core.tests.test_multiarray numpy._core.tests.test_memmap
            numpy._core.tests.test_mem_overlap numpy._core.tests.test_mem_policy
            numpy._core.tests.test_multithreading numpy._core.tests.test_cpu_features
            numpy._core.tests.test_longdouble numpy._core.tests.test_records
            numpy._core.tests.test_regression numpy._core.tests.test_cython
            numpy._core.tests.test_limited_api numpy._core.tests.test_print
            numpy.random.tests.test_seed_sequence numpy.random.tests.test_smoke
            numpy.random.tests.test_extending
        """.split(),
    ),
    "pandas": Suite(
        ["pandas==3.1.1", *TOOLS],
        ["-m", "not slow and not network", "--pyargs"]
        + """
            pandas.tests.io.json pandas.tests.io.test_common pandas.tests.io.formats.test_to_csv
            pandas.tests.io.parser.common.test_common_basic
            pandas.tests.io.parser.test_multi_thread pandas.tests.series.methods.test_astype
            pandas.tests.groupby.aggregate.test_aggregate pandas.tests.reshape.concat
            pandas.tests.tseries.holiday pandas.tests.frame.methods.test_to_csv
        """.split(),
    ),
    "scikit-learn": Suite(
        ["scikit-learn==1.9.1", "pandas==3.1.1", *TOOLS],
        ["--pyargs"]
        + """
            sklearn.utils.tests.test_parallel sklearn.ensemble.tests.test_bagging
            sklearn.ensemble.tests.test_voting sklearn.datasets.tests.test_base
            sklearn.cluster.tests.test_mean_shift sklearn.neighbors.tests.test_lof
            sklearn.preprocessing.tests.test_label sklearn.metrics.tests.test_pairwise
        """.split(),
    ),
    "requests": Suite(
        ["requests[socks]==2.34.2", "pytest-httpbin==2.1.0", "httpbin~=0.10.0", "pytest-mock"]
        + ["trustme", *TOOLS],
        # Ids of that one are paths.
        ["tests", "--deselect", "tests/test_utils.py::TestExtractZippedPaths"],
        sdist="requests==2.34.2",
    ),
    "pytest": Suite(
        [*TOOLS, "attrs", "argcomplete", "mock", "requests", "pexpect", "xmlschema", "setuptools"],
        """
            testing/test_capture.py testing/test_pathlib.py testing/test_tmpdir.py
            testing/test_faulthandler.py testing/test_monkeypatch.py testing/test_debugging.py
        """.split(),
        sdist="pytest==9.2.0",
    ),
}
# Why tests pass outside only, by how their ids begin or by what they say.
EXPLAINED = {
    "numpy/_core/tests/test_multiarray.py::TestNewBufferProtocol::test_no_suboffsets": (
        "needs _testbuffer: the base image has no test modules of the standard library"
    ),
    "numpy/_core/tests/test_multithreading.py::test_legacy_usertype_cast_init_thread_safety": (
        "starts 250 threads: pids=64"
    ),
    "numpy/_core/tests/test_regression.py::TestRegression::test_dot_big_stride": (
        "allocates 8 GiB, of which it touches little: memory_mb=1024"
    ),
    "OSError: out of pty devices": "there are no terminals",
    "could not run 'lsof'": "the base image has no lsof",
}


@pytest.mark.compat
@pytest.mark.parametrize("name", SUITES)
def test_a_suite_passes_inside_what_it_passes_outside(name: str, tmp_path: Path) -> None:
    suite = SUITES[name]
    source = unpacked(suite.sdist, tmp_path) if suite.sdist else None
    outside = ran_outside(suite, source, tmp_path)
    inside = ran_inside(suite, source)
    for place, seen in (("outside", outside), ("inside", inside)):
        print(name, place, dict(Counter(outcome for outcome, _ in seen.values())))
    passed = {test for test, (outcome, _) in outside.items() if outcome == "passed"}
    assert len(passed) > 100
    differences = {
        test: inside.get(test, ("absent", ""))
        for test in sorted(passed)
        if inside.get(test, ("absent", ""))[0] != "passed"
    }
    print(f"{len(differences)} pass outside only")
    unknown = {
        test: why
        for test, why in differences.items()
        if not any(test.startswith(known) or known in why[1] for known in EXPLAINED)
    }
    assert not unknown, "\n".join(f"{test}: {why[0]}: {why[1]}" for test, why in unknown.items())


def unpacked(requirement: str, place: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    target = ["--no-binary", ":all:", "--no-deps", "--dest", place / "sdist", requirement]
    subprocess.run([*pip, *target], check=True)
    (archive,) = (place / "sdist").iterdir()
    with tarfile.open(archive) as tar:
        tar.extractall(place / "source", filter="data")
    (source,) = (place / "source").iterdir()
    return source


def ran_outside(suite: Suite, source: Path | None, place: Path) -> Any:
    uv = [sys.executable, "-m", "uv", "--quiet"]
    python = place / "env" / "bin" / "python"
    subprocess.run([*uv, "venv", "--python", sys.executable, place / "env"], check=True)
    install = [*uv, "pip", "install", "--only-binary", ":all:", "--python", python]
    subprocess.run([*install, *suite.requirements], check=True)
    work = place / "work"
    work.mkdir()
    (work / "recorder.py").write_text(RECORDER)
    (work / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [python, "program.py", source or "", *suite.arguments],
        cwd=work,
        env={"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(work), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def ran_inside(suite: Suite, source: Path | None) -> Any:
    program = hutch.Program(
        PROGRAM,
        dependencies=suite.requirements,
        mounts={} if source is None else {"/srv/source": source},
        timeout_sec=600,
        output_mb=32,
        cpus=2,
        **suite.limits,
    )
    arguments = ["" if source is None else "/srv/source", *suite.arguments]
    outcome = program.run(args=arguments, files={"recorder.py": RECORDER})
    assert outcome.ok, f"{outcome}\n{outcome.stderr[-5000:]}"
    return json.loads(outcome.stdout)
