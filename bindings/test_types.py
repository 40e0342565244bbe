# SPDX-License-Identifier: Apache-2.0
"""The closed set of names that annotations and arguments give, and return annotations as promises
that are kept.
"""

from __future__ import annotations

import collections
import enum
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import (
    Annotated,
    Any,
    Callable,
    Generic,
    Iterable,
    Literal,
    Mapping,
    NamedTuple,
    NewType,
    Optional,
    Protocol,
    Sequence,
    TypedDict,
    TypeVar,
    Union,
)

import pytest

from hutch._results import checking, types

T = TypeVar("T")
Id = NewType("Id", int)


class Kind(enum.Enum):
    A = 1


class Pair(NamedTuple):
    left: int
    right: Leaf


@dataclass
class Leaf:
    kind: Kind


@dataclass
class Tree:
    children: list[Tree]
    pair: Optional[Pair] = None


class Record(TypedDict, total=False):
    tree: Tree


class Needed(TypedDict):
    a: int
    b: list[str]


@dataclass
class Box(Generic[T]):
    item: T


class Closes(Protocol):
    def close(self) -> None: ...


def names(annotation: Any, *args: Any) -> set[str]:
    return {name.rsplit(".", 1)[1] for name in types.named_types(annotation, args)}


def stable_id(value: Any) -> str:
    """The same in every process: no address, no order of a set."""
    if isinstance(value, (set, frozenset)):
        return str(sorted(map(str, value)))
    return re.sub(r" at 0x\w+", "", str(value))


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Any, set()),
        (None, set()),
        (int, set()),
        ("Unresolvable", set()),
        (Kind, {"Kind"}),
        (Tree, {"Tree", "Pair", "Leaf", "Kind"}),
        (dict[str, list[Optional[Leaf]]], {"Leaf", "Kind"}),
        (Union[int, Leaf], {"Leaf", "Kind"}),
        (Leaf | None, {"Leaf", "Kind"}),
        (tuple[Kind, ...], {"Kind"}),
        (Record, {"Tree", "Pair", "Leaf", "Kind"}),
        (Annotated[Kind, "note"], {"Kind"}),
        (Literal[Kind.A, "x"], {"Kind"}),
        (Box[Leaf], {"Box", "Leaf", "Kind"}),
        (Callable[[Leaf], Kind], {"Leaf", "Kind"}),
        (NewType("N", Leaf), {"Leaf", "Kind"}),
        (TypeVar("B", bound=Kind), {"Kind"}),
    ],
    ids=stable_id,
)
def test_an_annotation_names_every_class_that_it_reaches(
    annotation: Any, expected: set[str]
) -> None:
    assert names(annotation) == expected


def test_arguments_name_their_classes_too() -> None:
    assert names(Any, 1, "x", [Kind.A]) == {"Kind"}
    assert names(Any, {"k": (Leaf(Kind.A),)}) == {"Leaf", "Kind"}
    assert names(Any, Leaf) == {"Leaf", "Kind"}
    assert names(Any, Box(Leaf(Kind.A))) == {"Box", "Leaf", "Kind"}
    loop: list[Any] = []
    loop.append(loop)
    assert names(Any, loop, [0] * 10_000_000) == set()


def test_the_wire_name_is_module_and_qualified_name() -> None:
    assert types.named_types(Kind) == {f"{__name__}.Kind": Kind}


def test_a_return_annotation_is_resolved_where_it_can_be() -> None:
    @dataclass
    class Local:
        x: int

    def known() -> list[Leaf]: ...  # type: ignore[empty-body]
    def unknown(x: NoSuch) -> NoSuch: ...  # type: ignore[name-defined]  # noqa: F821
    def half(x: NoSuch) -> Leaf: ...  # type: ignore[name-defined,empty-body]  # noqa: F821
    def closed() -> Local:
        return Local(1)

    def local() -> Local: ...  # type: ignore[empty-body]
    def none(): ...  # type: ignore[no-untyped-def]

    assert types.return_annotation(known) == list[Leaf]
    assert types.return_annotation(unknown) is Any
    assert types.return_annotation(half) is Leaf
    assert types.return_annotation(closed) is Local
    assert types.return_annotation(local) is Any
    assert types.return_annotation(local, locals()) is Local
    assert types.return_annotation(none) is Any


KEPT = [
    (1, int),
    (True, int),
    (1, float),
    (1, complex),
    (1.5, complex),
    (None, None),
    (None, Optional[int]),
    ([1, 2], list[int]),
    ([], list[int]),
    ([1, "x"], list),
    ([1, "x"], list[Any]),
    ([1, 2.5], list[float]),
    ([1, "x"], list[int | str]),
    ({"a": [1]}, dict[str, list[int]]),
    ({"a": 1}, Mapping[str, int]),
    ([1], Sequence[int]),
    ((1,), Iterable[int]),
    ({1}, set[int]),
    (frozenset([1]), frozenset[int]),
    ((1, "x"), tuple[int, str]),
    ((1, 2, 3), tuple[int, ...]),
    ((), tuple[()]),
    ((1, "x"), tuple),
    ("r", Literal["r", "w"]),
    (3, Annotated[int, "positive"]),
    (3, Id),
    (3, T),
    ({"a": 1, "b": ["x"]}, Needed),
    ({}, Record),
    (Kind.A, Kind),
    (Leaf(Kind.A), Leaf),
    (Box(1), Box[int]),
    (Pair(1, Leaf(Kind.A)), Pair),
    (PurePosixPath("a"), Path),
    (PurePosixPath("a"), PurePosixPath),
    ({"a": 1}, collections.OrderedDict),
    ({"a": 1}, collections.Counter[str]),
    ({"a": [1]}, collections.defaultdict[str, list[int]]),
    (object(), object),
    (5, "Unresolved"),
    (5, Closes),
    (len, Callable[[], int]),
]
BROKEN = [
    ("x", int, "result", "a str"),
    (1.5, int, "result", "a float"),
    (None, int, "result", "None"),
    (1, None, "result", "an int"),
    (1, bool, "result", "an int"),
    (1, str, "result", "an int"),
    ("x", Optional[int], "result", "a str"),
    ("x", int | None, "result", "a str"),
    ([1, "x"], list[int], "result[1]", "a str"),
    ((1,), list[int], "result", "a tuple"),
    ([1], Sequence[str], "result[0]", "an int"),
    ({"a": [1, None]}, dict[str, list[int]], 'result["a"][1]', "None"),
    ({1: 1}, dict[str, int], "result.keys()", "an int"),
    ({"a": "x"}, collections.Counter[str], 'result["a"]', "a str"),
    ((1, 2), tuple[int, str], "result[1]", "an int"),
    ((1,), tuple[int, str], "result", "a tuple of 1 items"),
    ((1,), tuple[()], "result", "a tuple of 1 items"),
    ((1, "x"), tuple[int, ...], "result[1]", "a str"),
    ([1], tuple[int], "result", "a list"),
    ("x", Literal["r", "w"], "result", "a str"),
    (True, Literal[1], "result", "a bool"),
    ("x", Annotated[int, "n"], "result", "a str"),
    ("x", Id, "result", "a str"),
    ({"a": 1}, Needed, "result", "a dict without 'b'"),
    ({"a": 1, "b": [1]}, Needed, 'result["b"][0]', "an int"),
    ({"a": 1, "b": [], "c": 1}, Needed, "result", 'a dict with "c"'),
    ([{"a": 1}], list[Needed], "result[0]", "a dict without 'b'"),
    (1, Kind, "result", "an int"),
    ({"kind": 1}, Leaf, "result", "a dict"),
    ("a", Path, "result", "a str"),
    ([Leaf(Kind.A), 1], list[Leaf], "result[1]", "an int"),
    ([1], collections.OrderedDict, "result", "a list"),
]


@pytest.mark.parametrize(("value", "annotation"), KEPT, ids=stable_id)
def test_what_was_promised_passes(value: Any, annotation: Any) -> None:
    checking.check(value, annotation)


@pytest.mark.parametrize(("value", "annotation", "path", "got"), BROKEN, ids=stable_id)
def test_what_was_not_promised_is_reported_with_its_place(
    value: Any, annotation: Any, path: str, got: str
) -> None:
    with pytest.raises(checking.AnnotationMismatch) as caught:
        checking.check(value, annotation)
    assert isinstance(caught.value, TypeError)
    assert (caught.value.path, caught.value.got) == (path, got)
    assert caught.value.type_name == type(None).__name__ or caught.value.type_name in got.split()
    assert caught.value.expected


class Left(TypedDict):
    down: Left | Right | None


class Right(TypedDict, total=False):
    down: Left | Right | None


def test_what_fits_no_choice_costs_no_words_and_no_look_at_the_annotations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hints = [Optional[Leaf], Union[Needed, Leaf, str], Union[int, list[Leaf], str]]
    for hint in hints:
        types.named_types(hint)
    called: list[Any] = []

    def spy(module: ModuleType, name: str) -> None:
        was = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: called.append(name) or was(*args))

    for name in ("_shown", "AnnotationMismatch"):
        spy(checking, name)
    for name in ("named_types", "_resolved_fields"):
        spy(types, name)
    for hint in hints:
        checking.check([None if hint is hints[0] else "a"] * 50_000, list[hint])  # type: ignore[valid-type]
    checking.check([{"a": 1, "b": []}] * 5_000, list[Needed])
    assert called == []
    with pytest.raises(TypeError, match=r"result\[7\]"):
        checking.check([None] * 7 + [1], list[Optional[Leaf]])
    assert called.count("_shown") == called.count("AnnotationMismatch") == 1


def test_no_container_is_judged_twice_against_a_choice() -> None:
    value: Any = None
    for _ in range(60):
        value = {"down": value}
    checking.check(value, Union[Left, Right])
    wrong: Any = 1
    for _ in range(60):
        wrong = {"down": wrong}
    with pytest.raises(checking.AnnotationMismatch) as caught:
        checking.check([wrong], list[Union[Left, Right]])
    assert caught.value.path == "result[0]"


def test_numbers_of_numpy_stand_for_pythons() -> None:
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    checking.check(np.int64(1), int)
    checking.check(np.float32(1), float)
    checking.check([np.int64(1), 2], list[int])
    checking.check(np.zeros(2), np.ndarray)
    checking.check(np.bool_(True), bool)
    with pytest.raises(checking.AnnotationMismatch):
        checking.check(np.float64(1), int)
    with pytest.raises(checking.AnnotationMismatch):
        checking.check([1.0], np.ndarray)


def test_importing_it_loads_little() -> None:
    root = Path(types.__file__).parents[2]
    code = (
        f"import sys; sys.path.append({str(root)!r})\n"
        "import hutch._results.checking, hutch._results.validating\n"
        "heavy = ('dataclasses', 'inspect', 'numpy', 'pandas', 'pydantic', 'asyncio')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
