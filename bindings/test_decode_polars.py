# SPDX-License-Identifier: Apache-2.0
"""polars' frames and columns as results: equal with their types; hostile forms refused."""

from __future__ import annotations

import datetime
import decimal
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hutch import Outcome, _core

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_decode_arrays import mark, refused, round_trip

pl = pytest.importorskip("polars", reason="polars is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

NOW = datetime.datetime(2024, 1, 1, 12, 30)
COLUMNS = {
    "int": [1, None, 3],
    "small": pl.Series([1, None, 3], dtype=pl.UInt8),
    "float": [0.5, None, float("inf")],
    "single": pl.Series([0.5, None, 3], dtype=pl.Float32),
    "bool": [True, None, False],
    "text": ["a", None, "äöü" * 100],
    "bytes": [b"a", None, b""],
    "date": [NOW.date(), None, NOW.date()],
    "time": [NOW.time(), None, NOW.time()],
    "at": [NOW, None, NOW],
    "ms": pl.Series([NOW, None, NOW], dtype=pl.Datetime("ms", "Europe/Berlin")),
    "span": [datetime.timedelta(1, 2, 3), None, datetime.timedelta(0)],
    "decimal": [decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")],
    "category": pl.Series(["a", None, "a"], dtype=pl.Categorical),
    "list": [["a"], None, []],
    "array": pl.Series([[1, 2], None, [3, None]], dtype=pl.Array(pl.Int16, 2)),
    "struct": [{"x": 1, "y": ["a", None]}, None, {"x": 3, "y": None}],
    "null": [None, None, None],
}


def frames() -> list[Any]:
    whole = pl.DataFrame(COLUMNS)
    return [
        whole,
        whole.slice(1, 1),
        whole.head(0),
        pl.DataFrame(),
        pl.concat([whole, whole.slice(1)], rechunk=False),
        pl.DataFrame({"": [1], 'a"b\n': [2], "column_0": [3]}),
    ]


@pytest.mark.parametrize("number", range(6))
def test_frames_and_columns_come_back_equal(number: int) -> None:
    frame = frames()[number]
    result = round_trip([frame])[0]
    assert result.schema == frame.schema
    assert result.equals(frame, null_equal=True)
    for column in frame:
        back = round_trip({"column": column})["column"]
        assert back.name == column.name and back.dtype == column.dtype
        assert back.equals(column, null_equal=True)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (pl.DataFrame({"a": [1]}).lazy(), "x.collect()"),
        (pl.DataFrame({"e": pl.Series(["a"], dtype=pl.Enum(["a"]))}), "pl.Categorical"),
        (pl.DataFrame({"l": pl.Series([["a"]], dtype=pl.List(pl.Enum(["a"])))}), "pl.Categorical"),
        (pl.DataFrame({"o": [object()]}), "a column of text"),
        (pl.Series([object()]), "a column of text"),
        (pl.Series([1 << 100], dtype=pl.Int128), "cast the column"),
    ],
)
def test_what_does_not_travel_says_what_to_do(value: Any, hint: str) -> None:
    with pytest.raises(Exception, match=re.escape(hint)):
        round_trip(value)


def arrow(array: Any) -> Any:
    return pa.chunked_array([array])


HOSTILE = {
    "object": pa.array([b"12345678"], pa.binary(8)),
    "map": pa.array([[("k", 1)]], pa.map_(pa.large_string(), pa.int8())),
    "wide decimal": pa.array([None], pa.decimal256(50, 2)),
    "dictionary of numbers": pa.array([5]).dictionary_encode(),
    "dictionary of narrow text": pa.array(["a"]).dictionary_encode(),
    "signed indices": pa.DictionaryArray.from_arrays(
        pa.array([0], pa.int8()), pa.array(["a"], pa.large_string())
    ),
    "seconds": pa.array([1], pa.timestamp("s")),
    "no zone": pa.array([1], pa.timestamp("us", "../etc/passwd")),
    "in a list": pa.array([[b"12345678"]], pa.large_list(pa.binary(8))),
    "in a struct": pa.array([{"x": 1}], pa.struct([pa.field("x", pa.timestamp("s"))])),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_polars_never_gives_out_is_refused(name: str) -> None:
    column = HOSTILE[name]
    said = refused(0x53, pa.table({"a": column}))
    assert "type of a polars column" in said or "malformed" in said or "tz database" in said, said
    refused(0x54, "a", arrow(column))


def test_malformed_frames_are_refused() -> None:
    one = pa.array([1])
    refused(0x53)
    refused(0x53, 5)
    refused(0x53, arrow(one))
    refused(0x53, pa.Table.from_arrays([one, one], names=["a", "a"]))
    refused(0x54, "a", one)
    refused(0x54, 5, arrow(one))
    refused(0x54, "a", pa.table({"a": one}))


def test_a_panic_of_polars_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of its own, whatever brings it about."""

    def panic(table: Any) -> None:
        raise pl.exceptions.PanicException("no such operator")

    monkeypatch.setattr(pl, "from_arrow", panic)
    assert "no such operator" in refused(0x53, pa.table({"a": pa.array([1])}))


def test_a_missing_polars_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "polars", None)
    assert "install polars" in refused(0x53, pa.table({"a": pa.array([1])}))


def test_chunks_of_one_column_do_not_divide_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else polars would take a batch for each chunk, of every column."""
    seen = []
    take = pl.from_arrow

    def from_arrow(table: Any) -> Any:
        seen.append(max(column.num_chunks for column in table.columns))
        return take(table)

    monkeypatch.setattr(pl, "from_arrow", from_arrow)
    many = pa.chunked_array([pa.array([1], pa.int8())] * 20)
    table = pa.table({"many": many, "whole": pa.array([1] * 20)})
    result = _core.decode(body := b"\xc1\x01" + mark(0x53, table), len(body), {})
    assert result.shape == (20, 2) and seen == [1]


def test_a_categorical_of_several_chunks_is_joined_in_the_cell() -> None:
    """Outside, text of one hash (Arrow's has no seed) took time with the square of its number."""
    first, second = pa.array(["a"], pa.large_string()), pa.array(["b"], pa.large_string())
    index = pa.array([0], pa.uint32())
    parts = [pa.DictionaryArray.from_arrays(index, one) for one in (first, second)]
    said = refused(0x53, pa.table({"a": pa.chunked_array(parts)}))
    assert "several chunks" in said
    nested = [pa.LargeListArray.from_arrays(pa.array([0, 1], pa.int64()), one) for one in parts]
    assert "several chunks" in refused(0x53, pa.table({"a": pa.chunked_array(nested)}))
    for kind in (pl.Categorical, pl.List(pl.Categorical), pl.Struct({"x": pl.Categorical})):
        values = {"Categorical": ["a", "b"], "List": [["a"], ["b"]], "Struct": [{"x": "a"}, None]}
        of = str(kind).partition("(")[0]
        two = [
            pl.DataFrame({"n": [i], "c": pl.Series([values[of][i]], dtype=kind)}) for i in (0, 1)
        ]
        frame = pl.concat(two, rechunk=False)
        result = round_trip(frame)
        assert result.schema == frame.schema and result.equals(frame)


def test_an_array_of_no_width_is_refused_before_polars_panics() -> None:
    empty = pa.FixedSizeListArray.from_buffers(
        pa.list_(pa.int8(), 0), 3, [None], children=[pa.array([], pa.int8())]
    )
    assert "width is 0" in refused(0x53, pa.table({"a": empty}))
    with pytest.raises(Exception, match="width 0"):
        round_trip(pl.DataFrame({"a": pl.Series([[]], dtype=pl.Array(pl.Int8, 0))}))


def test_an_outcome_shows_a_time_that_polars_cannot() -> None:
    far = pa.table({"a": pa.array([1 << 62], pa.timestamp("ms", "UTC"))})
    body = b"\xc1\x01" + mark(0x53, far)
    value = _core.decode(body, len(body), {})
    with pytest.raises(BaseException, match=r".") as caught:
        repr(value)
    assert type(caught.value).__name__ == "PanicException"
    outcome: Any = Outcome("returned", value=value)
    assert "<DataFrame>" in repr(outcome) and "<DataFrame>" in str(outcome)
