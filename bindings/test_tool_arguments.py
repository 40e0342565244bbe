# SPDX-License-Identifier: Apache-2.0
"""What arguments of tools may be made of: what is checked, what is refused when the tool is made,
and that no message keeps the host busy.
"""

from __future__ import annotations

import collections.abc
import decimal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, Union
from zoneinfo import ZoneInfo

import annotated_types
import pydantic
import pytest
from models_that_act import ACTING, BOUNDLESS, OWN_INIT, READ, TRIED_AGAIN, TakesMore
from pydantic import AfterValidator, BaseModel, Field

from hutch import Tool
from hutch._tool_calls import ToolCall
from hutch._tool_kinds import ArgumentError

UserId = NewType("UserId", int)


class Optionals(TypedDict, total=False):
    note: str


class Row(Optionals):
    id: int


class Length(BaseModel):
    unit: Literal["m", "km"] = "m"
    value: float = Field(gt=0, description="how long it is")


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"
    value: int


class Node(BaseModel):
    kind: Literal["node"] = "node"
    args: list[Annotated[Union[Node, Leaf], Field(discriminator="kind")]] = []


Tree = Annotated[Union[Node, Leaf], Field(discriminator="kind")]


@dataclass
class Line:
    points: list[Annotated[int, annotated_types.Ge(0)]]
    name: str = "line"
    seen: bool = field(default=False, init=False)


def taking(annotation: Any, **keywords: Any) -> Tool:
    def use(x: Any) -> Any:
        return x

    use.__annotations__["x"] = annotation
    return Tool(use, **keywords)


def built(annotation: Any, value: Any) -> Any:
    tool = taking(annotation)
    return ToolCall(tool, [value], {}).run()


def why_not(annotation: Any, value: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        built(annotation, value)
    return str(caught.value)


# ---- what is taken


def is_even(n: int) -> int:
    if n % 2:
        raise ValueError("odd")
    return n


@pytest.mark.parametrize(
    ("annotation", "good", "bad", "said"),
    [
        (Row, {"id": 1}, {"note": "a"}, "x has no field 'id', which it needs"),
        (Row, {"id": 1, "note": "a"}, {"id": 1, "more": 2}, "x has no field 'more'"),
        (list[Row], [{"id": 1}], [{"id": "1"}], "x[0].id must be int, not str"),
        (UserId, 5, "5", "x must be int, not str"),
        (collections.abc.Sequence[int], [1, 2], [1, "2"], "x[1] must be int, not str"),
        (collections.abc.Mapping[str, int], {"a": 1}, {"a": "1"}, "x['a'] must be int, not str"),
        (dict[str, Any], {"a": [1]}, {1: 2}, "x has keys that are int, not str"),
        (tuple[int, str], (1, "a"), (1,), "x must have 2 items, not 1"),
        (float, 1.5, 1 << 5000, "x is too large for a float"),
        (Annotated[int, Field(gt=0, lt=10)], 5, 50, "x is not valid"),
        (Annotated[int, annotated_types.Interval(ge=1, le=3)], 3, 4, "less than or equal to 3"),
        (Annotated[list[int], annotated_types.Len(1, 2)], [1], [1, 2, 3], "x is not valid"),
        (Annotated[str, pydantic.StringConstraints(pattern="^a+$")], "aa", "b", "match pattern"),
        (Annotated[int, AfterValidator(is_even)], 2, 3, "odd"),
        (list[Annotated[int, Field(gt=0)]], [1, 2], [1, 0], "x[1] is not valid"),
        (Optional[Annotated[int, Field(gt=0)]], None, -1, "x is not valid"),
        (Annotated[dict[str, int], Field(max_length=1)], {"a": 1}, {"a": 1, "b": 2}, "not valid"),
        (Annotated[Optional[int], Field(le=5)], 5, 6, "x is not valid"),
        (Annotated[int, "how many"], 5, "5", "x must be int, not str"),
        (pydantic.AnyHttpUrl, None, "nonsense", "x is not valid"),
    ],
)
def test_what_is_annotated_is_checked(annotation: Any, good: Any, bad: Any, said: str) -> None:
    if good is not None:
        assert built(annotation, good) == good
    assert said in why_not(annotation, bad)


def test_classes_are_built_of_dicts_at_any_depth() -> None:
    assert built(list[Length], [{"value": 2}]) == [Length(value=2)]
    assert built(Line, {"points": [1, 2]}) == Line([1, 2])
    assert "x.points[1] is not valid" in why_not(Line, {"points": [1, -2]})
    tree = {"kind": "node", "args": [{"kind": "leaf", "value": 1}, {"kind": "node"}]}
    assert built(Tree, tree) == Node(args=[Leaf(value=1), Node()])
    assert built(list[Tree], [tree])[0].args[0] == Leaf(value=1)
    assert "x is not valid" in why_not(Tree, {"kind": "other"})
    assert built(Union[Length, Leaf], {"value": 7, "kind": "leaf"}) == Leaf(value=7)
    assert built(Numbers, [1, 2]).root == [1, 2]
    assert built(Union[Length, Numbers], [1, 2]) == Numbers([1, 2])
    assert built(Optional[Tree], None) is None
    optional = Annotated[Optional[Union[Node, Leaf]], Field(discriminator="kind")]
    assert built(optional, None) is None
    assert "x must be" in why_not(optional, [])
    assert "x must be" in why_not(Tree, None)


def test_the_first_choice_that_fits_is_taken() -> None:
    import datetime

    assert type(built(Union[float, int], 5)) is float
    assert type(built(Union[int, float], 5)) is int
    day = datetime.date(2024, 2, 29)
    assert built(Union[datetime.date, str], "2024-02-29") == day
    assert built(Union[str, datetime.date], "2024-02-29") == "2024-02-29"
    assert built(list[Union[datetime.date, None]], [None, day, "2024-02-29"]) == [None, day, day]


# ---- what is refused when the tool is made


class Unknown:
    pass


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Annotated[int, Unknown()], "in Annotated[…] is not checked: leave it out"),
        (Annotated[str, annotated_types.Timezone(None)], "is not checked"),
        (list[Annotated[int, 5]], "5 in Annotated[…] is not checked"),
        (Annotated[int, Field(default=5)], "write it as that of the parameter"),
        (Annotated[int, Field(alias="y")], "an alias in Annotated[…, Field(…)] has no effect"),
        (Annotated[str, pydantic.ImportString()], "imports the module that it names"),
        (pydantic.FilePath, "looks for a file of that name"),
    ],
)
def test_metadata_that_cannot_be_checked_is_refused(annotation: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        taking(annotation)
    assert said in str(caught.value) and "use(x)" in str(caught.value)


@pytest.mark.parametrize("kind", [kind for kind, _ in ACTING])
def test_no_class_is_taken_whose_validation_acts_on_the_host(kind: Any) -> None:
    for annotation in (kind, list[kind], Optional[kind]):
        with pytest.raises(TypeError, match=r"cannot be built of what a sandbox sends: .* outside"):
            taking(annotation)


@pytest.mark.parametrize("kind", OWN_INIT)
def test_no_init_is_given_a_key_that_is_no_field(kind: Any) -> None:
    with pytest.raises(TypeError, match="would be given what code inside chooses"):
        taking(kind)
    TakesMore.model_validate({"_env_file": "/etc/passwd"})  # the control
    assert READ.pop() == "/etc/passwd"


class OfFields(BaseModel):
    """Its __init__ takes nothing else."""

    name: str = Field(alias="title")

    def __init__(self, title: str) -> None:
        super().__init__(title=title.strip())


def test_an_init_of_fields_alone_is_taken() -> None:
    assert built(OfFields, {"title": " a "}).name == "a"
    with pytest.raises(TypeError):
        built(OfFields, {"title": "a", "_env_file": "b"})


@pytest.mark.parametrize("kind", TRIED_AGAIN)
def test_choices_that_cannot_be_told_apart_are_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"Field\(discriminator=…\)"):
        taking(kind)


@pytest.mark.parametrize("kind", BOUNDLESS)
def test_what_a_text_may_keep_busy_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="may take any time: make it a str"):
        taking(kind)


def test_no_time_zone_is_looked_up_by_text_of_a_cell() -> None:
    class Meeting(BaseModel):
        zone: ZoneInfo

    class Trip(BaseModel):
        meetings: dict[str, Optional[Meeting]]

    class Named(BaseModel):
        zone: str

    for kind in (Meeting, Trip, list[Meeting]):
        with pytest.raises(TypeError, match=r"the file of a time zone of that name: make it a str"):
            taking(kind)
    assert built(Named, {"zone": "Europe/Paris"}).zone == "Europe/Paris"


def test_a_default_that_is_a_field_says_what_to_write() -> None:
    def use(x: int = Field(5, gt=0)) -> None: ...

    with pytest.raises(TypeError, match="write x: Annotated"):
        Tool(use)


class Exits(BaseModel):
    x: int

    @pydantic.field_validator("x")
    @classmethod
    def ends(cls, x: int) -> int:
        raise SystemExit(x)


class Interrupted(Exits):
    @pydantic.field_validator("x")
    @classmethod
    def ends(cls, x: int) -> int:
        raise KeyboardInterrupt


def test_a_validator_that_exits_is_the_codes_mistake() -> None:
    assert why_not(Exits, {"x": 5}) == "x is not valid: SystemExit"
    with pytest.raises(KeyboardInterrupt):  # which somebody may have pressed
        built(Interrupted, {"x": 5})


# ---- what it may cost


class Two(BaseModel):
    v: list[Union[Leaf, Length]]


class Six(BaseModel):
    v: list[Union[int, str, float, bool, bytes, None]]


class Hashed(BaseModel):
    v: set[int]


class HashedAny(BaseModel):
    v: set[Any]


class Precise(BaseModel):
    v: Union[decimal.Decimal, dict[decimal.Decimal, str]]


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Free(BaseModel):
    text: str


MANY = 3_900_000  # items of a message of 4 MB
MOST_CALLS = 4_000_000  # of functions, Python's own among them
MOST_MB = 40  # twice the message, and 32
PRIME = (1 << 61) - 1
LARGE = "too large, or is tried in too many ways"
# An annotation, what the code sends, and what is said to it; "" where it is built.
COSTLY: dict[str, tuple[Any, Callable[[], Any], str]] = {
    "numbers": (list[int], lambda: [1] * MANY, ""),
    "numbers, the last one wrong": (list[int], lambda: [1] * MANY + ["1"], LARGE),
    "numbers that are made others": (list[float], lambda: [1] * MANY, LARGE),
    "items of no choice": (list[Union[int, list[int]]], lambda: [[""]] * MANY, "must be int"),
    "items of the last choice": (list[Union[list[int], list[str]]], lambda: [[""]] * MANY, LARGE),
    "objects of the last choice": (list[Union[Line, Row]], lambda: [{"id": 1}] * MANY, LARGE),
    "models of the last choice": (
        list[Union[Leaf, Length]],
        lambda: [{"value": 0.5}] * MANY,
        LARGE,
    ),
    "a model's items of no choice": (Six, lambda: {"v": [[]] * 5_000}, "25,000 errors"),
    "more of these": (Six, lambda: {"v": [[]] * MANY}, LARGE),
    "a model's objects of no choice": (Two, lambda: {"v": [{"value": ""}] * MANY}, LARGE),
    "numbers of one hash": (
        set[int],
        lambda: [PRIME * i for i in range(60_000)],
        "of the same hash",
    ),
    "more of those": (set[int], lambda: [PRIME * i for i in range(MANY // 10)], LARGE),
    "a model's numbers of one hash": (
        Hashed,
        lambda: {"v": [PRIME * i for i in range(20_000)]},
        "is too large for a model with sets",
    ),
    "its texts of one hash": (
        Hashed,
        lambda: {"v": [str(PRIME * i) for i in range(20_000)]},
        "is too large for a model with sets",
    ),
    "a model's set of anything": (
        HashedAny,
        lambda: {"v": [PRIME * i for i in range(20_000)]},
        "is too large for a model with sets",
    ),
    "an int that would be made decimal": (Precise, lambda: {"v": 1 << 5000}, "beside a Decimal"),
    "a key that would be": (Precise, lambda: {"v": {1 << 5000: ""}}, "beside a Decimal"),
    "an int that is compared with a Decimal": (
        set[Union[tuple[int], tuple[decimal.Decimal]]],
        lambda: [(1 << 5000,), (decimal.Decimal((1 << 5000) % PRIME),)],
        "beside a Decimal",
    ),
    "a path of many parts": (
        Path,
        lambda: "".join(f"{i:x}/" for i in range(650_000)),
        "at most 4096 characters",
    ),
    "lists of lists": (list[list[list[int]]], lambda: [[[1]]] * (MANY // 3), LARGE),
    "bounds that do not hold": (
        list[Union[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=1)], None]],
        lambda: [0] * MANY,
        "is not valid",
    ),
    "a copy": (tuple[Any, ...], lambda: [1] * (MANY // 3), ""),
    "a larger copy": (tuple[Any, ...], lambda: [1] * MANY, LARGE),
    "a long text": (Free, lambda: {"text": "1" * MANY}, ""),
}


@pytest.mark.parametrize("name", COSTLY)
def test_no_message_costs_the_host_more_than_its_bytes(name: str) -> None:
    annotation, make, said = COSTLY[name]
    tool, value = taking(annotation), make()
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > MOST_CALLS:
            sys.setprofile(None)
            raise AssertionError("the host is kept busy")

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmHWM")
    sys.setprofile(count)
    try:
        ToolCall(tool, [value], {})
        found = ""
    except ArgumentError as error:
        found = str(error)
    finally:
        sys.setprofile(None)
    assert said in found and bool(said) == bool(found)
    assert len(found) < 5000
    assert _status("VmHWM") - before < MOST_MB << 10


def test_no_more_arguments_are_bound_than_may_be_checked() -> None:
    def use(*x: int, **more: int) -> None: ...

    tool = Tool(use)
    assert len(ToolCall(tool, [1] * 100_000, {"a": 1})._bound.args) == 100_000
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmHWM")
    with pytest.raises(ArgumentError, match=LARGE):
        ToolCall(tool, [1] * MANY, {})
    assert _status("VmHWM") - before < MOST_MB << 10


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0])  # KiB


def test_a_call_of_an_honest_size_is_built() -> None:
    rows = [{"id": i, "note": "a"} for i in range(20_000)]
    assert built(list[Row], rows) == rows
    # As docs/tools.md says.
    row = dict(zip("abcdefghij", [1, "x", None, 0.5, 2, "y", None, 1.5, 3, "z"]))
    table = [dict(row) for _ in range(20_000)]
    assert built(list[dict[str, Union[int, str, float, None]]], table) == table
    lengths = [{"value": 1, "unit": "km"}] * 15_000
    assert built(list[Length], lengths)[-1] == Length(value=1, unit="km")
    assert len(built(list[Union[Leaf, Length]], [{"value": 0.5}] * 2_000)) == 2_000
    large = 1 << 5000
    assert built(set[Union[int, decimal.Decimal]], [large, large, 5]) == {large, 5}
    assert built(Precise, {"v": 1 << 4000}).v == 1 << 4000
    assert built(Path, "a/" * 2048) == Path("a/" * 2048)
    assert built(Hashed, {"v": list(range(1_000))}).v == set(range(1_000))
    assert built(set[str], [str(i) for i in range(100_000)]) == {str(i) for i in range(100_000)}
