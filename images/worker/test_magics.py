# SPDX-License-Identifier: Apache-2.0
"""Lines of IPython's in a cell, as Python."""

from __future__ import annotations

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
         "__import__('sys').argv.__setitem__(slice(None), ['a b.py', 'x']); exec(compile("
         "__import__('pathlib').Path('a b.py').read_text(), 'a b.py', 'exec'))"),
        ("%%time\nx = 1", "\nx = 1"),
        ("\n%%capture\n%matplotlib inline\nx", "\n\npass\nx"),
        ("%%capture out\nx", "%%capture out\nx"),
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
def test_a_cell_for_bash_is_its_script(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """However long: more than the kernel takes as an argument."""
    body = f"for x in 1 '{{y}}'; do\n  echo $x\ndone\n: '{'z' * 300_000}'\necho last"
    made = replaced(f"{name}\n{body}")
    assert "\n" not in made and made.endswith(";")  # which shows no value
    exec(made)
    assert capfd.readouterr().out == "1\n{y}\nlast\n"


def test_a_cell_for_bash_that_fails_is_an_error() -> None:
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        exec(replaced("%%bash\nexit 3"))


def test_a_cell_for_another_program_stays_what_it_is() -> None:
    assert replaced("%%script node\n1") == "%%script node\n1"
