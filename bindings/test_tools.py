# SPDX-License-Identifier: Apache-2.0
"""Tools as they are defined: schemas, stubs, and how arguments are checked and built."""

from __future__ import annotations

import datetime
import functools
import uuid
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Optional

import pydantic
import pytest

from hutch import Tool
from hutch._tool_types import ArgumentError


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
    with pytest.raises(TypeError, match=r"grow\(tree\): a dataclass that holds itself"):
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
    assert tool.invoke([], given) == fn(**given)
    with pytest.raises(ArgumentError, match=f"{schema[0]} must be"):
        tool.invoke([], {**given, schema[0]: None})


def test_a_tool_that_is_awaited_is_known_as_one() -> None:
    assert Tool(functools.partial(Searcher().later, "a"), name="later").is_async


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
        (Decimal, "1.10", Decimal("1.10")),
        (uuid.UUID, "{00000000-0000-0000-0000-000000000007}", uuid.UUID(int=7)),
    ],
)
def test_a_value_may_come_as_itself_or_as_text(kind: Any, text: str, value: Any) -> None:
    def use(x: Any, y: Any = value) -> Any:
        return x

    use.__annotations__.update(x=kind, y=list[kind] | None)
    tool = Tool(use)
    assert tool.schema["properties"]["x"]["type"] == "string"
    assert tool.schema["properties"]["y"]["default"] == str(value)
    for given in (text, value):
        built = tool.invoke([given], {})
        assert built == value and type(built) is kind
    for given in ("nonsense", "1" * 5000, 5, None):
        with pytest.raises(ArgumentError, match="x must be"):
            tool.invoke([given], {})
    with pytest.raises(ArgumentError, match=r"y must be"):
        tool.invoke([text], {"y": ["nonsense"]})


@pytest.mark.parametrize("kind", [Path, complex, object, type, datetime.timedelta])
def test_an_annotation_that_is_refused_says_what_is_allowed(kind: Any) -> None:
    def use(x: Any) -> None: ...

    use.__annotations__["x"] = kind
    with pytest.raises(TypeError, match=r"take str, int, .* a path is a str|take str, int"):
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


def of_all(**arguments):  # type: ignore[no-untyped-def]
    """Finds pages."""
    return arguments


def test_a_schema_takes_the_place_of_annotations() -> None:
    tool = Tool(of_all, name="find", input_schema=SCHEMA)
    assert tool.schema is SCHEMA
    assert tool.stub().startswith(
        "def find(*, query: str, limit: int = ..., sort: Literal['date', 'name'] = ..., "
        "tags: list[Any] = ..., where: None | dict = ...) -> Any:"
    )
    given = {"query": "a", "limit": 2, "sort": "date", "tags": ["x"], "where": None}
    assert tool.invoke([], given) == given


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
        tool.invoke([], arguments)
    assert str(caught.value) == said


def test_a_schema_and_annotations_both_hold() -> None:
    def move(point: Point, by) -> Point:  # type: ignore[no-untyped-def]
        return Point(point.x + by)

    properties = {"point": {"required": ["x"]}, "by": {"type": "number", "maximum": 9}}
    tool = Tool(move, input_schema={"properties": properties})
    assert tool.invoke([{"x": 1.0}, 2], {}) == Point(3.0)
    for arguments in ([{"y": 1.0}, 2], [{"x": "1"}, 2], [{"x": 1.0}, 10], [{"x": 1.0}, "2"]):
        with pytest.raises(ArgumentError):
            tool.invoke(arguments, {})
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
        ({"properties": {"query": {"uniqueItems": True}}}, "'uniqueItems', which is not checked"),
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
    assert tool.invoke([], {"t": deep}) == {"t": deep}
    deep = 5
    for _ in range(60):
        deep = [deep]
    with pytest.raises(ArgumentError, match="too large, or nested too deeply"):
        tool.invoke([], {"t": deep})
    loop = {"properties": {"t": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    with pytest.raises(ArgumentError, match="too large, or nested too deeply"):
        Tool(of_all, input_schema=loop).invoke([], {"t": 1})


def test_what_is_sent_of_a_tool_is_plain_data() -> None:
    name, documentation, parameters, result = Tool(find).inside()
    assert (name, result) == ("find", "list[Query]")
    assert documentation.startswith("Finds it.\n\nclass Query(TypedDict):")
    assert parameters[0] == ("query", 1, "Query", None)
    assert parameters[-1] == ("deep", 3, "bool", "False")


def taking(schema: Any, **defs: Any) -> Tool:
    """Its argument `t` is checked by this."""
    return Tool(of_all, input_schema={"properties": {"t": schema}, "$defs": defs})


def test_a_schema_is_what_it_was_when_the_tool_was_made() -> None:
    schema: dict[str, Any] = {"enum": [1, 2]}
    tool = taking(schema)
    schema["enum"].append(3)
    with pytest.raises(ArgumentError, match=r"must be one of 1, 2$"):
        tool.invoke([], {"t": 3})


def test_a_value_is_found_among_many_as_among_few() -> None:
    """Looking through a million for each of a hundred thousand would take an hour."""
    tool = taking({"items": {"enum": [*range(1_000_000), "last"]}})
    values = [999_999] * 100_000 + ["last"]
    assert tool.invoke([], {"t": values}) == {"t": values}
    for other in (1_000_000, True, 1.0, "1", None, [], 10**1_000_000):
        with pytest.raises(ArgumentError) as caught:
            tool.invoke([], {"t": [other]})
        assert str(caught.value).startswith("t[0] must be one of 0, 1, 2, ")
        assert str(caught.value).endswith(" 19 or 999,981 others")


def test_a_value_of_values_is_found_by_its_types() -> None:
    tool = taking({"enum": [[1, {"a": None}], {"b": [2]}, 5]})
    for good in ([1, {"a": None}], {"b": [2]}, 5):
        assert tool.invoke([], {"t": good}) == {"t": good}
    for bad in ([1, {"a": 0}], (1, {"a": None}), {"b": [3]}, {}, 5.0):
        with pytest.raises(ArgumentError, match="must be one of"):
            tool.invoke([], {"t": bad})


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
        tool.invoke([], {"t": value})
    assert len(str(caught.value)) < 1000


def test_a_number_that_is_too_large_to_be_written_is_named_all_the_same() -> None:
    with pytest.raises(ArgumentError, match="must be at most 10, not <int of 3,321,929 bits>"):
        taking({"maximum": 10}).invoke([], {"t": 10**1_000_000})


# ---- sets of what code inside has chosen


def take_numbers(numbers: set[int]) -> int:
    return len(numbers)


def take_more(pairs: frozenset[tuple[int, bool]], ids: set[uuid.UUID]) -> tuple[int, int]:
    return len(pairs), len(ids)


def test_numbers_that_all_have_one_hash_make_no_set() -> None:
    """A hundred thousand of them would take minutes."""
    modulus = (1 << 61) - 1
    numbers = [n * modulus for n in range(100_000)]
    with pytest.raises(ArgumentError, match="numbers has more than 100 values of the same hash"):
        Tool(take_numbers).invoke([numbers], {})
    with pytest.raises(ArgumentError, match="pairs has more than 100 values of the same hash"):
        Tool(take_more).invoke([[(n, True) for n in numbers], []], {})
    ids = [str(uuid.UUID(int=n)) for n in numbers]
    with pytest.raises(ArgumentError, match="ids has more than 100 values of the same hash"):
        Tool(take_more).invoke([[], ids], {})


def test_other_numbers_do() -> None:
    """The harmless counterpart."""
    numbers = [*range(-100_000, 100_000), *[7] * 100_000, *((1 << 61) - 1 << n for n in range(90))]
    assert Tool(take_numbers).invoke([numbers], {}) == 200_090
    assert Tool(take_more).invoke([[(n, True) for n in numbers], []], {}) == (200_090, 0)


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
    assert tool.invoke([{"side": 2}], {}) == "_Square"
    with pytest.raises(TypeError) as caught:
        tool.invoke([shape], {})
    assert f"shape must be _Circle | _Square | None{' ' * (said[0] == '(')}{said}" in str(
        caught.value
    )
