# SPDX-License-Identifier: Apache-2.0
"""The look at a base image, by the interpreter that runs the tests."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

HERE = pathlib.Path(__file__).parent
Load = Callable[[str], ModuleType]


def test_one_line_says_what_the_interpreter_is(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "answer"
    command = [sys.executable, "-I", "-S", str(HERE / "interpreter.py"), str(out)]
    subprocess.run(command, check=True)
    line, rest = out.read_text().split("\n")
    found = json.loads(line)
    assert rest == ""
    assert found["version"] == platform.python_version()
    assert (found["implementation"], found["machine"]) == ("cpython", platform.machine())
    assert os.path.samefile(found["python"], sys.executable)
    assert found["libc"].startswith("2.")
    assert found["cell"] and found["installer"], "neither is here, and both say why"


def test_packages_of_a_virtual_environment_come_first(tmp_path: pathlib.Path) -> None:
    if sys.prefix == sys.base_prefix:
        pytest.skip("the tests do not run in a virtual environment")
    out = tmp_path / "answer"
    command = [sys.executable, "-I", "-S", str(HERE / "interpreter.py"), str(out)]
    subprocess.run(command, check=True)
    packages = json.loads(out.read_text())["packages"]
    assert packages[0].startswith(sys.prefix + "/")


def test_directories_of_its_own_are_those_with_something_to_read(
    script: Load, tmp_path: pathlib.Path
) -> None:
    interpreter = script("interpreter")
    for name in ("app", "b,ad", "empty", "usual"):
        (tmp_path / name).mkdir()
        if name != "empty":
            (tmp_path / name / "file").write_text("x")
    (tmp_path / "link").symlink_to("app")
    (tmp_path / "file").write_text("x")
    assert interpreter.children(str(tmp_path), ("usual",)) == [str(tmp_path / "app")]
    assert interpreter.children("/nonexistent") == []


def test_what_does_not_load_or_run_says_why(
    script: Load, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = script("interpreter")
    monkeypatch.setattr(interpreter, "WORKER", str(tmp_path))
    assert interpreter.why_no_cell() == "it loads no extension of the stable ABI"
    (tmp_path / "_hutch_cell.abi3.so").write_bytes(b"no library")
    assert str(tmp_path) in interpreter.why_no_cell()
    monkeypatch.setattr(interpreter, "INSTALLER", shutil.which("true"))
    assert interpreter.why_no_installer() == ""
    monkeypatch.setattr(interpreter, "INSTALLER", shutil.which("false"))
    assert interpreter.why_no_installer() == "it ended with 1"
