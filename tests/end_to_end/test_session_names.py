# SPDX-License-Identifier: Apache-2.0
"""Names of sessions that are protected, and children with names of their own."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator

import pytest

import hutch
from hutch import AsyncSession, Session
from hutch._calls.session_call import SessionCall


@pytest.fixture
def s() -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=20) as session:
        yield session


# ---- names that are protected


BINDINGS = [
    "x = 1",
    "x: int = 1",
    "x += 1",
    "del x",
    "a, (b, *x) = 1, (2, 3)",
    "import x",
    "import x.y",
    "import json as x",
    "from json import loads as x",
    "for x in []: pass",
    "def x(): pass",
    "async def x(): pass",
    "class x: pass",
    "(x := 1)",
    "[x := i for i in range(3)]",
    "with open('/dev/null') as x: pass",
    "try: pass\nexcept Exception as x: pass",
    "match 1:\n  case x: pass",
    "match [1]:\n  case [*x]: pass",
    "match {}:\n  case {**x}: pass",
    "match 1:\n  case int() as x: pass",
    "def f():\n  global x\n  x = 1",
    "def f():\n  def g():\n    global x\n    x = 1",
    "class A:\n  global x\n  x = 1",
    "if 0:\n  while 0:\n    x = 1",
    "def f(a=(x := 1)): pass",
    "lambda: 0, (x := 1)",
]


@pytest.fixture(scope="module")
def protected() -> Iterator[Session]:
    with Session(memory_mb=256) as session:
        session["x"] = "kept"
        session.protect("x")
        yield session


@pytest.mark.parametrize("source", BINDINGS)
def test_code_that_binds_a_protected_name_is_refused_before_it_runs(
    protected: Session, source: str
) -> None:
    outcome = protected.exec(f"print('ran')\n{source}")
    assert outcome.status == "raised" and outcome.error is not None
    assert outcome.error.type == "SyntaxError" and outcome.error.bases[0] == "SyntaxError"
    assert "'x' is protected" in outcome.error.message
    bound_at = next(i for i, line in enumerate(source.split("\n"), 2) if "x" in line)
    assert outcome.error.line is not None and outcome.error.line >= bound_at
    assert outcome.stdout == "" and protected["x"] == "kept"


@pytest.mark.parametrize(
    "source",
    [
        "x.upper()",
        "x: str",
        "def f(x):\n  x = 1\n  for x in []: pass",
        "def f():\n  global x\n  return x",
        "[x for x in range(3)]",
        "{x: 1 for x in range(3)}",
        "class A:\n  x = 1\n  def x(self): pass",
        "lambda x: (y := x)",
        "y = x",
        "import os.path as y",
        "f'{x}'",
        "def f():\n  global x\n  def g():\n    x = 1",
        "from json import *",
        "y = type('A', (), {})()\ny.x = 1\ndel y.x",
    ],
)
def test_code_that_leaves_a_protected_name_alone_runs(protected: Session, source: str) -> None:
    outcome = protected.exec(source)
    assert outcome.ok, outcome
    assert outcome.stderr == "" and protected["x"] == "kept"


def test_the_first_binding_is_reported_with_its_line(protected: Session) -> None:
    outcome = protected.exec("def f():\n  global x\n  x = 1\nx = 2\nclass x: pass")
    assert outcome.error is not None and outcome.error.line == 3
    assert '"<cell ' in outcome.error.traceback and "x = 1" in outcome.error.traceback


@pytest.mark.parametrize(
    "source",
    [
        "globals()['x'] = 1",
        "globals().pop('x')",
        "import __main__; __main__.x = 1",
        "exec('x = 1')",
        "globals()['x'] = 1; 1 / 0",
    ],
)
def test_a_protected_name_that_was_replaced_is_put_back(protected: Session, source: str) -> None:
    outcome = protected.exec(source)
    assert outcome.stderr == "x is protected: it has its value back\n"
    assert protected["x"] == "kept"
    assert protected.exec("x").stderr == ""


def test_a_called_function_puts_nothing_in_the_place_of_a_protected_name(s: Session) -> None:
    s["x"] = 1
    s.protect("x")

    def replaces() -> int:
        global x
        x = 2  # type: ignore[name-defined]
        return x  # type: ignore[name-defined]

    assert s.call(replaces) == 2 and s["x"] == 1


def test_the_caller_may_replace_and_delete_what_is_protected(s: Session) -> None:
    s.exec("x = 1\ny = 2")
    s.protect("x", "y")
    s["x"] = 10
    assert not s.exec("x = 3").ok
    assert s.exec("globals()['x'] = 4").ok and s["x"] == 10
    del s["x"]
    assert s.exec("x = 5").ok and s["x"] == 5
    assert not s.exec("y = 3").ok


def test_only_a_name_that_is_there_is_protected(s: Session) -> None:
    s["x"] = 1
    with pytest.raises(KeyError, match="absent"):
        s.protect("x", "absent")
    assert s.exec("x = 2").ok
    with pytest.raises(ValueError, match="not a valid name"):
        s.protect("no name")


def test_a_deep_expression_is_looked_through(s: Session) -> None:
    s["x"] = 1
    s.protect("x")
    deep = " + ".join(["1"] * 700)
    assert s.exec(deep).value == 700
    assert not s.exec(f"y = {deep} + (x := 1)").ok


def look(text: str) -> str:
    return f"seen {text}"


def test_a_tool_is_protected_on_demand_also_after_a_restart() -> None:
    with Session(memory_mb=256, tools=[look]) as s:
        assert s.exec("look = 1").ok
        s.reset()
        s.exec("kept = 1")
        s.protect("look", "kept")
        refused = s.exec("look = look('a')")
        assert refused.error is not None and "'look' is protected" in refused.error.message
        s.reset()
        assert not s.exec("look = 1").ok
        assert s.exec("kept = 2").ok
        assert s.exec("look('b')").value == "seen b"


# ---- children


def test_a_child_has_the_names_of_its_parent_and_keeps_its_own(s: Session) -> None:
    s.exec("x = 1\nshared = []\ndef twice(n): return 2 * n")
    inner = s.child()
    s.exec("x = 100\nlater = 1")
    assert inner.exec("twice(x)").value == 2
    assert inner.names() == ["x", "shared", "twice"] and "later" not in inner
    inner.exec("x = 5\ny = 6\nshared.append('by the child')\ndel twice")
    assert s["x"] == 100 and "y" not in s and s.exec("twice(4)").value == 8
    assert s["shared"] == ["by the child"]
    assert inner["x"] == 5 and list(inner) == ["x", "shared", "y"]


def test_a_child_has_what_a_session_has(s: Session) -> None:
    inner = s.child()
    inner["a"] = [1]
    inner.set("b", 2)
    assert inner.get("a") == [1] and inner.get("absent", 3) == 3 and inner.has("b")
    del inner["b"]
    inner.delete("a")
    assert inner.names() == [] and s.names() == []
    with pytest.raises(KeyError):
        inner["a"]
    with pytest.raises(KeyError):
        inner.delete("a")
    inner.files.write("note.txt", "there")
    assert s.exec("open('note.txt').read()").value == "there"

    def doubled(n: int) -> int:
        return n * factor  # type: ignore[name-defined, no-any-return]  # noqa: F821

    inner["factor"] = 3
    assert inner.call(doubled, 4) == 12
    outcome = inner.exec("while True: pass", timeout_sec=0.5)
    assert outcome.limit == "time" and not outcome.restarted
    assert inner["factor"] == 3


def test_functions_see_the_names_that_they_were_defined_in(s: Session) -> None:
    s.exec("x = 'parent'\ndef of_parent(): return x")
    inner = s.child()
    inner.exec("x = 'child'\ndef of_child(): return x")
    assert inner.exec("of_parent(), of_child()").value == ("parent", "child")


def test_main_is_the_child_while_its_code_runs(s: Session) -> None:
    s.exec("import pickle, copy\nclass A: pass")
    inner = s.child()
    inner.exec("class B: pass")
    assert inner.exec(
        "import __main__\n[type(pickle.loads(pickle.dumps(one()))) is one for one in (A, B)]"
    ).value == [True, True]
    assert inner.exec("__main__.B is B").value is True
    assert s.exec("import __main__; hasattr(__main__, 'B')").value is False
    assert s.exec("type(pickle.loads(pickle.dumps(A()))) is A").value is True


def test_children_have_children(s: Session) -> None:
    s["x"] = 0
    ends = [s]
    for n in range(1, 4):
        child = ends[-1].child()
        assert child.parent is ends[-1] and child.session is s
        child.exec(f"x += 1; y{n} = {n}")
        ends.append(child)  # type: ignore[arg-type]
    assert [end["x"] for end in ends] == [0, 1, 2, 3]
    assert ends[3].names() == ["x", "y1", "y2", "y3"]
    ends[1].close()
    assert ends[2]["x"] == 2


def test_a_child_shares_the_rule_of_one_call_at_a_time(s: Session) -> None:
    inner = s.child()
    thread = threading.Thread(target=lambda: s.exec("import time; time.sleep(2)"))
    thread.start()
    while s._engine.talk is None:
        time.sleep(0.01)
    with pytest.raises(hutch.SessionBusy):
        inner.exec("1")
    inner.close()
    thread.join()
    with pytest.raises(hutch.SandboxStartupError, match="closed"):
        inner.exec("1")


@pytest.mark.parametrize("how", ["close", "let go"])
def test_a_child_that_ends_frees_its_names(s: Session, how: str) -> None:
    s.exec("import weakref\nclass Large: pass")
    inner = s.child()
    inner.exec("large = Large()\nLarge.seen = weakref.ref(large)")
    assert s.exec("Large.seen() is None").value is False
    if how == "close":
        inner.close()
        inner.close()
    else:
        del inner
        gc.collect()
    assert s.exec("import gc; gc.collect(); Large.seen() is None").value is True


def test_a_child_that_ends_before_a_call_that_fails_frees_its_names(
    s: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    s.exec("import weakref\nclass Large: pass")
    inner = s.child()
    inner.exec("large = Large()\nLarge.seen = weakref.ref(large)")
    inner.close()

    def fails(*_: object) -> None:
        raise hutch.SandboxStartupError("not sent")

    with monkeypatch.context() as patched:
        patched.setattr(SessionCall, "send", fails)
        with pytest.raises(hutch.SandboxStartupError):
            s.exec("1")
    assert s.exec("import gc; gc.collect(); Large.seen() is None").value is True
    assert s._engine.ended_children == []


def test_a_child_ends_with_the_interpreter(s: Session) -> None:
    s.exec("a = 1")
    inner = s.child()
    inner.exec("b = 2")
    assert inner.lost == []
    assert s.exec("import os; os._exit(1)").restarted
    assert inner.lost == ["a", "b"]
    with pytest.raises(hutch.SandboxStartupError, match="restarted") as caught:
        inner.exec("b")
    assert not caught.value.may_have_run
    assert s.child().names() == []


def test_an_end_between_two_calls_ends_a_child(s: Session) -> None:
    inner = s.child()
    inner.exec("import os, threading\nthreading.Timer(0.2, os._exit, [1]).start()")
    time.sleep(1)
    with pytest.raises(hutch.SandboxStartupError, match="restarted"):
        inner.exec("1")


def test_a_child_keeps_what_is_protected(s: Session) -> None:
    s["x"] = 1
    s.protect("x")
    inner = s.child()
    assert not inner.exec("x = 2").ok
    inner["y"] = 1
    inner.protect("y")
    assert not inner.exec("y = 2").ok and s.exec("y = 2").ok
    inner["x"] = 3
    assert s["x"] == 1 and inner["x"] == 3


def test_tools_work_in_a_child_and_are_none_of_its_names() -> None:
    with Session(memory_mb=256, tools=[look]) as s:
        inner = s.child()
        assert inner.exec("look('it')").value == "seen it" and inner.names() == []


def test_an_async_session_has_children_and_protects() -> None:
    async def main() -> None:
        async with AsyncSession(memory_mb=256) as s:
            await s.set("x", 1)
            await s.protect("x")
            assert not (await s.exec("x = 2")).ok
            async with await s.child() as inner:
                assert (await inner.exec("y = x + 1; y")).value == 2
                assert await inner.names() == ["x", "y"] and await s.names() == ["x"]
                await inner.files.write("a", "b")
                deeper = await inner.child()
                assert await deeper.get("y") == 2
                assert deeper.lost == []
            with pytest.raises(hutch.SandboxStartupError, match="closed"):
                await inner.get("y")

    asyncio.run(main())


# ---- comforts


def test_the_last_value_is_there_as_an_underscore(s: Session) -> None:
    s.exec("20 + 1")
    assert s.exec("_ * 2").value == 42
    s.exec("x = 5")
    s.exec("None")
    assert s.exec("_").value == 42
    assert not s.exec("1 / 0").ok
    assert s.exec("return _ + 1").value == 43 and s.exec("_").value == 43
    assert s.names() == ["x"]
    s.exec("for _ in range(3): pass\n7")
    assert s.exec("_").value == 2
    s.exec("del _")
    s.exec("8;")
    s.exec("9")
    assert s.exec("_").value == 9


# ---- values that are no data


MADE = "def f(): pass\nxs = {'k': [1, f]}\nbig = [bytes(3 << 20)]\nresult = [f]\nplain = [1]"


@pytest.mark.parametrize(
    ("name", "path", "said"),
    [
        ("f", "f", "f is a function, which cannot be returned"),
        ("xs", 'xs["k"][1]', 'xs["k"][1] is a function, which'),
        ("result", "result[0]", "result[0] is a function, which"),
    ],
)
def test_a_name_whose_value_is_no_data_is_in_the_error(
    s: Session, name: str, path: str, said: str
) -> None:
    s.exec(MADE)
    for get in (s.__getitem__, s.get, s.child().get):
        with pytest.raises(hutch.SerializationError) as caught:
            get(name)
        assert str(caught.value).startswith(said) and caught.value.path == path
    assert s["plain"] == [1]


def test_a_name_whose_value_is_too_large_is_in_the_error() -> None:
    with Session(memory_mb=256, result_mb=1) as session:
        session.exec(MADE)
        with pytest.raises(hutch.LimitExceeded, match=r"used, by big\b"):
            session.get("big")


def test_what_a_called_function_returns_is_the_result(s: Session) -> None:
    s.exec(MADE)
    with pytest.raises(hutch.SerializationError, match="result is a function"):
        s.call(lambda: globals()["f"])
    with pytest.raises(hutch.SerializationError, match=r"result\[1\] is a function"):
        s.call(lambda: [1, globals()["f"]])


def test_a_tool_that_gets_a_value_that_is_no_data_is_told_its_name() -> None:
    def look(name: str) -> str:
        try:
            session.get(name)
        except hutch.SerializationError as error:
            return error.message
        return "no error"

    with Session(memory_mb=256, tools=[look]) as session:
        session.exec(MADE)
        assert str(session.exec("look('f')").value).startswith("f is a function, ")
        assert session.exec("look('plain')").value == "no error"
