# SPDX-License-Identifier: Apache-2.0
"""Which lines of a session's code are commands."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from shell_lines import replaced, with_values


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("!ls -la", "__hutch_bash__('ls -la')"),
        ("x = 1\nif x:\n    ! echo 'a'\n", "x = 1\nif x:\n    __hutch_bash__(\"echo 'a'\")\n"),
        ("!a \\\n  b\nx", "__hutch_bash__('a \\\\\\n  b')\n\nx"),
        ("!a \\", "__hutch_bash__('a \\\\')"),
        ("%cd sub\n%cd", "__hutch_cd__('sub')\n__hutch_cd__('')"),
        ("!a\n!b", "__hutch_bash__('a')\n__hutch_bash__('b')"),
        ("def f():\n\t!a\nf()", "def f():\n\t__hutch_bash__('a')\nf()"),
        ("s = '''\n'''\n!a", "s = '''\n'''\n__hutch_bash__('a')"),
        ("!!ls", "__hutch_bash__('ls')"),
        ("x = !ls", "x = __hutch_bash__('ls', True)"),
        (
            "if 1:\n  a.b, c['k']=! ls \\\n -l",
            "if 1:\n  a.b, c['k'] = __hutch_bash__('ls \\\\\\n -l', True)\n",
        ),
    ],
)
def test_a_command_is_a_call_in_its_line(source: str, made: str) -> None:
    assert replaced(source) == made
    assert made.count("\n") == source.count("\n")


@pytest.mark.parametrize(
    "source",
    [
        "x = 1",
        "s = '''\n!not a command\n'''",
        "x = (7\n%cd)",
        "x = 7 \\\n%cd",
        "s = 'a = !ls'",
        "s = '''\nx = !ls\n'''",
        "x = !pip install six",
        "x != y",
        "%timeit 1",
        "!pip install six",
        "!python -m pip install six",
        "! uv add six",
        "%cdx",
    ],
)
def test_all_else_stays_as_it_is(source: str) -> None:
    assert replaced(source) == source


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("%pip install six", "__hutch_pip__('pip install six')"),
        (
            "if 1:\n  !pip3 install a \\\n b\nx",
            "if 1:\n  __hutch_pip__('pip3 install a \\\\\\n b')\n\nx",
        ),
        ("!python -m pip install -q a", "__hutch_pip__('python -m pip install -q a')"),
        ("%uv pip install a", "__hutch_pip__('uv pip install a')"),
    ],
)
def test_an_install_is_a_call_where_it_is_allowed(source: str, made: str) -> None:
    assert replaced(source, installs=True) == made
    assert replaced(source) == source


@pytest.mark.parametrize(
    "source", ["x = !pip install six", "!conda install six", "%pip list", "%pipx install a", "%pip"]
)
def test_no_other_line_installs(source: str) -> None:
    assert replaced(source, installs=True) == source


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("ls {path} $path", "ls a b a b"),
        ("echo {1 + 1} {path!r:>6} {n:03}", "echo 2  'a b' 007"),
        ("cp $path.txt {path}.txt $at.parent.name", "cp a b.txt a b.txt c"),
        ("echo $$path {{n}}", "echo $path {n}"),
    ],
)
def test_values_of_python_are_put_into_a_command(text: str, made: str) -> None:
    names = {"path": "a b", "n": 7, "at": PurePosixPath("/c/d")}
    assert with_values(text, names) == made


@pytest.mark.parametrize(
    "text",
    [
        "echo $HOME ${HOME} $1 $? $$",
        "awk '{print $1}' x",
        "echo {1..3} {a,b}",
        "curl -d '{\"n\": 1}' {n}",
        "echo {",
        "echo {1 / 0} {n}",
    ],
)
def test_what_has_no_value_in_python_is_left_to_bash(text: str) -> None:
    assert with_values(text, {"n": 7}) == text
