# SPDX-License-Identifier: Apache-2.0
"""The import step, on modules that do what a package should not."""

from __future__ import annotations

import json
import pathlib
import py_compile
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

Script = Callable[[str], ModuleType]

MODULES = {
    "good": "import good_inner\n",
    "good_inner": "X = 1\n",
    "raises": "raise ValueError('no such thing')\n",
    "leaves": "import sys; sys.exit(0)\n",
    "exits": "import os; os._exit(3)\n",
    "aborts": "import faulthandler, os; faulthandler.disable(); os.abort()\n",
    "hangs": "import time; time.sleep(60)\n",
    "threads": (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    ),
    "cancels": (
        "import threading\ntimer = threading.Timer(60, print)\ntimer.start()\ntimer.cancel()\n"
    ),
    "prints": "import os; os.write(1, b'{\"module\": \"good\"}\\n'); print('x' * 100000)\n",
    "json": "raise RuntimeError('a package must not stand in for the standard library')\n",
}


@pytest.fixture
def probe(script: Script, tmp_path: pathlib.Path) -> Callable[..., dict[str, Any]]:
    module = script("probe")
    tree = tmp_path / "env"
    tree.mkdir()
    for name, text in MODULES.items():
        (tree / (name + ".py")).write_text(text)
    out = tmp_path / "out.json"

    def run(*names: str, seconds: float = 5) -> dict[str, Any]:
        module.TREE = str(tree)  # type: ignore[attr-defined]
        argv, sys.argv = sys.argv, ["probe.py", str(out), str(seconds), *names]
        try:
            assert module.main() == 0
        finally:
            sys.argv = argv
        answer: dict[str, Any] = json.loads(out.read_text())
        return answer

    return run


def test_module_that_loads_is_named_with_its_source_files(
    probe: Callable[..., dict[str, Any]],
) -> None:
    answer = probe("good")
    assert [(m["module"], m["ok"], m["threads"]) for m in answer["modules"]] == [("good", True, 0)]
    assert answer["files"] == ["good.py", "good_inner.py"]


def test_thread_that_is_about_to_end_is_none(probe: Callable[..., dict[str, Any]]) -> None:
    assert [m["threads"] for m in probe("cancels")["modules"]] == [0]


def test_files_that_have_bytecode_are_not_named(
    probe: Callable[..., dict[str, Any]], tmp_path: pathlib.Path
) -> None:
    py_compile.compile(str(tmp_path / "env" / "good_inner.py"))
    assert probe("good")["files"] == ["good.py"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "ValueError: no such thing"),
        ("leaves", "SystemExit"),
        ("exits", "the process ended"),
        ("aborts", "SIGABRT"),
        ("absent", "ModuleNotFoundError"),
    ],
)
def test_module_that_fails_is_named_and_the_next_is_tried(
    probe: Callable[..., dict[str, Any]], name: str, reason: str
) -> None:
    first, second = probe(name, "good")["modules"]
    assert first["module"] == name and not first["ok"] and reason in first["error"]
    assert second["module"] == "good" and second["ok"]


def test_module_that_hangs_is_cut_off(probe: Callable[..., dict[str, Any]]) -> None:
    first, second = probe("hangs", "good", seconds=0.5)["modules"]
    assert not first["ok"] and "did not load within 0.5 s" in first["error"]
    assert second["ok"]


def test_module_that_starts_a_thread_is_distinguished(probe: Callable[..., dict[str, Any]]) -> None:
    first, second = probe("threads", "good")["modules"]
    assert first["ok"] and first["threads"] == 1
    assert second["ok"] and second["threads"] == 0


def test_what_a_module_prints_is_not_taken_for_an_answer(
    probe: Callable[..., dict[str, Any]],
) -> None:
    assert [m["module"] for m in probe("prints")["modules"]] == ["prints"]


def test_package_cannot_shadow_the_standard_library(probe: Callable[..., dict[str, Any]]) -> None:
    (module,) = probe("json")["modules"]
    assert module["ok"]
