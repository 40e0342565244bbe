# SPDX-License-Identifier: Apache-2.0
"""Sessions: names and files that last, limits for each call, and what a restart costs."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from support import until

import hutch
from hutch import AsyncSession, Session, Tool, _status

MAKES_A_FORK_BOMB = """
import os, signal
def bomb():
    while True:
        try:
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
        except BaseException:
            pass
"""


@pytest.fixture
def s() -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=20) as session:
        yield session


# ---- running code


def test_names_last_from_one_exec_to_the_next(s: Session) -> None:
    assert s.exec("x = 20\ndef twice(n): return 2 * n").value is None
    assert s.exec("twice(x) + 2").value == 42
    assert s.names() == ["x", "twice"]
    assert list(s) == ["x", "twice"] and "x" in s and "y" not in s


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1 + 1", 2),
        ("x = 3\nx", 3),
        ("x = 3\nx;", None),
        ("'a;'", "a;"),
        ("5 # ;", 5),
        ("x = 3", None),
        ("import asyncio\nawait asyncio.sleep(0, 'slept')", "slept"),
        ("async def f():\n  return 7\nawait f()", 7),
        ("for i in range(5):\n  if i == 3:\n    return i\n'not reached'", 3),
        ("try:\n  return 'a'\nexcept Exception:\n  pass", "a"),
        ("return", None),
        ("try:\n  return 1\nexcept:\n  pass\n2", 1),
        ("try:\n  return 1\nexcept BaseException:\n  pass\nfinally:\n  y = 2\n3", 1),
        ("import contextlib\nwith contextlib.suppress(BaseException):\n  return 1\n2", 1),
        ("if 1:\n  5\n  6\nelse:\n  return 7\n8", 8),
        ("if 0:\n  return 7\n8;", None),
        ("\ufeffreturn 1", 1),
        ("\ufeff1 + 1", 2),
        ("def f():\n  return 1\nf()", 1),
        ("class A:\n  def f(self):\n    return 2\nA().f()", 2),
        ("", None),
    ],
)
def test_the_value_is_that_of_the_last_expression(s: Session, source: str, value: object) -> None:
    outcome = s.exec(source)
    assert outcome.ok, outcome
    assert outcome.value == value


def test_an_error_shows_the_line_of_its_cell_and_leaves_the_names(s: Session) -> None:
    s.exec("def f():\n    return 1 / 0\nkept = 1")
    outcome = s.exec("kept\nf()")
    assert outcome.status == "raised" and outcome.error is not None
    assert outcome.error.type == "ZeroDivisionError"
    assert '"<cell 1>", line 2' in outcome.error.traceback
    assert "return 1 / 0" in outcome.error.traceback
    assert outcome.error.line == 2
    with pytest.raises(ZeroDivisionError):
        outcome.unwrap()
    assert not outcome.restarted and s.exec("kept").value == 1


def test_a_syntax_error_is_the_codes(s: Session) -> None:
    outcome = s.exec("x = 1\ndef f(:\n")
    assert outcome.error is not None and outcome.error.type == "SyntaxError"
    assert outcome.error.line == 2
    assert s.names() == []


def test_a_future_import_holds_for_later_cells(s: Session) -> None:
    s.exec("from __future__ import annotations")
    assert s.exec("def f(x: nothing_of_that_name): pass\nf.__annotations__").value == {
        "x": "nothing_of_that_name"
    }


def test_source_of_functions_is_found(s: Session) -> None:
    s.exec("def f():\n    return 1\n")
    assert s.exec("import inspect; inspect.getsource(f)").value == "def f():\n    return 1\n"


def test_output_is_of_its_exec(s: Session) -> None:
    seen: list[str] = []
    outcome = s.exec("print('one'); import sys; print('two', file=sys.stderr)")
    assert (outcome.stdout, outcome.stderr) == ("one\n", "two\n")
    s.exec("print('three')", on_stdout=seen.append)
    assert seen == ["three\n"]


def test_processes_and_threads_of_a_session_last(s: Session) -> None:
    s.exec("import subprocess, threading\np = subprocess.Popen(['sleep', '60'])")
    assert s.exec("p.poll() is None").value is True
    s.exec(
        "n = []\ndef count():\n  import time\n  while True:\n    n.append(1); time.sleep(.01)\n"
        "threading.Thread(target=count, daemon=True).start()"
    )
    time.sleep(0.2)
    assert s.exec("len(n)").value > 3


def test_what_a_session_defines_can_be_pickled_and_forked(s: Session) -> None:
    s.exec("def square(n): return n * n\nclass Item:\n  x = 1")
    s.exec("import multiprocessing, pickle")
    assert s.exec("pickle.loads(pickle.dumps(Item())).x").value == 1
    assert s.exec("with multiprocessing.Pool(2) as pool: r = pool.map(square, [1, 2, 3])\nr").ok
    assert s["r"] == [1, 4, 9]


def test_a_forked_child_that_comes_back_does_not_answer_for_its_parent(s: Session) -> None:
    outcome = s.exec(
        "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n'child' if pid == 0 else 'parent'"
    )
    assert outcome.value == "parent"
    assert s.exec("1").value == 1


# ---- names


def test_values_go_both_ways(s: Session) -> None:
    s["data"] = {"a": [1, 2.5, b"x"], "b": None}
    assert s["data"] == {"a": [1, 2.5, b"x"], "b": None}
    assert s.exec("data['a'][0] + 1").value == 2
    assert s.get("none", 5) == 5 and s.has("data")
    del s["data"]
    with pytest.raises(KeyError):
        s["data"]
    with pytest.raises(KeyError):
        s.delete("data")


@pytest.mark.parametrize("name", ["a b", "", "1x", "a.b", "class", "__import__('os')"])
def test_a_name_that_is_no_identifier_is_refused(s: Session, name: str) -> None:
    for use in (lambda: s.get(name), lambda: s.set(name, 1), lambda: s.delete(name)):
        with pytest.raises(ValueError, match="not a valid name"):
            use()


def test_a_function_is_called_with_the_sessions_names(s: Session) -> None:
    s.exec("rows = [3, 1, 2]")

    def ordered(reverse: bool = False) -> Any:
        return sorted(rows, reverse=reverse)  # type: ignore[name-defined]  # noqa: F821

    assert s.call(ordered) == [1, 2, 3]
    assert s.call(ordered, reverse=True) == [3, 2, 1]


@pytest.mark.parametrize(
    "source",
    [
        "from dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\nP(1)",
        "import urllib.parse; urllib.parse.urlparse('http://x')",
        "import http; http.HTTPStatus.OK",
        "import shutil; [shutil.disk_usage('.')]",
    ],
)
def test_a_value_of_a_class_of_the_sandbox_is_shown(s: Session, source: str) -> None:
    outcome = s.exec(source)
    assert outcome.ok and outcome.value is None and outcome.display[0]["text/plain"]


def test_a_called_function_is_annotated_as_any(s: Session) -> None:
    def number() -> int:
        return 3

    def point() -> Point:
        return Point(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert s.call(number) == 3
        assert s.call(point) == Point(1)


def test_a_value_that_is_no_data_is_shown_and_not_returned(s: Session) -> None:
    outcome = s.exec("x = {'a': [1, lambda: 0]}\nx")
    assert outcome.ok and outcome.value is None
    assert "<function <lambda>" in outcome.display[0]["text/plain"]
    with pytest.raises(hutch.SerializationError) as caught:
        s["x"]
    assert caught.value.path.endswith("['a'][1]") or caught.value.path.endswith('["a"][1]')


# ---- limits: names are lost, files never


def ends_by_time(s: Session) -> hutch.Outcome[Any]:
    return s.exec(
        "n = 0\nwhile True:\n  try:\n    while n >= 0: n += 1\n  except BaseException: n = 2",
        timeout_sec=0.5,
    )


def ends_by_cpu(s: Session) -> hutch.Outcome[Any]:
    return s.exec("while True: pass", cpu_sec=1)


def ends_by_memory(s: Session) -> hutch.Outcome[Any]:
    return s.exec(
        "import mmap\nm = [mmap.mmap(-1, 64 << 20) for _ in range(8)]\n"
        "for one in m:\n  for i in range(0, 64 << 20, 4096): one[i] = 1"
    )


def ends_itself(s: Session) -> hutch.Outcome[Any]:
    return s.exec("import os; os._exit(3)")


def ends_by_signal(s: Session) -> hutch.Outcome[Any]:
    return s.exec("import os; os.kill(os.getpid(), 11)")


@pytest.mark.parametrize(
    ("end", "status", "limit"),
    [
        (ends_by_time, "limit", "time"),
        (ends_by_cpu, "limit", "cpu_time"),
        (ends_by_memory, "limit", "memory"),
        (ends_itself, "died", None),
        (ends_by_signal, "died", None),
    ],
)
def test_what_ends_the_interpreter_costs_names_and_no_files(
    s: Session, end: Any, status: str, limit: str | None
) -> None:
    s.exec("kept = 1\nopen('file', 'w').write('there')")
    outcome = end(s)
    assert (outcome.status, outcome.limit) == (status, limit), outcome
    assert outcome.restarted
    assert s.lost[:1] == ["kept"] or "kept" in s.lost
    again = s.exec("open('file').read()")
    assert again.value == "there" and not again.restarted
    assert s.exec("kept").error is not None
    assert end(s).restarted and s.files.read("file") == "there"


def test_each_exec_has_its_cpu_time_for_itself(s: Session) -> None:
    burn = "import time\nend = time.process_time() + 0.7\nwhile time.process_time() < end: pass"
    for _ in range(3):
        assert s.exec(burn, cpu_sec=1.5).ok


def test_a_memory_error_is_a_limit_and_ends_nothing(s: Session) -> None:
    s.exec("kept = 1")
    outcome = s.exec("bytearray(1 << 40)")
    assert outcome.limit == "memory"
    assert s.exec("kept").value == 1


def test_what_a_dead_interpreter_leaves_is_cleared_away(s: Session) -> None:
    s.exec(
        "import subprocess, os, signal\n"
        "for i in range(5): subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "p = subprocess.Popen(['sleep', '1000']); os.kill(p.pid, signal.SIGSTOP)"
    )
    assert ends_by_time(s).restarted
    left = s.exec(
        "import os\n[open(f'/proc/{p}/comm').read() for p in os.listdir('/proc') if p.isdigit()]"
    ).value
    assert "sleep\n" not in left


def test_a_fork_bomb_is_cleared_away() -> None:
    with Session(memory_mb=256) as neighbour:
        neighbour.exec("kept = 1")
        with Session(memory_mb=256) as s:
            outcome = s.exec(MAKES_A_FORK_BOMB + "bomb()", timeout_sec=1)
            assert outcome.limit in ("time", "memory", "pids")
            s.reset()
            assert s.exec("1 + 1").value == 2
        with Session(memory_mb=256) as s:
            s.exec(MAKES_A_FORK_BOMB + "bomb()", timeout_sec=1)
        assert neighbour.exec("kept").value == 1
        assert neighbour.info()["restarts"] == 0


def test_a_session_whose_interpreter_ends_without_end_is_ended(s: Session) -> None:
    with pytest.raises(hutch.SandboxStartupError, match="ended"):
        for _ in range(500):
            s.exec("import os; os._exit(3)")
    with pytest.raises(hutch.SandboxStartupError, match="ended"):
        s.exec("1")


def test_a_session_may_be_reset_as_often_as_its_owner_likes(s: Session) -> None:
    for number in range(300):
        s["x"] = number
        s.reset()
    assert s.exec("'x' in globals()").value is False
    assert s.info()["restarts"] == 300


def test_a_program_may_replace_itself(s: Session) -> None:
    s.exec("open('file', 'w').write('there')")
    outcome = s.exec("import os; os.execv('/bin/echo', ['echo', 'replaced'])")
    assert outcome.restarted and "replaced" in outcome.stdout
    assert s.files.read("file") == "there"


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.exit(3)",
        "exit()",
        "raise KeyboardInterrupt",
        "import sys; sys.stdout = None; sys.stderr = None",
        "import os; os.close(1)",
        "import os; os.close(3)",
        "import sys; sys.modules.clear()",
        "import builtins; del builtins.len",
        "import os; [os.close(fd) for fd in range(20)] if False else os.closerange(0, 20)",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "import socket; socket.socket(fileno=3).shutdown(2)",
    ],
)
def test_the_next_exec_comes_after_anything(source: str) -> None:
    with Session(memory_mb=256, timeout_sec=5) as s:
        s.exec("x = 1")
        s.exec(source)
        try:
            outcome = s.exec("2 + 2")
        except hutch.SandboxStartupError as error:
            assert "session" in str(error)
            return
        if not outcome.ok:  # the code broke its own interpreter: a fresh one does
            s.reset()
            outcome = s.exec("2 + 2")
        assert outcome.value == 4


# ---- interrupts


@pytest.mark.parametrize(
    "source",
    ["while True: pass", "import time; time.sleep(60)", "import asyncio; await asyncio.sleep(60)"],
)
def test_a_time_limit_interrupts_and_costs_no_names(s: Session, source: str) -> None:
    s.exec("kept = 1")
    outcome = s.exec(source, timeout_sec=0.3)
    assert outcome.limit == "time" and not outcome.restarted
    assert outcome.error is not None and outcome.error.type == "KeyboardInterrupt"
    assert s.exec("kept").value == 1


def test_code_may_end_in_its_own_way_when_it_is_interrupted(s: Session) -> None:
    outcome = s.exec("n = 0\ntry:\n  while n >= 0: n += 1\nfinally:\n  ended = 1", timeout_sec=0.3)
    assert outcome.limit == "time" and s["ended"] == 1


def test_an_exec_is_interrupted_on_demand(s: Session, once_printed: Any) -> None:
    s.interrupt()
    s.exec("kept = 1")
    code = "print('begun', flush=True); import time; time.sleep(60)"
    outcome = s.exec(code, on_stdout=once_printed(s.interrupt))
    assert outcome.status == "raised" and not outcome.restarted
    assert outcome.error is not None and outcome.error.type == "KeyboardInterrupt"
    assert s.exec("kept").value == 1


def test_an_interrupt_hits_no_other_exec(s: Session) -> None:
    ended = threading.Event()

    def interrupt() -> None:
        while not ended.is_set():
            s.interrupt()
            time.sleep(0.0003)

    s.exec("n = 0")
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        outcomes = [s.exec("for i in range(100): n += 1\nn;") for _ in range(500)]
    finally:
        ended.set()
        thread.join()
    for outcome in outcomes:
        assert not outcome.restarted, outcome
        assert outcome.error is None or outcome.error.type == "KeyboardInterrupt"
    for _ in range(20):
        assert s.exec("1").value == 1


def test_ctrl_c_interrupts_the_code_and_costs_no_names(s: Session) -> None:
    s.exec("kept = 1")
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        s.exec("import time; time.sleep(60)")
    assert s.exec("kept").value == 1


def test_what_happens_between_two_execs_is_noted(s: Session) -> None:
    s.exec(
        "kept = 1\nimport os, threading, time\n"
        "def die():\n  time.sleep(0.2)\n  os._exit(4)\n"
        "threading.Thread(target=die).start()"
    )
    time.sleep(1)
    outcome = s.exec("1 + 1")
    assert outcome.value == 2 and outcome.restarted and "kept" in s.lost


def test_memory_between_two_execs_is_limited(s: Session) -> None:
    s.exec(
        "import threading, mmap, time\n"
        "def grow():\n  time.sleep(0.2)\n  m = [mmap.mmap(-1, 64 << 20) for _ in range(8)]\n"
        "  for one in m:\n    for i in range(0, 64 << 20, 4096): one[i] = 1\n  time.sleep(60)\n"
        "threading.Thread(target=grow).start()"
    )

    def ended() -> bool:
        time.sleep(1)  # between two, which take no time themselves
        return s.exec("1").restarted

    until(ended, "512 MB were not noticed")


def test_a_session_may_be_closed_while_it_runs(once_printed: Any) -> None:
    s = Session(memory_mb=256)
    s.exec("import time")
    s.exec("print('begun', flush=True); time.sleep(60)", on_stdout=once_printed(s.close))
    with pytest.raises(hutch.SandboxStartupError, match="closed"):
        s.exec("1")


# ---- its life


def test_reset_loses_names_and_keeps_files(s: Session) -> None:
    s.exec("x = 1; open('f', 'w').close()")
    s.reset()
    assert s.lost == ["x"] and s.names() == [] and s.files.list() == ["f"]


def test_one_call_at_a_time(s: Session) -> None:
    begun = threading.Event()
    code = "print('begun', flush=True); import time; time.sleep(60)"
    thread = threading.Thread(target=lambda: s.exec(code, on_stdout=lambda _: begun.set()))
    thread.start()
    assert begun.wait(60)
    with pytest.raises(hutch.SessionBusy):
        s.exec("1")
    s.interrupt()
    thread.join()
    assert s.exec("1").value == 1


def test_a_closed_session_says_so() -> None:
    s = Session(memory_mb=256)
    s.exec("x = 1")
    s.close()
    s.close()
    with pytest.raises(hutch.SandboxStartupError, match="closed"):
        s.exec("x")


def test_a_session_that_never_ran_costs_nothing() -> None:
    s = Session(memory_mb=256)
    assert not s.info()["started"]
    s.close()


def test_an_idle_session_is_ended() -> None:
    with Session(memory_mb=256, idle_sec=2) as s:
        s.exec("x = 1")
        begun = time.monotonic()
        while time.monotonic() < begun + 2.5:
            assert s.exec("x").value == 1
            time.sleep(0.1)
        until(lambda: not any(one["id"] == s.id for one in _status.sessions()))
        with pytest.raises(hutch.SandboxStartupError, match="ended"):
            s.exec("x")
        with pytest.raises(hutch.SandboxStartupError):
            s.exec("x")


def test_a_forked_child_has_no_session() -> None:
    with Session(memory_mb=256) as s:
        s.exec("x = 1")
        pid = os.fork()
        if pid == 0:
            try:
                s.exec("x")
            except hutch.SandboxStartupError:
                os._exit(7)
            os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert s.exec("x").value == 1


def test_sessions_are_apart() -> None:
    with Session(memory_mb=256) as one, Session(memory_mb=256) as two:
        one.exec("x = 1; open('f', 'w').close()")
        two.exec("y = 1")
        assert two.names() == ["y"] and two.files.list() == []


def test_wrong_keywords_are_refused() -> None:
    with pytest.raises(ValueError, match="isolation"):
        Session(isolation="shared")
    with pytest.raises(ValueError, match="cwd"):
        Session(cwd="work")
    with pytest.raises(TypeError):
        Session(no_such=1)  # type: ignore[call-arg]
    with Session(memory_mb=256) as s, pytest.raises(TypeError, match="memory_mb"):
        s.exec("1", memory_mb=5)


# ---- tools


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5


class Mode(enum.IntFlag):
    READ = 1
    WRITE = 2


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


def move(point: Point, colors: list[Color], how: Literal["up", "down"] = "up") -> dict[str, Any]:
    return {"x": point.x, "colors": [one.name for one in colors], "how": how}


def fails(text: str) -> None:
    raise ValueError(text)


def echo(text: str) -> str:
    return text


def test_a_tool_is_a_function_inside() -> None:
    with Session(tools=[add, move, fails, echo], memory_mb=256) as s:
        assert s.exec("add(1, b=2)").value == 3
        assert s.exec("from hutch_tools import call, search, add as plus\nplus(1)").value == 2
        assert s.exec("search('two numbers'), call('add', 5)").value == (["add"], 6)
        assert "Adds two numbers." in s.exec("add.__doc__").value
        assert s.exec("move({'x': 1}, ['red', 'blue'], how='down')").value == {
            "x": 1,
            "colors": ["RED", "BLUE"],
            "how": "down",
        }
        assert s.names() == ["call", "search", "plus"]
        assert s.exec("sum(add(i) for i in range(100))").value == 5050
        assert s.exec("'x' * 1_000_000 == echo('x' * 1_000_000)").value is True


@pytest.mark.parametrize(
    ("source", "kind", "text"),
    [
        ("add('1')", "TypeError", "a must be int, not str"),
        ("add(True)", "TypeError", "a must be int, not bool"),
        ("add()", "TypeError", "missing a required argument"),
        ("add(1, c=2)", "TypeError", "unexpected keyword"),
        ("move({'z': 1}, [])", "TypeError", "no field 'z'"),
        ("move({'x': 1}, ['green'])", "TypeError", "must be one of 'red', 'blue'"),
        ("move({'x': 1}, [], 'left')", "TypeError", "'up', 'down'"),
        ("fails('no')", "ValueError", "no"),
        ("add(lambda: 1)", "TypeError", "no data"),
        ("add('x' * 10_000_000)", "ValueError", "cannot be sent at once"),
        ("import hutch_tools; hutch_tools.call(10 ** 6000)", "RuntimeError", "no tool"),
        ("import hutch_tools; hutch_tools.call('other')", "RuntimeError", "no tool 'other'"),
    ],
)
def test_a_tool_gets_what_it_is_annotated_with(source: str, kind: str, text: str) -> None:
    with Session(tools=[add, move, fails], memory_mb=256) as s:
        outcome = s.exec(source)
        assert outcome.error is not None and outcome.error.type == kind
        assert text in outcome.error.message
        assert s.exec("add(1)").value == 2


def test_what_a_tool_raises_is_raised_inside_by_its_type() -> None:
    with Session(tools=[fails], memory_mb=256) as s:
        source = "try:\n  fails('why')\nexcept ValueError as error:\n  return str(error)"
        assert s.exec(source).value == "why"


def test_a_tool_may_be_limited_approved_and_end_the_exec() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def approve(name: str, arguments: dict[str, Any]) -> bool:
        asked.append((name, arguments))
        return bool(arguments["a"] < 10)

    def stop(why: str) -> None:
        raise hutch.StopExec(why)

    tools = [Tool(add, max_calls=2), Tool(add, name="plus", approve=approve), stop]
    with Session(tools=tools, memory_mb=256) as s:
        assert s.exec("add(1); add(1); add(1)").error is not None
        assert s.exec("add(1)").value == 2
        assert s.exec("plus(1)").value == 2 and asked == [("plus", {"a": 1})]
        outcome = s.exec("plus(10)")
        assert outcome.error is not None and outcome.error.type == "PermissionError"
        outcome = s.exec("try:\n  stop('a')\nexcept BaseException: pass\nstop('b')")
        assert outcome.status == "cancelled" and outcome.restarted
        outcome = s.exec("x = 1\nstop('now')\nx = 2")
        assert (outcome.status, outcome.value, outcome.error) == ("returned", None, None)
        assert s["x"] == 1


def test_threads_inside_may_call_tools() -> None:
    with Session(tools=[add], memory_mb=256) as s:
        outcome = s.exec(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(4) as pool: r = list(pool.map(add, range(50)))\nsum(r)"
        )
        assert outcome.value == 1275


def test_a_tool_is_refused_where_no_exec_runs() -> None:
    with Session(tools=[add], memory_mb=256) as s:
        s.exec(
            "import threading, time\nfound = []\n"
            "def later():\n  time.sleep(0.3)\n"
            "  try: found.append(add(1))\n  except RuntimeError as e: found.append(str(e))\n"
            "threading.Thread(target=later).start()"
        )
        time.sleep(0.6)
        assert "only while a call runs" in s.exec("found[0]").value
        child = (
            "import os\nif os.fork() == 0:\n  try: add(1)\n  except RuntimeError: os._exit(7)\n"
            "os.waitstatus_to_exitcode(os.wait()[1])"
        )
        assert s.exec(child).value == 7


def test_a_tool_without_annotations_is_refused_at_once() -> None:
    def bare(x):  # type: ignore[no-untyped-def]
        return x

    with pytest.raises(TypeError, match="no annotation"):
        Session(tools=[bare])
    with pytest.raises(ValueError, match="two tools"):
        Session(tools=[add, add])

    async def later(x: int) -> int:
        return x

    with pytest.raises(TypeError, match="AsyncSession"):
        Session(tools=[later])
    with pytest.raises(TypeError, match="a function"):
        Session(tools=[Point])


def test_large_arguments_of_a_tool_arrive() -> None:
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    with Session(tools=[total], memory_mb=256) as s:
        for n in (10, 5_000, 20_000, 200_000):
            assert s.exec(f"total(list(range({n})))").value == n * (n - 1) // 2


def test_classes_go_to_tools_and_back_as_what_they_are_made_of() -> None:
    def mirror(point: Point, color: Color = Color.RED) -> Point:
        return dataclasses.replace(point, x=-point.x)

    tool = Tool(mirror)
    assert (
        "def mirror(point: Point, color: Literal['red', 'blue'] = 'red') -> Point:" in tool.stub()
    )
    assert tool.schema["properties"]["color"]["default"] == "red"
    with Session(tools=[tool], memory_mb=256) as s:
        assert s.exec("mirror({'x': 3})").value == {"x": -3, "y": 0.5}
        mine = "from dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\nmirror(P(4))"
        assert s.exec(mine).value == {"x": -4, "y": 0.5}


def test_a_flag_annotation_makes_no_members() -> None:
    def use(mode: Mode) -> str:
        return str(mode.name)

    with Session(tools=[use], memory_mb=256) as s:
        before = len(Mode._value2member_map_)
        assert s.exec("use(2)").value == "WRITE"
        s.exec("for i in range(100):\n  try: use(i)\n  except TypeError: pass")
        assert len(Mode._value2member_map_) == before


def test_what_a_tool_calls_may_end_the_exec() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with Session(tools=[interrupt], memory_mb=256) as s:
        with pytest.raises(KeyboardInterrupt):
            s.exec("kept = 1\ninterrupt()")
        assert s["kept"] == 1
        with pytest.raises(KeyboardInterrupt):
            s.exec("while True:\n  try: interrupt()\n  except BaseException: pass")
        assert s.exec("1 + 1").value == 2 and s.lost == ["kept"]


def test_a_callback_that_raises_ends_the_code_and_is_raised() -> None:
    def refuse(_: object) -> None:
        raise LookupError("not shown")

    with Session(memory_mb=256, on_display=refuse) as s:
        with pytest.raises(LookupError):
            s.exec("kept = 1\ndisplay(1)")
        assert s["kept"] == 1


# ---- what is shown, and input


def test_what_is_shown_arrives_by_type() -> None:
    seen: list[dict[str, Any]] = []
    with Session(memory_mb=256, on_display=seen.append) as s:
        outcome = s.exec(
            "class Rich:\n  def _repr_html_(self): return '<b>x</b>'\n"
            "  def _repr_png_(self): return b'PNG'\n  def __repr__(self): return 'Rich'\n"
            "display(Rich(), 5)\ndisplay({'text/latex': '$x$'}, raw=True)\nRich()"
        )
        html = {"text/html": "<b>x</b>", "image/png": b"PNG", "text/plain": "Rich"}
        assert outcome.display == [html, {"text/plain": "5"}, {"text/latex": "$x$"}, html]
        assert seen == outcome.display
        assert s.exec("1").display == []


def test_input_is_answered_or_at_its_end() -> None:
    with Session(memory_mb=256, on_input=lambda prompt: prompt.upper()) as s:
        assert s.exec("input('name')").value == "NAME"
    with Session(memory_mb=256) as s:
        outcome = s.exec("input()")
        assert outcome.error is not None and outcome.error.type == "EOFError"


def test_ipython_display_is_there_without_ipython_once_it_is_imported() -> None:
    with Session(memory_mb=256, files={"IPython/__init__.py": "version_info = (9,)"}) as s:
        assert s.exec("import sys; 'IPython' in sys.modules").value is False
        found = s.exec("import IPython; IPython.version_info")  # one that is there wins
        assert found.value == (9,)
        missing = s.exec("import IPython.display")
        assert missing.error is not None and missing.error.type == "ModuleNotFoundError"
    with Session(memory_mb=256) as s:
        outcome = s.exec("from IPython.display import HTML, display\ndisplay(HTML('<b>'))")
        text = "<IPython.core.display.HTML object>"
        assert outcome.display == [{"text/html": "<b>", "text/plain": text}], outcome
        assert s.exec("import IPython; IPython.display.HTML is HTML").value is True
        missing = s.exec("import IPython.core.magic")
        assert missing.error is not None and missing.error.type == "ModuleNotFoundError"
        s.reset()
        latex = s.exec("import IPython\nIPython.display.Latex('$x$')")
        assert latex.display[0]["text/latex"] == "$x$"


def test_displays_are_bounded(s: Session) -> None:
    outcome = s.exec("for i in range(20_000): display(i)", timeout_sec=60)
    assert outcome.ok and len(outcome.display) == 10_000
    assert s.exec("1").value == 1


# ---- neighbours


def test_a_session_that_dies_as_it_is_closed_harms_nobody() -> None:
    with Session(memory_mb=256) as neighbour:
        neighbour.exec("kept = 1")
        for i in range(24):
            s = Session(memory_mb=256)
            s.exec("1")
            s.exec("import os, threading\nthreading.Timer(0.01, os._exit, (3,)).start()")
            time.sleep(0.008 + i * 0.0003)
            s.close()
        assert neighbour.exec("kept").value == 1


def test_a_tool_builds_nothing_that_acts() -> None:
    pydantic = pytest.importorskip("pydantic")
    made = pydantic.create_model("Acting", what=(pydantic.ImportString, ...))

    def use(what: Any) -> None: ...

    use.__annotations__["what"] = made
    with pytest.raises(TypeError, match="cannot be built"):
        Session(tools=[use])


def test_what_a_tool_answers_is_no_larger_than_the_memory() -> None:
    def page(n: int) -> bytes:
        return bytes(n)

    with Session(tools=[page], memory_mb=64) as s:
        assert s.exec("len(page(65 << 20))").limit == "memory"
        outcome = s.exec("for _ in range(100): x = page(4 << 20)")
        assert outcome.ok, "what was answered before is taken back"


def test_checking_arguments_takes_time_in_proportion_to_them() -> None:
    def count(pages: dict[str, list[str]]) -> int:
        return len(pages)

    with Session(tools=[count], timeout_sec=30, memory_mb=256) as s:
        assert s.exec("count({'k' * 1_000_000: ['a'] * 60_000})").value == 1


# ---- lies


HOSTILE = """
import os, resource, signal, socket, struct, fcntl
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
s = socket.socket(fileno=os.dup(3))
for option, value in ((20, struct.pack('qq', 0, 1)), (21, struct.pack('qq', 0, 1)), (16, 1)):
    try: s.setsockopt(1, option, value)
    except OSError: pass
for fd in (1, 2, 3):
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
refused = 0
for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):
    try: resource.prlimit(1, limit, (1, 1))
    except PermissionError: refused += 1
assert refused == 3, refused
os.umask(0o777); os.nice(5); os.chdir('/tmp')
os._exit(3)
"""
STATE = """
import os, resource, signal, fcntl
lines = dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines())
wanted = 'CapEff CapPrm NoNewPrivs Seccomp Seccomp_filters Uid SigBlk SigIgn Umask'.split()
limits = [name for name in dir(resource) if name.startswith('RLIMIT_')]
{
    'status': {name: lines[name].split() for name in wanted if name in lines},
    'limits': {name: resource.getrlimit(getattr(resource, name)) for name in limits},
    'descriptors': sorted(os.listdir('/proc/self/fd')),
    'flags': [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (1, 2, 3)],
    'nice': os.nice(0), 'cwd': os.getcwd(), 'environ': sorted(os.environ),
    'oom': open('/proc/self/oom_score_adj').read(),
    'affinity': len(os.sched_getaffinity(0)),
}
"""


def test_a_restarted_process_is_as_the_first_one(s: Session) -> None:
    first = s.exec(STATE)
    assert first.ok, first
    for _ in range(3):
        outcome = s.exec(HOSTILE)
        assert outcome.exit_code == 3, outcome
        again = s.exec(STATE)
        assert again.value == first.value
    time.sleep(1)
    assert s.info()["restarts"] == 3, "nothing restarts by itself"


@pytest.mark.parametrize(
    "source",
    [
        "frame(14, number=7)",  # of another number
        "frame(14, id=1)",  # of another call
        "frame(15, size=1 << 40)",
        "frame(77)",
        "frame(13, id=0)",  # that its own process has ended
        "frame(2)",
    ],
)
def test_a_forged_frame_costs_the_session_its_names_at_most(source: str) -> None:
    forge = (
        "import socket, struct, gc\n"
        "talk = next(o for o in gc.get_objects() if type(o).__name__ == 'Dialogue')\n"
        "def frame(kind, id=None, number=1, size=0):\n"
        "  id = talk.call_id if id is None else id\n"
        "  head = struct.pack('<HBBIQQQ', 0x4348, 3, kind, 0, id, number, size)\n"
        "  socket.socket(fileno=3).send(head)\n"
    )
    with Session(memory_mb=256, timeout_sec=10) as s:
        s.exec("x = 1")
        begun = time.monotonic()
        outcome = s.exec(forge + source)
        assert outcome.ok or outcome.restarted, outcome
        assert time.monotonic() - begun < 8
        assert s.exec("2 + 2").value == 4


def test_a_session_whose_first_code_is_interrupted_at_once_begins_with_the_next() -> None:
    for milliseconds in (1, 1, 2, 2, 3, 4):
        with Session(memory_mb=256, tools=[add]) as s:
            s.exec("while True: pass", timeout_sec=milliseconds / 1000)
            assert s.exec("add(1)").value == 2


# ---- asyncio


def test_an_async_session_does_the_same() -> None:
    async def use() -> None:
        loop = asyncio.get_running_loop()

        async def later(n: int) -> int:
            await asyncio.sleep(0.01)
            assert asyncio.get_running_loop() is loop
            return n + 1

        async with AsyncSession(tools=[add, later], memory_mb=256, timeout_sec=20) as s:
            assert (await s.exec("x = add(1)\nx")).value == 2
            await s.set("y", [1])
            assert await s.get("y") == [1] and await s.has("x")
            assert await s.names() == ["x", "y"]
            await s.files.write("f", "text")
            assert await s.files.read("f") == "text"
            assert (await s.exec("later(20)")).value == 21
            running = asyncio.ensure_future(s.exec("import time; time.sleep(60)"))
            await asyncio.sleep(0.3)
            with pytest.raises(hutch.SessionBusy):
                await s.exec("1")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await s.exec("x")).value == 2  # it was interrupted

    asyncio.run(use())


def test_what_is_shown_has_a_bound_in_memory() -> None:
    """A message of JSON takes many times its size on the host; an honest picture does not."""
    with Session(memory_mb=512, timeout_sec=120) as s:
        code = "for _ in range(9): display({'application/json': [{'a': 0}] * 200_000}, raw=True)"
        many = s.exec(code)
        assert 0 < len(many.display) < 9
        text = "for _ in range(100): display({'text/plain': 'x' * (1 << 20) + X}, raw=True)"
        assert len(s.exec(f"X = ''\n{text}").display) == 100
        wide = s.exec(f"X = '\\N{{GRINNING FACE}}'\n{text}")  # four bytes for each character
        assert 60 <= len(wide.display) <= 64
        other = s.exec(
            "import datetime\nday = {'application/json': [datetime.date.max] * 100_000}\n"
            "for _ in range(5): display(day, raw=True)"
        )
        assert 0 < len(other.display) < 5
        picture = s.exec("for _ in range(20): display({'image/png': bytes(1 << 20)}, raw=True)")
        assert len(picture.display) == 20
