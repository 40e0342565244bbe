# SPDX-License-Identifier: Apache-2.0
"""What is encoded inside is equal outside, whatever it is: values made at random, of every kind.

Most go through encoder and decoder in this process, the real ones; some through a real cell.
"""

from __future__ import annotations

import datetime
import enum
import math
import pickle
import sys
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest

from hutch import _core, sandbox
from hutch._results import types

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
st = hypothesis.strategies
np = pytest.importorskip("numpy", reason="numpy is not installed")
pd = pytest.importorskip("pandas", reason="pandas is not installed")
from hypothesis.extra import numpy as hnp, pandas as hpd  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "images" / "worker"))
import encode  # noqa: E402


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclass
class Row:
    name: str
    point: Point
    tags: list[str] = field(default_factory=list)


NAMED = types.named_types(list[Colour | Access | Point | Row])
ZONES = ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Asia/Kathmandu"]


def round_trip(value: Any) -> Any:
    encoded = encode.encode(value, 1 << 26)
    whole = bytearray(encoded.size)
    for offset, piece in encoded.chunks():
        whole[offset : offset + len(piece)] = piece
    return _core.decode(whole, len(encoded.body), NAMED)


def same(a: Any, b: Any) -> bool:
    """Equal, of equal types all the way down; NaN equals NaN, and 0.0 does not equal -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (
            a == b and math.copysign(1, a) == math.copysign(1, b)
        )
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, Decimal):
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, Row):
        return same(vars(a), vars(b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, slice):
        return same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if isinstance(a, (datetime.datetime, datetime.time)):
        return bool(a == b and a.fold == b.fold and same(a.tzinfo, b.tzinfo))
    return bool(a == b)


texts = st.text(st.characters())  # surrogates too
zones = st.sampled_from(
    [None, datetime.timezone.utc, datetime.timezone(datetime.timedelta(hours=5, minutes=45), "n")]
    + [zoneinfo.ZoneInfo(key) for key in ZONES]
)
points = st.builds(Point, st.integers(), st.floats())
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 70), 1 << 70)
    | st.integers(min_value=1 << 500, max_value=1 << 600)
    | st.floats()
    | st.complex_numbers()
    | texts
    | st.binary()
    | st.binary().map(bytearray)
    | st.builds(range, st.integers(), st.integers(), st.integers(min_value=1))
    | st.builds(slice, st.none() | st.integers(), st.none() | texts)
    | st.dates()
    | st.builds(
        lambda t, zone, fold: t.replace(tzinfo=zone, fold=fold),
        st.datetimes(),
        zones,
        st.sampled_from([0, 1]),
    )
    | st.times()
    | st.timedeltas()
    | zones
    | st.decimals(allow_nan=True)
    | st.fractions()
    | st.uuids()
    | st.lists(st.text("abc. ", min_size=1), min_size=1).map(lambda parts: PurePosixPath(*parts))
    | st.sampled_from([*Colour, Access.READ, Access.READ | Access.WRITE, Access(0)])
    | points
    | st.builds(Row, texts, points, st.lists(texts))
)
keys = st.recursive(
    st.integers() | texts | st.binary() | st.booleans() | st.none() | st.dates() | st.uuids(),
    lambda inner: st.lists(inner).map(tuple) | st.frozensets(inner),
    max_leaves=4,
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(st.integers(), min_size=16)
        | st.lists(st.floats(), min_size=16)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.frozensets(keys)
    ),
    max_leaves=25,
)
dtypes = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes()
    | hnp.unsigned_integer_dtypes()
    | hnp.floating_dtypes(sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(sizes=(64, 128))
    | hnp.datetime64_dtypes()
    | hnp.timedelta64_dtypes()
    | hnp.unicode_string_dtypes(max_len=5)
    | hnp.byte_string_dtypes(max_len=5)
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes))


def for_all(strategy: Any, examples: int) -> Callable[[Callable[[Any], None]], Any]:
    settings = hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    return lambda test: settings(hypothesis.given(strategy)(test))


def same_array(a: Any, b: Any) -> bool:
    return (
        type(a) is type(b)
        and a.dtype == b.dtype
        and a.dtype.str == b.dtype.str
        and a.shape == b.shape
        and a.tobytes() == b.tobytes()
    )


@for_all(values, 150)
def test_a_value_is_equal_outside(value: Any) -> None:
    assert same(round_trip(value), value)


@for_all(st.tuples(arrays, st.booleans(), st.integers(1, 3)), 150)
def test_an_array_of_any_dtype_shape_and_order_is_equal_outside(made: Any) -> None:
    array, fortran, stride = made
    if fortran:
        array = np.asfortranarray(array)
    if array.ndim:
        array = array[::-stride]
    assert same_array(round_trip([array])[0], array)


@for_all(arrays.filter(lambda array: array.size), 50)
def test_a_scalar_of_numpy_is_equal_outside(array: Any) -> None:
    scalar = array.reshape(-1)[0]
    got = round_trip([scalar])[0]
    assert type(got) is type(scalar) and got.tobytes() == scalar.tobytes()


columns = [
    hpd.column("i", dtype=np.int32),
    hpd.column("f", dtype=float),
    hpd.column("b", dtype=bool),
    hpd.column(
        "t", elements=st.datetimes(datetime.datetime(1990, 1, 1), datetime.datetime(2100, 1, 1))
    ),
    hpd.column("o", elements=st.none() | st.integers(-9, 9) | st.text(max_size=5), dtype=object),
]
frames = hpd.data_frames(
    columns, index=hpd.range_indexes(max_size=6) | hpd.indexes(dtype=float, max_size=6)
)


@for_all(frames, 40)
def test_a_data_frame_is_equal_outside(frame: Any) -> None:
    pd.testing.assert_frame_equal(round_trip(frame), frame, check_exact=True, check_freq=True)


@for_all(hpd.series(dtype=float) | hpd.series(elements=st.text(max_size=5), dtype=object), 30)
def test_a_series_is_equal_outside(series: Any) -> None:
    pd.testing.assert_series_equal(round_trip(series), series, check_exact=True)


@sandbox
def echo(value: list[Any] | list[Colour | Access | Point | Row]) -> Any:
    return value


@for_all(st.lists(values, min_size=1, max_size=8), 15)
def test_what_a_cell_returns_is_equal_here(several: Any) -> None:
    assert same(echo(several), several)


@sandbox(dependencies=["numpy"])
def echo_arrays(value: list[Any]) -> Any:
    return value


@for_all(st.lists(arrays, max_size=5), 10)
def test_arrays_that_a_cell_returns_are_equal_here(several: Any) -> None:
    several = pickle.loads(pickle.dumps(several))  # as arguments go: numpy makes dates native
    got = echo_arrays(several)
    assert len(got) == len(several) and all(map(same_array, got, several))
