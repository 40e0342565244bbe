# SPDX-License-Identifier: Apache-2.0
"""Clients and suites that others wrote, unmodified, at pinned versions. Packages come from the
package index, into a directory of their own; single files come from a public repository, at a
commit and with a checksum. A test that cannot have what it needs is skipped.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# A copy of the files may stand in for the site, as file:///DIRECTORY/owner/name/commit/path.
RAW = os.environ.get("OUTSIDE_RAW", "https://raw.githubusercontent.com")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`installed(*arguments of pip install)`: the directory that has it. Skips the test."""

    def install(*arguments: str) -> Path:
        place = tmp_path_factory.mktemp("outside")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place)]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"pip cannot install {' '.join(arguments)}: {done.stderr[-300:]}")
        return place

    return install


@pytest.fixture(scope="session")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`fetched("owner/name", commit, {path: SHA-256})`: the directory that has these files of a
    repository on GitHub. Skips the test.
    """

    def fetch(repository: str, commit: str, files: dict[str, str]) -> Path:
        place = tmp_path_factory.mktemp("fetched")
        for path, digest in files.items():
            url = f"{RAW}/{repository}/{commit}/{path}"
            try:
                with urllib.request.urlopen(url, timeout=60) as answer:
                    content = answer.read()
            except OSError as error:
                pytest.skip(f"{url} cannot be had: {error}")
            assert hashlib.sha256(content).hexdigest() == digest, f"{url} is another file"
            file = place / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return place

    return fetch


@pytest.fixture(scope="session")
def ran() -> Callable[..., str]:
    """`ran(places, program, *args)`: what it prints where only what is in `places` is installed."""

    def run(places: Path | Sequence[Path], program: str, *args: str) -> str:
        command = [sys.executable, "-S", "-c", program, *args]
        found = [places] if isinstance(places, Path) else places
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, found))}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def suite(tmp_path: Path) -> Callable[..., set[str]]:
    """`suite(name, *arguments of pytest, places=[...], **environment)`: the names of the tests of
    others that passed, with the plugin NAME_plugin.py and what `places` have. Those that fail must
    be the ones that NAME-expected-failures.txt lists, a line `test: reason` for each.
    """

    def run(name: str, *arguments: str, places: Sequence[Path] = (), **more: str) -> set[str]:
        report = tmp_path / "report.xml"
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", f"{name}_plugin", "-p", "no:cacheprovider",
            "-c", os.devnull, "--rootdir", str(tmp_path), "--timeout", "600",
            f"--junitxml={report}", *arguments,
        ]  # fmt: skip
        path = os.pathsep.join(map(str, (HERE, *places)))
        environment = {**os.environ, "PYTHONPATH": path, **more}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert report.exists(), done.stdout + done.stderr
        outcomes = {
            str(case.get("name")): {part.tag for part in case} - {"system-out", "system-err"}
            for case in xml.etree.ElementTree.parse(report).iter("testcase")
        }
        failed = {name for name, tags in outcomes.items() if tags & {"failure", "error"}}
        passed = {name for name, tags in outcomes.items() if not tags}
        print(f"{len(passed)} passed, {len(failed)} failed of {len(outcomes)}")
        expected = reasons(HERE / f"{name}-expected-failures.txt").keys()
        assert failed - expected == set(), done.stdout
        assert expected - failed == set(), "these do not fail any more"
        return passed

    return run


def reasons(file: Path) -> dict[str, str]:
    """Of a list of expected failures: why each test that it names cannot pass."""
    lines = (line for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split(": ", 1) for line in lines)
