# SPDX-License-Identifier: Apache-2.0
"""Snapshots of sessions: names and files go out, and come back in another one, or nothing does."""

from __future__ import annotations
import __future__

import asyncio
import gzip
import io
import os
import pickle
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import AsyncSession, Session, SnapshotError
from hutch._carry import trees
from hutch._carry.container import Container, Notes, Writer

WORK = "/work"  # the directory of a cell

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


KINDS = """
import abc, collections, dataclasses, enum
@dataclasses.dataclass
class P:
    x: int
    y: list = dataclasses.field(default_factory=list)
class C(enum.Enum):
    RED = 1
class B(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
class D(B):
    __slots__ = ("z",)
    def f(self): return self.z
T = collections.namedtuple("T", "a b")
class E(ValueError): pass
class Outer:
    class Inner: pass
    @property
    def p(self): return 4
    @staticmethod
    def s(): return 5
    @classmethod
    def c(cls): return cls
p, c, d, t, e, i = P(1), C.RED, D(), T(1, 2), E("x"), Outer.Inner()
d.z = 3
"""
NAMED = """
import functools, typing
@functools.cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
@functools.lru_cache(maxsize=2, typed=True)
def double(x): return x * 2
def outer():
    @functools.cache
    def down(n): return down(n - 1) if n else down
    return down
inner = outer()
class Shape:
    @functools.lru_cache
    def area(self): return 4
UserId = typing.NewType("UserId", int)
P = typing.ParamSpec("P")
double.note = "twice"
fib(20)
wraps = functools.wraps(outer)(functools.cache(lambda: 1))
"""
EXCEPTIONS = """
class Refused(Exception):
    def __init__(self, code, *, why):
        super().__init__(f"{why}: {code}")
        self.code = code
class Gone(FileNotFoundError):
    def __init__(self, errno, text, name, tries):
        super().__init__(errno, text, name)
        self.tries = tries
e = Refused(4, why="no")
f = Gone(2, "none", "x", 3)
g = ValueError(e)
"""
SLOTS = """
import dataclasses, typing
@dataclasses.dataclass(slots=True)
class A:
    x: int
    y: int = 2
@dataclasses.dataclass(slots=True, frozen=True)
class F:
    x: int
class Hand:
    __slots__ = ("a", "__private", "__dict__")
    def __init__(self): self.a = self.__private = 1
    def private(self): return self.__private
class One:
    __slots__ = "one"
class Below(Hand):
    __slots__ = {"b": "documented"}
class Open(One): pass
a, f, hand, one, below, opened = A(1), F(1), Hand(), One(), Below(), Open()
one.one, below.b, opened.one, opened.more = 1, 2, 3, 4
def refused(value):
    try: object.__setattr__(value, "zzz", 1)
    except AttributeError: return True
    return False
def told():
    kinds = [refused(value) for value in (a, f, hand, one, below, opened)]
    pairs = (hand.a, hand.private()), (below.a, below.b), (opened.one, opened.more)
    return kinds, a, f.x, *pairs, one.one
"""
FUNCTIONS = """
rate = 2
def tax(n): return n * rate
class A:
    k = 1
    def f(self): return tax(self.k), super().__repr__()[:1]
a = A(); a.k = 5; f = a.f; later = lambda: unknown
def fact(n): return 1 if n < 2 else n * fact(n - 1)
def outer():
    def inner(n): return 0 if n == 0 else 1 + inner(n - 1)
    return inner
inner = outer()
def counter():
    n = 0
    def up():
        nonlocal n
        n += 1
    def now(): return n
    return up, now
up, now = counter(); up()
"""
ELSEWHERE = """
class Bad:
    def __reduce__(self):
        return eval, ("__import__('os').path.exists('/tmp/here') or {}",)
bad = Bad(); open('/tmp/here', 'w').close(); open('theirs', 'w').close()
"""
ENDS = ELSEWHERE.format("__import__('os')._exit(3)")
UNLOADABLE = """
shared = [1]
class Needs:
    def __new__(cls, a): return super().__new__(cls)
needs = Needs(1)
class Raises:
    def __setstate__(self, state): raise ValueError("not this")
raises = Raises(); raises.n = 1
class Named:
    def __reduce__(self): return "named"
named = Named()
class Parent:
    def __init_subclass__(cls, /, kind): cls.kind = kind
class Heir(Parent, kind="k"): pass
class Ends:
    def __reduce__(self): return __import__("os")._exit, (3,)
ends = Ends()
both = [shared, raises]
within = {"s": shared, "kept": [both[0]]}
import math
class Rounds:
    def __init__(self): self.n = 2.5
    def __setstate__(self, state): print("loaded"); self.n = math.floor(state["n"])
rounds = Rounds(); again = [rounds, within]
print(end="")
"""


@pytest.fixture
def s() -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=20) as session:
        yield session


def ran(s: Session, source: str) -> Any:
    return s.exec(source).unwrap()


def again(saved: Any, **keywords: Any) -> Session:
    return Session(memory_mb=256, timeout_sec=20, snapshot=saved, **keywords)


def container_of(sections: dict[str, bytes], python: str = PYTHON) -> bytes:
    out = io.BytesIO()
    writer = Writer(out, Notes(python), len(sections))
    for name, data in sections.items():
        with writer.section(name):
            writer.write(data)
    writer.finish()
    return out.getvalue()


def sections_of(saved: bytes) -> dict[str, bytes]:
    found = Container(saved)
    return {name: found.opened(name).read() for name in ("files", "globals") if name in found}


# ---- names


def test_names_and_files_come_back_in_another_session(rung: Any) -> None:
    with Session(isolation=rung, files={"a.txt": "hello", "d/run.sh": b"#!/bin/sh"}) as s:
        ran(s, "x = {'n': [1, 2.5, None]}; open('d/b', 'w').write('more')")
        ran(
            s, "import os; os.chmod('d/run.sh', 0o755); os.mkdir('empty'); os.symlink('a.txt', 'l')"
        )
        saved = s.snapshot()
        assert s.left_out == {} and s["x"] == {"n": [1, 2.5, None]}
    with Session(isolation=rung, snapshot=saved) as s:
        assert s["x"] == {"n": [1, 2.5, None]} and s.names() == ["x", "os"]
        assert s.files.read("a.txt") == s.files.read("l") == "hello"
        assert s.files.read("d/b") == "more" and s.files.list("empty") == []
        assert ran(s, "os.access('d/run.sh', os.X_OK), os.access('d/b', os.X_OK)") == (True, False)
        assert s.files.changed() == {} and sorted(s.files.list()) == ["a.txt", "d", "empty", "l"]


def test_functions_and_classes_are_bound_to_the_session(s: Session) -> None:
    ran(s, FUNCTIONS)
    with again(s.snapshot()) as t:
        assert t.left_out == {}
        assert ran(t, "rate = 3; unknown = 7; tax(10), a.f(), f(), later()") == (
            30, (15, "<"), (15, "<"), 7)  # fmt: skip
        assert ran(t, "fact(5), inner(3), isinstance(a, A), f.__self__ is a") == (
            120,
            3,
            True,
            True,
        )
        assert ran(t, "up(); up(); now()") == 3
        assert ran(t, "A.k = 9; A().f()[0], tax.__globals__ is globals()") == (27, True)
        outcome = t.exec("def g(): return tax(None)\ng()")
        assert outcome.error is not None and "return n * rate" in outcome.error.traceback
        assert "<cell 1>" in outcome.error.traceback and "<cell 6>" in outcome.error.traceback


def test_classes_of_many_kinds_come_back(s: Session) -> None:
    ran(s, KINDS)
    with again(s.snapshot()) as t:
        assert t.left_out == {}
        assert ran(t, "p == P(1), c is C.RED, d.f(), t.b, type(e) is E, e.args") == (
            True, True, 3, 2, True, ("x",))  # fmt: skip
        assert ran(t, "Outer().p, Outer.s(), Outer.c() is Outer, type(i).__qualname__") == (
            4, 5, True, "Outer.Inner")  # fmt: skip
        assert ran(t, "type(i) is Outer.Inner, issubclass(D, B)") == (True, True)
        assert t.exec("B()").error.type == "TypeError"  # type: ignore[union-attr]


def test_classes_keep_their_slots(s: Session) -> None:
    ran(s, SLOTS)
    before = ran(s, "repr(told())")
    assert before.startswith("([True, True, False, True, False, False], A(x=1, y=2), 1, (1, 1),")
    saved = s.snapshot()
    assert s.left_out == {}
    with again(saved) as t:
        assert ran(t, "repr(told())") == before
        assert ran(t, "a == A(1), dataclasses.replace(f, x=2).x, Below().private()") == (True, 2, 1)
        assert t.snapshot() and t.left_out == {}


ENUMS = """
import enum
class Planet(enum.Enum):
    EARTH = (1, 2)
    def __init__(self, m, r): self.m, self.r = m, r
class Made(enum.Enum):
    A = 1
    B = 2
    def __new__(cls, n):
        made = object.__new__(cls)
        made._value_, made.twice = n * 10, n * 2
        return made
class Flags(enum.Flag):
    R = 1
    W = 2
    RW = 3
class Number(enum.IntEnum):
    ONE = 1
    SINGLE = 1
Number.ONE.label = "one"
p, m, f, n = Planet.EARTH, Made.B, Flags.RW, Number.ONE
def told():
    return [p.m, p.r, m.twice, m.value, f.name, n.label, p is Planet.EARTH, Made(20) is m,
            n + 1, Number.SINGLE is n, Flags["RW"] is f, (Flags.R | Flags.W) is f,
            list(Number)[0].label]
class Data(bytes, enum.Enum):
    X = 3
    def __new__(cls, n):
        made = bytes.__new__(cls, [n])
        made._value_, made.label = n, "l"
        return made
x = Data.X
"""


def test_members_of_enums_keep_what_they_were_given(s: Session) -> None:
    ran(s, ENUMS)
    before = ran(s, "told()")
    saved = s.snapshot()
    assert s.left_out == dict.fromkeys(
        ("Data", "x"), "an Enum of a type of data with a __new__ of its own"
    )
    with again(saved) as t:
        assert ran(t, "told()") == before
        assert before == [1, 2, 4, 20, "RW", "one", True, True, 2, True, True, True, "one"]


def test_what_pickle_knows_by_a_name_of_the_session_comes_back(s: Session) -> None:
    assert s.exec(NAMED).ok
    saved = s.snapshot()
    assert s.left_out == {"wraps": "a cache of a function that it does not name"}
    with Session(snapshot=saved) as t:
        assert t.exec("fib(20), fib.cache_info().maxsize, double('a'), Shape().area()").value == (
            *(6765, None, "aa"),
            4,
        )
        assert t.exec("inner(5) is inner, inner.cache_info().misses").value == (True, 6)
        assert t.exec("UserId(7), UserId.__supertype__ is int, repr(UserId)").value == (
            *(7, True),
            "__main__.UserId",
        )
        assert t.exec("P.__name__, P.__bound__, double.note").value == ("P", None, "twice")


def test_exceptions_with_an_init_of_their_own_come_back(s: Session) -> None:
    assert s.exec(EXCEPTIONS).ok
    with Session(snapshot=s.snapshot()) as t:
        assert t.exec("str(e), e.code, e.args, type(e) is Refused").value == (
            *("no: 4", 4, ("no: 4",)),
            True,
        )
        assert t.exec("f.filename, f.errno, f.tries, [str(one) for one in g.args]").value == (
            *("x", 2, 3),
            ["no: 4"],
        )
        assert t.exec("raise e").error.type == "Refused"


def test_identities_are_kept_and_so_are_circles(s: Session) -> None:
    ran(s, "shared = [1]; a = {'s': shared}; b = [a]; a['b'] = b; inner = object()\n"
           "c = [inner]; d = (inner,); me = []; me.append(me)")  # fmt: skip
    with again(s.snapshot()) as t:
        checks = "a['s'] is shared, b[0] is a, a['b'] is b, c[0] is d[0], c[0] is inner"
        assert ran(t, f"{checks}, me[0] is me") == (True,) * 6


def test_what_cannot_travel_is_named_and_the_rest_goes(s: Session) -> None:
    ran(s, "import threading, os\nbig = list(range(1000)); lock = threading.Lock()\n"
           "both = [big, lock]; after = [big]; gen = (i for i in big); file = open('f', 'w')\n"
           "text = open('f'); view = memoryview(b'x'); deep = []\n"
           "for _ in range(100_000): deep = [deep]\n"
           "class Bad:\n    def __reduce__(self): raise ValueError('not me')\n"
           "bad = Bad(); os.mkfifo('pipe'); os.symlink('/etc', 'out')")  # fmt: skip
    saved = s.snapshot()
    why = s.left_out
    assert set(why) == {
        "lock", "both", "gen", "file", "text", "view", "deep", "bad", "./pipe", "./out"
    }  # fmt: skip
    assert "lock" in why["both"] and why["bad"] == "ValueError: not me"
    assert why["text"] == "an open file" and "link" in why["./out"]
    with again(saved) as t:
        assert t.left_out == why
        assert ran(t, "after[0] is big, len(big), threading.__name__") == (True, 1000, "threading")
        assert set(t.names()) == {"threading", "os", "big", "after", "_", "Bad"} - {"_"}
        assert t.files.list() == ["f"]


def test_what_cannot_be_loaded_again_is_named_and_the_rest_goes(rung: Any) -> None:
    with Session(isolation=rung, timeout_sec=60) as s:
        assert s.exec(UNLOADABLE).ok
        saved, why = s.snapshot(), s.left_out
        assert why == {
            "needs": "Needs.__new__() missing 1 required positional argument: 'a'",
            "raises": "ValueError: not this",
            "named": "AttributeError: Can't get attribute 'named' on <module '__main__'>",
            "Heir": "Parent.__init_subclass__() missing 1 required positional argument: 'kind'",
            "ends": "to load it ends the process",
            "both": "ValueError: not this",
        }
        out = s.exec("needs, raises, named, ends, rounds.n")
        assert out.ok and out.stdout == "" and s.names()[:3] == ["shared", "Needs", "needs"]
    with Session(isolation=rung, timeout_sec=60, snapshot=saved) as t:
        kept = "shared Needs Raises Named Parent Ends within math Rounds rounds again".split()
        assert t.left_out == why and t.names() == kept
        assert ran(t, "within['s'] is shared, within['kept'][0] is shared") == (True, True)
        assert ran(t, "again[0] is rounds, again[1] is within, rounds.n") == (True, True, 2)


def test_names_of_tools_and_kv_are_those_of_the_new_session() -> None:
    def ask(text: str) -> str:
        return text.upper()

    with Session(tools=[ask]) as s:
        ran(s, "from hutch_tools import kv\nimport hutch_tools\nq = ask; kv.set('k', 'v')")
        saved = s.snapshot()
        assert s.left_out == {}
    with Session(tools=[ask], snapshot=saved) as t:
        assert ran(t, "q is ask, q('a'), kv.get('k'), hutch_tools.kv is kv") == (
            True, "A", None, True)  # fmt: skip
    with Session(snapshot=saved) as t:
        with pytest.raises(SnapshotError, match="ask") as error:
            t.names()
        assert "globals=False" in error.value.hint


def test_a_module_of_its_own_files_comes_back(s: Session) -> None:
    s.files.write("helper.py", "def f(): return 'old'")
    ran(s, "import helper; g = helper.f")
    saved = s.snapshot()
    with again(saved) as t:
        assert ran(t, "helper.f(), g()") == ("old", "old")
    s.files.write("helper.py", "def f(): return 'changed'")
    ran(s, "import importlib; importlib.reload(helper)")
    s.restore(saved)
    assert ran(s, "helper.f(), g()") == ("old", "old")


def test_the_directory_and_what_it_imported_from_the_future_last(s: Session) -> None:
    ran(s, "from __future__ import annotations\nimport os; os.mkdir('d'); os.chdir('d')")
    with again(s.snapshot()) as t:
        assert ran(t, "os.getcwd()") == f"{WORK}/d"
        assert ran(t, "def f(x: not_there): pass\nf.__annotations__") == {"x": "not_there"}


def test_arrays_are_their_own_and_writable() -> None:
    with Session(dependencies=["pandas"], memory_mb=1024) as s:
        ran(s, "import numpy as np, pandas as pd; a = np.arange(1_000_000.); v = a[:10]\n"
               "df = pd.DataFrame({'x': a[:1000], 'y': ['t'] * 1000})")  # fmt: skip
        saved = s.snapshot()
        assert s.left_out == {}
    with Session(dependencies=["pandas"], memory_mb=1024, snapshot=saved) as t:
        assert ran(t, "a[3] = 7; a.sum(), df.x.sum(), df.y.iloc[-1]") == (
            499999500000.0 + 4, 499500.0, "t")  # fmt: skip
    with again(saved) as u:
        with pytest.raises(SnapshotError, match="the module 'numpy'") as error:
            u.exec("1")
        assert "dependencies=" in error.value.hint and "globals=False" in error.value.hint
    with again(saved, globals=False) as u:
        assert u.names() == [] and ran(u, "1") == 1


# ---- where it goes, and how it comes back


def test_a_file_takes_it_and_a_session_begins_with_it_each_time(s: Session, tmp_path: Path) -> None:
    ran(s, "x = 1; open('f', 'wb').write(bytes(range(256)) * 40_000)")
    target = tmp_path / "new" / "kept.hutch"
    assert s.snapshot(to=target) is None
    assert os.listdir(target.parent) == ["kept.hutch"]
    with again(target, files={"f": "over it", "g": "beside it"}) as t:
        assert t["x"] == 1 and t.files.read("f") == "over it" and t.files.read("g") == "beside it"
        assert t.files.changed() == {}
        ran(t, "x = 2; open('h', 'w').close()")
        t.reset(files=True)
        assert t["x"] == 1 and sorted(t.files.list()) == ["f", "g"]
    s.restore(str(target))
    assert ran(s, "open('f', 'rb').read() == bytes(range(256)) * 40_000")


def test_restore_replaces_all_that_there_is(s: Session) -> None:
    ran(s, "x = 1; open('a', 'w').write('1')")
    saved = s.snapshot()
    ran(s, "x = 2; y = 3; import os; os.remove('a'); os.mkdir('a'); open('b', 'w').close()")
    s.protect("y")
    s.restore(saved)
    assert s.names() == ["x"] and s["x"] == 1 and s.files.list() == ["a"]
    assert s.files.read("a") == "1" and s.files.changed() == {}
    ran(s, "y = 4")
    s.restore(saved, globals=False)
    assert s["y"] == 4
    ran(s, "open('c', 'w').close()")
    only_names = s.snapshot(globals=False)
    assert sections_of(only_names).keys() == {"files"}


def test_a_class_that_was_changed_meanwhile_is_as_it_was(s: Session) -> None:
    ran(s, "class A:\n    k = 1\na = A()")
    saved = s.snapshot()
    ran(s, "A.more = 2; A.k = 3")
    s.restore(saved)
    assert ran(s, "A.k, hasattr(A, 'more'), type(a) is A") == (1, False, True)


def test_within_the_call_of_a_tool_and_awaited() -> None:
    kept: list[bytes] = []

    def keep() -> None:
        kept.append(s.snapshot())

    with Session(tools=[keep]) as s:
        ran(s, "x = [1]\nkeep()\nx.append(2)")
    with Session(tools=[keep], snapshot=kept[0]) as t:
        assert t["x"] == [1]

    async def awaited() -> None:
        async with AsyncSession(memory_mb=256, files={"a": "1"}) as s:
            await s.exec("x = 5; import threading; lock = threading.Lock()")
            saved = await s.snapshot()
            assert list(s.left_out) == ["lock"]
            await s.exec("x = 6; open('a', 'w').write('2')")
            await s.restore(saved)
            assert await s.get("x") == 5 and await s.files.read("a") == "1"
        async with AsyncSession(memory_mb=256, snapshot=saved) as t:
            assert await t.get("x") == 5 and await t.files.read("a") == "1"
            with pytest.raises(SnapshotError):
                await t.restore(saved[:-1])
            assert await t.get("x") == 5

    asyncio.run(awaited())


# ---- what is refused, and leaves nothing behind


def archive_of(*members: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for one in members:
            archive.addfile(one, io.BytesIO(bytes(one.size)))
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size
    return info


ARCHIVES = {
    "leads out by ..": archive_of(member("a/../../x")),
    "absolute": archive_of(member(f"{WORK}/x")),
    "a link that leads out": archive_of(member("l", tarfile.SYMTYPE, "../../etc")),
    "through a link": archive_of(member("l", tarfile.SYMTYPE, "d"), member("l/x")),
    "a hard link out": archive_of(member("h", tarfile.LNKTYPE, "/etc/passwd")),
    "a device": archive_of(member("dev", tarfile.CHRTYPE)),
    "cut off": archive_of(member("a", size=4096))[:2048],
    "no archive": b"\1" * 4096,
    "a file, then a directory": archive_of(member("a"), member("a", tarfile.DIRTYPE)),
    "a directory, then a file": archive_of(member("a", tarfile.DIRTYPE), member("a")),
    "below a file": archive_of(member("a"), member("a/b")),
    "a link over a directory": archive_of(member("a/b"), member("a", tarfile.SYMTYPE, "c")),
    "empty": b"",
}


def require_untouched(s: Session) -> None:
    assert s["x"] == 1 and s.files.list() == ["mine"] and s.files.read("mine") == "1"


@pytest.fixture
def used(s: Session) -> Session:
    ran(s, "x = 1; _ = open('mine', 'w').write('1')")
    return s


@pytest.mark.parametrize("name", ARCHIVES)
def test_files_that_are_refused_leave_everything_as_it_was(used: Session, name: str) -> None:
    globals_of = sections_of(used.snapshot())["globals"]
    with pytest.raises(SnapshotError, match="files are refused"):
        used.restore(container_of({"files": ARCHIVES[name], "globals": globals_of}))
    require_untouched(used)


def test_a_million_files_are_refused(used: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    header = member("f").tobuf(tarfile.USTAR_FORMAT)
    many = container_of({"files": header * (trees.MOST_ENTRIES + 1) + bytes(1024)})
    with pytest.raises(SnapshotError, match="more than 100,000 entries"):
        used.restore(many)
    require_untouched(used)


def test_files_larger_than_a_session_can_have_are_refused_at_their_header(used: Session) -> None:
    large = gzip.compress(member("f", size=257 << 20).tobuf(tarfile.USTAR_FORMAT))
    with pytest.raises(SnapshotError, match="more than 256 MiB: give the session a larger disk_mb"):
        used.restore(container_of({"files": large}))
    require_untouched(used)


def test_one_bit_or_half_of_it_is_refused_before_anything_is_sent(used: Session) -> None:
    saved = used.snapshot()
    execs = used.info()["execs"]
    for at in (20, len(saved) // 2, len(saved) - 5):
        bad = bytearray(saved)
        bad[at] ^= 4
        for one in (bad, saved[:at]):
            with pytest.raises(SnapshotError):
                used.restore(one)
            with pytest.raises(SnapshotError):
                again(one)
    require_untouched(used)
    assert used.info()["execs"] == execs


def test_another_python_is_refused_by_name(used: Session) -> None:
    sections = sections_of(used.snapshot())
    other = container_of(sections, "3.99")
    with pytest.raises(SnapshotError, match=r"Python 3\.99") as error:
        again(other)
    assert "globals=False" in error.value.hint
    with pytest.raises(SnapshotError, match=r"Python 3\.99"):
        used.restore(other)
    require_untouched(used)
    with again(other, globals=False) as t:
        assert t.files.read("mine") == "1" and t.names() == []


def globals_of(*records: Any) -> bytes:
    stream = b"".join(pickle.dumps(record, 5) for record in records)
    return (1).to_bytes(8, "little") + len(stream).to_bytes(8, "little") + stream


HOSTILE_NAMES = {
    "nothing": b"",
    "a table that is longer": b"\xff" * 64,
    "no pickles": (1).to_bytes(8, "little") + (3).to_bytes(8, "little") + b"abc",
    "pickles that end": (1).to_bytes(8, "little") + (0).to_bytes(8, "little"),
    "more than it says": (1).to_bytes(8, "little") + (1).to_bytes(8, "little") + b".." * 99,
    "a count without end": (1 << 63).to_bytes(8, "little") * 9,
    "a size without end": (1).to_bytes(8, "little") + (1 << 60).to_bytes(8, "little") + b"." * 99,
    "a name that is none": globals_of([3, 4]),
    "nothing else": globals_of(["a", 1], ["", b"N."]),
    "no flags": globals_of(["a", 1], ["", {"sources": {}, "directory": "."}]),
    "sources that are none": globals_of(
        ["a", 1], ["", {"flags": 0, "sources": 5, "directory": "."}]
    ),
    "a directory that is none": globals_of(
        ["a", 1], ["", {"flags": 0, "sources": {}, "directory": 7}]
    ),
}


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_globals_that_cannot_be_opened_leave_everything_as_it_was(used: Session, name: str) -> None:
    files = sections_of(used.snapshot())["files"]
    with pytest.raises(SnapshotError):
        used.restore(container_of({"files": files, "globals": HOSTILE_NAMES[name]}))
    require_untouched(used)


def test_flags_and_directories_that_cannot_be_do_no_harm(used: Session) -> None:
    flags = 1 << 200 | __future__.annotations.compiler_flag
    more = {"flags": flags, "sources": {}, "directory": "a\0"}
    used.restore(container_of({"globals": globals_of(["x", 1], ["", more])}))
    require_untouched(used)
    assert ran(used, "def f(n: no_such_name): return n\nf(1 + 1)") == 2


def test_globals_whose_opening_ends_the_interpreter_cost_no_files(used: Session) -> None:
    with Session(memory_mb=256) as t:
        ran(t, ENDS)
        saved = t.snapshot()
    with pytest.raises(hutch.SandboxDied):
        used.restore(saved)
    assert used.files.list() == ["mine"] and used.files.read("mine") == "1"


def test_globals_are_opened_in_a_cell_alone(tmp_path: Path) -> None:
    """What a pickle runs, it runs there."""
    mark = tmp_path / "ran"
    with Session(memory_mb=256) as t:
        ran(t, ELSEWHERE.format(f"open({str(mark)!r}, 'w')"))
        saved = t.snapshot()
    Container(saved)
    with again(saved) as u, pytest.raises(SnapshotError, match="this session: bad: FileNotFound"):
        u.exec("1")
    assert not mark.exists()


def test_a_snapshot_that_fails_leaves_no_file(s: Session, tmp_path: Path) -> None:
    ran(s, "import os; f = open('large', 'w'); os.truncate('large', 300 << 20)")
    with pytest.raises(OSError, match="disk_mb"):
        s.snapshot(to=tmp_path / "kept")
    assert os.listdir(tmp_path) == []
    ran(s, "x = 1; f.close(); os.remove('large'); del f")
    s.snapshot(to=tmp_path / "kept")
    with again(tmp_path / "kept") as t:
        assert t["x"] == 1


def test_files_that_find_no_room_leave_none_behind() -> None:
    with Session(memory_mb=512, disk_mb=256) as s:
        ran(s, "_ = open('large', 'wb').write(bytes(30 << 20))")
        saved = s.snapshot()
    with Session(memory_mb=256, disk_mb=32) as t:
        ran(t, "x = 1; _ = open('mine', 'w').write('1')")
        ran(t, "_ = open('/tmp/other', 'wb').write(bytes(10 << 20))")
        with pytest.raises(OSError, match="No space"):
            t.restore(saved)
        require_untouched(t)


def test_functions_of_the_host_see_names_that_came_back(s: Session) -> None:
    s.set("n", 4)
    with again(s.snapshot()) as t:
        assert t.call(lambda: n + 1) == 5  # type: ignore[name-defined]  # noqa: F821
