# SPDX-License-Identifier: Apache-2.0
"""Child interpreters see what the program sees: packages, scripts, modules, the program's file."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

import hutch

RUNGS = ["cell", "shared", "container", "gvisor"]


def ran(text: str, **options: Any) -> str:
    """What the program printed, each time the same: later ones are loaded ahead, where they can."""
    text = textwrap.dedent(text)
    printed = set()
    for _ in range({"container": 2, "gvisor": 1}.get(options.get("isolation", "cell"), 3)):
        outcome = hutch.run(text, **options)
        assert outcome.ok, outcome
        printed.add(outcome.stdout)
    (only,) = printed
    return only


@pytest.mark.parametrize("isolation", RUNGS)
def test_a_child_interpreter_finds_the_packages(isolation: Any) -> None:
    text = """
        import importlib.metadata, subprocess, sys
        for command in (
            [sys.executable, "-c", "import six; print(six.__name__)"],
            ["python", "-c", "import six, sys; print(sys.prefix)"],
            [sys.executable, "-m", "six"],
        ):
            subprocess.run(command, check=True)
        print(sys.prefix != sys.base_prefix, importlib.metadata.version("six"), flush=True)
    """
    assert ran(text, dependencies=["six==1.17.0"], isolation=isolation) == (
        "six\n/opt/env\nTrue 1.17.0\n"
    )


def test_console_scripts_run() -> None:
    text = """
        import subprocess, sys
        with open("test_it.py", "w") as file:
            file.write("import six\\ndef test_it(): assert six.PY3\\n")
        for command in (["pytest", "-q"], [sys.executable, "-m", "pytest", "-q"]):
            print(subprocess.run(command, capture_output=True, text=True, check=True).stdout[:1])
    """
    assert ran(text, dependencies=["pytest", "six"]) == ".\n.\n"


def test_a_child_interpreter_finds_carried_modules(tmp_path: Path) -> None:
    (tmp_path / "carried_one.py").write_text("VALUE = 7\n")
    text = """
        import subprocess, sys
        child = "import carried_one as c; print(c.VALUE)"
        subprocess.run([sys.executable, "-c", child], check=True)
    """
    assert ran(text, modules=[tmp_path / "carried_one.py"]) == "7\n"


METHODS = ("fork", "spawn", "forkserver")


@pytest.mark.parametrize(
    ("isolation", "methods"),
    [
        *((isolation, (method,)) for isolation in ("cell", "shared") for method in METHODS),
        ("container", METHODS),
        ("gvisor", METHODS),
    ],
)
def test_multiprocessing_runs_with_every_start_method(
    isolation: Any, methods: tuple[str, ...]
) -> None:
    text = f"""
        import multiprocessing
        def double(x): return 2 * x
        if __name__ == "__main__":
            for method in {methods!r}:
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(method, pool.map(double, [1, 2, 3]), flush=True)
    """
    printed = "".join(f"{method} [2, 4, 6]\n" for method in methods)
    assert ran(text, isolation=isolation) == printed


def test_joblib_runs_in_processes() -> None:
    @hutch.sandbox(dependencies=["joblib"])
    def roots(numbers: list[int]) -> list[float]:
        import math

        import joblib  # type: ignore[import-not-found]

        jobs = [joblib.delayed(math.sqrt)(number) for number in numbers]
        return list(joblib.Parallel(n_jobs=2)(jobs))

    assert roots([1, 4, 9]) == [1, 2, 3]


def test_a_program_finds_its_own_file() -> None:
    text = """
        import inspect, os, sys
        def own(): return "own"
        print(open(__file__).readline() == "\\n", os.path.exists(sys.argv[0]))
        print(inspect.getsource(own).strip().startswith("def own"))
    """
    assert ran(text) == "True True\nTrue\n"


@pytest.mark.parametrize(
    "text",
    [
        "import threading\nt = threading.Thread(target=lambda: 1 / 0)  # here\nt.start()\nt.join()",
        "import atexit\n@atexit.register\ndef end(): 1 / 0  # here",
        "class Ends:\n    def __del__(self): 1 / 0  # here\nEnds()",
    ],
    ids=["thread", "atexit", "del"],
)
def test_errors_that_the_interpreter_prints_have_their_lines(text: str) -> None:
    for _ in range(3):
        assert "# here" in hutch.run(text).stderr


def test_rich_shows_the_lines_of_the_program() -> None:
    text = """
        import io
        from rich.console import Console
        shown = io.StringIO()
        try:
            1 / 0  # here
        except ZeroDivisionError:
            Console(file=shown, width=99).print_exception()
        print("# here" in shown.getvalue(), "program.py:7" in shown.getvalue())
    """
    assert ran(text, dependencies=["rich"]) == "True True\n"


def test_pytest_runs_the_program_itself() -> None:
    text = """
        import pytest
        def test_sum(): assert 1 + 1 == 2
        if __name__ == "__main__":
            print(int(pytest.main(["-p", "no:terminal", __file__])))
    """
    assert ran(text, dependencies=["pytest"]) == "0\n"


def test_a_file_of_the_callers_is_not_written_over() -> None:
    text = "print(open('program.py').read(), '__file__')"
    assert ran(text, files={"program.py": "mine"}) == "mine __file__\n"


def test_a_program_that_does_not_look_finds_an_empty_directory() -> None:
    assert ran("import glob; print(glob.glob('*'))") == "[]\n"


def test_spawned_children_of_a_program_find_it_where_multiprocessing_was_imported_ahead() -> None:
    text = (
        "import multiprocessing\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [1]))\n"
    )
    outcome = hutch.run(text, dependencies=["joblib"], timeout_sec=60)
    assert outcome.stdout == "[2]\n", outcome.stderr
