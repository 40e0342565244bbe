# SPDX-License-Identifier: Apache-2.0
"""What a user interface asks of a session: completions, a value in detail, variables. How code goes
on in each case is in images/worker/test_completing.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import AsyncSession, Session


@pytest.fixture
def own() -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=20) as session:
        yield session


# ---- complete()


def test_code_is_completed_by_the_names_there_are(s: Session) -> None:
    s.exec("import json\nprices = {'apple': 1, 'pear': 2}\ndef price_of(fruit): pass").unwrap()
    found = s.complete("x = pric")
    assert found == hutch.Completion(["price_of", "prices"], 4, 8)
    assert s.complete("prices['a").matches == ["apple"]
    assert s.complete("json.dum").matches == ["dump", "dumps"]
    assert s.complete("from json import JSONE").matches == ["JSONEncoder"]
    assert s.complete("price_of(fru").matches == ["fruit="]


def test_a_place_in_the_middle_is_counted_in_characters(s: Session) -> None:
    s.exec("größe = 'é'").unwrap()
    code = "'é😀' + größe.upp + 1"
    found = s.complete(code, code.index(" + 1"))
    assert (found.matches, code[found.start : found.end]) == (["upper"], "upp")
    assert s.complete(code, 0).start == 0


@pytest.mark.parametrize(("pos", "kind"), [(-1, ValueError), (4, ValueError), (1.0, TypeError)])
def test_a_place_outside_of_the_code_is_refused(s: Session, pos: Any, kind: Any) -> None:
    with pytest.raises(kind):
        s.complete("abc", pos)
    with pytest.raises(TypeError):
        s.complete(b"abc")  # type: ignore[arg-type]


def test_what_a_session_imports_of_its_directory_is_completed(s: Session) -> None:
    s.files.write("of_the_session/inner_part.py", "")
    assert s.complete("import of_the_s").matches == ["of_the_session"]
    assert s.complete("from of_the_session import inn").matches == ["inner_part"]
    assert s.exec("import sys; 'of_the_session' in sys.modules").value is False


def test_columns_of_frames_are_completed() -> None:
    with Session(dependencies=["pandas"], memory_mb=1024) as s:
        s.exec("import pandas as pd\ndf = pd.DataFrame({'city': ['Bern'], 'two words': [1]})")
        assert s.complete("df['").matches == ["city", "two words"]
        assert s.complete("df.cit").matches == ["city"]
        assert s.complete("df.loc[df['city'] > 'B', '").matches == ["city", "two words"]
        assert s.complete("df.loc[:, ['city', 't").matches == ["two words"]
        assert s.complete("df.loc['").matches == []
        assert s.complete("df.city.str.upp").matches == ["upper"]
        assert s.complete("(df\n  .groupb").matches == ["groupby"]
        s.exec("import numpy as np").unwrap()
        assert "num=" in s.complete("np.linspace(0, 1, nu").matches
        assert s.complete("df.city.med").matches == ["median"]
        (df,) = s.variables()
        assert (df.type, df.shape, df.length) == ("DataFrame", (1, 2), 1)
        assert df.size is not None and df.size > 8
        found = s.inspect("df.groupby")
        assert found.signature.startswith("(by=None") and "def groupby" in found.source


# ---- inspect()


def test_a_value_is_inspected(s: Session) -> None:
    s.exec(
        "def tax(n: int, rate=0.07) -> float:\n"
        "    'Of an amount.'\n"
        "    return n * rate\n"
        "class Shop:\n"
        "    '''Sells.'''\n"
        "    def price(self, item): return 1\n"
        "shop = Shop()\nnumbers = [1, 2]"
    ).unwrap()
    found = s.inspect("tax")
    assert (found.name, found.type) == ("tax", "function")
    assert found.signature == "(n: int, rate=0.07) -> float" and found.doc == "Of an amount."
    assert found.source.splitlines()[-1] == "    return n * rate"
    assert str(found).startswith("tax(n: int, rate=0.07) -> float\nType: function\n")
    assert s.inspect("Shop").source.splitlines()[-1] == "    def price(self, item): return 1"
    assert s.inspect("shop.price").signature == "(item)"
    s.exec(
        "import dataclasses, enum, functools\n"
        "@dataclasses.dataclass\nclass Item:\n    price: int = 1\n"
        "class Kind(enum.Enum):\n    RED = 1\n"
        "@functools.cache\ndef cached(n): return n"
    ).unwrap()
    source = s.inspect("Item").source
    assert source == "@dataclasses.dataclass\nclass Item:\n    price: int = 1\n"
    assert s.inspect("Kind").source == "class Kind(enum.Enum):\n    RED = 1\n"
    assert s.inspect("cached").source == "@functools.cache\ndef cached(n): return n\n"
    assert s.inspect("numbers").text == "[1, 2]" and s.inspect("numbers").source == ""
    assert s.inspect("len").signature == "(obj, /)"
    for name in ("no_such_name", "tax.nothing", "numbers.x.y"):
        with pytest.raises(KeyError, match=name):
            s.inspect(name)
    for wrong in ("a b", "f()", "", "a..b", "a['b']"):
        with pytest.raises(ValueError, match="no name"):
            s.inspect(wrong)


def test_a_property_is_inspected_and_not_run(s: Session) -> None:
    s.exec(
        "ran = 0\n"
        "class Lazy:\n"
        "    @property\n"
        "    def value(self):\n"
        "        'Computed.'\n"
        "        global ran; ran += 1\n"
        "    def __getattr__(self, name):\n"
        "        global ran; ran += 1\n"
        "lazy = Lazy()"
    ).unwrap()
    found = s.inspect("lazy.value")
    assert (found.type, found.doc) == ("property", "Computed.")
    with pytest.raises(KeyError):
        s.inspect("lazy.other")
    assert s.complete("lazy.va").matches == ["value"] and s["ran"] == 0


# ---- variables()


def test_variables_are_those_of_the_code(own: Session) -> None:
    own.exec("import math\nrows = list(range(1000))\ntext = 'a\\nb'\n1 + 1\ndef f(): pass").unwrap()
    found = {one.name: one for one in own.variables()}
    assert [*found] == ["rows", "text", "f"]
    assert (found["rows"].type, found["rows"].length, found["rows"].shape) == ("list", 1000, None)
    assert (found["rows"].size or 0) > 8000
    assert found["rows"].text.startswith("[0, 1, ") and len(found["rows"].text) <= 200
    assert found["text"].text == "'a\\nb'" and found["f"].type == "function"
    assert own.variables(modules=True)[0].name == "math"
    inner = own.child()
    inner.exec("own = rows").unwrap()
    assert [one.name for one in inner.variables()] == ["rows", "text", "f", "own"]
    assert inner.complete("ow").matches == ["own"] and inner.inspect("own").type == "list"
    assert not own.complete("ow").matches


def test_variables_are_bounded(own: Session) -> None:
    own.exec("globals()['x' * 100_000] = 1\nfor i in range(3000): globals()[f'y{i}'] = 'x' * 1000")
    found = own.variables()
    assert len(found) == 1000 and [one.name for one in found[:3]] == ["i", "y0", "y1"]
    assert sum(len(one.text) for one in found) < 1 << 18


HOSTILE = """
import dataclasses
class Slow:
    def __repr__(self):
        while True: pass
class Sleeps:
    def __repr__(self):
        import time; time.sleep(1000)
class Stubborn:
    def __len__(self):
        while True:
            try:
                while True: pass
            except Exception: pass
class Exits:
    def __repr__(self): raise SystemExit
class Interrupts:
    def __repr__(self): raise KeyboardInterrupt
class Text(str):
    def __getitem__(self, place): return self
    split = None
class Says:
    def __repr__(self): return Text('said' * 1000)
class Lowers:
    def __repr__(self):
        import resource
        resource.setrlimit(resource.RLIMIT_DATA, (200 << 20, 200 << 20))
        raise ValueError
class Number(int): pass
class Array:
    shape = (Number(3), -1)
    nbytes = Number(7)
class Large:
    def __repr__(self): return str([bytearray(1 << 20) for _ in range(4000)])
class Meta(type):
    def __getattribute__(cls, name): raise ValueError(name)
    def __eq__(cls, other): raise SystemExit
    def __hash__(cls): raise SystemExit
class Of(metaclass=Meta): pass
@dataclasses.dataclass
class Point:
    x: object
slow, sleeps, stubborn, exits, interrupts = Slow(), Sleeps(), Stubborn(), Exits(), Interrupts()
says, array, large, of, point = Says(), Array(), Large(), Of(), Point([0] * 10_000_000)
lowers = Lowers()
last = 'honest'
"""


@pytest.mark.parametrize("isolation", ["cell", "container"])
def test_a_hostile_value_costs_its_own_entry(isolation: Any) -> None:
    with Session(isolation=isolation, memory_mb=256, timeout_sec=20) as s:
        s.exec(HOSTILE).unwrap()
        found = {one.name: one for one in s.variables()}
        assert found["last"].text == "'honest'"
        for name in ("slow", "sleeps", "exits", "interrupts", "large", "lowers"):
            assert found[name].text == f"<{found[name].type}>", name
        assert found["says"].text == ("said" * 1000)[:200]
        assert found["stubborn"].length is None and found["stubborn"].type == "Stubborn"
        assert found["array"].shape is None and found["of"].type == "Of"
        assert s.inspect("of").type == "Of" and s.complete("of.").matches == []
        assert found["point"].text.startswith("Point(x=[0, 0, ")
        assert s.inspect("slow").text == "<Slow>" and s.inspect("slow").type == "Slow"
        assert s["last"] == "honest" and not s.lost


def test_a_timer_of_the_code_stays_its_own(own: Session) -> None:
    own.exec(
        "import signal\nheard = []\n"
        "class Slow:\n    def __repr__(self):\n        while True: pass\n"
        "slow = Slow()\n"
        "handler = signal.signal(signal.SIGALRM, lambda *_: heard.append(1))\n"
        "signal.setitimer(signal.ITIMER_REAL, 3600)"
    ).unwrap()
    own.variables()
    assert own.exec("signal.getitimer(signal.ITIMER_REAL)[0] > 3000").value is True
    own.exec("signal.raise_signal(signal.SIGALRM)").unwrap()
    assert own["heard"] == [1]
    assert own.exec("import resource; x = [bytearray(1 << 20) for _ in range(100)]; 1").value == 1


# ---- as any call


def looked(s: Any) -> list[Any]:
    return [s.complete("fir"), s.inspect("first"), s.variables(), s.files.scan(), *s.files.walk()]


def test_what_is_asked_is_in_no_history_and_saves_nothing(tmp_path: Path) -> None:
    def opened() -> Session:
        return Session(id="one", storage=tmp_path / "kept", memory_mb=256)

    with opened() as s:
        s.exec("first = 1").unwrap()
    with opened() as s:
        looked(s)
    assert s.info()["version"] == 1 and [one.kind for one in s.history()] == ["exec"]


def test_nothing_is_asked_while_code_runs(own: Session) -> None:
    refused: list[str] = []

    def ask(_: str) -> None:
        for verb in (
            lambda: own.complete("a"),
            lambda: own.inspect("len"),
            own.variables,
            own.files.scan,
            lambda: next(own.files.walk()),
        ):
            try:
                verb()  # type: ignore[no-untyped-call]
            except hutch.SessionBusy:
                refused.append("busy")

    own.exec("print('runs', flush=True)", on_stdout=ask).unwrap()
    assert refused == ["busy"] * 5


def test_a_tool_looks_at_the_session_that_waits_for_it() -> None:
    def look() -> list[str]:
        (variable,) = s.variables()
        return [variable.name, s.inspect("first").text, *s.complete("fir").matches]

    with Session(tools=[look], memory_mb=256, timeout_sec=20) as s:
        s.exec("first = 12").unwrap()
        assert s.exec("look()").value == ["first", "12", "first"]
        assert "look" in s.complete("loo").matches


def test_all_of_it_is_awaited() -> None:
    async def main() -> None:
        async with AsyncSession(memory_mb=256, timeout_sec=20) as s:
            await s.exec("first = 1")
            await s.files.write("a/b.txt", "x")
            assert (await s.complete("fir")).matches == ["first"]
            assert (await s.inspect("first")).text == "1"
            assert [one.name for one in await s.variables()] == ["first"]
            with pytest.raises(KeyError):
                await s.inspect("second")
            inner = await s.child()
            await inner.exec("second = 2")
            assert [one.name for one in await inner.variables()] == ["first", "second"]
            assert [one.name for one in await s.files.scan()] == ["a"]
            assert [step async for step in s.files.walk()] == [
                (".", ["a"], []),
                ("./a", [], ["b.txt"]),
            ]
            with pytest.raises(FileNotFoundError):
                [step async for step in s.files.walk("none")]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_what_acts_on_a_terminal_is_shown_harmlessly(own: Session) -> None:
    own.exec(
        "class A:\n"
        "    '''Clears \\x1b[2J and turns \\u202e.'''\n"
        "    def __repr__(self): return '\\x1b[31m\\u202e'\n"
        "A.__name__ = 'B\\x1b[1m'\n"
        "a = A()\nd = {'key\\x1b': 1}\nglobals()['x\\x1b'] = 1"
    ).unwrap()
    shown = [str(own.inspect("a")), repr(own.inspect("a")), repr(own.variables())]
    assert not [text for text in shown if "\x1b" in text or "\u202e" in text]
    assert own.complete("d['k").matches == [] and own.complete("x").matches == []
