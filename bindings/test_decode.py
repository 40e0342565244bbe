# SPDX-License-Identifier: Apache-2.0
"""Results as data: what the cell's encoder writes, the decoder builds again, equal; all else is
refused, and nothing runs.

Both ends are the real ones: images/worker/encode.py as it runs in a cell, and hutch._core.
"""

from __future__ import annotations

import asyncio
import collections
import datetime
import enum
import io
import math
import pickle
import random
import struct
import subprocess
import sys
import tracemalloc
import types
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Iterable, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from support import grows_by_less_than

from hutch import _core
from hutch._results import types as _types
from hutch._results.validating import validation

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "images" / "worker"))
import encode

MAGIC = b"\xc1\x01"


def payload(value: Any, limit: int = 1 << 30) -> tuple[bytearray, int]:
    encoded = encode.encode(value, limit)
    whole = bytearray(encoded.size)
    for offset, piece in encoded.chunks():
        whole[offset : offset + len(piece)] = piece
    return whole, len(encoded.body)


def round_trip(value: Any, types: dict[str, type] | None = None) -> Any:
    whole, body_size = payload(value)
    return _core.decode(whole, body_size, types or {})


def decode(body: bytes, buffers: bytes = b"", types: dict[str, type] | None = None) -> Any:
    return _core.decode(MAGIC + body + buffers, len(MAGIC + body), types or {})


def refused(body: bytes, buffers: bytes = b"", types: dict[str, type] | None = None) -> str:
    with pytest.raises(_core.DecodeError) as caught:
        decode(body, buffers, types)
    assert isinstance(caught.value, ValueError)
    return f"{caught.value.path}: {caught.value.message}"


def mark(kind: int, *fields: Any) -> bytes:
    """A kind with fields, each given as a value or as bytes of the format already."""
    assert len(fields) < 15
    out = bytes((0x90 | (len(fields) + 1), 0xD4, 1, kind))
    for item in fields:
        out += item if isinstance(item, bytes) else bytes(encode.encode(item, 1 << 20).body[2:])
    return out


def exactly_equal(a: Any, b: Any) -> bool:
    """Equal with equal types all the way down, and NaN equal to NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(exactly_equal, a, b))
    if isinstance(a, dict):
        return exactly_equal(list(a.items()), list(b.items()))
    return bool(a == b)


PLAIN = [
    None,
    True,
    False,
    *(
        sign * ((1 << bits) + d)
        for bits in (0, 5, 7, 8, 15, 16, 31, 32, 63, 64, 65, 200)
        for d in (-1, 0, 1)
        for sign in (1, -1)
    ),
    10**20000,
    0.0,
    -0.0,
    1.5,
    math.inf,
    -math.inf,
    math.nan,
    5e-324,
    complex(1, -2),
    complex(0.0, math.inf),
    "",
    "x",
    "nul\0inside",
    "äöü €",
    "🐟" * 40,
    "\ud800 lone \udfff",
    "x" * 31,
    "x" * 32,
    "x" * 255,
    "x" * 256,
    "x" * 65535,
    "x" * 65536,
    b"",
    b"\x80\x05K\x01.",
    b"x" * 255,
    b"x" * 256,
    b"x" * 65535,
    b"x" * 65536,
    b"x" * 200_001,
    bytearray(b""),
    bytearray(b"abc"),
    bytearray(b"y" * 100_000),
    [],
    [1, "two", None, [3.0, [4]]],
    [True] * 20,
    [1, True] * 20,
    [float(i) for i in range(100)],
    [-(1 << 63), (1 << 63) - 1] * 10,
    [1 << 63] * 20,
    [math.nan] * 20,
    list(range(100_000)),
    [0.5] * 10_000,
    ["s"] * 16,
    ["s"] * 65_536,
    (),
    (1,),
    ((1, 2), [3], (4, (5,))),
    {},
    {"a": 1, 2: "b", (3, 4): [5], None: None, True: 0, 1.5: 2, b"k": {}, frozenset([1]): 1},
    {i: i for i in range(70_000)},
    {"lc": 1, "__type__": "os.system", "$ref": 2},
    set(),
    {1, "a", (2, 3), None},
    frozenset(),
    frozenset([1, frozenset([2])]),
    range(0),
    range(5, 100, 7),
    range(10**30, 0, -3),
    slice(None),
    slice(1, "b", None),
]
STANDARD = [
    datetime.date(1, 1, 1),
    datetime.date(9999, 12, 31),
    datetime.time(23, 59, 59, 999999),
    datetime.time(1, 2, tzinfo=datetime.timezone.utc, fold=1),
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
    datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc),
    datetime.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    datetime.timedelta(-1, 5, 7),
    datetime.timedelta.max,
    datetime.timezone.utc,
    datetime.timezone(datetime.timedelta(hours=5, minutes=45)),
    datetime.timezone(datetime.timedelta(hours=-3), "Brasília"),
    ZoneInfo("UTC"),
    ZoneInfo("America/Argentina/Buenos_Aires"),
    Decimal("0"),
    Decimal("-0.00"),
    Decimal("3.14159265358979323846264338327950288"),
    Decimal("1e999"),
    Decimal("Infinity"),
    Decimal("-Infinity"),
    Fraction(-3, 7),
    Fraction(10**40, 3),
    uuid.UUID("12345678-1234-5678-1234-567812345678"),
    PurePosixPath("/a/b c/../d"),
    PurePosixPath("."),
]


@pytest.mark.parametrize(
    "value",
    PLAIN + STANDARD,
    ids=lambda v: (
        f"{v.bit_length()}bit"
        if isinstance(v, int)
        else f"{type(v).__name__}-{'' if isinstance(v, (set, frozenset)) else str(v)[:20]!a}"
    ),
)
def test_a_value_comes_back_equal_and_of_its_type(value: Any) -> None:
    assert exactly_equal(round_trip(value), value)
    assert exactly_equal(round_trip({"k": [value, value]}), {"k": [value, value]})


def test_fold_and_not_a_number_decimals_survive() -> None:
    assert round_trip(datetime.time(1, fold=1)).fold == 1
    for text in ("NaN", "sNaN", "-NaN", "NaN123"):
        assert str(round_trip(Decimal(text))) == str(Decimal(text))


def test_a_path_of_any_kind_arrives_pure() -> None:
    result = round_trip(Path("/etc/passwd"))
    assert type(result) is PurePosixPath and result == PurePosixPath("/etc/passwd")


def test_dicts_of_the_standard_library_arrive_as_the_dict_they_equal() -> None:
    ordered = collections.OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    assert exactly_equal(round_trip(ordered), {"b": 2, "a": 1})
    assert exactly_equal(round_trip(collections.Counter("aab")), {"a": 2, "b": 1})
    assert exactly_equal(round_trip(collections.defaultdict(list, x=[1])), {"x": [1]})


def test_a_shared_list_arrives_as_copies() -> None:
    shared = [1]
    a, b = round_trip([shared, shared])
    assert a == b == [1] and a is not b


def test_each_not_a_number_key_stays_a_key_of_its_own() -> None:
    result = round_trip({float("nan"): 1, float("nan"): 2})
    assert len(result) == 2 and all(math.isnan(key) for key in result)


def test_bytes_that_lie_outside_the_body_keep_their_order() -> None:
    big = [bytes([i]) * (70_000 + i) for i in range(5)]
    whole, body_size = payload(big)
    assert body_size < 200
    assert _core.decode(whole, body_size, {}) == big
    assert _core.decode(bytes(whole), body_size, {}) == big


# Classes of the user's own


class Colour(enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclass(frozen=True)
class Row:
    name: str
    point: Point
    tags: list[str] = field(default_factory=list)
    size: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", len(self.tags))


@dataclass(slots=True)
class Slotted:
    rows: dict[str, Row]
    colour: Colour | None = None


NAMED = _types.named_types(list[Slotted] | Level | Access)


@pytest.mark.parametrize(
    "value",
    [
        Colour.CRIMSON,
        Colour.BLUE,
        Level.LOW,
        Access.READ | Access.WRITE,
        Access(0),
        Point(1, 2.5),
        Row("a", Point(1), ["x", "y"]),
        Slotted({"k": Row("a", Point(1))}, Colour.RED),
    ],
)
def test_classes_that_the_caller_names_are_built_by_themselves(value: Any) -> None:
    result = round_trip([value], NAMED)
    assert exactly_equal(result, [value])


def test_a_class_that_the_caller_does_not_name_is_refused_with_advice() -> None:
    whole, body_size = payload({"a": [Row("a", Point(1))]})
    with pytest.raises(_core.DecodeError) as caught:
        _core.decode(whole, body_size, {_types.wire_name(Point): Point})
    assert "annotate" in str(caught.value) and "Row" in str(caught.value)
    assert caught.value.path == 'result["a"][0]'


def test_a_field_of_the_wrong_type_never_reaches_the_constructor() -> None:
    assert "name" in refused(
        mark(0x22, _types.wire_name(Row), {"name": 1, "point": None, "tags": []}), types=NAMED
    )
    assert "fields" in refused(mark(0x22, _types.wire_name(Row), {"name": "a"}), types=NAMED)
    assert "fields" in refused(
        mark(0x22, _types.wire_name(Row), {"name": "a", "evil": 1}), types=NAMED
    )
    assert "Point.x" in refused(mark(0x23, _types.wire_name(Point), ["one", 2.0]), types=NAMED)
    assert "fields" in refused(mark(0x23, _types.wire_name(Point), [1, 2.0, 3]), types=NAMED)
    assert "no member" in refused(mark(0x20, _types.wire_name(Colour), "mro"), types=NAMED)
    assert "not an enum" in refused(mark(0x20, _types.wire_name(Row), "RED"), types=NAMED)
    assert "not a dataclass" in refused(mark(0x22, _types.wire_name(Colour), {}), types=NAMED)
    assert "annotation does not name" in refused(
        mark(0x22, "os.system", {"command": "id"}), types=NAMED
    )


def test_a_pydantic_model_is_validated_and_keeps_which_fields_were_set() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    class Address(pydantic.BaseModel):
        street: str = pydantic.Field(alias="Street")
        number: int = 1

    class User(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        name: str
        addresses: list[Address] = []

    user = User(name="a", addresses=[Address(Street="x")], nick="b")
    types = _types.named_types(User)
    assert set(types.values()) == {User, Address}
    result = round_trip(user, types)
    assert result == user and result.model_fields_set == user.model_fields_set
    assert result.addresses[0].model_fields_set == {"street"}
    bad = mark(0x24, _types.wire_name(Address), {"street": [1], "number": 1}, ["street"])
    assert "street" in refused(bad, types=types).lower()


def test_a_field_whose_validation_acts_on_the_host_is_never_validated(tmp_path: Path) -> None:
    pytest.importorskip("pydantic", reason="pydantic is not installed")
    from models_that_act import ACTING, Inner, OnDisk, Settings
    from pydantic import BaseModel, ImportString
    from pydantic.dataclasses import dataclass as pydantic_dataclass

    @pydantic_dataclass
    class Unfinished:
        hook: ImportString = None  # type: ignore[valid-type]

    assert "not defined" in validation(Unfinished).refusal

    class Plain(BaseModel):
        hook: str
        sizes: set[int] = set()
        ratio: Fraction = Fraction(1)

    for kind, field_name in ACTING:
        assert validation(kind).acting.endswith(field_name), kind
    sys.modules.pop("antigravity", None)
    types = _types.named_types(Inner | Settings | OnDisk | Plain)
    given = mark(0x24, _types.wire_name(Inner), {"hooks": ["antigravity:fly"]}, ["hooks"])
    assert "Inner.hooks" in refused(given, types=types)
    given = mark(0x22, _types.wire_name(Settings), {"hook": "antigravity"})
    assert "Settings.hook" in refused(given, types=types)
    assert "antigravity" not in sys.modules
    given = mark(0x24, _types.wire_name(OnDisk), {"path": str(tmp_path)}, ["path"])
    assert "outside of the sandbox" in refused(given, types=types)
    honest = Plain(hook="antigravity", sizes={1, 2}, ratio=Fraction(1, 3))
    result = round_trip(honest, types)
    assert (result.hook, result.sizes, result.ratio) == ("antigravity", {1, 2}, Fraction(1, 3))
    # What pydantic would convert: a list to a set, text to a Fraction.
    fields = {"hook": "", "sizes": {1}, "ratio": Fraction(1)}
    for wrong in ({"sizes": [1, 2]}, {"ratio": "1e999999999"}):
        given = mark(0x24, _types.wire_name(Plain), {**fields, **wrong}, [])
        assert "Plain." in refused(given, types=types)


def test_a_model_looks_no_time_zone_up_by_text_of_a_cell() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    class Meeting(pydantic.BaseModel):
        zone: ZoneInfo

    types = _types.named_types(Meeting)
    given = mark(0x24, _types.wire_name(Meeting), {"zone": "Europe/Paris"}, ["zone"])
    assert "Meeting.zone" in refused(given, types=types)
    honest = Meeting(zone=ZoneInfo("Europe/Paris"))
    assert round_trip(honest, types) == honest


def test_a_dataclass_of_pydantic_1_imports_nothing_that_a_cell_names() -> None:
    v1 = pytest.importorskip("pydantic.v1", reason="pydantic is not installed")

    members = {"__annotations__": {"hook": v1.PyObject}, "__module__": __name__}
    Hook = v1.dataclasses.dataclass(type("Hook", (), members))

    @dataclass
    class Plain:
        hook: str

    sys.modules.pop("colorsys", None)
    types = {_types.wire_name(kind): kind for kind in (Hook, Plain)}
    given = mark(0x22, _types.wire_name(Hook), {"hook": "colorsys.rgb_to_hsv"})
    assert "pydantic 1" in refused(given, types=types)
    assert "colorsys" not in sys.modules
    assert round_trip(Plain("colorsys.rgb_to_hsv"), types) == Plain("colorsys.rgb_to_hsv")


def test_an_extra_field_is_no_argument_of_a_models_own_init() -> None:
    pytest.importorskip("pydantic", reason="pydantic is not installed")
    from models_that_act import READ, TakesMore

    READ.clear()
    types = {_types.wire_name(TakesMore): TakesMore}
    given = mark(0x24, _types.wire_name(TakesMore), {"name": "", "_env_file": "/etc/passwd"}, [])
    assert "__init__" in refused(given, types=types)
    assert not READ
    honest = TakesMore(name="a", data=1, more=2)  # type: ignore[call-arg]
    assert round_trip(honest, types) == honest


def test_a_model_of_a_million_wrong_items_is_reported_in_a_line() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    from pydantic import StringConstraints

    class Bag(pydantic.BaseModel):
        items: list[Annotated[str, StringConstraints(min_length=1)]]

    types = _types.named_types(Bag)
    given = mark(0x24, _types.wire_name(Bag), {"items": [""] * 100_000}, ["items"])
    said = refused(given, types=types)
    assert "100,000 values" in said and len(said) < 500
    given = mark(0x24, _types.wire_name(Bag), {"items": [None] * 100_000}, ["items"])
    assert "Bag.items[0] is None" in refused(given, types=types)


class Num(NamedTuple):
    value: int


class Shade(enum.Enum):
    DARK = "dark"
    LIGHT = "light"


def _models() -> Any:
    """Models of one module, as they are written in one; and a maker of honest values."""
    pytest.importorskip("pydantic", reason="pydantic is not installed")
    import typing

    from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field, field_validator
    from pydantic.dataclasses import dataclass as pydantic_dataclass

    T = typing.TypeVar("T")

    class Point(BaseModel):
        model_config = ConfigDict(frozen=True, strict=True)
        x: int
        y: float = 0.0

    class Box(BaseModel, typing.Generic[T]):
        held: T
        more: list[T] = []

    class Numbers(RootModel[list[int]]):
        pass

    @pydantic_dataclass
    class Span:
        start: int
        stop: int = 1

    class Tree(BaseModel):
        value: int
        children: list[Tree] = []
        either: typing.Union[Tree, Point, None] = None

    class Everything(BaseModel):
        model_config = ConfigDict(use_enum_values=True, populate_by_name=True)
        when: datetime.datetime
        ident: uuid.UUID
        amount: Decimal
        small: typing.Annotated[int, Field(ge=0, le=9)]
        word: typing.Literal["a", "b"]
        shade: Shade
        shades: dict[Shade, list[Shade]] = {}
        path: PurePosixPath = PurePosixPath("x")
        text_by_default: Decimal = "1.5"  # type: ignore[assignment]
        ratio: float = 1
        by_number: dict[int, int] = {}
        maybe: typing.Optional[Point] = None
        box: Box[int] = Box[int](held=1)
        numbers: Numbers = Numbers([1])
        span: Span = Span(1)
        tree: typing.Optional[Tree] = None
        number: Num = Num(1)
        mixed: tuple[int, ...] = ()
        both: typing.Union[int, str, list[typing.Union[int, str]]] = 0
        aliased: int = Field(1, alias="Aliased")
        length: int = 0

        @field_validator("length", mode="before")
        @classmethod
        def of_text(cls, given: typing.Any) -> typing.Any:
            return len(given) if isinstance(given, str) else given

        @computed_field  # type: ignore[prop-decorator]
        @property
        def double(self) -> int:
            return self.small * 2

    names = {**locals()}
    Tree.model_rebuild(_types_namespace=names)
    return types.SimpleNamespace(**names)


def test_models_of_every_honest_kind_arrive_equal() -> None:
    m = _models()
    value = m.Everything(
        when="2024-01-02T03:04:05",
        ident="12345678123456781234567812345678",
        amount="1.20",
        small=3,
        word="a",
        shade=Shade.DARK,
        shades={Shade.DARK: [Shade.LIGHT]},
        by_number={"1": 2},
        maybe=m.Point(x=1),
        tree=m.Tree(value=1, children=[m.Tree(value=2, either=m.Point(x=3))]),
        both=[1, "a"],
        mixed=[1, 2],
        length="four",
    )
    assert value.shade == "dark" and value.shades == {"dark": ["light"]}
    types = _types.named_types(m.Everything)
    result = round_trip(value, types)
    assert result.text_by_default == Decimal("1.5")
    value.__dict__["text_by_default"] = Decimal("1.5")  # not one that was set
    assert result == value and result.model_fields_set == value.model_fields_set
    assert result.length == 4 and result.double == 6 and result.tree.children[0].either.x == 3
    deep = m.Tree(value=0)
    for i in range(30):
        deep = m.Tree(value=i, either=deep)
    assert round_trip(deep, _types.named_types(m.Tree)) == deep


def test_a_model_gets_what_it_stores_and_converts_nothing() -> None:
    m = _models()
    types = _types.named_types(m.Everything)
    honest = m.Everything(
        when=datetime.datetime(2024, 1, 1), ident=uuid.UUID(int=1), amount=1, small=1, word="a",
        shade="dark", text_by_default=0,
    )  # fmt: skip
    fields = {**honest.__dict__}
    name = _types.wire_name(m.Everything)
    assert round_trip(honest, types) == honest
    for wrong in (
        {"amount": "1e9999999999"},
        {"by_number": {"1": 1}},
        {"maybe": {"x": 1}},
        {"span": {"start": 1, "stop": 2}},
        {"number": [1]},
        {"mixed": [1]},
        {"tree": {"value": 1}},
        {"both": [b"x"]},
        {"when": "2024-01-01"},
        {"shade": [1]},
        {"box": {"held": 1}},
    ):
        said = refused(mark(0x24, name, {**fields, **wrong}, []), types=types)
        assert "Everything." + next(iter(wrong)) in said


def test_dicts_for_models_of_a_union_are_refused_before_they_are_tried() -> None:
    m = _models()
    given: Any = {"value": 1}
    for _ in range(60):
        given = {"value": 1, "children": [], "either": given}
    name = _types.wire_name(m.Tree)
    said = refused(mark(0x24, name, {"value": 1, "children": [], "either": given}, []),
                   types=_types.named_types(m.Tree))  # fmt: skip
    assert "Tree.either" in said


def test_a_model_of_dicts_that_pydantic_would_try_over_and_over_is_refused() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    typing_extensions = pytest.importorskip("typing_extensions")
    import typing

    spaces: dict[str, Any] = {}
    exec(
        "import typing\n"
        "from typing_extensions import TypedDict\n"
        "from pydantic import BaseModel\n"
        "class A(TypedDict):\n    left: 'typing.Union[A, B, None]'\n"
        "class B(TypedDict):\n    left: 'typing.Union[A, B, None]'\n"
        "class Holder(BaseModel):\n    tree: 'typing.Union[A, B, None]'\n"
        "    more: typing.Any = None\n",
        spaces,
    )
    assert typing_extensions and typing
    Holder = spaces["Holder"]
    Holder.model_rebuild(_types_namespace=spaces)
    assert issubclass(Holder, pydantic.BaseModel)
    seen = validation(Holder)
    assert seen.branches == 2
    for kind in ("Everything", "Tree", "Box"):
        assert validation(getattr(_models(), kind)).branches == 1

    def nested(depth: int) -> Any:
        value = None
        for _ in range(depth):
            value = {"left": value}
        return value

    types = _types.named_types(Holder)
    name = _types.wire_name(Holder)
    assert decode(mark(0x24, name, {"tree": nested(5), "more": 1}, []), types=types).tree
    said = refused(mark(0x24, name, {"tree": nested(60), "more": 1}, []), types=types)
    assert "over and over" in said


# What the encoder refuses


async def _coroutine() -> None: ...


def _generator() -> Any:
    yield 1


class _Dict(dict):  # type: ignore[type-arg]
    pass


def _named(module: str, name: str) -> Any:
    return type(name, (), {"__module__": module})()


@pytest.mark.parametrize(
    ("value", "type_name", "hint"),
    [
        (lambda: 1, "function", "code does not travel"),
        (_generator(), "generator", "list("),
        (sys, "module", "values"),
        (io.StringIO("x"), "_io.StringIO", "getvalue"),
        (io.BytesIO(b"x"), "_io.BytesIO", "getvalue"),
        (Row, "type", "class"),
        (Colour, "enum.EnumType", "class"),
        (ValueError("x"), "ValueError", "raise"),
        (memoryview(b"x"), "memoryview", "bytes("),
        (iter([1]), "list_iterator", "list("),
        ({1: 2}.keys(), "dict_keys", "list("),
        (map(str, [1]), "map", "list("),
        (object(), "object", "plain data"),
        (_named("matplotlib.figure", "Figure"), "matplotlib.figure.Figure", "savefig"),
        (
            _named("plotly.graph_objs._figure", "Figure"),
            "plotly.graph_objs._figure.Figure",
            "to_json",
        ),
        (_Dict(), f"{__name__}._Dict", "dict("),
        (len, "builtin_function_or_method", "code does not travel"),
        (1 << (1 << 23), "int", "bits"),
        (Decimal("1e999999999"), "decimal.Decimal", "exponent"),
    ],
    ids=lambda v: "" if not isinstance(v, str) else v[:20],
)
def test_what_is_no_data_is_refused_by_type_path_and_advice(
    value: Any, type_name: str, hint: str
) -> None:
    with pytest.raises(encode.Unencodable) as caught:
        encode.encode({"models": [0, 1, value]}, 1 << 20)
    assert caught.value.path == 'result["models"][2]'
    if not (type_name == "enum.EnumType" and sys.version_info < (3, 11)):
        assert caught.value.type_name == type_name
    assert hint in caught.value.hint


def test_a_coroutine_and_an_open_file_are_refused_with_advice(tmp_path: Path) -> None:
    coroutine = _coroutine()
    with pytest.raises(encode.Unencodable, match="await"):
        encode.encode([coroutine], 1 << 20)
    asyncio.run(coroutine)
    with open(tmp_path / "f", "w") as file, pytest.raises(encode.Unencodable, match="read"):
        encode.encode(file, 1 << 20)


def test_a_container_that_holds_itself_is_refused_by_name() -> None:
    own: list[Any] = [1]
    own.append(own)
    with pytest.raises(encode.Unencodable, match="a list that holds itself") as caught:
        encode.encode({"a": (own,)}, 1 << 20)
    assert caught.value.path == 'result["a"][0]'
    both: dict[str, Any] = {}
    both["x"] = [both, both]
    with pytest.raises(encode.Unencodable, match="a dict that holds itself") as caught:
        encode.encode(both, 1 << 20)
    assert caught.value.path == "result"


def test_a_fields_name_is_part_of_the_path() -> None:
    with pytest.raises(encode.Unencodable) as caught:
        encode.encode([Row("a", Point(1, object()))], 1 << 20)  # type: ignore[arg-type]
    assert caught.value.path == "result[0].point.y"


def test_depth_has_one_limit_for_both_ends() -> None:
    def nested(kind: Any, depth: int) -> Any:
        value = kind(())
        for _ in range(depth - 1):
            value = kind((value,))
        return value

    for kind in (list, tuple, frozenset):
        assert exactly_equal(round_trip(nested(kind, 128)), nested(kind, 128))
        with pytest.raises(encode.Unencodable, match="levels deep"):
            encode.encode(nested(kind, 129), 1 << 20)
    with pytest.raises(encode.Unencodable, match="levels deep"):
        encode.encode(nested(list, 100_000), 1 << 20)


def test_a_result_beyond_the_limit_is_reported_by_size_and_early() -> None:
    for value in (
        b"x" * 300_000,
        "x" * 300_000,
        [None] * 300_000,
        {i: i for i in range(100_000)},
        bytearray(300_000),
    ):
        with pytest.raises(encode.TooLarge) as caught:
            encode.encode(value, 200_000)
        assert caught.value.size > 200_000
    shared: list[Any] = []
    for _ in range(60):
        shared = [shared, shared]  # 2**60 lists once expanded
    with pytest.raises(encode.TooLarge):
        encode.encode(shared, 1 << 16)


def test_a_long_list_that_is_too_large_is_not_looked_through() -> None:
    value = {"a": [1], "b": [[] for _ in range(300_000)]}
    tracemalloc.start()
    with pytest.raises(encode.TooLarge) as caught:
        encode.encode(value, 1 << 16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.path == 'result["b"]'
    assert peak < 1 << 20, "its own memory would count as the call's"


@dataclass
class Pair:
    left: Any
    right: Any


@pytest.mark.parametrize(
    "twice",
    [
        lambda x: [x, x],
        lambda x: (x, x),
        lambda x: {"a": x, "b": x},
        lambda x: [1, x, "text", x],
        lambda x: Pair(x, x),
        lambda x: collections.OrderedDict(a=x, b=x),
        lambda x: (x, [x]),
    ],
    ids=["list", "tuple", "dict", "mixed", "dataclass", "ordered", "both"],
)
@pytest.mark.parametrize("leaf", [None, [None] * 5000, "x" * 100], ids=["none", "list", "text"])
def test_what_is_shared_is_counted_before_it_is_written(twice: Any, leaf: Any) -> None:
    value = [leaf]
    for _ in range(40):
        value = twice(value)
    for whole, path in ((value, "result"), ({"a": 1, "t": [0, value]}, 'result["t"][1]')):
        encoder = encode.Encoder(64 << 20, whole)
        with pytest.raises(encode.TooLarge) as caught:
            encoder.value(whole)
        assert len(encoder.out) < 1 << 20, "hardly any of it was written"
        with pytest.raises(encode.TooLarge) as caught:
            encode.encode(whole, 64 << 20)
        assert caught.value.path == path and caught.value.size > 1 << 40
    own: list[Any] = []
    own += [own, own]
    with pytest.raises(encode.Unencodable, match="holds itself"):
        encode.encode(own, 64 << 20)


def test_what_is_shared_a_little_is_written() -> None:
    row = {"a": [1, 2, 3], "b": "x" * 10}
    value = [[row] * 100] * 100
    assert round_trip(value) == value


def test_an_error_is_a_map_of_capped_texts() -> None:
    fields = encode.error_fields(
        "E", "m" * 100_000, "\ud800", 3, "h", encode.builtin_bases(UnicodeDecodeError)
    )
    body = encode.encode_error(fields)
    fields = _core.decode(body, len(body), {})
    assert fields["message"].endswith("m\n… (cut; it has 100,000 characters)")
    assert len(fields["message"].encode()) <= 65536 and fields["traceback"] == "\\ud800"
    assert fields["bases"] == [
        "UnicodeDecodeError",
        "UnicodeError",
        "ValueError",
        "Exception",
        "BaseException",
    ]
    body = encode.encode_error(encode.error_fields(3, "€" * 65536, "", -1, "", []))  # type: ignore[arg-type]
    fields = _core.decode(body, len(body), {})
    assert (
        fields["type"] == "<int>"
        and len(fields["message"].encode()) <= 65536
        and fields["line"] is None
    )


# Hostile bytes


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_refused_at_its_first_byte(protocol: int) -> None:
    data = pickle.dumps({"a": [1]}, protocol)
    with pytest.raises(_core.DecodeError, match="not a result"):
        _core.decode(data, len(data), {})


@pytest.mark.parametrize(
    "head",
    [b"", b"\xc1", b"\xc1\x00", b"\xc1\x02", b"\x01\xc1", b"{}", b"\x00\x00", b"PK", b"ARROW1"],
)
def test_another_version_or_format_is_refused(head: bytes) -> None:
    with pytest.raises(_core.DecodeError, match="not a result"):
        _core.decode(head + b"\x01" if len(head) > 1 else head, len(head), {})


def test_every_truncation_is_refused() -> None:
    value = {"a": [1, 2.5, "text" * 20, b"x" * 70_000, 1 << 90, (None, {3})], "b": Decimal("1.5")}
    whole, body_size = payload(value)
    assert _core.decode(whole, body_size, {}) == value
    for cut in range(body_size):
        with pytest.raises(_core.DecodeError):
            _core.decode(whole[:cut], cut, {})
        with pytest.raises(_core.DecodeError):
            _core.decode(whole, cut, {})
    for cut in (body_size, len(whole) - 1, len(whole) - 70_000):
        with pytest.raises(_core.DecodeError, match="outside the payload"):
            _core.decode(whole[:cut], body_size, {})
    with pytest.raises(_core.DecodeError, match="longer than the payload"):
        _core.decode(whole, len(whole) + 1, {})


MANY = """
import sys
from hutch import _core

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) << 10

item, count, limit = bytes.fromhex(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) << 20
body = b"\\xc1\\x01\\xdd" + count.to_bytes(4, "big") + item * count
before = peak()
try:
    made = len(_core.decode(body, len(body), {}, limit))
except _core.DecodeError as error:
    made = error.message
print(made, (peak() - before) >> 20, len(body) >> 20, sep=";")
"""


def decode_many(item: str, count: int, limit: int) -> tuple[str, int, int]:
    """In a process of its own: what came of it, MiB that it grew by, MiB of the payload."""
    line = [sys.executable, "-c", MANY, item, str(count), str(limit)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    said, grown, size = done.stdout.strip().split(";")
    return said, int(grown), int(size)


@pytest.mark.parametrize(
    "item",
    ["90", "80", "8101c0", "92d40101c0", "d70100", "92d4010290", "92d4011690"],
    ids=["list", "dict", "dict of one", "tuple", "ext", "set", "refused kind"],
)
def test_ten_million_small_things_grow_the_host_by_little(item: str) -> None:
    said, grown, size = decode_many(item, 10_000_000, 16)
    assert not said.isdigit()
    assert grown <= 64 + max(16 * size, 2 * 16) + 32, (said, grown, size)


def test_many_small_things_are_a_result_where_its_limit_lets_them() -> None:
    said, grown, size = decode_many("90", 4_000_000, 512)
    assert said == "4000000" and grown <= 64 + 2 * 512, (grown, size)
    assert decode_many("90", 1_000_000, 16)[0] == "1000000"
    assert decode_many("07", 4_000_000, 16)[0] == "4000000"  # small ints
    assert "too much memory" in decode_many("90", 4_000_000, 16)[0]


def test_bytes_left_over_are_refused() -> None:
    assert "left over" in refused(b"\x01\x02")
    assert "left over" in refused(b"\x01", b"x")
    assert "left over" in refused(b"\xd7\x02" + struct.pack(">Q", 1), bytes(200))


def test_a_claimed_length_allocates_nothing() -> None:
    with grows_by_less_than(100):
        for tag in (0xDB, 0xC6, 0xDD, 0xDF, 0xC9):
            refused(struct.pack(">BI", tag, 0xFFFFFFFF) + b"\x03\x00")
        for length in (1, 64, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
            refused(b"\xd7\x02" + struct.pack(">Q", length))
            refused(
                mark(
                    0x30,
                    "<f8",
                    [length if length < 1 << 63 else 1],
                    b"\xd7\x02" + struct.pack(">Q", length),
                )
            )
        for shape in (
            [1 << 62],
            [1 << 32, 1 << 32],
            [1 << 63, 2],
            [0, 1 << 62],
            [1 << 61, 8],
            [-1],
            [1] * 40,
            [True],
        ):
            refused(mark(0x30, "<f8", shape, b"\xc4\x08" + bytes(8)))
            refused(mark(0x30, "<f8", shape, b"\xc4\x00"))


@pytest.mark.parametrize(
    "opener", [b"\x91", b"\x92\xd4\x01\x01", b"\x81\x01", b"\x81", b"\x92\xd4\x01\x03"]
)
def test_a_depth_bomb_is_refused(opener: bytes) -> None:
    assert "too deeply" in refused(opener * 100_000 + b"\xc0")


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",  # a tag that MessagePack does not have
        b"\xca\x00\x00\x00\x00",  # float32
        b"\xd4\x01\x01",  # a mark as the value
        b"\x92\x01\xd4\x01\x01",  # a mark that is not first
        b"\x93\xd4\x01\x01\xd4\x01\x02\x01",  # two marks
        b"\x81\xd4\x01\x01\x01",  # a mark as a key
        b"\x81\x01\xd4\x01\x01",  # a mark in a dict
        b"\x91\xd5\x01\x01\x01",  # a mark of two bytes
        b"\x91\xd4\x01\x00",  # a mark of no kind
        b"\x91\xd4\x01\xff",
        b"\x91\xd4\x01\x7e",  # an unknown kind
        b"\xd4\x05\x00",  # unknown extensions
        b"\xd4\xff\x00",  # MessagePack's own timestamp
        b"\xc7\x00\x01",  # an empty extension
        b"\xd4\x02\x00",  # a buffer whose length is too short
        b"\xa2\xff\xfe",  # not UTF-8
        b"\xa3\xed\xa0\x80",  # a surrogate in plain text
        b"\xc7\x02\x04\xff\xff",
        b"\x82\x01\x01\x01\x02",  # a key twice
        b"\x82\x01\x01\xc3\x02",  # two keys that are equal
        b"\x82\xa1a\x01\xa1a\x02",
        b"\x81\x90\x01",  # a key that cannot be hashed
        b"\x81\x80\x01",
        b"\x92\xd4\x01\x02\x90",
        b"\x93\xd4\x01\x02\x01\x01",  # an item twice
        mark(0x04, "text"),
        mark(0x05, b"\xc4\x07" + bytes(7)),
        mark(0x06),
        mark(0x07, 1, 2, 0),
        mark(0x07, 1.0, 2, 1),
        mark(0x08, 1),
        mark(0x09, 1, 2),
    ],
    ids=lambda body: body[:8].hex(),
)
def test_malformed_bodies_are_refused(body: bytes) -> None:
    refused(body)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (0x10, (2024, 13, 1)),
        (0x10, (2024, "1", 1)),
        (0x10, (1 << 70, 1, 1)),
        (0x10, (2024, 1)),
        (0x11, (1, 2, 3, 4, 5, None)),
        (0x12, (2024, 1, 1, 0, 0, 0, 0, 0, "UTC")),
        (0x13, (1 << 40, 0, 0)),
        (0x14, (datetime.timedelta(days=2), None)),
        (0x14, (5, None)),
        *(
            (0x15, (key,))
            for key in (
                "../../etc/passwd",
                "/etc/passwd",
                "",
                "a/../b",
                "Europe/Berlin\0",
                "No/Such",
                "a//b",
                5,
            )
        ),
        (0x16, (0, "1", 999_999_999)),
        (0x16, (0, "1", -999_999_999)),
        (0x16, (2, "1", 0)),
        (0x16, (0, "1e5", 0)),
        (0x16, (0, "٣", 0)),
        (0x16, (0, "1", "X")),
        (0x16, (0, "9" * 100_001, 0)),
        (0x17, (1, 0)),
        (0x17, (1, -2)),
        (0x17, ("1", 2)),
        (0x18, (b"short",)),
        (0x18, ("x" * 16,)),
        (0x19, (b"bytes",)),
        (0x19, ()),
    ],
)
def test_fields_that_no_such_value_has_are_refused(kind: int, fields: tuple[Any, ...]) -> None:
    refused(mark(kind, *fields))


def _of_one_hash(items: list[int], count: int) -> list[tuple[int, ...]]:
    """Tuples that begin with `items`, differ in the last two, and have one hash."""
    full = (1 << 64) - 1
    prime_1, prime_2, prime_5 = 11400714785074694791, 14029467366897019727, 2870177450012600261

    def with_lane(state: int, lane: int) -> int:
        state = (state + lane * prime_2) & full
        return (((state << 31) | (state >> 33)) & full) * prime_1 & full

    state = prime_5
    for item in items:
        state = with_lane(state, hash(item))
    target = (with_lane(state, 1) + 7 * prime_2) & full
    inverse = pow(prime_2, -1, 1 << 64)
    keys: list[tuple[int, ...]] = []
    i = 0
    while len(keys) < count:
        i += 1
        last = (target - with_lane(state, i)) * inverse & full
        last -= (1 << 64) * (last >> 63)
        if abs(last) < (1 << 61) - 2 and last != -1:
            keys.append((*items, i, last))
    return keys


def test_comparisons_of_keys_count_by_what_the_keys_hold() -> None:
    keys = _of_one_hash(list(range(1000, 3000)), 40)
    assert len(set(map(hash, keys))) == 1
    assert round_trip(dict.fromkeys(keys[:8])) == dict.fromkeys(keys[:8])
    assert round_trip(keys) == keys
    body = bytes(encode.encode(dict.fromkeys(keys), 1 << 30).body[2:])
    assert "one hash" in refused(body)
    body = bytes(encode.encode({("a", key) for key in keys}, 1 << 30).body[2:])
    assert "one hash" in refused(body)
    # -1 and -2 have one hash: points of a grid.
    grid = {(x, y, z): 0 for x in range(-9, 9) for y in range(-9, 9) for z in range(-9, 9)}
    assert round_trip(grid) == grid
    wide = {tuple(-1 - (i >> bit & 1) for bit in range(6)) + (7,) * 60: i for i in range(16)}
    assert round_trip(wide) == wide


def test_a_path_is_charged_by_its_parts() -> None:
    honest = [PurePosixPath(f"/home/user/project/src/module_{i}/file_{i}.py") for i in range(5000)]
    assert round_trip(honest) == honest
    long = PurePosixPath("/".join(["part"] * 10_000))
    assert round_trip(long) == long
    many_parts = bytes(encode.encode("ab/" * (4 << 20), 1 << 30).body[2:])
    assert "too much memory" in refused(mark(0x19, many_parts))


def test_keys_of_one_hash_are_refused_before_they_cost() -> None:
    modulus = (1 << 61) - 1
    flood = {k * modulus: None for k in range(1, 65)}
    assert round_trip(flood) == flood
    many = bytes(encode.encode({k * modulus: None for k in range(1, 8001)}, 1 << 20).body[2:])
    assert "one hash" in refused(many)
    assert "one hash" in refused(
        bytes(
            encode.encode(
                {float(k * modulus) for k in range(1, 8001)}
                and {k * modulus for k in range(1, 8001)},
                1 << 20,
            ).body[2:]
        )
    )


def probed_along_one_run(n: int) -> list[int]:
    """No two hashes are equal: half of the keys lie where CPython looks for a free place after
    place 0, the others begin at place 0.
    """
    size = 1 << n.bit_length()
    run, place = [], 0
    while len(run) < n // 2:
        place = (5 * place + 1) % size
        run.append(place)
    return run + [k << 44 for k in range(1, n - len(run) + 1)]


def body_of(value: Any) -> bytes:
    whole, body_size = payload(value)
    assert body_size == len(whole)
    return bytes(whole[2:])


def test_keys_that_fall_into_one_run_of_places_are_refused_before_they_cost() -> None:
    keys = probed_along_one_run(40_000)
    assert len({hash(key) for key in keys}) == len(keys)
    assert "one place" in refused(body_of(dict.fromkeys(keys)))
    floats = [float(key) for key in keys]
    assert "one place" in refused(body_of(dict.fromkeys(floats)))
    assert "one place" in refused(body_of({"a": [dict.fromkeys(keys)]}))
    honest = [dict.fromkeys(range(600)) for _ in range(60)]
    assert round_trip(honest) == honest


def test_unsalted_keys_of_one_hash_are_refused_whatever_their_type() -> None:
    modulus = (1 << 61) - 1
    numbers = [k * modulus + 5 for k in range(1, 2001)]
    for kind in (float, Decimal, Fraction, lambda x: (1, x), lambda x: frozenset([x])):
        keys = list(map(kind, numbers))
        same = [key for key in keys if hash(key) == hash(keys[0])]
        if len(same) > 500:
            assert "one hash" in refused(body_of(dict.fromkeys(same)))
    ids = [uuid.UUID(int=k * modulus + 5) for k in range(2000)]
    assert "one hash" in refused(body_of(dict.fromkeys(ids)))


def test_a_large_int_is_not_compared_with_decimals_of_its_hash() -> None:
    modulus = (1 << 61) - 1
    large = modulus << 100_000
    assert hash(large) == 0
    decimals = [Decimal(k * modulus) for k in range(1, 25)]
    assert {hash(decimal) for decimal in decimals} == {0}
    assert "large keys" in refused(body_of([dict.fromkeys([*decimals, large])]))
    assert "large keys" in refused(body_of([dict.fromkeys([*((d,) for d in decimals), (large,)])]))
    apart = {large: 1, "d": Decimal("1.5"), 7: decimals}
    assert round_trip(apart) == apart


def test_large_frozensets_of_one_hash_are_not_compared() -> None:
    one, other = frozenset([*range(100), -1]), frozenset([*range(100), -2])
    assert hash(one) == hash(other)
    assert "large keys" in refused(body_of([1, {one, other}]))
    small = {frozenset([-1, 3]), frozenset([-2, 3])}
    assert round_trip(small) == small


@pytest.mark.parametrize("shift", [0, 1, 5, 7, 16, 17, 20, 24, 31, 32, 40, 42, 43, 50])
def test_honest_keys_of_any_stride_are_taken(shift: int) -> None:
    ints = {i << shift: None for i in range(6000)}
    assert round_trip(ints) == ints
    assert round_trip(set(ints)) == set(ints)
    multiples = {3 * i << shift: None for i in range(6000)}
    assert round_trip(multiples) == multiples
    floats = {i / (1 << shift): None for i in range(6000)}
    assert round_trip(floats) == floats


def test_honest_keys_of_many_kinds_are_taken() -> None:
    start = datetime.datetime(2024, 1, 1)
    values: list[Any] = [
        dict.fromkeys(range(50_000)),
        {-i: i for i in range(6000)},
        {(x, y, z): x for x in range(-9, 9) for y in range(-9, 9) for z in range(-9, 9)},
        {start + datetime.timedelta(minutes=i): i for i in range(3000)},
        {datetime.timedelta(seconds=i): i for i in range(3000)},
        {Fraction(i, 7): i for i in range(1, 3000)},
        {Decimal(i) / 100: i for i in range(3000)},
        {uuid.UUID(int=i << 64): i for i in range(3000)},
        {frozenset([i, -1, str(i)]) for i in range(3000)},
        {complex(i, -i) for i in range(3000)},
        {i * 0.1 for i in range(6000)},
    ]
    for value in values:
        assert round_trip(value) == value


def test_a_whole_million_of_keys_is_taken_where_the_limit_lets_it() -> None:
    whole, body_size = payload(dict.fromkeys(range(1000001), 0))
    assert len(_core.decode(whole, body_size, {}, 64 << 20)) == 1_000_001


def test_an_int_of_eight_million_bits_comes_back() -> None:
    for honest in ((1 << 8_388_607) - 1, 1 - (1 << 8_388_607)):
        assert round_trip(honest) == honest
    with pytest.raises(encode.Unencodable, match="8,388,607 bits"):
        encode.encode(1 << 8_388_607, 1 << 30)
    body = b"\xc9" + struct.pack(">I", (1 << 20) + 1) + b"\x03" + bytes((1 << 20) + 1)
    assert "too large" in refused(body)


def test_numbers_whose_arithmetic_is_quadratic_are_bounded() -> None:
    assert "32,768 bits" in refused(mark(0x17, (1 << 500_000) + 1, 1 << 400_000))
    assert "too far" in refused(mark(0x07, 1 << 900_000, 1 << 400_000, -(1 << 300_000) - 1))
    for honest in (Fraction((1 << 32_000) + 1, 3**20_000), range(1 << 8000, 0, -(1 << 4000))):
        assert round_trip(honest) == honest
    with pytest.raises(encode.Unencodable, match="32,768 bits"):
        encode.encode(Fraction((1 << 500_000) + 1, 3), 1 << 30)
    with pytest.raises(encode.Unencodable, match="8,192 bits"):
        encode.encode([range(1 << 9000)], 1 << 30)


class Wide(enum.Flag):
    A, B, C, D, E, F, G, H, I, J, K, L, M = (1 << bit for bit in range(13))  # noqa: E741


class Numbers(enum.IntFlag):
    ONE = 1
    TWO = 2


def flags(kind: type, values: Iterable[int]) -> bytes:
    items = [mark(0x21, _types.wire_name(kind), value) for value in values]
    return b"\xdd" + struct.pack(">I", len(items)) + b"".join(items)


def test_combinations_of_flags_do_not_stay_in_the_callers_class() -> None:
    types = _types.named_types(list[Wide] | Numbers)
    before = len(Numbers._value2member_map_)
    made = decode(flags(Numbers, range(5000)), types=types)
    assert made == list(range(5000)) and len(Numbers._value2member_map_) == before
    assert "many bits" in refused(mark(0x21, _types.wire_name(Numbers), 1 << 1000), types=types)
    assert "combinations" in refused(flags(Wide, range(1 << 13)), types=types)
    for start in range(0, 8192, 512):
        made = decode(flags(Wide, range(start, start + 512)), types=types)
        assert all(one is Wide(start + i) for i, one in enumerate(made))
        del made
    assert len(Wide._value2member_map_) < 8192
    honest = Wide.A | Wide.M
    assert round_trip([honest, honest], types) == [honest, honest]
    assert round_trip(Numbers.ONE | Numbers.TWO, types) is not None
    assert round_trip(Numbers.ONE | Numbers.TWO, types) == 3


def test_lack_of_memory_is_the_payloads_own_error() -> None:
    """In a process that may not have much: nothing but a DecodeError leaves the decoder."""
    code = (
        "import resource, sys\n"
        "from hutch import _core\n"
        "size = 256 << 20\n"
        "body = b'\\xc1\\x01' + b'\\xc6' + (size).to_bytes(4, 'big') + bytes(size)\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))\n"
        "try:\n"
        "    _core.decode(body, len(body), {})\n"
        "except _core.DecodeError as error:\n"
        "    print(error.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "memory" in done.stdout, done


def test_any_numbers_as_keys_are_taken_or_refused() -> None:
    hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    st = hypothesis.strategies
    modulus = (1 << 61) - 1
    number = st.integers() | st.integers(-3, 3).map(lambda k: k * modulus)
    keys = st.recursive(
        number | st.floats(allow_nan=False) | number.map(Decimal) | number.map(Fraction),
        lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
        max_leaves=4,
    )

    @hypothesis.settings(max_examples=80, deadline=None, database=None, derandomize=True)
    @hypothesis.given(st.sets(keys, max_size=20))
    def comes_back(value: set[Any]) -> None:
        try:
            assert round_trip(value) == value
        except _core.DecodeError as error:
            assert "one hash" in error.message

    comes_back()


def test_small_bytes_that_stand_for_much_memory_are_refused() -> None:
    dicts = b"\xdd" + struct.pack(">I", 30_000_000) + b"\x80" * 30_000_000
    assert "memory" in refused(dicts)


def test_an_error_tells_where_it_is() -> None:
    body = b"\x81\xa1a\x93\x01\x02\x81\x05\xa2\xff\xfe"
    assert refused(body).startswith('result["a"][2][5]')


def test_a_payload_must_be_flat_bytes() -> None:
    with pytest.raises(TypeError):
        _core.decode("text", 4, {})
    with pytest.raises(TypeError):
        _core.decode(memoryview(bytearray(16)).cast("I"), 4, {})


def test_mutated_payloads_are_data_or_refused() -> None:
    """8,000 mutations, always the same ones: each gives a value or a DecodeError."""
    values = [
        PLAIN[-12:],
        STANDARD,
        {"a": [1.5] * 20, "b": (1 << 90, "\ud800")},
        [Slotted({"k": Row("a", Point(1))}, Colour.RED), Access.READ],
    ]
    seeds = [bytes(payload(value)[0]) for value in values]
    seeds = [seed for seed in seeds if len(seed) < 4096]
    assert len(seeds) >= 3
    rng = random.Random(20240229)
    refusals = 0
    for _ in range(8_000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 6)):
            place = rng.randrange(2, len(data))
            action = rng.randrange(5)
            if action == 0:
                data[place] = rng.randrange(256)
            elif action == 1:
                data[place] ^= 1 << rng.randrange(8)
            elif action == 2:
                del data[place : place + rng.randint(1, 8)]
            elif action == 3:
                data[place:place] = rng.randbytes(rng.randint(1, 8))
            else:
                other = rng.choice(seeds)
                start = rng.randrange(2, len(other))
                data[place:place] = other[start : start + rng.randint(1, 40)]
            if len(data) < 4:
                break
        try:
            _core.decode(data, len(data), NAMED)
        except _core.DecodeError:
            refusals += 1
    assert 4_000 < refusals <= 8_000


def test_random_nested_values_come_back_equal() -> None:
    hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    st = hypothesis.strategies
    scalars = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(st.characters())
        | st.binary()
        | st.complex_numbers(allow_nan=False)
        | st.dates()
        | st.datetimes()
        | st.timedeltas()
        | st.uuids()
        | st.decimals(allow_nan=False)
        | st.fractions()
    )
    keys = st.integers() | st.text() | st.tuples(st.integers(), st.text()) | st.binary()
    values = st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner)
            | st.lists(inner).map(tuple)
            | st.dictionaries(keys, inner)
            | st.sets(keys)
        ),
        max_leaves=30,
    )

    @hypothesis.settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @hypothesis.given(values)
    def comes_back(value: Any) -> None:
        assert exactly_equal(round_trip(value), value)

    comes_back()
