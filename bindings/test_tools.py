# SPDX-License-Identifier: Apache-2.0
"""Tools as they are defined: schemas, stubs, and how arguments are checked and built."""

from __future__ import annotations

import datetime
import enum
import functools
import inspect
import json
import math
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Optional, TypedDict

import pydantic
import pytest

from hutch import Tool
from hutch._tool_calls import ToolCall
from hutch._tool_kinds import ArgumentError

UTC = datetime.timezone.utc


@dataclass
class Point:
    x: float
    y: float = 0.5


class Query(pydantic.BaseModel):
    text: str = pydantic.Field(alias="q")
    limit: int = 5
    near: Optional[Point] = None
    more: Optional[list[Query]] = None


def find(query: Query, points: list[Point], *words: str, deep: bool = False) -> list[Query]:
    """Finds it."""
    return [query]


@dataclass
class Tree:
    kids: list[Tree]


def grow(tree: Tree) -> None: ...


def invoked(tool: Tool, args: Any, kwargs: Any) -> Any:
    return ToolCall(tool, args, kwargs).run()


# ---- stubs


def test_a_stub_has_the_classes_that_it_names() -> None:
    assert Tool(find).stub() == (
        "class Query(TypedDict):\n"
        "    q: str\n"
        "    limit: NotRequired[int]\n"
        "    near: NotRequired[Point | None]\n"
        "    more: NotRequired[list[Query] | None]\n"
        "\n"
        "class Point(TypedDict):\n"
        "    x: float\n"
        "    y: NotRequired[float]\n"
        "\n"
        "def find(query: Query, points: list[Point], *words: str, deep: bool = False)"
        " -> list[Query]:\n"
        '    """Finds it."""\n'
        "    ..."
    )


def test_a_stub_is_python() -> None:
    space: dict[str, Any] = {"TypedDict": dict}
    exec(compile("from __future__ import annotations\n" + Tool(find).stub(), "stub", "exec"), space)
    assert space["find"].__doc__ == "Finds it."


def test_two_classes_of_one_name_are_distinguished() -> None:
    other = dataclass(type("Point", (), {"__annotations__": {"z": int}}))

    def move(a: Any, b: Any) -> None: ...

    move.__annotations__.update(a=Point, b=other)
    assert "def move(a: Point, b: dict)" in Tool(move).stub()


def test_a_dataclass_that_holds_itself_is_refused() -> None:
    with pytest.raises(TypeError, match=r"grow\(tree\): Tree holds itself, which is not supported"):
        Tool(grow)


# ---- what may be a tool


class Searcher:
    """Looks for pages."""

    def __call__(self, text: str, limit: int = 3) -> str:
        return text * limit

    def method(self, text: str) -> str:
        return text

    async def later(self, text: str) -> str:
        return text


def search(text: str, limit: int = 3) -> str:
    """Finds pages."""
    return text * limit


@pytest.mark.parametrize(
    ("fn", "keywords", "schema"),
    [
        (functools.partial(search, limit=2), {"name": "twice"}, ["text", "limit"]),
        (functools.partial(functools.partial(search, "a")), {"name": "a"}, ["limit"]),
        (Searcher(), {"name": "look"}, ["text", "limit"]),
        (Searcher().method, {}, ["text"]),
        (functools.partial(Searcher()), {"name": "look"}, ["text", "limit"]),
    ],
)
def test_what_can_be_called_is_a_tool(fn: Any, keywords: Any, schema: list[str]) -> None:
    tool = Tool(fn, **keywords)
    assert list(tool.schema["properties"]) == schema
    assert not tool.is_async and tool.output_schema == {"type": "string"}
    arguments = {"text": "b", "limit": 1}
    given = {name: arguments[name] for name in schema}
    assert invoked(tool, [], given) == fn(**given)
    with pytest.raises(ArgumentError, match=f"{schema[0]} must be"):
        invoked(tool, [], {**given, schema[0]: None})


def test_a_tool_that_is_awaited_is_known_as_one() -> None:
    assert Tool(functools.partial(Searcher().later, "a"), name="later").is_async


def counts(n: int) -> Iterator[int]:
    yield n


class Counts:
    async def later(self, n: int) -> AsyncIterator[int]:
        yield n


@pytest.mark.parametrize(
    ("fn", "keywords", "said"),
    [
        (functools.partial(search), {}, "partial objects have no name: Tool(…, name="),
        (Searcher(), {}, "Searcher objects have no name: Tool(…, name="),
        (search, {"name": "no name"}, "not a valid name"),
        (search, {"name": "import"}, "not a valid name"),
        (Searcher, {}, "a tool is a function"),
        (5, {}, "a tool is a function"),
        (dict.fromkeys, {}, "no annotation"),
        (counts, {}, "counts() cannot be a tool: it is a generator"),
        (Counts().later, {}, "have it return them as a list"),
    ],
)
def test_what_is_no_tool_says_why(fn: Any, keywords: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        Tool(fn, **keywords)
    assert said in str(caught.value)


# ---- values that may be given as text


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (datetime.date, "2024-02-29", datetime.date(2024, 2, 29)),
        (datetime.datetime, "2024-02-29T10:00:00", datetime.datetime(2024, 2, 29, 10)),
        (datetime.time, "10:00:00", datetime.time(10)),
        (datetime.datetime, "2024-02-29T10:00:00Z", datetime.datetime(2024, 2, 29, 10, tzinfo=UTC)),
        (datetime.time, "10:00:00Z", datetime.time(10, tzinfo=UTC)),
        (Decimal, "1.10", Decimal("1.10")),
        (uuid.UUID, "{00000000-0000-0000-0000-000000000007}", uuid.UUID(int=7)),
    ],
)
def test_a_value_may_come_as_itself_or_as_text(kind: Any, text: str, value: Any) -> None:
    def use(x: Any, y: Any = value) -> Any:
        return x

    use.__annotations__.update(x=kind, y=list[kind] | None)
    tool = Tool(use)
    schema = tool.schema["properties"]["x"]
    assert schema.get("anyOf", [schema])[-1]["type"] == "string"
    assert tool.schema["properties"]["y"]["default"] == str(value).replace(" ", "T")
    for given in (text, value):
        built = invoked(tool, [given], {})
        assert built == value and type(built) is kind
    for given in ("nonsense", "1" * 5000, [5], None):
        with pytest.raises(ArgumentError, match="x must be"):
            invoked(tool, [given], {})
    with pytest.raises(ArgumentError, match=r"y\[0\] must be"):
        invoked(tool, [text], {"y": ["nonsense"]})


def test_a_decimal_may_be_a_number_and_bytes_a_bytearray() -> None:
    def pay(amount: Decimal, data: bytes = b"") -> tuple[Decimal, bytes]:
        return amount, data

    tool = Tool(pay)
    assert invoked(tool, [5, bytearray(b"a")], {}) == (Decimal(5), b"a")
    assert repr(invoked(tool, [19.99, b"a"], {})) == "(Decimal('19.99'), b'a')"
    assert type(invoked(tool, [1, bytearray(b"a")], {})[1]) is bytes
    for wrong, said in ((True, "not bool"), (1 << 5000, "more than 4096 bits"), ([1], "not list")):
        with pytest.raises(ArgumentError, match=said):
            invoked(tool, [wrong], {})
    bounded = pydantic.Field(gt=0)

    def spend(amount: Annotated[Decimal, bounded]) -> Decimal:
        return amount

    spend.__annotations__["amount"] = Annotated[Decimal, bounded]
    assert invoked(Tool(spend), [0.5], {}) == Decimal("0.5")
    with pytest.raises(ArgumentError, match="greater than 0"):
        invoked(Tool(spend), [-1], {})
    assert Tool(spend).schema["properties"]["amount"]["anyOf"][0]["type"] == "number"


def test_a_path_is_made_of_its_text() -> None:
    def use(path: Path, more: list[PurePosixPath] | None = None) -> Any:
        return path, more

    tool = Tool(use)
    assert tool.schema["properties"]["path"] == {"type": "string", "format": "path"}
    assert tool.stub().startswith("def use(path: str, more: list[str] | None = None)")
    for given in ("a/b.txt", PurePosixPath("a/b.txt")):
        assert invoked(tool, [given], {"more": ["c"]}) == (Path("a/b.txt"), [PurePosixPath("c")])
        assert type(invoked(tool, [given], {})[0]) is type(Path("a"))
    with pytest.raises(ArgumentError, match="path must be Path, not int"):
        invoked(tool, [5], {})


@pytest.mark.parametrize("kind", [complex, object, type, datetime.timedelta, dict[int, str]])
def test_an_annotation_that_is_refused_says_what_is_allowed(kind: Any) -> None:
    def use(x: Any) -> None: ...

    use.__annotations__["x"] = kind
    with pytest.raises(TypeError, match=r"take str, int|keys of a dict must be"):
        Tool(use)


# ---- schemas of the caller's


SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "description": "what to look for"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 10},
        "sort": {"enum": ["date", "name"]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
        "where": {"anyOf": [{"type": "null"}, {"type": "object", "required": ["x"]}]},
    },
    "required": ["query"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string"}},
}


def of_all(**arguments: Any) -> Any:
    """Finds pages."""
    return arguments


def test_a_schema_takes_the_place_of_annotations() -> None:
    tool = Tool(of_all, name="find", input_schema=SCHEMA)
    assert tool.schema is SCHEMA
    assert tool.stub().startswith(
        "def find(*, query: str, limit: int = ..., sort: Literal['date', 'name'] = ..., "
        "tags: list[str] = ..., where: None | dict = ...) -> Any:"
    )
    given = {"query": "a", "limit": 2, "sort": "date", "tags": ["x"], "where": None}
    assert invoked(tool, [], given) == given


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "find() has no 'query', which it needs"),
        ({"query": ""}, "query must have at least 1 characters, not 0"),
        ({"query": 5}, "query must be string, not int"),
        ({"query": "a", "limit": True}, "limit must be integer, not bool"),
        ({"query": "a", "limit": 11}, "limit must be at most 10, not 11"),
        ({"query": "a", "sort": "size"}, "sort must be one of 'date', 'name'"),
        ({"query": "a", "tags": ["x", 1]}, "tags[1] must be string, not int"),
        ({"query": "a", "tags": ["x", "y", "z"]}, "tags must have at most 2 items, not 3"),
        ({"query": "a", "where": {}}, "where must be null, not dict"),
        ({"query": "a", "other": 1}, "['other'] is not expected"),
    ],
)
def test_arguments_are_checked_by_a_schema(arguments: dict[str, Any], said: str) -> None:
    tool = Tool(of_all, name="find", input_schema=SCHEMA)
    with pytest.raises(ArgumentError) as caught:
        invoked(tool, [], arguments)
    assert str(caught.value) == said


def test_a_property_may_have_any_name() -> None:
    names = {"from": "who sends it", "a-b": "", "others": "", "to": "who gets it"}
    properties = {name: {"type": "string", "description": said} for name, said in names.items()}
    for more in ({}, {"additionalProperties": False}):
        tool = Tool(of_all, name="mail", input_schema={"properties": properties, **more})
        stub = tool.stub()
        compile(stub, "stub", "exec")
        assert stub.startswith(
            "def mail(*, others: str = ..., to: str = ..., **others_: Any) -> Any:"
        )
        assert "    from: who sends it\n" in stub and "    to: who gets it\n" in stub
        assert "Pass these as **{name: value}: 'from': str, 'a-b': str" in stub
        assert invoked(tool, [], {"from": "x", "a-b": "y"}) == {"from": "x", "a-b": "y"}
    with pytest.raises(TypeError, match=r"arguments are passed by name \(from, a-b, others, to\)"):
        invoked(tool, ["x"], {})


def test_a_schema_may_name_nothing() -> None:
    tool = Tool(of_all, name="find", input_schema={})
    assert tool.stub().startswith("def find(**others: Any) -> Any:")
    assert invoked(tool, [], {"x": 1}) == {"x": 1}


def test_a_stub_has_the_objects_that_a_schema_names() -> None:
    address = {
        "type": "object",
        "properties": {
            "street": {"type": "string", "description": "with its\nnumber"},
            "from": {"type": "string"},
            "near": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}]},
        },
        "required": ["street"],
    }
    schema = {
        "properties": {
            "to": {"$ref": "#/$defs/Address"},
            "all": {"type": "array", "items": {"$ref": "#/$defs/Address"}},
            "pet": {"oneOf": [{"title": "Cat", "properties": {"lives": {"type": "integer"}}}]},
            "loop": {"$ref": "#/$defs/loop"},
        },
        "$defs": {"Address": address, "loop": {"$ref": "#/$defs/loop"}},
        "required": ["to"],
        "additionalProperties": False,
    }
    tool = Tool(of_all, name="send", input_schema=schema)
    assert tool.stub().startswith(
        "class Address(TypedDict):\n"
        "    street: str  # with its number\n"
        "    # 'from': str\n"
        "    near: NotRequired[Address | None]\n"
        "\n"
        "class Cat(TypedDict):\n"
        "    lives: NotRequired[int]\n"
        "\n"
        "def send(*, to: Address, all: list[Address] = ..., pet: Cat = ..., loop: Any = ...)"
    )
    assert "class Address" in tool.inside()[1]


def test_one_alternative_alone_may_fit() -> None:
    tool = taking({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]})
    for good in (1, 5.5):
        assert invoked(tool, [], {"t": good}) == {"t": good}
    for bad, said in ((6, "what 2 alternatives of its schema say"), ("6", "must be integer")):
        with pytest.raises(ArgumentError, match=said):
            invoked(tool, [], {"t": bad})


def test_a_schema_and_annotations_both_hold() -> None:
    def move(point: Point, by) -> Point:  # type: ignore[no-untyped-def]
        return Point(point.x + by)

    properties = {"point": {"required": ["x"]}, "by": {"type": "number", "maximum": 9}}
    tool = Tool(move, input_schema={"properties": properties})
    assert invoked(tool, [{"x": 1.0}, 2], {}) == Point(3.0)
    for arguments in ([{"y": 1.0}, 2], [{"x": "1"}, 2], [{"x": 1.0}, 10], [{"x": 1.0}, "2"]):
        with pytest.raises(ArgumentError):
            invoked(tool, arguments, {})
    assert "def move(point: Point, by: float) -> Point:" in tool.stub()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([], "as a dict, not list"),
        ({"type": "array"}, "is of an object"),
        ({"properties": {"query": {"pattern": "^a"}}}, "'pattern', which is not checked"),
        ({"properties": {"query": {"type": "text"}}}, "unknown type 'text'"),
        ({"properties": {"query": {"$ref": "https://example.com/a"}}}, "which is not in it"),
        ({"properties": {"query": 5}}, "which is not a schema"),
        ({"properties": []}, "has 'properties': [], which it cannot be"),
        ({"required": True}, "has 'required': True, which"),
        ({"properties": {"query": {"minimum": "5"}}}, "has 'minimum': '5', which"),
        ({"properties": {"query": {"maxLength": True}}}, "has 'maxLength': True, which"),
        ({"properties": {"query": {"enum": "a"}}}, "has 'enum': 'a', which"),
        ({"properties": {"query": {"uniqueItems": 1}}}, "has 'uniqueItems': 1, which"),
        ({"properties": {"query": {"multipleOf": 0}}}, "has 'multipleOf': 0, which"),
        ({"properties": {"query": {"not": []}}}, "has 'not': [], which"),
        ({"properties": {"query": {"dependentRequired": {"a": "b"}}}}, "'dependentRequired': {'a'"),
        ([1], "as a dict, not list"),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused(schema: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        Tool(of_all, input_schema=schema)
    assert said in str(caught.value)


def test_a_parameter_that_neither_names_is_refused() -> None:
    def use(x, y):  # type: ignore[no-untyped-def]
        return x

    with pytest.raises(TypeError, match="'y' has neither an annotation nor a place"):
        Tool(use, input_schema={"properties": {"x": {}}})


def test_checking_by_a_schema_has_an_end() -> None:
    tree = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/t"}}] * 2}
    schema = {"properties": {"t": {"$ref": "#/$defs/t"}}, "$defs": {"t": tree}}
    tool = Tool(of_all, input_schema=schema)
    deep: Any = []
    for _ in range(20):
        deep = [deep]
    assert invoked(tool, [], {"t": deep}) == {"t": deep}
    deep = 5
    for _ in range(60):
        deep = [deep]
    with pytest.raises(ArgumentError, match="too large, or nested too deeply"):
        invoked(tool, [], {"t": deep})
    loop = {"properties": {"t": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    with pytest.raises(ArgumentError, match="too large, or nested too deeply"):
        invoked(Tool(of_all, input_schema=loop), [], {"t": 1})


def test_what_is_sent_of_a_tool_is_plain_data() -> None:
    name, documentation, parameters, result, how = Tool(find).inside()
    assert (name, result, how) == ("find", "list[Query]", 0)
    assert documentation.startswith("Finds it.\n\nclass Query(TypedDict):")
    assert parameters[0] == ("query", 1, "Query", None)
    assert parameters[-1] == ("deep", 3, "bool", "...")  # the default is the host's


def taking(schema: Any, **defs: Any) -> Tool:
    """Its argument `t` is checked by this."""
    return Tool(of_all, input_schema={"properties": {"t": schema}, "$defs": defs})


@pytest.mark.parametrize(
    ("schema", "fits", "does_not"),
    [
        ({"multipleOf": 5}, [0, -10, 10.0, "text", True], [3, 2.5, math.inf, math.nan]),
        ({"multipleOf": 0.1}, [0.3, 1, 1e300, -0.7], [0.25, 1e-300, 1 << 5000]),
        ({"multipleOf": 2.0}, [4, 4.0], [3]),
        ({"uniqueItems": True}, [[], [1, "1", True, [1], {"a": 1}], "aa"], [[1, 1.0], [[1], [1]]]),
        ({"uniqueItems": True}, [[{"a": [1]}, {"a": [2]}]], [[{"a": 1, "b": 2}, {"b": 2, "a": 1}]]),
        ({"uniqueItems": False}, [[1, 1]], []),
        ({"uniqueItems": True}, [[1 << 20_000, 1 << 20_001]], [[1 << 20_000] * 2]),
        ({"type": "string", "nullable": True, "maxLength": 1}, ["a", None], ["ab", 5]),
        ({"type": "string", "nullable": False}, ["a"], [None]),
        ({"type": "string", "x-order": 3, "x-kind": {"pattern": "a"}}, ["a"], [5]),
        ({"not": {"type": "string"}}, [5, None], ["a"]),
        ({"not": {"$ref": "#/$defs/text"}}, [5], ["a"]),
        (
            {"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"minimum": 5}},
            ["a", 5, None],
            ["ab", 4],
        ),
        ({"if": {"type": "string"}, "then": False}, [5], ["a"]),
        ({"then": False, "else": False}, [5], []),
        ({"propertyNames": {"maxLength": 2}}, [{"ab": 1}, "abc"], [{"abc": 1}]),
        ({"dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}, 5], [{"a": 1}]),
    ],
)
def test_what_other_keywords_say_is_checked(
    schema: dict[str, Any], fits: list[Any], does_not: list[Any]
) -> None:
    tool = taking(schema, text={"type": "string"})
    for value in fits:
        assert invoked(tool, [], {"t": value}) == {"t": value}
    for value in does_not:
        with pytest.raises(ArgumentError, match=r"^t"):
            invoked(tool, [], {"t": value})


def test_other_keywords_take_no_longer_for_chosen_values() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    many = [[n, *range(1000)] for n in range(300)]
    unique, multiple = taking({"uniqueItems": True}), taking({"multipleOf": 0.1})
    for tool, value in (
        (unique, [deep]),
        (unique, many),
        (unique, [str(n) + "x" * (1 << 20) for n in range(30)]),
        (unique, [Fraction(10**5000, 7)]),
        (multiple, 1 << (1 << 24)),
        (taking({"not": {"uniqueItems": True}}), many),
    ):
        with pytest.raises(ArgumentError, match=r"too large|a multiple of"):
            invoked(tool, [], {"t": value})
    same_hash = [n * ((1 << 61) - 1) for n in range(20_000)]
    assert invoked(unique, [], {"t": same_hash}) == {"t": same_hash}


def test_a_schema_is_what_it_was_when_the_tool_was_made() -> None:
    schema: dict[str, Any] = {"enum": [1, 2]}
    tool = taking(schema)
    schema["enum"].append(3)
    with pytest.raises(ArgumentError, match=r"must be one of 1, 2$"):
        invoked(tool, [], {"t": 3})


def test_a_value_is_found_among_many_as_among_few() -> None:
    """Looking through a million for each of a hundred thousand would take an hour."""
    tool = taking({"items": {"enum": [*range(1_000_000), "last"]}})
    values = [999_999] * 100_000 + ["last"]
    assert invoked(tool, [], {"t": values}) == {"t": values}
    for other in (1_000_000, True, 1.0, "1", None, [], 10**1_000_000):
        with pytest.raises(ArgumentError) as caught:
            invoked(tool, [], {"t": [other]})
        assert str(caught.value).startswith("t[0] must be one of 0, 1, 2, ")
        assert str(caught.value).endswith(" 19 or 999,981 others")


def test_a_value_of_values_is_found_by_its_types() -> None:
    tool = taking({"enum": [[1, {"a": None}], {"b": [2]}, 5]})
    for good in ([1, {"a": None}], {"b": [2]}, 5):
        assert invoked(tool, [], {"t": good}) == {"t": good}
    for bad in ([1, {"a": 0}], (1, {"a": None}), {"b": [3]}, {}, 5.0):
        with pytest.raises(ArgumentError, match="must be one of"):
            invoked(tool, [], {"t": bad})


# What a check costs that is made for each of many ways to read a value.
WAYS = {
    "many properties": ({"properties": {"x": {}}}, dict.fromkeys(map(str, range(100_000)))),
    "many others": (
        {"properties": {"x": {}}, "additionalProperties": {}},
        dict.fromkeys(map(str, range(100_000))),
    ),
    "many items": ({"prefixItems": [{}] * 100_000, "items": {}}, [0] * 100_001),
    "many that are required": (
        {"required": list(map(str, range(100_000)))},
        dict.fromkeys(map(str, range(100_000))),
    ),
    "large values": ({"enum": [[[0] * 100_000, n] for n in range(10)]}, [[0] * 100_000, 10]),
    "a long name": ({"additionalProperties": False}, {"n" * 4_000_000: 0}),
    "a large number": ({"enum": [1]}, 1 << 30_000_000),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_check_is_not_made_of_a_large_value_over_and_over(name: str) -> None:
    """Nor of a schema: a hundred thousand times this would be hours."""
    schema, value = WAYS[name]
    either = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/either"}}] * 2 + [
        {"allOf": [schema, False]}]}  # fmt: skip
    tool = taking({"$ref": "#/$defs/either"}, either=either)
    for _ in range(16):
        value = [value]
    with pytest.raises(ArgumentError) as caught:
        invoked(tool, [], {"t": value})
    assert len(str(caught.value)) < 1000


def test_a_number_that_is_too_large_to_be_written_is_named_all_the_same() -> None:
    with pytest.raises(ArgumentError, match="must be at most 10, not <int of 3,321,929 bits>"):
        invoked(taking({"maximum": 10}), [], {"t": 10**1_000_000})


# ---- sets of what code inside has chosen


def take_numbers(numbers: set[int]) -> int:
    return len(numbers)


def take_more(pairs: frozenset[tuple[int, bool]], ids: set[uuid.UUID]) -> tuple[int, int]:
    return len(pairs), len(ids)


def test_numbers_that_all_have_one_hash_make_no_set() -> None:
    """Twenty thousand of them would take seconds."""
    modulus = (1 << 61) - 1
    numbers = [n * modulus for n in range(20_000)]
    with pytest.raises(ArgumentError, match="numbers has more than 100 values of the same hash"):
        invoked(Tool(take_numbers), [numbers], {})
    with pytest.raises(ArgumentError, match="pairs has more than 100 values of the same hash"):
        invoked(Tool(take_more), [[(n, True) for n in numbers], []], {})
    ids = [str(uuid.UUID(int=n)) for n in numbers]
    with pytest.raises(ArgumentError, match="ids has more than 100 values of the same hash"):
        invoked(Tool(take_more), [[], ids], {})


def test_other_numbers_do() -> None:
    """The harmless counterpart."""
    numbers = [*range(-20_000, 20_000), *[7] * 10_000, *((1 << 61) - 1 << n for n in range(90))]
    assert invoked(Tool(take_numbers), [numbers], {}) == 40_090
    pairs = [(n, True) for n in numbers[20_000:]]
    assert invoked(Tool(take_more), [pairs, []], {}) == (20_090, 0)


@dataclass
class _Circle:
    radius: float


@dataclass
class _Square:
    side: float


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"width": 1}, "(as _Circle: has no field 'width'; as _Square: has no field 'width')"),
        (
            {"side": "1"},
            "(as _Circle: has no field 'side'; as _Square: .side must be float, not str",
        ),
        (3, ", not int"),
    ],
)
def test_what_is_none_of_several_classes_is_refused_by_name(shape: Any, said: str) -> None:
    def area(shape: _Circle | _Square | None) -> str:
        return type(shape).__name__

    tool = Tool(area)
    assert invoked(tool, [{"side": 2}], {}) == "_Square"
    with pytest.raises(TypeError) as caught:
        invoked(tool, [shape], {})
    assert f"shape must be _Circle | _Square | None{' ' * (said[0] == '(')}{said}" in str(
        caught.value
    )


# ---- what a model is shown


def google(query: str, *tags: str, limit: int = 5) -> None:
    """Finds pages.

    Args:
        query (str): what to look for,
            in any language
        *tags: what they have
        limit: how many: at most 10

    Returns:
        None: nothing
    """


def numpy(query: str, limit: int = 5) -> None:
    """Finds pages.

    Parameters
    ----------
    query : str
        what to look for,
        in any language
    limit : int, optional
        how many: at most 10

    Returns
    -------
    query : None
    """


def sphinx(query: str, limit: int = 5) -> None:
    """Finds pages.

    :param query: what to look for,
        in any language
    :param int limit: how many: at most 10
    :returns: nothing
    """


def metadata(
    query: Annotated[str, "what to look for, in any language"],
    limit: Annotated[int, pydantic.Field(description="how many: at most 10", le=10)] = 5,
) -> None:
    """Finds pages."""


@pytest.mark.parametrize("fn", [google, numpy, sphinx, metadata])
def test_parameters_have_the_descriptions_that_they_are_given(fn: Any) -> None:
    properties = Tool(fn).schema["properties"]
    said = "what to look for, in any language"
    assert properties["query"] == {"type": "string", "description": said}
    assert properties["limit"]["description"] == "how many: at most 10"
    assert properties["limit"]["default"] == 5
    if fn is google:
        assert properties["tags"]["description"] == "what they have"


def test_bounds_are_in_the_schema_and_what_only_an_annotation_says_in_the_stub() -> None:
    tool = Tool(metadata)
    assert tool.schema["properties"]["limit"]["maximum"] == 10
    assert tool.stub() == (
        "def metadata(query: str, limit: int = 5) -> None:\n"
        '    """Finds pages.\n'
        "\n"
        "    Args:\n"
        "        query: what to look for, in any language\n"
        "        limit: how many: at most 10\n"
        '    """\n'
        "    ..."
    )
    assert Tool(google).stub().count("how many") == 1

    def sized(
        items: Annotated[list[int], pydantic.Field(min_length=1)],
        counts: Annotated[dict[str, int], pydantic.Field(max_length=2)],
        shape: Annotated[Point, "where"],
    ) -> None: ...

    schema = Tool(sized).schema["properties"]
    assert schema["items"] == {"type": "array", "items": {"type": "integer"}, "minItems": 1}
    assert schema["counts"]["maxProperties"] == 2 and schema["shape"]["description"] == "where"


class Period(enum.Enum):
    DAY = datetime.timedelta(1)
    WEEK = datetime.timedelta(7)


@dataclass
class Trip:
    when: datetime.datetime = datetime.datetime(2024, 1, 2, 3, 4)
    price: Decimal = Decimal("1.5")
    to: Annotated[str, "a city,\nin English"] = "Bern"


@pytest.mark.parametrize(
    ("annotation", "default", "shown"),
    [
        (datetime.datetime, datetime.datetime(2024, 1, 2, 3, 4), "2024-01-02T03:04:00"),
        (Path, Path("a/b"), "a/b"),
        (set[str], frozenset({"b", "a"}), ["a", "b"]),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (list[datetime.date], [datetime.date(2024, 1, 2)], ["2024-01-02"]),
        (dict[str, Decimal], {"a": Decimal(1)}, {"a": "1"}),
        (Trip, Trip(), {"when": "2024-01-02T03:04:00", "price": "1.5", "to": "Bern"}),
        (Period, Period.DAY, None),
        (float, float("inf"), None),
        (list[float], [float("nan")], None),
        (bytes, b"a", None),
        (int, object(), None),
        (list[int], [0] * 1000, [0] * 1000),
    ],
)
def test_a_schema_is_json_and_a_stub_python_whatever_the_defaults(
    annotation: Any, default: Any, shown: Any
) -> None:
    def use(x: Any = default) -> None: ...

    use.__annotations__["x"] = annotation
    tool = Tool(use)
    for made in (tool.schema, tool.to_openai(), tool.to_anthropic(), tool.to_mcp()):
        json.dumps(made, allow_nan=False)
    assert tool.schema["properties"]["x"].get("default") == shown
    compile(tool.stub(), "stub", "exec")
    assert (" = ...) -> None" in tool.stub()) == (shown is None or len(shown) == 1000)


def test_fields_of_classes_have_their_descriptions_and_defaults() -> None:
    class Event(TypedDict):
        title: Annotated[str, pydantic.Field(description="as in a calendar")]

    class Guest(pydantic.BaseModel):
        name: str = pydantic.Field(description="in full")

    def invite(event: Event, guests: list[Guest], trip: Optional[Trip] = None) -> Trip: ...

    invite.__annotations__.update(event=Event, guests=list[Guest])
    tool = Tool(invite)
    properties = tool.schema["properties"]
    assert properties["event"]["properties"]["title"]["description"] == "as in a calendar"
    assert properties["guests"]["items"]["properties"]["name"]["description"] == "in full"
    trip = properties["trip"]["anyOf"][0]["properties"]
    assert trip["to"] == {"type": "string", "default": "Bern", "description": "a city,\nin English"}
    assert trip["when"]["default"] == "2024-01-02T03:04:00" and trip["price"]["default"] == "1.5"
    stub = tool.stub()
    assert "    title: str  # as in a calendar\n" in stub and "    name: str  # in full\n" in stub
    assert "    to: NotRequired[str]  # a city, in English\n" in stub
    json.dumps(tool.output_schema)


def test_a_stub_says_which_parameters_have_no_name() -> None:
    def some(a: int, /, b: int, *, c: int) -> None: ...
    def all_of_them(a: int, b: int, /) -> None: ...
    def then_more(a: int, /, *more: int) -> None: ...

    for fn in (some, all_of_them, then_more):
        space: dict[str, Any] = {}
        exec(Tool(fn).stub(), space)
        found = inspect.signature(space[fn.__name__]).parameters.values()
        wanted = inspect.signature(fn).parameters.values()
        assert [(one.name, one.kind) for one in found] == [(one.name, one.kind) for one in wanted]


def test_a_stub_is_python_whatever_its_documentation_holds() -> None:
    def odd(x: int = 1) -> None: ...

    for text in ('Says """ and \\ and\nmore', 'ends with "', "ends with \\", '"""', "\\N{x"):
        odd.__doc__ = text
        space: dict[str, Any] = {}
        exec(Tool(odd).stub(), space)
        assert inspect.getdoc(space["odd"]) == text


def test_a_tool_for_a_models_api() -> None:
    tool = Tool(search)
    parameters = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "limit": {"type": "integer", "default": 3},
        },
        "required": ["text"],
    }
    about = {"name": "search", "description": "Finds pages."}
    assert tool.to_openai() == {"type": "function", "function": {**about, "parameters": parameters}}
    assert tool.to_anthropic() == {**about, "input_schema": parameters}
    assert tool.to_mcp() == {**about, "inputSchema": parameters}
    assert Tool(find).to_mcp().keys() == {*about, "inputSchema"}  # a list is no object
    tool.to_openai()["function"]["parameters"]["properties"].clear()
    assert tool.schema == parameters
    shape = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert Tool(search, output_schema=shape).to_mcp()["outputSchema"] == shape
    bare = Tool(of_all, name="find", input_schema={"additionalProperties": False})
    assert bare.to_anthropic()["input_schema"]["type"] == "object"
    for name in ("é", "a" * 65):
        with pytest.raises(ValueError, match="is no name for a model's API: give it name="):
            Tool(search, name=name).to_openai()


# ---- approval


def require_approved(tool: Tool) -> None:
    call = ToolCall(tool, ["a"], {})
    call.require_approved(call.approval())


@pytest.mark.parametrize("said", [False, None, 1, "no", "yes", [], object()])
def test_only_true_approves(said: Any) -> None:
    tool = Tool(search, approve=lambda name, arguments: said)
    with pytest.raises(PermissionError, match="was not approved"):
        require_approved(tool)
    tool = Tool(search, approve=lambda name, arguments: arguments == {"text": "a"})
    require_approved(tool)


def test_who_approves_later_needs_a_loop() -> None:
    async def later(name: str, arguments: dict[str, Any]) -> bool:
        return True

    class Asks:
        async def __call__(self, name: str, arguments: dict[str, Any]) -> bool:
            return True

    for approve in (later, Asks(), functools.partial(later)):
        assert Tool(search, approve=approve).needs_loop
    assert not Tool(search, approve=lambda name, arguments: True).needs_loop
