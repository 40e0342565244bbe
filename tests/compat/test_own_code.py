# SPDX-License-Identifier: Apache-2.0
"""What a function's file defines stands inside under its own name."""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import sandbox


def write(place: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def double(x: int) -> int:
    return 2 * x


def quadruple(x: int) -> int:
    return double(double(x))


@dataclasses.dataclass
class Item:
    name: str

    def shout(self) -> str:
        return self.name.upper()


@functools.cache
def halved(x: int) -> float:
    return half(x)


def half(x: int) -> float:
    return x / 2


def test_a_pool_maps_helpers_of_the_file() -> None:
    @sandbox
    def mapped(numbers: list[int]) -> list[float]:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        with get_context("fork").Pool(2) as pool:
            first = pool.map(quadruple, numbers) + pool.map(halved, numbers)
        with ProcessPoolExecutor(2, mp_context=get_context("fork")) as executor:
            return first + list(executor.map(double, numbers))

    for _ in range(3):
        assert mapped([1, 2]) == [4, 8, 0.5, 1, 2, 4]


def times(isolation: str) -> range:
    """The second call takes a shorter way, and later ones are loaded ahead, where they can."""
    return range({"container": 2, "gvisor": 1}.get(isolation, 3))


@pytest.mark.parametrize("isolation", ["cell", "shared", "container", "gvisor"])
def test_what_the_file_defines_can_be_pickled_inside(isolation: Any) -> None:
    @sandbox(isolation=isolation)
    def pickled(name: str) -> list[str]:
        import pickle

        item = pickle.loads(pickle.dumps(Item(name)))
        loaded = [pickle.loads(pickle.dumps(one)) for one in (double, halved, half)]
        return [item.shout(), *(one.__name__ for one in loaded)]

    for _ in times(isolation):
        assert pickled("a") == ["A", "double", "halved", "half"]


@functools.singledispatch
def length(value: object) -> int:
    """How long it is, with what it holds."""
    return 1


@length.register(list)
def length_of_list(value: list[object]) -> int:
    return sum(length(x) for x in value)


def test_a_function_that_chooses_by_type_travels() -> None:
    length([1])  # fills its cache

    @hutch.sandbox
    def called() -> tuple[int, list[str], str | None]:
        return length([1, [2, "x"]]), [kind.__name__ for kind in length.registry], length.__doc__

    assert called() == (3, ["object", "list"], "How long it is, with what it holds.")


@pytest.mark.parametrize("isolation", ["cell", "shared", "container", "gvisor"])
def test_what_is_reached_through_a_module_can_be_pickled_inside(
    isolation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core_text = """
from .inner import parts
class Box:
    def content(self): return parts.Part(7)
def make(): return Box()
"""
    parts_text = """
class Part:
    def __init__(self, x): self.x = x
def half(x): return x // 2
"""
    write(
        tmp_path / "reached_package",
        {
            "__init__.py": "",
            "core.py": core_text,
            "inner/__init__.py": "",
            "inner/parts.py": parts_text,
        },
    )
    monkeypatch.syspath_prepend(tmp_path)
    from reached_package import core  # type: ignore[import-not-found]

    @sandbox(isolation=isolation)
    def pickled() -> list[Any]:
        import pickle

        box = pickle.loads(pickle.dumps(core.make()))
        part = pickle.loads(pickle.dumps(box.content()))
        return [type(box).__name__, part.x, pickle.loads(pickle.dumps(core.parts.half))(4)]

    @sandbox(isolation=isolation)
    def made_by_a_class() -> int:
        import pickle

        return pickle.loads(pickle.dumps(core.Box().content())).x  # type: ignore[no-any-return]

    for _ in times(isolation):
        assert pickled() == ["Box", 7, 2]
        assert made_by_a_class() == 7


def test_nothing_of_a_module_that_is_there_is_replaced() -> None:
    text = "import json\nloads = json.loads\n"

    @sandbox
    def kept() -> bool:
        import json

        return json.loads("1") == 1 and "double" not in vars(json)

    assert kept() and hutch.run(text).ok


@pytest.mark.parametrize("isolation", ["cell", "container", "gvisor"])
def test_a_carried_package_has_its_data(
    isolation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
import importlib.resources, pathlib
def words():
    one = importlib.resources.files(__package__) / "data" / "words.txt"
    other = pathlib.Path(__file__).parent / "data" / "words.txt"
    return one.read_text(), other.read_bytes()
"""
    write(
        tmp_path / "carried_package",
        {
            "__init__.py": "from .words import words\n",
            "words.py": text,
            "data/words.txt": "one two",
            ".env": "SECRET=1",
            ".cache/data.txt": "SECRET",
        },
    )
    monkeypatch.syspath_prepend(tmp_path)

    @sandbox(modules=["carried_package"], isolation=isolation)
    def words() -> tuple[str, bytes]:
        import carried_package

        hidden = list(Path(carried_package.__file__).parent.rglob(".*"))
        assert not hidden, hidden
        return carried_package.words()  # type: ignore[no-any-return]

    assert words() == ("one two", b"one two")


class Shape:
    """Looked at inside."""

    sides = 3

    def area(self) -> int:
        return self.sides  # a comment


def above(x: int) -> int:
    return x


# fmt: off
alone = lambda x: (x + 1)  # noqa: E731
folded = lambda x: (  # noqa: E731
    x + 2)
# fmt: on


@pytest.mark.skipif(sys.version_info < (3, 11), reason="lines of lambdas are not known there")
def test_a_function_finds_the_source_of_lambdas() -> None:
    @sandbox
    def texts() -> list[str]:
        import inspect

        return [inspect.getsource(one) for one in (above, alone, folded)]

    assert texts() == [
        "def above(x: int) -> int:\n    return x\n",
        "alone = lambda x: (x + 1)\n",
        "folded = lambda x: (  # noqa: E731\n    x + 2)\n",
    ]


@pytest.mark.parametrize("isolation", ["cell", "shared", "container", "gvisor"])
def test_a_function_finds_the_source_of_what_travels(isolation: Any) -> None:
    import inspect

    @sandbox(isolation=isolation)
    def texts() -> list[str]:
        import inspect

        found: list[Any] = [double, quadruple, Shape, Shape.area, Item, Item.shout]
        return [inspect.getsource(one) for one in found]

    @sandbox(isolation=isolation)
    def told() -> str:
        import inspect
        import traceback

        try:
            inspect.signature(Item.shout).bind(None).args[0].shout()
        except AttributeError:
            return traceback.format_exc()
        return ""

    found: list[Any] = [double, quadruple, Shape, Shape.area, Item, Item.shout]
    for _ in times(isolation):
        assert texts() == [inspect.getsource(one) for one in found]
        assert "bind(None).args[0].shout()" in told()


def ready() -> None:
    import builtins
    import random

    builtins.generators = [random.Random(), random.Random(7)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("isolation", ["cell", "container"])
def test_a_generator_that_was_made_ahead_is_seeded_anew_for_each_call(isolation: Any) -> None:
    @hutch.sandbox(setup=ready, isolation=isolation)
    def draw() -> list[float]:
        import builtins

        return [one.random() for one in builtins.generators]  # type: ignore[attr-defined]

    (first, seeded), (second, again) = draw(), draw()
    assert first != second
    assert seeded == again  # one with a seed of its own goes on from it


def test_the_message_of_an_exit_comes_before_what_the_end_prints() -> None:
    text = "import atexit, sys\natexit.register(print, 'end', file=sys.stderr)\nsys.exit('message')"
    outcome = hutch.run(text)
    assert (outcome.stderr, outcome.exit_code) == ("message\nend\n", 1)
