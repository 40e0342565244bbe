# SPDX-License-Identifier: Apache-2.0
"""Code given as text: what a file of it would be, and what the interpreter says of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hutch

WORK = "/work"  # the directory of a cell
BREAKS = ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
DEEP = "-" * 20_000 + "1"


@pytest.fixture(scope="module")
def session() -> Iterator[hutch.Session]:
    with hutch.Session() as s:
        yield s


def test_a_byte_order_mark_is_no_code(session: hutch.Session) -> None:
    assert hutch.run("\ufeffprint(1)").stdout == "1\n"
    looks = "\ufeffprint(__file__)\nimport inspect, sys\n"
    looks += "print(inspect.getsource(sys.modules['__main__'])[:5])"
    assert hutch.run(looks).stdout == "program.py\nprint\n"
    assert hutch.function("\ufeffdef f(): return 2", "f")() == 2
    assert session.exec("\ufeff1 + 2").value == 3
    marked = hutch.run("print('\ufeff')\n\ufeff")
    assert marked.error is not None and marked.error.type == "SyntaxError", "only the first is one"


@pytest.mark.parametrize("mark", BREAKS, ids=lambda mark: f"{ord(mark):x}")
def test_lines_end_where_those_of_a_file_do(session: hutch.Session, mark: str) -> None:
    source = f"x = 'a{mark}b'\ndef f():\n    return 1 / 0  # here\nf()"
    for outcome in (hutch.run(source), session.exec(source)):
        assert outcome.error is not None and outcome.error.line == 3
        assert "return 1 / 0  # here" in outcome.error.traceback
    again = session.exec("import inspect; inspect.getsource(f)")
    assert again.value == "def f():\n    return 1 / 0  # here\n"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_may_end_as_on_other_systems(end: str) -> None:
    error = hutch.run(end.join(["x = 1", "y = 2", "1 / 0  # here"])).error
    assert error is not None and error.line == 3 and "1 / 0  # here" in error.traceback


def test_half_of_a_surrogate_pair_is_no_character(session: hutch.Session) -> None:
    source = "print('\ud800')"
    found = [hutch.run(source), hutch.run(source + "  # traceback"), session.exec(source)]
    found.append(hutch.function(f"def f(): {source}", "f").run())
    for outcome in found:
        assert outcome.error is not None and outcome.error.type == "UnicodeEncodeError"
        assert "latin-1" not in outcome.error.hint


def test_code_may_be_as_deep_in_a_session_as_in_a_program(session: hutch.Session) -> None:
    source = "x = 1" + " + 1" * 2000
    assert hutch.run(source).ok == (session.exec(source).status == "returned")
    returns = "if 1: return 1" + " + 1" * 2000
    assert hutch.run(source).ok == (session.exec(returns).value == 2001)
    assert session.exec("import sys; sys.getrecursionlimit()").value == 1000


@pytest.mark.parametrize("line", ["break", "yield 1", "from __future__ import annotations"])
def test_an_error_of_the_compiler_has_its_line(session: hutch.Session, line: str) -> None:
    for outcome in (hutch.run(f"x = 1\n{line}\n"), session.exec(f"x = 1\n{line}\n")):
        assert outcome.error is not None and outcome.error.line == 2
        assert f"line 2\n    {line}\n    ^" in outcome.error.traceback


def test_an_error_in_other_text_has_no_line_of_the_program() -> None:
    # It has the name that a program of the command line has.
    error = hutch.run("exec('\\n\\nbreak')\n\nx = 1", filename="-c").error
    assert error is not None and error.traceback.splitlines()[-2:] == [
        '  File "<string>", line 3', "SyntaxError: 'break' outside loop",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [
        f"eval({DEEP!r})",
        f"compile({DEEP!r}, 'x', 'eval')",
        f"import ast\nast.parse({DEEP!r})",
        DEEP,
    ],
    ids=["eval", "compile", "ast", "itself"],
)
def test_what_the_parser_cannot_take_is_no_limit(session: hutch.Session, source: str) -> None:
    for outcome in (hutch.run(source), session.exec(source)):
        assert outcome.status == "raised" and outcome.limit is None
        assert outcome.error is not None
        assert outcome.error.type in ("MemoryError", "SyntaxError", "RecursionError")
        if outcome.error.type == "MemoryError":
            assert "nest" in outcome.error.hint and "memory_mb" not in str(outcome)


@pytest.mark.parametrize(
    "source",
    ["b'x' * (1 << 40)", "eval('b\"x\" * (1 << 40)')", "exec('1')\nx = bytearray(1 << 40)"],
)
def test_what_memory_cannot_take_is_one(session: hutch.Session, source: str) -> None:
    assert hutch.run(source).limit == session.exec(source).limit == "memory"


@pytest.mark.parametrize("end", ["sys.exit(3)", "sys.exit('no')", "raise SystemExit", "1 / 0", ""])
def test_what_c_code_printed_is_written_at_any_end(end: str) -> None:
    source = "import ctypes, sys\nctypes.CDLL(None).printf(b'of C\\n')\n" + end
    assert hutch.run(source).stdout == "of C\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("total = 1\nprint(totl)", "NameError: name 'totl' is not defined. Did you mean: 'total'?"),
        (
            "def f():\n  total = 1\n  return totl\nf()",
            "NameError: name 'totl' is not defined. Did you mean: 'total'?",
        ),
        (
            "class A:\n  def __repr__(self): print('called')\n  blech = 1\nA().bluch",
            "AttributeError: 'A' object has no attribute 'bluch'. Did you mean: 'blech'?",
        ),
        ("qwertz", "NameError: name 'qwertz' is not defined"),
        (
            "import sys\nsys.stderr, total = None, 1\ntotl",
            "NameError: name 'totl' is not defined. Did you mean: 'total'?",
        ),
        (
            "try:\n  1 / 0\nexcept Exception:\n  total = 1\n  totl",
            "NameError: name 'totl' is not defined. Did you mean: 'total'?",
        ),
    ],
)
def test_a_name_that_is_nearly_right_is_told(
    session: hutch.Session, source: str, said: str
) -> None:
    for outcome in (hutch.run(source), session.exec(source)):
        assert outcome.error is not None
        assert outcome.error.traceback.rstrip().endswith(said)
        assert outcome.stdout == outcome.stderr == ""


def test_the_time_zone_is_that_of_the_environment() -> None:
    show = "import time; print(time.tzname[0], time.localtime(0).tm_hour)"
    assert hutch.run(show).stdout == "UTC 0\n"
    assert hutch.run(show, env={"TZ": "XYZ+5"}).stdout == "XYZ 19\n"
    assert (
        hutch.function("import time\ndef f(): return time.tzname[0]", "f", env={"TZ": "XYZ+5"})()
        == "XYZ"
    )
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {show!r}])"
    assert hutch.run(child, env={"TZ": "XYZ+5"}).stdout == "XYZ 19\n"


@pytest.mark.parametrize("encoding", ["rot13", "latin-1"])
def test_streams_are_utf8_whatever_encoding_the_environment_names(encoding: str) -> None:
    outcome = hutch.run("print('ü')", env={"PYTHONIOENCODING": encoding, "PYTHONHASHSEED": "0"})
    assert outcome.stdout == "ü\n"


@pytest.mark.parametrize(
    ("variables", "source", "printed"),
    [
        ({"PYTHONHASHSEED": "0"}, "print(hash('a'))", None),
        ({"PYTHONWARNINGS": "error"}, "import warnings\nwarnings.warn('x')", "UserWarning"),
        ({"PYTHONOPTIMIZE": "1"}, "assert 0\nprint(__debug__)", "False\n"),
        ({"PYTHONUTF8": "0"}, "import sys; print(sys.flags.utf8_mode, 'ü')", "0 ü\n"),
        ({"PYTHONDEVMODE": "1"}, "import sys; print(sys.flags.dev_mode)", "True\n"),
        ({"PYTHONINTMAXSTRDIGITS": "0"}, "print(len(str(10 ** 5000)))", "5001\n"),
        ({"PYTHONPATH": f"{WORK}/lib"}, "import inner; print(inner.x)", "7\n"),
        ({"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": ""}, "print(1)", "1\n"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_the_interpreter_starts_with_the_variables_of_the_environment(
    variables: dict[str, str], source: str, printed: str | None
) -> None:
    files = {"lib/inner.py": "x = 7"}
    first = hutch.run(source, files=files, env=variables)
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {source!r}])"
    outcomes = [first, hutch.run(child, files=files, env=variables)]
    if printed is None:
        assert first.ok and outcomes[0].stdout == outcomes[1].stdout
    elif printed.endswith("\n"):
        assert [one.stdout for one in outcomes] == [printed] * 2
    else:
        assert first.error is not None and first.error.type == printed
        assert printed in outcomes[1].stderr
