# SPDX-License-Identifier: Apache-2.0
"""How code may go on: what is found where, and that nothing of the session's code runs for it."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
import sys
import types
from typing import Any, NamedTuple

import completing
import pytest


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def around(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return around


@wrapped
def tax(amount: float, rate: float = 0.07, *, country: str = "CH") -> float:
    return amount * rate


class Shop:
    kind = "shop"

    def __init__(self, owner: str, opened: int = 0) -> None:
        self.owner = owner
        self._secret = 1

    def price(self, item: str) -> int:
        return len(item)

    @classmethod
    def made(cls, price_list: str) -> Shop:
        return cls(price_list)


class Named(NamedTuple):
    latitude: float
    longitude: float = 0


class Called:
    def __call__(self, alpha: int, beta: int = 2) -> None: ...


@functools.lru_cache
def cached(gamma: int, delta: int = 1) -> int:
    return gamma


@dataclasses.dataclass
class Point:
    abscissa: int
    ordinate: int = 0


SPACE: dict[str, Any] = {
    "Named": Named,
    "Point": Point,
    "called": Called(),
    "cached": cached,
    "partly": functools.partial(tax, 1, rate=2),
    "partly_shop": functools.partial(Shop("Ada").price),
    "tax": tax,
    "Shop": Shop,
    "shop": Shop("Ada"),
    "path": pathlib,
    "table": {"one": 1, "two words": 2, "it's": {"deep": [Shop("Eve")]}, 3: 4, "bad\n": 5},
    "counts": collections.Counter("ab"),
    "rows": ["a", "b"],
}


def matches(code: str) -> list[str]:
    return completing.complete(SPACE, code)[0]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("sho", ["shop"]),
        ("x = 1\nif sho", ["shop"]),
        ("whi", ["while"]),
        ("prin", ["print"]),
        ("shop.", ["kind", "made", "owner", "price"]),
        ("shop._sec", ["_secret"]),
        ("shop.owner.upp", ["upper"]),
        ("Shop.ma", ["made"]),
        ("f(shop.pri", ["price"]),
        ("rows[0].isdig", ["isdigit"]),
        ("rows[-1].isdig", ["isdigit"]),
        ("table[\"it's\"]['deep'][0].own", ["owner"]),
        ("path.PurePos", ["PurePosixPath"]),
        # keys
        ("table['", ["it\\'s", "one", "two words"]),
        ('table["', ["it's", "one", "two words"]),
        ("table[ 'two w", ["two words"]),
        ("table[r'it", []),
        ("table[b'o", []),
        ("table[['one', 't", ["two words"]),
        ("f'{table[\"on", ["one"]),
        ("counts['", ["a", "b"]),
        ("rows['", []),
        # modules
        ("import xml.dom.mini", ["minicompat", "minidom"]),
        ("import os, functo", ["functools"]),
        ("from xml.et", ["etree"]),
        ("from functools import partialm", ["partialmethod"]),
        ("from functools import (reduce,\n    partialm", ["partialmethod"]),
        ("from xml import et", ["etree"]),
        ("from functools imp", ["import"]),
        ("from . import functo", []),
        ("from .functo", []),
        # parameters
        ("tax(countr", ["country="]),
        ("tax(1, countr", ["country="]),
        ("tax(rate=cou", ["counts"]),
        ("tax((cou", ["counts"]),
        ("Shop(own", ["owner="]),
        ("shop.price(item", ["item="]),
        ("Shop.made(price_l", ["price_list="]),
        ("shop.price((1, 2), item", ["item="]),
        ("Named(latit", ["latitude="]),
        ("Point(1, ordin", ["ordinate="]),
        ("called(alp", ["alpha="]),
        ("cached(gam", ["gamma="]),
        ("partly(amou", []),
        ("partly(countr", ["country="]),
        ("partly_shop(item", ["item="]),
        ("sorted(rows, revers", ["reverse=", "reversed"]),
        ("print(1, sep", ["sep="]),
        ("len(obj", ["object"]),
        # texts
        ("', '.joi", ["join"]),
        ("x = 'a' + b'its'.deco", ["decode"]),
        ("f'{1}'.zfi", ["zfill"]),
        ('rows = [ "a" .splitl', ["splitlines"]),
        ("'''a\n'''.zfi", ["zfill"]),
        # an attribute in another line
        ("(shop\n  .own", ["owner"]),
        ("(shop\n  .owner\n  .upp", ["upper"]),
        ("(shop .\n  own", ["owner"]),
        ("(shop.price('x')\n  .sho", []),
        ("(f() . shop.own", []),
        ("x = 5.\nsho", ["shop"]),
        # nothing is known
        ("# sho", []),
        ("x = 'sho", []),
        ("'''sho\nsho", []),
        ("f'{1} sho", []),
        ("f(1).sho", []),
        ("shop.price('x').upp", []),
        ("1.", []),
        ("missing.sho", []),
        ("shop.missing.x", []),
        ("rows[9].x", []),
        ("table['none'].x", []),
        # strings and comments end
        ("'it''s' + sho", ["shop"]),
        ("'\\'' + sho", ["shop"]),
        ('"""it\'s\n""" + sho', ["shop"]),
        ("x = 'no end\nsho", ["shop"]),
        ("# it's\nsho", ["shop"]),
        ("f'{sho", ["shop"]),
        ('f\'{table["one"]} {shop.own', ["owner"]),
    ],
)
def test_code_goes_on(code: str, found: list[str]) -> None:
    assert matches(code) == found


@pytest.mark.parametrize(
    ("code", "start"),
    [
        ("x = shop.pr", 9),
        ("sho", 0),
        ("table['on", 7),
        ("f'{sho", 3),
        ("import os.pa", 10),
        ("", 0),
    ],
)
def test_the_place_is_that_of_what_is_replaced(code: str, start: int) -> None:
    assert completing.complete(SPACE, code)[1] == start


def test_with_nothing_to_begin_from_all_that_is_public_is_found() -> None:
    found = matches("")
    assert {"shop", "tax", "print", "while"} <= {*found}
    assert not [name for name in found if name.startswith("_")]


RUNS = """
ran = []
class Meta(type):
    def __getattribute__(cls, name): ran.append(name); return type.__getattribute__(cls, name)
    def __eq__(cls, other): ran.append('eq'); return True
    def __hash__(cls): ran.append('hash'); return 1
    def __instancecheck__(cls, one): ran.append('instance'); return True
    def __subclasscheck__(cls, one): ran.append('subclass'); return True
class Hostile(dict, metaclass=Meta):
    def __getattribute__(self, name): ran.append(name); return object.__getattribute__(self, name)
    def __getattr__(self, name): ran.append(name); return 1
    def __dir__(self): ran.append('dir'); return ['x']
    def __iter__(self): ran.append('iter'); return iter(['x'])
    def __getitem__(self, key): ran.append('item'); return self
    def __len__(self): ran.append('len'); return 1
    @property
    def prop(self): ran.append('prop'); return self
    slot = Meta('Slot', (), {'part': Meta('Part', (), {})()})()
    @property
    def __dict__(self): ran.append('dict'); return {}
    @property
    def __class__(self): ran.append('class'); return dict
hostile = Hostile(key=Hostile())
ran.clear()
"""


def test_nothing_of_the_sessions_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = types.ModuleType("pandas")
    vars(pandas)["DataFrame"] = type("DataFrame", (), {})
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    space: dict[str, Any] = {}
    exec(RUNS, space)
    codes = [
        "hostile.",
        "hostile.prop.",
        "hostile['",
        "hostile['key'].pr",
        "hostile(",
        "hostile.x.",
        "hostile.slot.pa",
        "hostile.slot['",
        "Hostile.pr",
    ]
    found = [completing.complete(space, code)[0] for code in codes]
    assert not space["ran"]
    assert "prop" in found[0] and found[2] == ["key"] and found[3] == ["prop"]
    assert found[6] == ["part"] and found[8] == ["prop"]
    exec("hostile.prop", space)
    assert "prop" in space["ran"]


def test_there_are_never_too_many() -> None:
    space = {f"name_{i}": i for i in range(3000)} | {"x" * 300: 1}
    found, _ = completing.complete(space, "name_")
    assert len(found) == completing.MOST and found == sorted(found)
    assert not completing.complete(space, "xx")[0]


@pytest.mark.parametrize(
    "code",
    ["a" * 100_000, "a." * 50_000, "'" * 99_999, "(" * 100_000, "import " + "a, " * 30_000]
    + ["x = '" + "\\'" * 50_000, "from a import " + "b\t" * 50_000, "f'{" * 200, "a[0]" * 30_000]
    + ["x = '" + "a" * 500_000 + "'\nsho", "a" * 500_000 + "."]
    + ["a . " * 50_000, "(a" + " " * 100_000 + "(", "df.loc[a, " * 20_000 + "'", "'a' . " * 30_000],
)
def test_no_text_takes_long(code: str) -> None:
    """One that takes long never ends."""
    assert len(matches(code)) <= completing.MOST
