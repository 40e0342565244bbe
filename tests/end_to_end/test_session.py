# SPDX-License-Identifier: Apache-2.0
"""Sessions: names and files that last, limits for each call, and what a restart costs."""

from __future__ import annotations

import os
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import hutch
from hutch import Session

MAKES_A_FORK_BOMB = """
import os, signal
def bomb():
    while True:
        try:
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
        except OSError:
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
    outcome = s.exec("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n'child' if pid == 0 else 'parent'")
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


@pytest.mark.parametrize("name", ["a b", "", "1x", "a.b", "__import__('os')"])
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


def test_a_value_that_is_no_data_says_where(s: Session) -> None:
    outcome = s.exec("{'a': [1, lambda: 0]}")
    with pytest.raises(hutch.SerializationError) as caught:
        outcome.unwrap()
    assert caught.value.path == "result['a'][1]" or caught.value.path == 'result["a"][1]'
    assert s.exec("1").value == 1


# ---- limits: names are lost, files never


def ends_by_time(s: Session) -> hutch.Outcome[Any]:
    return s.exec("while True: pass", timeout_sec=0.5)


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
    for _ in range(3):
        assert end(s).restarted
    assert s.files.read("file") == "there"


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
    assert s.exec("import os; [p for p in os.listdir('/proc') if p.isdigit() and int(p) > 2]").value is not None
    left = s.exec("[open(f'/proc/{p}/comm').read() for p in os.listdir('/proc') if p.isdigit()]").value
    assert "sleep\n" not in left


def test_a_fork_bomb_is_cleared_away(s: Session) -> None:
    outcome = s.exec(MAKES_A_FORK_BOMB + "bomb()", timeout_sec=2)
    assert outcome.restarted and outcome.limit in ("time", "memory", "pids")
    assert s.exec("1 + 1").value == 2


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


# ---- files


def test_files_are_read_and_written(s: Session, tmp_path: pathlib.Path) -> None:
    s.files.write("a/b.txt", "text")
    s.files.write("a/b.txt", b" more", append=True)
    assert s.files.read("a/b.txt") == "text more"
    assert s.exec("open('a/b.txt').read()").value == "text more"
    assert s.files.list() == ["a"] and s.files.list("a") == ["b.txt"]
    assert s.files.glob("**/*.txt") == ["a/b.txt"]
    assert s.files.stat("a/b.txt")["size"] == 9 and s.files.stat("a")["type"] == "directory"
    s.files.rename("a/b.txt", "c")
    s.files.mkdir("d/e")
    s.files.delete("a")
    assert not s.files.exists("a") and s.files.realpath("c") == "/work/c"
    (tmp_path / "up").write_bytes(b"\0" * 5_000_000)
    s.files.upload(tmp_path / "up")
    s.files.download("up", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == b"\0" * 5_000_000
    s.files.remove("c")
    with pytest.raises(FileNotFoundError):
        s.files.read("c")
    with pytest.raises(IsADirectoryError):
        s.files.read("d")
    with pytest.raises(PermissionError):
        s.files.write("/usr/x", b"")


def test_a_fifo_blocks_nobody(s: Session) -> None:
    s.exec("import os; os.mkfifo('fifo')")
    with pytest.raises(OSError):
        s.files.read("fifo")
    with pytest.raises(OSError):
        s.files.write("fifo", b"x")


@pytest.mark.parametrize("path", ["a\0b", "", "x" * 5000])
def test_a_path_that_is_none_is_refused(s: Session, path: str) -> None:
    with pytest.raises((ValueError, OSError)):
        s.files.read(path)


def test_files_are_there_at_the_start(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x").write_text("of the host")
    with Session(files={"a.txt": "a", "b/c": b"c", "tree": tmp_path}, memory_mb=256) as s:
        assert s.exec("open('a.txt').read() + open('b/c').read()").value == "ac"
        assert s.files.read("tree/sub/x") == "of the host"
        s.exec("import os; os.unlink('a.txt')")
        s.reset(files=True)
        assert s.files.list() == ["a.txt", "b", "tree"]


# ---- its life


def test_reset_loses_names_and_keeps_files(s: Session) -> None:
    s.exec("x = 1; open('f', 'w').close()")
    s.reset()
    assert s.lost == ["x"] and s.names() == [] and s.files.list() == ["f"]


def test_one_call_at_a_time(s: Session) -> None:
    s.exec("import time")
    thread = threading.Thread(target=lambda: s.exec("time.sleep(1)"))
    thread.start()
    time.sleep(0.3)
    with pytest.raises(hutch.SessionBusy):
        s.exec("1")
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
        for _ in range(6):
            time.sleep(0.7)
            assert s.exec("x").value == 1
        time.sleep(5)
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
