# SPDX-License-Identifier: Apache-2.0
"""A program for each of many packages prints inside what it prints in a virtual environment."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hutch

HERE = Path(__file__).parent
ISOLATIONS = ["cell", "container", "gvisor"]


class Program(NamedTuple):
    name: str
    often: bool  # also by `make test`
    requirements: tuple[str, ...]
    text: str


def programs() -> list[Program]:
    parts = re.split(r"(?m)^== (\*?)([\w-]+): (.*)\n", (HERE / "packages.txt").read_text())[1:]
    four = zip(*[iter(parts)] * 4)
    return [
        Program(name, star == "*", tuple(needs.split(", ")), text.strip() + "\n")
        for star, name, needs, text in four
    ]


PROGRAMS = programs()


@pytest.fixture(scope="module")
def often_used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with what all programs need that `make test` runs."""
    needed = {name for program in PROGRAMS if program.often for name in program.requirements}
    return virtual_environment(tmp_path_factory.mktemp("often"), *sorted(needed))


def virtual_environment(place: Path, *requirements: str) -> Path:
    uv = [sys.executable, "-m", "uv", "--quiet"]
    python = place / "env" / "bin" / "python"
    subprocess.run([*uv, "venv", "--python", sys.executable, place / "env"], check=True)
    install = [*uv, "pip", "install", "--only-binary", ":all:", "--python", python]
    subprocess.run([*install, *requirements], check=True)
    return python


def printed_by(python: Path, program: Program, place: Path) -> str:
    (place / "program.py").write_text(program.text)
    path = f"{python.parent}:/usr/bin:/bin"
    done = subprocess.run(
        [python, "program.py"],
        cwd=place,
        env={"PATH": path, "HOME": str(place), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a program prints in a virtual environment of this interpreter with its packages."""
    printed: dict[str, str] = {}

    def run(program: Program) -> str:
        if program.name not in printed:
            place = tmp_path_factory.mktemp(program.name)
            python = virtual_environment(place, *program.requirements)
            printed[program.name] = printed_by(python, program, place)
        return printed[program.name]

    return run


def ran_inside(program: Program, **options: Any) -> str:
    outcome = hutch.run(program.text, dependencies=program.requirements, timeout_sec=120, **options)
    assert outcome.ok, f"{outcome}"
    return outcome.stdout


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.often], ids=lambda p: p.name)
def test_a_common_package_does_what_it_does_outside(
    program: Program, often_used: Path, tmp_path: Path
) -> None:
    assert ran_inside(program) == printed_by(often_used, program, tmp_path)


@pytest.mark.compat
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_a_package_does_what_it_does_outside(program: Program, isolation: Any, plain: Any) -> None:
    assert ran_inside(program, isolation=isolation) == plain(program)


# What is more than the preset's own: a Jupyter kernel starts some twenty threads.
MORE_THAN_STRICT: dict[str, Any] = {"notebooks": {"pids": 32}}


@pytest.mark.compat
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_a_package_does_what_it_does_outside_under_strict(program: Program, plain: Any) -> None:
    more = MORE_THAN_STRICT.get(program.name, {})
    policy = hutch.Policy.strict().replace(hard_limits=False, cpu_sec=None, memory_mb=1024, **more)
    outcome = hutch.run(
        program.text, dependencies=program.requirements, policy=policy, timeout_sec=120
    )
    assert outcome.ok, f"{outcome}"
    assert outcome.stdout == plain(program)
