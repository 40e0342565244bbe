# SPDX-License-Identifier: Apache-2.0
"""`pip install` of the wheels alone, without a compiler, gives a Hutch that works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from installation import DIST, MACHINE, Installed, first_example, versions

pytestmark = pytest.mark.wheels


def test_each_architecture_has_a_runtime_and_every_python() -> None:
    runtimes = {wheel.stem.partition("2_28_")[2] for wheel in DIST.glob("hutch_runtime-*.whl")}
    assert MACHINE in runtimes
    assert {machine: versions(machine) for machine in runtimes} == dict.fromkeys(
        runtimes, versions()
    )


def test_the_first_example_of_the_readme_runs(installed: Installed, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(first_example())
    assert installed.run("python", str(program)) == "{'age': 35.5}\n"


def test_the_doctor_finds_nothing_wrong(installed: Installed) -> None:
    assert "podman" in installed.run("hutch", "doctor").lower()


def test_the_package_demands_the_runtime_of_its_own_version(installed: Installed) -> None:
    code = "import importlib.metadata as m; print(m.version('hutch'), m.requires('hutch'))"
    version, _, requires = installed.run("python", "-c", code).partition(" ")
    assert f"'hutch-runtime=={version}'" in requires
    installed.run("python", "-m", "pip", "check")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide Podman")
def test_without_podman_it_ends_in_the_line_to_paste(installed: Installed, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(first_example())
    podman = shutil.which("podman")
    hide = f'mount --bind /dev/null {podman} && exec "$@"'
    home = {"HUTCH_HOME": "/var/lib/hutch/wheels-none"}
    nowhere = replace(installed, environment={**installed.environment, **home})
    said = nowhere.run(
        "python", str(program), ok=False, prefix=("unshare", "-m", "sh", "-c", hide, "sh")
    )
    assert "apt-get install --no-install-recommends podman" in said.strip().splitlines()[-1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide a file")
def test_the_source_distribution_names_all_that_its_build_lacks(tmp_path: Path) -> None:
    sources = str(next(DIST.glob("hutch-*.tar.gz")))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    hide = 'mount -t tmpfs tmpfs /usr/include/toml++ && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", hide, "sh", *command, "--wheel-dir", tmp_path, sources],
        capture_output=True,
        text=True,
        env={**os.environ, "PKG_CONFIG_LIBDIR": "/nonexistent"},
        timeout=500,
    )
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if "hutch cannot be built" in line]
    assert len(said) == 1, done.stderr
    assert said[0].endswith(
        "apt-get install --no-install-recommends libcpp-httplib-dev libtomlplusplus-dev"
    )


def test_the_source_distribution_builds(tmp_path: Path) -> None:
    sources = str(next(DIST.glob("hutch-*.tar.gz")))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        tmp_path,
    ]
    subprocess.run([*command, "--no-build-isolation", sources], check=True)
    with zipfile.ZipFile(next(tmp_path.glob("hutch-*.whl"))) as wheel:
        names = set(wheel.namelist())
        about = wheel.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert {"hutch/_runtime/hutch-agent", "hutch/_runtime/worker/_hutch_cell.abi3.so"} <= names
    assert "hutch-runtime" not in about  # it has that itself


def test_the_source_distribution_has_no_tests() -> None:
    with tarfile.open(next(DIST.glob("hutch-*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "build/"))]
