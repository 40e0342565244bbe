# SPDX-License-Identifier: Apache-2.0
"""Builders for polars (see build.py, whose rules hold here): from an Arrow table that was
validated in full, of the types only that polars itself gives out.
"""

from __future__ import annotations

from typing import Any

from hutch._results.build_arrow import arrow
from hutch._results.fields import is_panic, need, want, zone_key

_PLAIN = frozenset(
    "null bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 halffloat float double "
    "date32[day] time64[ns] duration[ms] duration[us] duration[ns] "
    "large_string large_binary".split()
)


def _check(pa: Any, kind: Any, chunks: int) -> None:
    """`chunks`: of a column. Those that have different dictionaries are never put together here:
    Arrow finds the text that they share by a hash without a seed.
    """
    is_ = pa.types
    if is_.is_timestamp(kind) and kind.unit != "s":
        if kind.tz is not None:
            zone_key(kind.tz)
    elif is_.is_dictionary(kind) and str(kind.value_type) == "large_string":
        if str(kind.index_type) not in ("uint8", "uint16", "uint32") or kind.ordered:
            raise ValueError("a polars Categorical is malformed")
        if chunks > 1:
            raise ValueError("a polars Categorical is malformed: it is in several chunks")
    elif is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        if is_.is_fixed_size_list(kind) and kind.list_size == 0:
            raise ValueError("a polars Array is malformed: its width is 0")  # polars would panic
        _check(pa, kind.value_type, chunks)
    elif is_.is_struct(kind):
        for i in range(kind.num_fields):
            _check(pa, kind.field(i).type, chunks)
    elif str(kind) not in _PLAIN and not is_.is_decimal128(kind):
        raise ValueError(f"Arrow's {str(kind)[:60]} is not the type of a polars column")


def frame(table: Any) -> Any:
    pa, pl = arrow(), need("polars", "a polars frame")
    for column in want(table, pa.Table).columns:
        _check(pa, column.type, column.num_chunks)
    # Else polars takes a batch for each place where any column is divided, of every column.
    whole = table.combine_chunks()
    numbered = whole.rename_columns([str(i) for i in range(whole.num_columns)])
    try:
        built = pl.from_arrow(numbered)
        built.columns = whole.column_names  # from_arrow has a name of its own for ""
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ValueError(f"polars does not take the table: {str(error)[:200]}") from None
    return built, max(0, built.estimated_size() - whole.nbytes)


def series(name: Any, values: Any) -> Any:
    pa = arrow()
    column = want(values, pa.ChunkedArray)
    built, extra = frame(pa.Table.from_arrays([column], names=[want(name, str)]))
    return built.to_series(), extra
