# SPDX-License-Identifier: Apache-2.0
"""What `restore()` says has come back, what it can do without, and what it ends."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

import hutch
from hutch import AsyncSession, Restored, RestoredPart, Session, SnapshotError

# `bad` cannot be opened where there is /tmp/here. What comes after it shares with it what every
# pickle has: texts, what modules have, functions that make functions.
BAD = """
class Bad:
    def __reduce__(self):
        return eval, ("1 / 0 if __import__('os').path.exists('/tmp/here') else {}",)
def first(n): return n + k
bad = [Bad(), "a text", first]
k = 1
def second(n): return first(n) + len("a text")
texts = ["a text", "bad", "k"]
deep = {"again": texts, "bytes": b"b" * 300}
"""
HERE = "open('/tmp/here', 'w').close()"


def ran(s: Session, source: str) -> Any:
    return s.exec(source).unwrap()


def part_of(content: bytes) -> RestoredPart:
    return RestoredPart(len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def bad() -> bytes:
    """A snapshot of BAD."""
    with Session(memory_mb=256, files={"a.txt": "1"}) as s:
        ran(s, BAD)
        saved = s.snapshot()
        assert s.left_out == {}
    return saved


# ---- the receipt


def test_it_says_what_came_back_with_sizes_and_sums(sessions: Callable[[], Session]) -> None:
    s = sessions()
    s.reset(files=True)
    large = bytes(range(256)) * 40_000  # of more parts than one
    s.files.write("d/large", large)
    s.files.write("a.txt", "1")
    s.bash("ln -s a.txt link; mkdir empty").unwrap()
    ran(s, "import threading; lock = threading.Lock(); x = [1]; same = x; t = 'q' * 5000")
    saved = s.snapshot()
    ran(s, "x = 2")
    s.bash("echo 2 > a.txt").unwrap()
    receipt = s.restore(saved)
    assert receipt.files == {"d/large": part_of(large), "a.txt": part_of(b"1")}
    assert receipt.names.keys() == {"threading", "x", "same", "t"}
    assert receipt.names["t"].size > 5000 > receipt.names["x"].size > 0
    assert len({one.sha256 for one in receipt.names.values()}) == 4
    assert list(receipt.left_out) == ["lock"] == list(s.left_out) and receipt.packages == []
    assert repr(receipt).startswith("Restored(names=4, files=2, packages=0, left_out=1: 10,245,")
    assert s["x"] == [1] and s.files.read("link") == "1"
    assert s.restore(saved) == receipt
    files = s.restore(saved, globals=False)
    assert (files.names, files.files) == ({}, receipt.files)


def test_arrays_count_with_their_buffers() -> None:
    with Session(dependencies=["pandas"], memory_mb=1024) as s:
        ran(s, "import numpy as np; a = np.arange(100_000.); b = a + 1")
        saved = s.snapshot()
        receipt = s.restore(saved)
        assert 801_000 > receipt.names["a"].size > 800_000
        assert receipt.names["a"].sha256 != receipt.names["b"].sha256
        ran(s, "b[7] = 0")
        other = s.restore(s.snapshot())
        assert other.names["a"] == receipt.names["a"] and other.names["b"] != receipt.names["b"]


def test_an_async_session_gives_the_same(bad: bytes) -> None:
    async def main() -> Restored:
        async with AsyncSession(memory_mb=256) as s:
            await s.exec(HERE)
            with pytest.raises(SnapshotError, match="bad: ZeroDivisionError"):
                await s.restore(bad)
            return await s.restore(bad, dispensable=["bad"])

    with Session(memory_mb=256) as s:
        ran(s, HERE)
        assert asyncio.run(main()) == s.restore(bad, dispensable=["bad"])


# ---- what it can do without


def test_a_name_that_cannot_come_back_keeps_all_from_it_unless_it_is_dispensable(
    sessions: Callable[[], Session], bad: bytes
) -> None:
    s = sessions()
    s.reset(files=True)
    ran(s, f"x = 1; {HERE}; open('mine', 'w').close()")
    for dispensable in ((), ["k"], ["./a.txt"], {"second", "texts"}):
        with pytest.raises(SnapshotError, match="bad: ZeroDivisionError"):
            s.restore(bad, dispensable=dispensable)
        assert s.names() == ["x"] and s.files.list() == ["mine"]
    receipt = s.restore(bad, dispensable=["bad", "no such name"])
    assert receipt.left_out == {"bad": "ZeroDivisionError: division by zero"} == s.left_out
    assert list(receipt.names) == ["Bad", "first", "k", "second", "texts", "deep"]
    assert s.names() == list(receipt.names) and s.files.list() == ["a.txt"]
    assert ran(s, "k = 2; second(1), deep['again'] is texts, texts, len(deep['bytes'])") == (
        9, True, ["a text", "bad", "k"], 300)  # fmt: skip


def test_one_that_can_come_back_does_though_it_is_dispensable(bad: bytes) -> None:
    with Session(memory_mb=256) as s:
        receipt = s.restore(bad, dispensable=["bad", "k", "./a.txt"])
        assert receipt.left_out == {} and s.files.list() == ["a.txt"]
        assert ran(s, "bad[1], bad[2] is first, k") == ("a text", True, 1)


def test_what_refers_to_it_is_left_out_with_it(bad: bytes) -> None:
    with Session(memory_mb=256) as s:
        ran(s, BAD + "shared = [bad[0]]; bad.append(shared); later = shared; fine = k; last = 'z'")
        saved = s.snapshot()
        ran(s, HERE)
        with pytest.raises(SnapshotError, match="shared: it refers to what is left out"):
            s.restore(saved, dispensable=["bad"])
        receipt = s.restore(saved, dispensable=["bad", "shared", "later"])
        assert list(receipt.left_out) == ["bad", "shared", "later"]
        assert ran(s, "fine, last, second(1)") == (1, "z", 8)
        assert not s.has("later")


CIRCLE = """
config = {"color": "red"}
class Node:
    def __init__(self, config, children): self.config, self.children = config, children
    def __reduce__(self): return Node, (self.config, self.children)
tree = Node(config, [])
tree.children += [tree, bad]
del config
config = tree.config
def made():
    n = 5
    def inner(): return n
    return inner
f = made(); f.extra = bad; cell = f.__closure__[0]; cells = {"cell": cell}
g = made(); g.n = 1; h = g
"""


def test_what_only_shares_parts_with_it_comes_back(bad: bytes) -> None:
    with Session(memory_mb=256) as s:
        ran(s, BAD + CIRCLE)
        saved = s.snapshot()
        ran(s, HERE)
        receipt = s.restore(saved, dispensable=["bad", "tree", "f"])
        assert list(receipt.left_out) == ["bad", "tree", "f"]
        assert ran(s, "config, cell.cell_contents, cells['cell'] is cell, g(), h is g") == (
            {"color": "red"}, 5, True, 5, True)  # fmt: skip


def test_arrays_after_one_that_is_left_out_are_their_own() -> None:
    with Session(dependencies=["pandas"], memory_mb=1024) as s:
        ran(s, "import numpy as np\n" + BAD + "bad += [np.arange(9.)]; a = np.arange(5.)\n"
               "c = np.ones(3); bad.append(a); same = [a, c]")  # fmt: skip
        saved = s.snapshot()
        ran(s, HERE)
        receipt = s.restore(saved, dispensable=["bad"])
        assert list(receipt.left_out) == ["bad"] and receipt.names["c"].size > 24
        assert ran(s, "c.tolist(), same[0] is a, a.tolist()") == ([1.0] * 3, True, [0, 1, 2, 3, 4])


def test_a_name_of_a_module_that_is_not_there_is_left_out() -> None:
    with Session(dependencies=["six==1.16.0"], memory_mb=256) as s:
        ran(s, "import six; text = six.text_type; moves = six.moves; n = 1")
        saved = s.snapshot()
    with Session(memory_mb=256) as s:
        with pytest.raises(SnapshotError, match="need the module 'six'"):
            s.restore(saved)
        receipt = s.restore(saved, dispensable=["six", "moves"])
        assert receipt.left_out.keys() >= {"six"} and s["n"] == 1
        assert ran(s, "text is str")


def test_files_that_have_no_room_are_left_out() -> None:
    with Session(memory_mb=512, disk_mb=256) as s:
        s.files.write("big/one", bytes(40 << 20))
        s.files.write("big/two", "2")
        s.files.write("small", "1")
        ran(s, "x = 1")
        saved = s.snapshot()
    with Session(memory_mb=256, disk_mb=32, files={"mine": "1"}) as t:
        for dispensable in ((), ["./small"], ["big", "./bi"]):
            with pytest.raises(SnapshotError, match="more than 32 MiB"):
                t.restore(saved, dispensable=dispensable)
            assert t.files.list() == ["mine"]
        receipt = t.restore(saved, dispensable=["./big/"])
        assert list(receipt.files) == ["small"] and t.files.list() == ["small"]
        assert receipt.left_out == {"./big": "all files of the snapshot are more than disk_mb"}
    with Session(memory_mb=512, disk_mb=256) as s:
        assert sorted(s.restore(saved, dispensable=["./big"]).files) == [
            "big/one",
            "big/two",
            "small",
        ]


def test_packages_that_cannot_be_added_are_left_out_and_none_stay_of_one_that_failed() -> None:
    with Session(memory_mb=256) as s:
        s.install("tabulate==0.8.10")
        s.install("six==1.16.0")
        ran(s, "import tabulate, six\n" + BAD)
        saved = s.snapshot()
    with Session(dependencies=["tabulate==0.9.0"], memory_mb=256) as t:
        with pytest.raises(SnapshotError, match="cannot be added again"):
            t.restore(saved, dispensable=["six"])
        receipt = t.restore(saved, dispensable=["Tabulate"])
        assert receipt.packages == ["six==1.16.0"]
        assert list(receipt.left_out) == ["tabulate==0.8.10"]
        assert ran(t, "tabulate.__version__, six.__version__") == ("0.9.0", "1.16.0")
    state = "import sys, os; [sys.path, os.environ['PATH'], 'six' in sys.modules]"
    with Session(memory_mb=256) as u:
        ran(u, HERE)
        before = ran(u, state)
        with pytest.raises(SnapshotError, match="ZeroDivisionError"):
            u.restore(saved)
        assert ran(u, state) == before
        wrong = u.exec("import six")
        assert wrong.error is not None and wrong.error.type == "ModuleNotFoundError"
        assert u.restore(saved, dispensable=["bad"]).packages == ["tabulate==0.8.10", "six==1.16.0"]
        assert ran(u, "six.__version__") == "1.16.0"


@pytest.mark.parametrize("wrong", ["model", b"model", [1], 3, [b"x"]])
def test_what_is_no_list_of_names_is_refused(wrong: Any, bad: bytes) -> None:
    with Session(memory_mb=256) as s, pytest.raises(TypeError, match="dispensable= takes names"):
        s.restore(bad, dispensable=wrong)


# ---- what it ends


def test_what_names_of_before_have_started_ends_and_their_handles_are_refused(
    sessions: Callable[[], Session],
) -> None:
    s = sessions()
    s.reset(files=True)
    ran(s, "x = 1; import subprocess")
    saved = s.snapshot()
    child, server = s.child(), s.start("echo up; sleep 1000")
    assert next(server.lines()) == "up"
    s.bash("(setsid sleep 1000 &)").unwrap()
    ran(s, "p = subprocess.Popen(['sleep', '1000'])")
    s.node("let n = 1")
    assert s.bash("pgrep -c sleep").stdout.strip() == "3"
    s.restore(saved, globals=False)  # files alone: all else goes on
    assert s.bash("pgrep -c sleep").stdout.strip() == "3" and s.node("n").value == 1
    assert child.has("x") and [one.pid for one in s.processes()] == [server.pid]
    s.restore(saved)
    assert s.bash("pgrep -c sleep").stdout.strip() == "0"
    assert s.processes() == [] and s.info()["processes"] == {}
    waited = server.wait()
    assert waited.error is not None and "or restored" in waited.error.message
    with pytest.raises(hutch.SandboxExecutionError, match="or restored"):
        next(server.lines())
    with pytest.raises(hutch.SandboxStartupError, match="its session was restored"):
        child.exec("1")
    assert child.lost == ["subprocess", "x"]
    found = s.node("typeof n")
    assert found.value == "undefined" and found.restarted
    again = s.start("echo again")
    assert list(again.lines()) == ["again"] and s.child().has("x")


def test_a_restore_that_fails_ends_nothing(bad: bytes) -> None:
    with Session(memory_mb=512) as s:
        ran(s, f"x = 1; {HERE}")
        child, server = s.child(), s.start("sleep 1000")
        s.node("let n = 1")
        with pytest.raises(SnapshotError):
            s.restore(bad)
        assert child.has("x") and s.node("n").value == 1
        server.kill()
        assert server.wait().exit_code == 137
