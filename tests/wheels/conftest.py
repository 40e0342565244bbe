# SPDX-License-Identifier: Apache-2.0
"""Clean virtual environments with Hutch installed from the wheels in dist/, one for each Python.

`make wheels` builds dist/. Nothing here uses the Hutch that runs the tests. Where this machine has
no newest Python, that of a tree of the newest Debian is taken, with that Debian's Podman.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from installation import (
    NEWEST_PYTHON,
    Installed,
    environment,
    interpreters,
    system,
    versions,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "installed" in metafunc.fixturenames:
        metafunc.parametrize("installed", versions(), indirect=True, scope="session")


@pytest.fixture(scope="session")
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    version: str = request.param
    directory = tmp_path_factory.mktemp(f"venv-{version}")
    with ExitStack() as stack:
        inside: tuple[str, ...] = ()
        python = interpreters().get(version)
        if python is None:
            if version != NEWEST_PYTHON:
                pytest.skip(f"there is no Python {version} here")
            if os.geteuid() != 0 or not shutil.which("debootstrap"):
                pytest.skip(f"there is no Python {version} here, nor root with debootstrap")
            inside = stack.enter_context(system("debian-newest", directory.parent))
            python = f"python{version}"
        subprocess.run([*inside, python, "-m", "venv", directory], check=True)
        venv = Installed(directory, environment(version), inside)
        venv.run("python", "-m", "pip", "install", "--quiet", "hutch")
        yield venv
        venv.run("hutch", "agent", "stop")
        subprocess.run([*inside, "rm", "-rf", venv.environment["HUTCH_HOME"]], check=True)
