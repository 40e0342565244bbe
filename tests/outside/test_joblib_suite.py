# SPDX-License-Identifier: Apache-2.0
"""joblib's own test_parallel, over the backend "hutch". Those that cannot pass are listed, each
with its reason, in joblib-expected-failures.txt.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXPECTED = {
    name: reason
    for line in (HERE / "joblib-expected-failures.txt").read_text().splitlines()
    if line and not line.startswith("#")
    for name, reason in [line.split(": ", 1)]
}


@pytest.mark.compat
def test_what_joblib_tests_of_each_backend(tmp_path: Path) -> None:
    suite = pytest.importorskip("joblib.test.test_parallel", reason="this joblib has no tests")
    report = tmp_path / "report.xml"
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "joblib_in_cells", "-p", "no:cacheprovider",
        "-c", os.devnull, "--rootdir", str(tmp_path), "-k", "hutch", "--timeout", "120",
        f"--junitxml={report}", str(Path(suite.__file__)),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1800)
    assert report.exists(), done.stdout + done.stderr
    outcomes = {
        str(case.get("name")): {part.tag for part in case}
        for case in xml.etree.ElementTree.parse(report).iter("testcase")
    }
    failed = {name for name, tags in outcomes.items() if tags & {"failure", "error"}}
    passed = {name for name, tags in outcomes.items() if not tags}
    print(f"{len(passed)} passed, {len(failed)} failed of {len(outcomes)}")
    assert len(passed) > 20, done.stdout
    assert failed - EXPECTED.keys() == set(), done.stdout
    assert EXPECTED.keys() - failed == set(), "these pass now"
