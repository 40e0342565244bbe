# SPDX-License-Identifier: Apache-2.0
"""What a session's process answers may be anything: it is one clear error of Hutch, whatever was
asked, and takes no more of the host than an honest answer.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hutch import RequirementError, SandboxError, Session, SessionBusy

WORK = "/work"  # the directory of a cell

FINDS = """
import gc, numpy
state = next(o for o in gc.get_objects() if type(o).__name__ == "State")
inside = type(state).execute.__globals__
"""


def look(text: str) -> str:
    return text


@pytest.fixture
def s() -> Iterator[Session]:
    with Session(
        memory_mb=512, timeout_sec=20, output_mb=1, dependencies=["numpy"], tools=[look]
    ) as s:
        s.exec(FINDS).unwrap()
        yield s


ASKED: dict[str, Callable[[Session], Any]] = {
    "get": lambda s: s.get("x"),
    "item": lambda s: s["x"],
    "delete": lambda s: s.delete("x"),
    "protect": lambda s: s.protect("x"),
    "complete": lambda s: s.complete("x"),
    "inspect": lambda s: s.inspect("x"),
    "variables": lambda s: s.variables(),
    "read": lambda s: s.files.read("x"),
    "scan": lambda s: s.files.scan("x"),
    "walk": lambda s: [*s.files.walk("x")],
    "snapshot": lambda s: s.snapshot(),
    "start": lambda s: s.start("x"),
    "processes": lambda s: s.processes(),
    "bash": lambda s: s.bash("x").unwrap(),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("reply", ["(numpy.arange(3), 1)", "numpy.arange(3)", "7.5", "(1, 2, 3)"])
def test_a_reply_of_another_kind_is_an_error_of_hutch(s: Session, asked: str, reply: str) -> None:
    s.exec(f"inside['plain'] = lambda *a: {reply}").unwrap()
    with pytest.raises(SandboxError):
        ASKED[asked](s)


def test_an_honest_process_is_believed(s: Session) -> None:
    s.exec("x = 1").unwrap()
    assert s["x"] == 1 and s.get("y", 2) == 2
    with pytest.raises(KeyError):
        s.delete("y")
    with pytest.raises(KeyError, match="y"):
        s.protect("y")
    s.protect("x")
    outcome = s.start("echo one; echo two >&2; exit 3").wait()
    assert (outcome.stdout_size, outcome.stderr_size, outcome.exit_code) == (4, 4, 3)


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        ("complete", "(['a', 1], 0)"),
        ("complete", "(['a'], -1)"),
        ("complete", "(['a'], 2)"),
        ("complete", "(['a'], True)"),
        ("complete", "(['a'] * 1001, 0)"),
        ("complete", "(['a' * 201], 0)"),
        ("complete", "(['a\\x1b[2J'], 0)"),
        ("complete", "(['a\\u202e'], 0)"),
        ("inspect", "('int', '', '', '')"),
        ("inspect", "('int', '', '', '', 1)"),
        ("inspect", "('int', '', 'x' * 50_001, '', '')"),
        ("inspect", "('int', '', '', '', 'x' * 201)"),
        ("variables", "[('a', 'int', 1, None, None)]"),
        ("variables", "[('a', 'int', -1, None, None, '')]"),
        ("variables", "[('a', 'int', True, None, None, '')]"),
        ("variables", "[('a', 'int', 1 << 63, None, None, '')]"),
        ("variables", "[('a', 'int', None, None, 1.5, '')]"),
        ("variables", "[('a', 'int', None, (1, 'x'), None, '')]"),
        ("variables", "[('a', 'int', None, (1,) * 65, None, '')]"),
        ("variables", "[('a', 'int', None, None, None, 'x' * 201)]"),
        ("variables", "[('a' * 201, 'int', None, None, None, '')]"),
        ("variables", "[('a', 'int', None, None, None, '')] * 1001"),
        ("variables", "[('a' * 200, 'b' * 200, None, None, None, 'c' * 200)] * 1000"),
    ],
)
def test_what_a_user_interface_is_given_is_checked(s: Session, asked: str, reply: str) -> None:
    s.exec(f"inside['looking'].answer = lambda *a: {reply}").unwrap()
    with pytest.raises(SandboxError):
        ASKED[asked](s)


TREE = """
import struct
def tree(path, most, deepest):
    return {names!r}, bytes({names!r}.count(b'\\0')), struct.pack('=5q', 1, 0, 0, 0, 0)
inside['session_files'].VERBS['tree'] = tree
"""


@pytest.mark.parametrize("name", [b"a/b", b"..", b"", b"/"])
def test_a_directory_has_no_names_that_lead_elsewhere(s: Session, name: bytes) -> None:
    s.exec(TREE.format(names=name + b"\0")).unwrap()
    for asked in ("scan", "walk"):
        with pytest.raises(SandboxError):
            ASKED[asked](s)


def test_a_tree_that_has_no_end_is_walked_to_one(s: Session) -> None:
    s.exec(TREE.format(names=b"a\0")).unwrap()
    with pytest.raises(OSError) as raised:
        ASKED["walk"](s)
    assert raised.value.errno == errno.ENAMETOOLONG


@pytest.mark.parametrize(
    "reply",
    [
        "[0, b'x', -7, b'', 0]",
        "[0, b'', 10**300, b'', 0]",
        "[0, b'xyz', 2, b'', 0]",
        "[0, bytes(5 << 20), 5 << 20, b'', 0]",
    ],
)
def test_no_size_that_cannot_be_reaches_who_waits(s: Session, reply: str) -> None:
    process = s.start("true")
    s.exec(f"inside['background'].VERBS['wait'] = lambda *a: {reply}").unwrap()
    outcome = process.wait()
    assert outcome.exit_code is None and outcome.error is not None
    assert outcome.error.type == "SerializationError"
    assert len(outcome.stdout) <= 1 << 20 and 0 <= outcome.stdout_size < 1 << 63


@pytest.mark.parametrize(
    "reply", ["[(1, 1, 'x', None)] * 5000", "[(i, 1, 'x' * 1001, None) for i in range(3)]"]
)
def test_processes_without_end_are_none(s: Session, reply: str) -> None:
    s.exec(f"inside['background'].answer = lambda *a: {reply}").unwrap()
    with pytest.raises(SandboxError):
        s.processes()
    assert s.info()["processes"] == {}


def test_a_program_that_is_said_to_be_silent_is_asked_now_and_then(s: Session) -> None:
    process = s.start("sleep 1000")
    s.exec(
        "asked = 0\ndef read(*_):\n    global asked\n    asked += 1\n"
        "    return b'x\\n' if asked == 4 else b'', asked >= 4\n"
        "inside['background'].VERBS['read'] = read"
    ).unwrap()
    begun = time.monotonic()
    assert list(process.lines()) == ["x"]
    assert time.monotonic() - begun >= 0.75  # of three times that there was nothing


def test_packages_that_are_said_to_be_there_without_end_are_refused(s: Session) -> None:
    s.exec(
        "inside['session_files'].VERBS['distributions'] = lambda _: [('a', '1.1')] * 10**5"
    ).unwrap()
    with pytest.raises(SandboxError):
        s.install("tabulate")


def test_a_line_without_an_end_is_reported_in_pieces() -> None:
    with Session(disk_mb=16, memory_mb=256) as s:
        lines = s.start("truncate -s 100G /dev/stdout; sleep 100").lines()
        assert all(len(next(lines)) < 4 << 20 for _ in range(5))
        assert list(s.start("seq 3").lines()) == ["1", "2", "3"]


def test_arrays_that_a_tool_is_given_take_no_time_of_the_host(s: Session) -> None:
    ask = "from hutch_tools import kv\nkv._dialogue.ask('tool', 'look', [{}], {{}})"
    begun = time.process_time()
    for given in ("numpy.zeros((2,) * 21, 'u1')", "numpy.zeros(3)"):
        outcome = s.exec(ask.format(given))
        assert outcome.error is not None and "must be str" in outcome.error.message
    assert time.process_time() - begun < 2
    assert "ndarray" in s.history()[-2].source + s.history()[-3].source
    assert s.exec(ask.format("'honest'")).value == "honest"


def test_a_request_of_an_array_is_an_error_inside(s: Session) -> None:
    outcome = s.exec("from hutch_tools import kv\nkv._dialogue.ask('kv', numpy.arange(3))")
    assert outcome.error is not None and outcome.error.type == "TypeError"
    assert s.exec("kv.get('a')").ok


ASKS = """
honest = inside['plain']
def plain(*args):
    display({"text/plain": "shown"}, raw=True)
    for ask in (lambda: look("now"), lambda: input("now?")):
        try: said.append(ask())
        except (RuntimeError, TypeError, EOFError) as error: said.append(type(error).__name__)
    return honest(*args)
inside['plain'], said = plain, []
"""


@pytest.mark.parametrize("asked", ["names", "get", "list", "snapshot", "processes"])
def test_what_runs_no_code_of_the_caller_calls_nothing_of_the_host(asked: str) -> None:
    called: list[str] = []
    asks: dict[str, Callable[[Session], Any]] = {
        **ASKED,
        "names": lambda s: s.names(),
        "list": lambda s: s.files.list(),
    }

    def look(text: str) -> str:
        called.append(text)
        return text

    with Session(
        memory_mb=256,
        tools=[look],
        on_input=lambda prompt: called.append(prompt) or "typed",
        on_display=lambda forms: called.append(str(forms)),
    ) as s:
        s.exec(FINDS.replace(", numpy", "") + ASKS).unwrap()
        asks[asked](s)
        assert called == []
        honest = "display({'text/plain': 'x'}, raw=True); look('then'), input('then?')"
        assert s.exec(honest).value == ("then", "typed")
        assert s.call(looks) == "of a function"
    assert called == ["{'text/plain': 'x'}", "then", "then?", "of a function"]


def looks() -> str:
    return look("of a function")  # the session's tool


def test_names_of_any_size_hide_nobody_who_holds_a_session(tmp_path: Path) -> None:
    place = tmp_path / "sessions"
    with Session(id="one", storage=place) as s:
        s.exec(FINDS.replace(", numpy", "")).unwrap()
        s.exec(
            "kind = type(state.spaces[0])\n"
            "kind.news = lambda self: ['\\0' * 900_000 + str(i) for i in range(20)]"
        ).unwrap()
        assert s.exec("1").ok
        assert (place / ".held-one").stat().st_size < 1 << 20
        with pytest.raises(SessionBusy) as raised:
            Session(id="one", storage=place)
        assert raised.value.holder["pid"] > 0


# How code runs where nobody has asked for any: by the verbs that look at its values and files.
SLY = """
import sys
import hutch_tools
told = []
class Sly:
    def __reduce__(self): return self.asks("reduce")
    def __del__(self): self.asks("del")
    def asks(self, where):
        for ask in (lambda: hutch_tools.call('look', where), input):
            try: ask(); told.append(where)
            except RuntimeError as error: told.append(str(error))
        return str, ("x",)
sys.addaudithook(lambda event, _: event in ('os.listdir', 'os.scandir') and Sly().asks("listed"))
x = Sly()
"""


def test_no_tool_runs_but_within_an_exec_or_a_call() -> None:
    asked: list[str] = []

    def look(text: str) -> str:
        asked.append(text)
        return text

    def on_input(prompt: str) -> str:
        asked.append("input")
        return ""

    with Session(memory_mb=256, tools=[look], on_input=on_input) as s:
        s.exec(SLY).unwrap()
        assert s.names() and s.files.list(".") == []
        s.delete("x")
        s.snapshot()
        told = s["told"]
        assert told and not asked
        assert {*told} == {"tools and input() work only while an exec or a call runs"}
        s.exec("y = Sly(); del y").unwrap()  # the control
        assert asked == ["del", "input"]


def test_packages_that_a_session_forges_are_not_its_callers_mistake(s: Session) -> None:
    forges = "inside['session_files'].VERBS['distributions'] = lambda _: {}"
    for reply in ("[(f'p{i}', '1') for i in range(2000)]", "5", "[(1, 2)]"):
        s.exec(forges.format(reply)).unwrap()
        with pytest.raises(SandboxError) as raised:
            s.install("six")
        assert not isinstance(raised.value, RequirementError)
    assert isinstance(s.history()[-1].error, str) and s.exec("1").ok


@pytest.mark.parametrize(
    "left",
    [
        "os.makedirs('/tmp/.packages/\u00b2')",
        "os.makedirs('/tmp/.packages/' + '9' * 200)",
        f"os.chdir('/'); os.rmdir('{WORK}/here'); open('{WORK}/here', 'w').close()",
        f"os.chmod('{WORK}/here', 0)",
        f"os.chmod('{WORK}', 0)",
        f"os.chmod('{WORK}', 0o111)",
    ],
)
def test_nothing_in_a_scratch_keeps_a_session_from_beginning_again(left: str) -> None:
    with Session(memory_mb=256, cwd=f"{WORK}/here", files={f"{WORK}/kept": "1"}) as s:
        s.exec(f"import os; {left}").unwrap()
        s.reset()
        assert s.exec("2").value == 2 and s.files.read(f"{WORK}/kept") == "1"
        assert s.bash("echo 3").stdout == "3\n"
