# SPDX-License-Identifier: Apache-2.0
"""Values of sessions travel as JSON and come back the same, or not at all."""

from __future__ import annotations

import datetime
import json
import math
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from hutch._remote.values import MOST_VALUES, NotData, from_json, to_json

UTC = datetime.timezone.utc
HASHABLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=())),
    st.binary(),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([UTC, None])).map(lambda one: one.replace(fold=0)),
    st.times().map(lambda one: one.replace(fold=0)),
    st.timedeltas(),
    st.complex_numbers(allow_nan=False),
)
DATA = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(HASHABLE, inner),
        st.dictionaries(st.sampled_from(["a", "$a", "$int", ""]), inner),
        st.sets(HASHABLE),
        st.frozensets(HASHABLE),
        st.binary().map(bytearray),
    ),
    max_leaves=20,
)


@given(DATA)
def test_data_comes_back_the_same(value: Any) -> None:
    text = json.dumps(to_json(value), allow_nan=False)
    text.encode()  # no half of a surrogate pair
    found = from_json(json.loads(text))
    assert found == value and type(found) is type(value)


def test_what_is_no_number_comes_back() -> None:
    assert math.isnan(from_json(to_json(math.nan)))
    assert from_json(to_json([math.inf, -math.inf])) == [math.inf, -math.inf]


class Own(int):
    pass


@pytest.mark.parametrize(
    "value",
    [
        object(),
        len,
        Own(3),
        {"a": [{1: Own(3)}]},
        [0] * MOST_VALUES,
        Decimal(10**2000),
        Fraction(1, 10**2000),
        datetime.time(1, fold=1),
        datetime.time(tzinfo=datetime.timezone(datetime.timedelta(hours=1), "CET")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_data_does_not_travel(value: Any) -> None:
    with pytest.raises(NotData):
        to_json(value)


def test_what_is_nested_too_deep_does_not_travel() -> None:
    value: Any = 1
    for _ in range(100):
        value = (value,)
    with pytest.raises(NotData, match="deep"):
        to_json(value)
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(NotData):
        to_json(itself)


@pytest.mark.parametrize(
    "found",
    [
        {"$unknown": 1},
        {"$int": 3},
        {"$int": "x"},
        {"$int": "0x1", "b": 2},
        {"$float": "1" * 40},
        {"$bytes": "?"},
        {"$tuple": "ab"},
        {"$set": [[1]]},
        {"$dict": [[1]]},
        {"$dict": [[[1], 2]]},
        {"$Decimal": "1" * 2000},
        {"$Decimal": "x"},
        {"$Fraction": ["0x1", "0x0"]},
        {"$Fraction": [1, 2]},
        {"$Fraction": ["0x" + "f" * 2000, "0x3"]},
        {"$set": [place * (2**61 - 1) for place in range(1, 1000)]},
        {"$frozenset": [{"$int": hex(place * (2**61 - 1) + 5)} for place in range(1000)]},
        {"$dict": [[{"$tuple": [place * (2**61 - 1)]}, 1] for place in range(1, 1000)]},
        {"$complex": ["1"]},
        {"$UUID": "0" * 31},
        {"$datetime": "yesterday"},
        {"$timedelta": [1 << 70, 0, 0]},
        {"$timedelta": [[], 0, 0]},
        {"a": {"$frozenset": {}}},
    ],
)
def test_what_nobody_encodes_is_refused(found: Any) -> None:
    with pytest.raises(ValueError):
        from_json(found)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.floats()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(
                st.sampled_from(["$int", "$dict", "$tuple", "$set", "$date", "$Fraction", "$str",
                                 "$time", "$timedelta", "$complex", "$UUID", "$Decimal", "a"]),
                inner, max_size=2,
            ),
        ),
    )
)  # fmt: skip
def test_hostile_json_is_a_value_or_refused(found: Any) -> None:
    try:
        from_json(found)
    except ValueError:
        pass


@pytest.mark.parametrize(
    "value",
    [set(range(50_000)), {1.5 * one for one in range(50_000)}, {str(one) for one in range(50_000)},
     dict.fromkeys(range(0, 40_000 << 20, 1 << 20)), {(one, "x") for one in range(20_000)},
     {2**one for one in range(60)}, {-one for one in range(1000)}],
)  # fmt: skip
def test_honest_keys_are_spread(value: Any) -> None:
    assert from_json(to_json(value)) == value


def test_kinds_are_kept() -> None:
    value = [uuid.UUID(int=5), Fraction(1, 3), True, 1, 1.0, {1: "a"}, {"1": "a"}]
    assert [type(one) for one in from_json(to_json(value))] == [type(one) for one in value]
