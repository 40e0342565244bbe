# SPDX-License-Identifier: Apache-2.0
"""How the code of a session runs, and what its errors say: lines, frames, hints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import hutch
from hutch import AsyncSession, Session


@pytest.fixture(scope="module")
def s() -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=20) as session:
        session.exec(
            "import asyncio, inspect\n"
            "async def f(i):\n    await asyncio.sleep(0)\n    return i\n"
            "async def fails():\n    raise KeyError('z')"
        )
        yield session


def error_of(session: Session, source: str, **limits: Any) -> Any:
    error = session.exec(source, **limits).error
    assert error is not None
    return error


# ---- await outside functions


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("t = [asyncio.create_task(f(i)) for i in range(3)]\nawait asyncio.gather(*t)", [0, 1, 2]),
        ("loop = asyncio.get_running_loop()\nloop.is_running() and await f(1)", 1),
        ("q = asyncio.create_task(f(1))\nx = await q\nx + 1", 2),
        ("if await f(1):\n    y = asyncio.get_running_loop()\ny.is_running()", True),
        ("await f(1)\nreturn asyncio.get_running_loop().is_running()", True),
        ("[await f(i) for i in range(2)];", None),
        ("asyncio.run(f(5))", 5),
    ],
)
def test_code_that_awaits_runs_on_the_loop(s: Session, source: str, value: object) -> None:
    assert s.exec(source).unwrap() == value


def test_a_task_goes_on_in_the_next_code_that_awaits(s: Session) -> None:
    s.exec("task = asyncio.create_task(f(9))\nawait f(0)")
    assert s.exec("await task").value == 9


COUNTS = """
async def count():  # it sleeps, so an interrupt finds it waiting
    global n
    while True:
        n += 1
        await asyncio.sleep(0.05)

async def counted():
    was = n
    while n == was:
        await asyncio.sleep(0)
"""


def test_tasks_wait_for_those_of_other_code(s: Session) -> None:
    s.exec("event = asyncio.Event()\nwaits = asyncio.create_task(event.wait())\nawait f(0)")
    s.exec("event.set()")  # on no loop
    assert s.exec("await waits").value is True
    s.exec(COUNTS)
    s.exec("n, counts = 0, asyncio.create_task(count())\nawait counted()")
    before = s.exec("n").value
    assert s.exec("asyncio.run(f(1)); n").value == before, "another loop runs none of this one's"
    assert s.exec("await counted()\nn").value > before
    assert s.exec("await asyncio.sleep(60)", timeout_sec=0.5).limit == "time"
    after = s.exec("n").value
    assert s.exec("await counted()\ncounts.cancel()\nn").value > after, "an interrupt ends one task"


def test_what_a_task_raises_is_told_as_in_a_program(s: Session) -> None:
    s.exec("failed = asyncio.create_task(fails())\nawait f(0)\nawait f(0)")
    with pytest.raises(KeyError, match="z"):
        s.exec("await failed").unwrap()
    s.exec("failed = asyncio.create_task(fails())\nawait f(0)\nawait f(0)")
    told = s.exec("import gc\ndel failed\ngc.collect();")
    assert told.ok and "Task exception was never retrieved" in told.stderr
    assert "KeyError: 'z'" in told.stderr
    for ends, error in (("sys.exit(3)", "SystemExit"), ("raise KeyboardInterrupt", "Keyboard")):
        s.exec(f"import sys\nasync def end():\n    {ends}")
        ended = error_of(s, "ends = asyncio.create_task(end())\nawait f(0)\nawait f(0)")
        assert ended.type.startswith(error)
        after = s.exec("await f(7)")
        assert after.value == 7 and not after.restarted


def test_code_that_awaits_is_interrupted(s: Session) -> None:
    outcome = s.exec("before = 1\nawait asyncio.sleep(60)", timeout_sec=0.5)
    assert outcome.limit == "time" and not outcome.restarted
    assert s.exec("before + await f(1)").value == 2


# ---- frames


@pytest.mark.parametrize("source", ["await fails()", "x = await fails()", "1\nawait fails()"])
def test_the_traceback_of_an_await_has_the_frames_of_the_code_alone(
    s: Session, source: str
) -> None:
    error = error_of(s, source)
    assert error.type == "KeyError" and error.traceback.count("  File ") == 2
    assert "base_events" not in error.traceback and "in fails" in error.traceback


def test_the_code_s_own_loops_are_in_its_traceback(s: Session) -> None:
    assert "in run_until_complete" in error_of(s, "asyncio.run(fails())").traceback


BEYOND = ["1 << (1 << 23)", "[1, 1 << (1 << 23)]", "__import__('fractions').Fraction(1 << 40_000)"]


@pytest.mark.parametrize("source", BEYOND)
def test_data_beyond_its_bounds_is_an_error_as_in_any_call(s: Session, source: str) -> None:
    outcome = s.exec(source)
    assert outcome.error is not None and outcome.error.type == "SerializationError"
    assert "bits" in outcome.error.hint and not outcome.display
    with pytest.raises(hutch.SerializationError) as of_session:
        outcome.unwrap()
    with pytest.raises(hutch.SerializationError) as of_call:
        hutch.function(f"def f(): return {source}", "f")()
    assert str(of_session.value) == str(of_call.value)
    assert s.exec("1 << 40_000").value == 1 << 40_000  # honest


def test_data_beyond_its_bounds_is_an_error_within_a_tool() -> None:
    seen: list[Any] = []

    def look(source: str) -> None:
        seen.append(s.exec(source).error)

    with Session(tools=[look], memory_mb=256) as s:
        s.exec("look('1 << (1 << 23)')").unwrap()
        assert seen[0].type == "SerializationError"


def test_a_repr_that_raises_is_reported_alone(s: Session) -> None:
    source = "class B:\n    def __repr__(self):\n        raise ValueError\nB()"
    for error in (error_of(s, source), error_of(s, "[B()]")):
        assert error.type == "ValueError" and error.line == 3
        assert "Unencodable" not in error.traceback and "During handling" not in error.traceback


def test_a_repr_that_raises_within_a_tool_is_reported_alone() -> None:
    seen: list[Any] = []

    def look(source: str) -> None:
        seen.append(s.exec(source).error)

    with Session(tools=[look], memory_mb=256) as s:
        s.exec("look('class B:\\n  def __repr__(self): raise ValueError\\nB()')").unwrap()
        assert seen[0].type == "ValueError" and "During handling" not in seen[0].traceback


# ---- sources


def test_the_source_of_a_function_ends_with_a_newline(s: Session) -> None:
    s.exec("def g():\n    return 1")
    assert s.exec("inspect.getsource(g)").value == "def g():\n    return 1\n"


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("    x = 1\n    x + 1", 2),
        ("\n\n\tif 1:\n\t\tx = 3\n\tx", 3),
        ("    # of a block\n    x = 4\n# not of it\n    x", 4),
        ("    x = '''\n    a'''\n    x", "\na"),
    ],
)
def test_what_is_indented_as_a_whole_runs(s: Session, source: str, value: object) -> None:
    assert s.exec(source).unwrap() == value


def test_what_is_indented_as_a_whole_keeps_its_lines(s: Session) -> None:
    error = error_of(s, "\n    x = 1\n    1 / 0")
    assert error.line == 3 and "\n    1 / 0\n" in error.traceback
    assert error_of(s, "    x = 1\n  y = 2").type == "IndentationError"


# ---- hints


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("x = 1\n!pip install x", "Session(dependencies=[…])"),
        ("files = !pip install x", "dependencies="),
        ("!pip install x", "dependencies="),
        ("%pip list", "importlib.metadata"),
        ("pip freeze", "importlib.metadata"),
        ("%pip install x", "dependencies="),
        ("!python -m pip install x", "dependencies="),
        ("pip install six", "dependencies="),
        ("python3 -m pip install -U six", "dependencies="),
        ("uv pip install six", "dependencies="),
        ("apt-get install -y jq", "dependencies="),
        ("%timeit 1", "no magic commands"),
        ("%%time\nx = 1", "no magic commands"),
        ("x = %timeit 1", "no magic commands"),
        ("len?", "help(name)"),
        ("?str.join", "help(name)"),
        ("```python\n1\n```", "fences"),
        ("Here is the code:\n```python\n1\n```", "the text around them"),
        ("def f(:\n    pass\n'''\n```python\n1\n```\n'''", "if lines of ```"),
        (">>> 1 + 1", "prompts"),
        ("  >>> 1 + 1", "prompts"),
        ("... 1", "prompts"),
        ("$ ls", "a line that begins with !"),
        ("print(“a”)", "straight quotes"),
        ("x = 5 – 3", "plain minus"),
        ("x = 1\xa0+ 1", "plain spaces"),
        ("x = (", ""),
        ("x = 1 !", ""),
        ("pip = 1 2", ""),
        ("x = 1 if 2 ? 3", ""),
        ("install this please", ""),
    ],
)
def test_what_is_not_python_has_a_hint(s: Session, source: str, hint: str) -> None:
    error = error_of(s, source)
    assert error.type == "SyntaxError"
    assert hint in error.hint and bool(hint) == bool(error.hint)


@pytest.mark.parametrize("line", ["!pip list", "x = !pip show six", "!python -m pip freeze"])
def test_a_line_that_lists_packages_says_what_does(s: Session, line: str) -> None:
    assert "importlib.metadata.distributions()" in s.exec(line).stderr.splitlines()[-1]
    assert s.exec("import importlib.metadata\nlist(importlib.metadata.distributions())").ok


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("asyncio.create_task(f(1))", "`await` outside functions"),
        ("await f(1)\nasyncio.run(f(1))", "await the coroutine instead"),
        ("get_ipython().system('ls')", "no magic commands"),
        ("input()", "on_input="),
        ("open('/home/me/data.csv')", "s.files.upload()"),
        ("import cv2", 's.install("opencv-python'),
        ("raise RuntimeError('no loop')", ""),
        ("raise EOFError", ""),
    ],
)
def test_an_error_has_the_hint_of_a_session(s: Session, source: str, hint: str) -> None:
    error = error_of(s, source)
    assert hint in error.hint and bool(hint) == bool(error.hint)


def test_what_ends_the_interpreter_is_the_error_too() -> None:
    with Session(memory_mb=64, timeout_sec=20) as s:
        died = s.exec("import os; os._exit(3)")
        assert died.error is not None and died.error.type == "SandboxDied"
        assert "exit code 3" in died.error.message and "files stay" in died.error.hint
        assert str(died).count("exit code 3") == 1 and str(died).count("hint:") == 1
        s.files.write("note", "kept")
        big = s.exec("x = [bytearray(1 << 20) for _ in range(4000)]")
        assert big.limit == "memory" and big.error is not None
        assert "its names are lost, files stay" in big.text
        assert "Session(memory_mb=128)" in big.error.hint
        late = s.exec("while True: pass", timeout_sec=0.4)
        assert late.error is not None and late.error.type == "KeyboardInterrupt"
        assert "exec(…, timeout_sec=0.8)" in late.error.hint


# ---- keywords and names


@pytest.mark.parametrize(
    ("keyword", "said"),
    [
        ("timeout", "did you mean 'timeout_sec', in seconds?"),
        ("timout_sec", "did you mean 'timeout_sec'"),
        ("memory_mb", "hold for the session"),
        ("nonsense", "cannot be given for one call"),
        ("env_vars", "did you mean 'env'"),
        ("gpu", "a sandbox has no GPU"),
    ],
)
def test_a_wrong_keyword_of_exec_says_which_is_meant(s: Session, keyword: str, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        s.exec("1", **{keyword: 5})
    assert said in str(caught.value)


@pytest.mark.parametrize("keyword", "checkpoint forkable".split())
def test_a_keyword_that_is_not_there_yet_says_what_to_do(keyword: str) -> None:
    for kind in (Session, AsyncSession):
        with pytest.raises(TypeError, match=rf"Session\({keyword}=\) is not implemented yet: ."):
            kind(**{keyword: None})


@pytest.mark.parametrize("name", "fork".split())
def test_a_method_that_is_not_there_yet_says_what_to_do(s: Session, name: str) -> None:
    for session in (s, AsyncSession()):
        assert not hasattr(session, name)
        with pytest.raises(AttributeError, match=rf"Session\.{name} is not implemented yet: ."):
            getattr(session, name)
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            _ = session.nonsense


@pytest.mark.parametrize("name", "run_notebook".split())
def test_a_name_of_hutch_that_is_not_there_yet_says_what_to_do(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"hutch\.{name} is not implemented yet: ."):
        getattr(hutch, name)


@pytest.mark.parametrize(
    "end",
    [
        "exit()",
        "quit(0)",
        "import sys\nsys.exit()",
        "raise SystemExit",
        "exit(False)",
        "await f(1)\nraise SystemExit(0)",
        "def g(): raise SystemExit\ng()",
    ],
)
def test_code_that_exits_with_0_has_returned(s: Session, end: str) -> None:
    outcome = s.exec(f"at = 1\nprint('before')\n{end}\nat = 2\n5")
    assert (outcome.status, outcome.value, outcome.error) == ("returned", None, None)
    assert outcome.stdout == "before\n" and not outcome.restarted and s["at"] == 1


def test_code_that_exits_with_another_code_has_failed(s: Session) -> None:
    for source, said in (("exit(3)", "3"), ("exit('why')", "why"), ("exit('')", ""),
                         ("exit(0.0)", "0.0"), ("raise SystemExit(True)", "True")):  # fmt: skip
        outcome = s.exec(source)
        assert outcome.status == "raised" and outcome.stderr == "", source
        assert outcome.error is not None
        assert (outcome.error.type, outcome.error.message) == ("SystemExit", said)
    with pytest.raises(hutch.SandboxExecutionError, match="SystemExit"):
        s.call(lambda: sys.exit())


def test_a_process_that_code_forks_may_exit(s: Session) -> None:
    source = (
        "import os\npid = os.fork()\nif not pid: raise SystemExit(%d)\n"
        "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert [s.exec(source % code).value for code in (0, 3)] == [0, 3]


def test_the_text_of_an_outcome_is_what_a_model_is_shown(s: Session) -> None:
    s.exec("import gc; gc.collect();")  # coroutines that other code left say so when they end
    assert s.exec("print('said')\ndisplay(3)\n{'a': 1}").text == "said\n3\n{'a': 1}"
    assert s.exec("x = 1").text == ""
    assert s.exec("object()").text.startswith("<object object at ")
    wrong = s.exec("print('said')\nopen('no such file')").text
    assert wrong.startswith("said\nTraceback (most recent call last):\n") and "<cell " in wrong
    assert "\nFileNotFoundError: " in wrong and " s\n" not in wrong
    for text in (s.bash("echo 1; cat none").text, s.bash("echo 1; cat none", as_bytes=True).text):
        assert text.startswith("1\ncat: none: No such file") and "exit code 1" in text
    outcome = hutch.run("import sys\nprint('said')\nprint('warned', file=sys.stderr)\n1 / 0")
    assert outcome.text.startswith("said\nwarned\nTraceback")
    assert outcome.text.endswith("\nZeroDivisionError: division by zero")


@pytest.mark.parametrize("limit", [100_000, 10**9, 2**31 - 1])
def test_code_may_set_any_limit_of_recursion(s: Session, limit: int) -> None:
    s.exec("import sys; before = sys.getrecursionlimit()").unwrap()
    try:
        s.exec(f"sys.setrecursionlimit({limit})").unwrap()
        assert s.exec("1 + 1").value == 2
        assert s.exec("sys.getrecursionlimit()").value == limit
        deep = "def down(n):\n    return n and 1 + down(n - 1)\ndown(20_000)"
        assert s.exec(deep).value == 20_000
    finally:
        s.exec("sys.setrecursionlimit(before)").unwrap()
