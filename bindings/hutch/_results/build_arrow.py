# SPDX-License-Identifier: Apache-2.0
"""Builders for Arrow (see build.py, whose rules hold here).

An array is put together from its buffers and then validated in full: offsets in bounds and rising,
text UTF-8, indices inside their dictionary. There is no schema on the wire that Arrow's own reader
sees, hence no extension type.
"""

from __future__ import annotations

from typing import Any

from hutch._results import arrow_metadata
from hutch._results.fields import need, want

_PLAIN = {
    "null": "null",
    "bool": "bool_",
    **{f"{u}int{n}": f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "date32[day]": "date32",
    "date64[ms]": "date64",
    "string": "string",
    "binary": "binary",
    "large_string": "large_string",
    "large_binary": "large_binary",
}
_SLOT_BYTES = 8  # of a value that is nowhere, once somebody looks at them
_UNITS = {
    "time32": ("s", "ms"),
    "time64": ("us", "ns"),
    "duration": ("s", "ms", "us", "ns"),
    "timestamp": ("s", "ms", "us", "ns"),
}


def arrow() -> Any:
    return need("pyarrow", "an Arrow table")


def _type(pa: Any, spec: Any) -> Any:
    if type(spec) is str:
        if spec in _PLAIN:
            return getattr(pa, _PLAIN[spec])()
        name, _, unit = spec.rstrip("]").partition("[")
        if name != "timestamp" and unit in _UNITS.get(name, ()):
            return getattr(pa, name)(unit)
        raise ValueError(f"{spec[:60]!r} is not an Arrow type that can be returned")
    match want(spec, list):
        case ["timestamp", str(unit), (None | str()) as tz] if unit in _UNITS["timestamp"]:
            return pa.timestamp(unit, tz)
        case [("decimal128" | "decimal256") as name, int(precision), int(scale)]:
            return getattr(pa, name)(precision, scale)
        case ["fixed_size_binary", int(width)] if 0 <= width < 1 << 31:
            return pa.binary(width)
        case [("list" | "large_list") as name, field]:
            return (pa.list_ if name == "list" else pa.large_list)(_field(pa, field))
        case ["fixed_size_list", field, int(size)] if 0 <= size < 1 << 31:
            return pa.list_(_field(pa, field), size)
        case ["struct", list(fields)]:
            return pa.struct([_field(pa, field) for field in fields])
        case ["map", key, item, bool(ordered)]:
            return pa.map_(_field(pa, key), _field(pa, item), ordered)
        case ["dictionary", index, value, bool(ordered)]:
            return pa.dictionary(_type(pa, index), _type(pa, value), ordered)
    raise ValueError("an Arrow type is malformed")


def _field(pa: Any, spec: Any) -> Any:
    name, nullable, kind = want(spec, list)
    return pa.field(want(name, str), _type(pa, kind), want(nullable, bool))


def array(
    spec: Any, length: Any, offset: Any, children: Any, dictionary: Any, *buffers: Any
) -> Any:
    pa = arrow()
    kind = _type(pa, spec)
    if min(want(length, int), want(offset, int)) < 0 or length + offset >= 1 << 62:
        raise ValueError("an Arrow array's length is out of range")
    inner = [_array(pa, child) for child in want(children, list)]
    # pyarrow checks these counts only where it converts; validation wants them right.
    parts = [
        None if buffer is None else pa.py_buffer(want(buffer, bytes, memoryview))
        for buffer in buffers
    ]
    if pa.types.is_dictionary(kind):
        values = _array(pa, dictionary)
        if values.type != kind.value_type or len(parts) != 2 or inner:
            raise ValueError("an Arrow dictionary does not fit its type")
        _refuse_short(kind.index_type, length + offset, parts)
        indices = pa.Array.from_buffers(kind.index_type, length, parts, offset=offset)
        indices.validate(full=True)
        built = pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered, safe=True)
    else:
        _check_children(pa, kind, inner)
        _refuse_short(kind, length + offset, parts)
        built = pa.Array.from_buffers(kind, length, parts, offset=offset, children=inner)
    built.validate(full=True)
    return built, min(length, 1 << 40) * _SLOT_BYTES if _is_unbacked(pa, kind) else 0


def _is_unbacked(pa: Any, kind: Any) -> bool:
    """Whether its slots have no bytes of their own."""
    is_ = pa.types
    return bool(
        is_.is_null(kind)
        or is_.is_struct(kind)
        or (is_.is_fixed_size_binary(kind) and kind.byte_width == 0)
        or (is_.is_fixed_size_list(kind) and kind.list_size == 0)
    )


def _array(pa: Any, value: Any) -> Any:
    if not isinstance(value, pa.Array):
        raise ValueError("an Arrow array is missing")
    return value


def _check_children(pa: Any, kind: Any, children: list[Any]) -> None:
    if pa.types.is_map(kind):
        expected = [pa.struct([kind.key_field, kind.item_field])]
    else:
        expected = [kind.field(i).type for i in range(kind.num_fields)]
    if [child.type for child in children] != expected:
        raise ValueError("an Arrow array's children do not fit its type")


def _refuse_short(kind: Any, slots: int, buffers: list[Any]) -> None:
    """Bounds that must hold before pyarrow counts nulls or reads a value."""
    if len(buffers) != (1 if str(kind) == "null" else kind.num_buffers):
        raise ValueError("an Arrow array has the wrong number of buffers")
    if buffers[0] is not None and buffers[0].size * 8 < slots:
        raise ValueError("an Arrow validity bitmap is too short")


def chunked(spec: Any, chunks: Any) -> Any:
    pa = arrow()
    kind = _type(pa, spec)
    arrays = [_array(pa, chunk) for chunk in want(chunks, list)]
    if any(chunk.type != kind for chunk in arrays):
        raise ValueError("an Arrow chunk is of another type than its column")
    return pa.chunked_array(arrays, type=kind)


def table(names: Any, nullable: Any, columns: Any, rows: Any, metadata: Any = None) -> Any:
    """`metadata`: of the table and a list of that of each column, where there is some."""
    pa = arrow()
    want(names, list), want(nullable, list), want(columns, list), want(rows, int)
    if not len(names) == len(nullable) == len(columns):
        raise ValueError("an Arrow table's columns do not fit its names")
    of_table, of_fields = want(metadata, list) if metadata is not None else (None, None)
    of_fields = [None] * len(names) if of_fields is None else want(of_fields, list)
    if len(of_fields) != len(names):
        raise ValueError("an Arrow table's metadata does not fit its columns")
    of_table, *of_fields = map(arrow_metadata.kept, [of_table, *of_fields])
    size = sum(map(arrow_metadata.size_of, [of_table, *of_fields]))
    if size > arrow_metadata.MOST_BYTES:
        raise ValueError("an Arrow table has more than 1 MiB of metadata")
    fields = []
    for name, may_miss, column, told in zip(names, nullable, columns, of_fields):
        if len(want(column, pa.ChunkedArray)) != rows:
            raise ValueError("an Arrow column is of another length than its table")
        fields.append(pa.field(want(name, str), column.type, want(may_miss, bool), told))
    schema = pa.schema(fields, arrow_metadata.of_table(pa, of_table, fields, rows))
    built = pa.Table.from_arrays(columns, schema=schema)
    built.validate(full=True)
    return (built, size * arrow_metadata.CHARGED) if size else built


def typed_column(values: Any) -> Any:
    pa, pd = arrow(), need("pandas", "a pandas object")
    if not hasattr(pd, "ArrowDtype"):
        raise ValueError("the result holds a column of an Arrow type: this needs pandas 2 or newer")
    return pd.array(want(values, pa.ChunkedArray), dtype=pd.ArrowDtype(values.type))
