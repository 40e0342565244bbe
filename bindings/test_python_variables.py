# SPDX-License-Identifier: Apache-2.0
"""Variables with which no interpreter would start are refused when they are given."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hutch import sandbox

FATAL = [
    ("PYTHONHASHSEED", "x"),
    ("PYTHONHASHSEED", "4294967296"),
    ("PYTHONHASHSEED", "-1"),
    ("PYTHONINTMAXSTRDIGITS", "639"),
    ("PYTHONTRACEMALLOC", "x"),
    ("PYTHONUTF8", "2"),
    ("PYTHONMALLOC", "mine"),
]
FATAL_IN_SOME = [  # of the versions that a sandbox may have
    ("PYTHON_CPU_COUNT", "0"),
    ("PYTHON_CPU_COUNT", "x"),
    ("PYTHON_FROZEN_MODULES", "x"),
    ("PYTHON_THREAD_INHERIT_CONTEXT", "2"),
    ("PYTHON_CONTEXT_AWARE_WARNINGS", "x"),
    ("PYTHONPROFILEIMPORTTIME", "3"),
    ("PYTHONPROFILEIMPORTTIME", "-1"),
]
FINE = [
    ("PYTHONHASHSEED", "0"),
    ("PYTHONHASHSEED", "random"),
    ("PYTHONHASHSEED", "4294967295"),
    ("PYTHONHASHSEED", ""),
    ("PYTHONINTMAXSTRDIGITS", "0"),
    ("PYTHONINTMAXSTRDIGITS", "640"),
    ("PYTHONTRACEMALLOC", "5"),
    ("PYTHONUTF8", "0"),
    ("PYTHONUTF8", ""),
    ("PYTHONMALLOC", "malloc"),
    ("PYTHONWARNINGS", "nonsense"),
    ("PYTHONPATH", "/directory"),
    ("PYTHONOPTIMIZE", "x"),
    ("PYTHONPROFILEIMPORTTIME", "x"),
    ("PYTHON_CPU_COUNT", "4"),
    ("PYTHON_CPU_COUNT", "default"),
    ("PYTHON_FROZEN_MODULES", "off"),
    ("PYTHON_THREAD_INHERIT_CONTEXT", "1"),
    ("PYTHON_CONTEXT_AWARE_WARNINGS", "0"),
]


def starts(name: str, value: str) -> bool:
    command = [sys.executable, "-S", "-c", ""]
    done = subprocess.run(command, env={**os.environ, name: value}, capture_output=True)
    return done.returncode == 0


@pytest.mark.parametrize(("name", "value"), FATAL)
def test_what_ends_the_interpreter_is_refused(name: str, value: str) -> None:
    assert not starts(name, value)
    with pytest.raises(ValueError, match=f"{name}=.*: it is "):
        sandbox(env={name: value})


@pytest.mark.parametrize(("name", "value"), FATAL_IN_SOME)
def test_what_ends_an_interpreter_of_another_version_is_refused(name: str, value: str) -> None:
    assert sys.version_info < (3, 14) or not starts(name, value)
    with pytest.raises(ValueError, match=f"{name}=.*: it is "):
        sandbox(env={name: value})


@pytest.mark.parametrize(("name", "value"), FINE)
def test_all_else_is_taken(name: str, value: str) -> None:
    assert starts(name, value)
    sandbox(env={name: value})


@pytest.mark.parametrize("name", ["PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE"])
def test_what_takes_it_from_its_library_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: the sandbox has its own interpreter"):
        sandbox(env={name: "/x"})
