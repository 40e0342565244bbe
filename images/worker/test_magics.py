# SPDX-License-Identifier: Apache-2.0
"""Lines of IPython's in a cell, as Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from magics import replaced


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("x = 1", "x = 1"),
        ("x = 7 % 4\n'''\n%time\n'''", "x = 7 % 4\n'''\n%time\n'''"),
        ("%matplotlib inline\nimport math", "pass\nimport math"),
        ("if x:\n    %load_ext autoreload\n    %autoreload 2", "if x:\n    pass\n    pass"),
        ("x = (7\n%time\n)", "x = (7\n%time\n)"),
        ("%time y = f(2)", "y = f(2)"),
        ("%time", "pass"),
        ("%ls -a\n%ll\n%pwd", "!ls -a\n!ls -l \n!pwd "),
        ("%env A=b c\n%set_env A b", "__import__('os').environ.update({'A': 'b c'})\n"
         "__import__('os').environ.update({'A': 'b'})"),
        ("%env A", "__import__('os').environ.get('A')"),
        ("%run -i 'a b.py' x",
         "exec(compile(__import__('pathlib').Path('a b.py').read_text(), 'a b.py', 'exec'))"),
        ("%%time\nx = 1", "\nx = 1"),
        ("\n%%capture out\n%matplotlib inline\nx", "\n\npass\nx"),
        ("%timeit f()", "%timeit f()"),
        ("%%unknown\nx", "%%unknown\nx"),
        ("%run", "%run"),
        ("%run 'a", "%run 'a"),
        ("%%writefile\nx", "%%writefile\nx"),
        ("%pip install a\n%cd /tmp", "%pip install a\n%cd /tmp"),
    ],
)  # fmt: skip
def test_what_is_known_is_python_with_as_many_lines(cell: str, python: str) -> None:
    assert replaced(cell) == python
    assert len(python.split("\n")) == len(cell.split("\n"))


def test_a_cell_is_written_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a b.txt"
    exec(replaced(f"%%writefile '{path}'\none\n%time two"))
    exec(replaced(f"%%writefile -a '{path}'\nthree\n"))
    assert path.read_text() == "one\n%time two\nthree\n"


@pytest.mark.parametrize("name", ["%%bash", "%%sh", "%%script bash", "%%!"])
def test_a_cell_for_bash_is_one_command(name: str) -> None:
    made = replaced(f"{name}\nfor x in 1 '{{y}}' \"$0\"; do\n  echo $x\ndone; read z; echo =$z")
    assert made.startswith("!") and "\n" not in made
    done = subprocess.run(["bash", "-c", made[1:]], input=b"given\n", capture_output=True,
                          env={"PATH": os.environ["PATH"]})  # fmt: skip
    assert done.stdout.startswith(b"1\n{y}\n/dev/fd/") and done.stdout.endswith(b"=given\n")


def test_a_cell_for_another_program_stays_what_it_is() -> None:
    assert replaced("%%script node\n1") == "%%script node\n1"
