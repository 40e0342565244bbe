# SPDX-License-Identifier: Apache-2.0
"""The part of the encoder for numpy, pandas, Arrow, polars, torch and PIL (see encode.py).

`handler(kind)` gives the function that writes values of exactly that class, or None. Nothing is
imported: a library that the cell has not imported cannot have made the value.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from encode import Encoder

    Handler = Callable[[Encoder, Any], None]

_DTYPE = re.compile(r"[<>|=]?([bifcu]\d+|[SU]\d+|[mM]8(\[\d*[a-zA-Zμ]+\])?)")
_MASKED = {
    "boolean",
    "Float32",
    "Float64",
    *(f"{u}Int{n}" for u in ("", "U") for n in (8, 16, 32, 64)),
}
_COMPRESSED_FREQ = 64  # characters of a frequency's name


def handler(kind: type) -> Handler | None:
    for library, find in (
        ("numpy", _numpy),
        ("pandas", _pandas),
        ("pyarrow", _arrow),
        ("polars", _polars),
        ("torch", _torch),
        ("PIL.Image", _pil),
    ):
        module = sys.modules.get(library)
        found = module and find(module, kind)
        if found:
            return found
    return None


def _numpy(np: Any, kind: type) -> Handler | None:
    if kind is np.ndarray:
        return _ndarray
    if issubclass(kind, np.ndarray):
        if kind.__name__ == "MaskedArray":
            return _refuse("return x.filled(…), or x.data and x.mask")
        return _refuse("return np.asarray(x)")
    if kind is np.str_:
        return lambda e, x: e.mark(0x32, str.__str__(x))
    if kind is np.bytes_:
        return lambda e, x: e.mark(0x33, bytes(x))
    if issubclass(kind, np.generic):
        return _numpy_scalar
    return None


def _refuse(hint: str) -> Handler:
    return lambda e, x: e.refuse(x, hint)


def _dtype(e: Encoder, x: Any) -> str:
    name: str = x.dtype.str
    if not _DTYPE.fullmatch(name) or x.dtype.hasobject:
        e.refuse(
            x,
            f"its dtype is {str(x.dtype)[:60]}: return x.tolist(), or an array of numbers, text or "
            "times",
        )
    return name


def _ndarray(e: Encoder, x: Any) -> None:
    np = sys.modules["numpy"]
    name = _dtype(e, x)
    e.open(3, 0x30)
    e.value(name)
    e.value(list(x.shape))
    if x.nbytes:
        e.check_size(x.nbytes)
        # Times have no buffer protocol of their own, so all is seen as bytes.
        e.raw(np.ascontiguousarray(x).reshape(-1).view(np.uint8))
    else:
        e.raw(b"")
    e.close()


def _numpy_scalar(e: Encoder, x: Any) -> None:
    e.mark(0x31, _dtype(e, x), x.tobytes())


def _pandas(pd: Any, kind: type) -> Handler | None:
    exact: dict[Any, Handler] = {
        pd.Series: _series,
        pd.DataFrame: _data_frame,
        pd.RangeIndex: lambda e, x: e.mark(0x47, x.start, x.stop, x.step, x.name),
        pd.MultiIndex: _multi_index,
        pd.Timestamp: _timestamp,
        pd.Timedelta: _pandas_timedelta,
        type(pd.NaT): lambda e, x: e.mark(0x4D),
        type(pd.NA): lambda e, x: e.mark(0x4E),
    }
    if kind in exact:
        return exact[kind]
    if kind in (pd.Period, pd.Interval, pd.PeriodIndex, pd.IntervalIndex):
        return _refuse("periods and intervals do not travel: return timestamps, or text")
    if issubclass(kind, pd.Index):
        return (
            _index if kind.__module__.split(".")[0] == "pandas" else _refuse("return pd.Index(x)")
        )
    if issubclass(kind, pd.DataFrame):
        return _refuse("return pd.DataFrame(x)")
    if issubclass(kind, pd.Series):
        return _refuse("return pd.Series(x)")
    if (
        issubclass(kind, pd.api.extensions.ExtensionArray)
        and kind.__module__.split(".")[0] == "pandas"
    ):
        return _column
    return None


def _column(e: Encoder, x: Any) -> None:
    """A one-dimensional pandas array, by its dtype."""
    np, pd = sys.modules["numpy"], sys.modules["pandas"]
    dtype = x.dtype
    plain = getattr(pd.arrays, "NumpyExtensionArray", None) or pd.arrays.PandasArray
    if isinstance(dtype, np.dtype) or type(x) is plain:
        values = np.asarray(x)
        if values.dtype.hasobject:
            e.mark(0x40, values.tolist())
        else:
            _ndarray(e, values)
    elif isinstance(dtype, pd.DatetimeTZDtype):
        e.open(3, 0x41)
        e.value(dtype.unit)
        _zone(e, dtype.tz)
        _ndarray(e, x.asi8)
        e.close()
    elif isinstance(dtype, pd.CategoricalDtype):
        e.mark(0x42, np.asarray(x.codes), x.categories, bool(x.ordered))
    elif isinstance(dtype, pd.StringDtype):
        is_na = getattr(dtype, "na_value", pd.NA) is pd.NA
        values = x.to_numpy(dtype=object, na_value=None).tolist()
        e.mark(0x44, "pyarrow" if "pyarrow" in dtype.storage else "python", is_na, values)
    elif dtype.name in _MASKED:
        mask = np.asarray(x.isna())
        e.mark(0x43, dtype.name, x.to_numpy(dtype=dtype.numpy_dtype, na_value=dtype.type(0)), mask)
    elif hasattr(pd, "ArrowDtype") and isinstance(dtype, pd.ArrowDtype):
        pa = sys.modules["pyarrow"]
        held = x.__arrow_array__()
        e.mark(0x45, held if isinstance(held, pa.ChunkedArray) else pa.chunked_array([held]))
    else:
        e.refuse(x, f"columns of {str(dtype)[:60]} do not travel: convert with astype, or to dense")


def _step(name: Any, otherwise: str) -> str:
    if type(name) is str and len(name) <= 64 and name.isprintable() and '"' not in name:
        return f'["{name}"]'
    return f"[{name}]" if type(name) is int else otherwise


def _zone(e: Encoder, zone: Any) -> None:
    """A timezone; one of pytz's, which older pandas has, goes as its key alone."""
    key = getattr(zone, "zone", None)
    if type(key) is str and type(zone).__module__.startswith("pytz"):
        e.value(key)
    else:
        e.value(zone)


def _freq(x: Any) -> str | None:
    freq = getattr(x, "freq", None) and x.freqstr
    return freq if type(freq) is str and len(freq) <= _COMPRESSED_FREQ else None


def _index(e: Encoder, x: Any) -> None:
    e.open(3, 0x46)
    _column(e, x.array)
    e.value(x.name, ".name")
    e.value(_freq(x))
    e.close()


def _multi_index(e: Encoder, x: Any) -> None:
    np = sys.modules["numpy"]
    e.mark(0x48, list(x.levels), [np.asarray(codes) for codes in x.codes], list(x.names))


def _series(e: Encoder, x: Any) -> None:
    e.open(4, 0x49)
    _column(e, x.array)
    e.value(x.index, ".index")
    e.value(x.name, ".name")
    e.value(dict(x.attrs), ".attrs")
    e.close()


def _data_frame(e: Encoder, x: Any) -> None:
    np = sys.modules["numpy"]
    kinds = set(x.dtypes)
    one = kinds.pop() if len(kinds) == 1 else None
    e.open(5, 0x4A)
    e.value(x.columns, ".columns")
    e.value(x.index, ".index")
    if isinstance(one, np.dtype) and not one.hasobject:
        _ndarray(e, x.to_numpy().T)  # all of one kind: one block, a column after the other
        e.value([])
    else:
        e.value(None)
        e.open(x.shape[1])
        for i in range(x.shape[1]):
            step = _step(x.columns[i], f".iloc[:, {i}]")
            e.located(_column, x.iloc[:, i].array, step)
        e.close()
    e.value(dict(x.attrs), ".attrs")
    e.close()


def _timestamp(e: Encoder, x: Any) -> None:
    e.open(3, 0x4B)
    e.value(int(x.asm8.view("i8")))
    e.value(getattr(x, "unit", "ns"))
    _zone(e, x.tzinfo)
    e.close()


def _pandas_timedelta(e: Encoder, x: Any) -> None:
    e.mark(0x4C, int(x.asm8.view("i8")), getattr(x, "unit", "ns"))


def _arrow(pa: Any, kind: type) -> Handler | None:
    if kind is pa.Table:
        return _arrow_table
    if kind is pa.ChunkedArray:
        return _arrow_chunked
    if issubclass(kind, pa.Array):
        return _arrow_compact_array
    if kind is pa.RecordBatch:
        return _refuse("return pa.Table.from_batches([x])")
    return None


ARROW_METADATA = 1 << 20  # bytes of a table's metadata
_ARROW_PLAIN = frozenset(
    "null bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 halffloat float double "
    "date32[day] date64[ms] time32[s] time32[ms] time64[us] time64[ns] "
    "duration[s] duration[ms] duration[us] duration[ns] "
    "string binary large_string large_binary".split()
)


def _arrow_type(e: Encoder, t: Any) -> Any:
    """A type as plain data: a name, or a list that starts with one."""
    pa = sys.modules["pyarrow"]
    is_, name = pa.types, str(t)
    if isinstance(t, pa.BaseExtensionType):
        e.refuse(t, "Arrow extension types do not travel: return their storage")
    if name in _ARROW_PLAIN:
        return name
    if is_.is_timestamp(t):
        return ["timestamp", t.unit, t.tz]
    if is_.is_decimal128(t) or is_.is_decimal256(t):
        return ["decimal128" if is_.is_decimal128(t) else "decimal256", t.precision, t.scale]
    if is_.is_fixed_size_binary(t):
        return ["fixed_size_binary", t.byte_width]
    if is_.is_list(t) or is_.is_large_list(t):
        return ["list" if is_.is_list(t) else "large_list", _arrow_field(e, t.value_field)]
    if is_.is_fixed_size_list(t):
        return ["fixed_size_list", _arrow_field(e, t.value_field), t.list_size]
    if is_.is_struct(t):
        return ["struct", [_arrow_field(e, t.field(i)) for i in range(t.num_fields)]]
    if is_.is_map(t):
        return ["map", _arrow_field(e, t.key_field), _arrow_field(e, t.item_field), t.keys_sorted]
    if is_.is_dictionary(t):
        return ["dictionary", _arrow_type(e, t.index_type), _arrow_type(e, t.value_type), t.ordered]
    return e.refuse(t, f"Arrow's {name[:60]} does not travel: cast the column")


def _arrow_field(e: Encoder, field: Any) -> list[Any]:
    return [field.name, field.nullable, _arrow_type(e, field.type)]


def _arrow_table(e: Encoder, x: Any) -> None:
    if x.nbytes < x.get_total_buffer_size():
        # A slice: rewritten, so that only its own rows travel.
        pa = sys.modules["pyarrow"]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, x.schema) as writer:
            writer.write_table(x)
        x = pa.ipc.open_stream(sink.getvalue()).read_all()
    fields = list(x.schema)
    metadata = _arrow_metadata(e, x.schema)
    e.open(4 if metadata is None else 5, 0x52)
    e.value([field.name for field in fields])
    e.value([field.nullable for field in fields])
    e.open(len(fields))
    for i, field in enumerate(fields):
        e.located(_arrow_chunked, x.column(i), _step(field.name, "[?]"))
    e.close()
    e.value(x.num_rows)
    if metadata is not None:
        e.value(metadata)
    e.close()


def _arrow_metadata(e: Encoder, schema: Any) -> list[Any] | None:
    """Of the table, and of each column."""
    of_fields = [field.metadata for field in schema]
    if schema.metadata is None and not any(of_fields):
        return None
    told = [schema.metadata, *of_fields]
    size = sum(len(key) + len(value) for one in told for key, value in (one or {}).items())
    if size > ARROW_METADATA:
        e.refuse(schema, "Arrow metadata of more than 1 MiB does not travel: remove some")
    return [schema.metadata, of_fields]


def _arrow_chunked(e: Encoder, x: Any) -> None:
    e.open(2, 0x51)
    e.value(_arrow_type(e, x.type))
    e.open(x.num_chunks)
    for chunk in x.chunks:
        _arrow_array(e, chunk)
    e.close()
    e.close()


def _arrow_compact_array(e: Encoder, x: Any) -> None:
    """An array of its own; what a slice leaves out is left out."""
    pa = sys.modules["pyarrow"]
    if x.nbytes < x.get_total_buffer_size():
        x = pa.concat_arrays([x, x.slice(0, 0)])
    _arrow_array(e, x)


def _arrow_array(e: Encoder, x: Any) -> None:
    pa = sys.modules["pyarrow"]
    is_, t = pa.types, x.type
    children: list[Any] = []
    dictionary, own = None, 2
    if is_.is_dictionary(t):
        dictionary = x.dictionary
    elif is_.is_struct(t):
        # Without the parent's offset, since that is sent on its own.
        full = x if x.offset == 0 else pa.concat_arrays([x, x.slice(0, 0)])
        x, own = full, 1
        children = [full.field(i) for i in range(t.num_fields)]
    elif is_.is_map(t):
        children = [
            pa.StructArray.from_arrays([x.keys, x.items], fields=[t.key_field, t.item_field])
        ]
    elif is_.is_list(t) or is_.is_large_list(t):
        children = [x.values]
    elif is_.is_fixed_size_list(t):
        children, own = [x.values], 1
    elif is_.is_null(t):
        own = 1
    elif t.num_buffers == 3:
        own = 3
    buffers = x.buffers()[:own]
    e.open(5 + own, 0x50)
    e.value(_arrow_type(e, t))
    e.value(len(x))
    e.value(x.offset)
    e.open(len(children))
    for child in children:
        _arrow_array(e, child)
    e.close()
    if dictionary is None:
        e.value(None)
    else:
        _arrow_array(e, dictionary)
    for buffer in buffers:
        if buffer is None:
            e.value(None)
        else:
            e.raw(buffer)
    e.close()


_POLARS_PLAIN = frozenset(
    "Null Boolean Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64 Float16 Float32 Float64 "
    "Decimal Date Time Datetime Duration String Utf8 Binary Categorical List Array Struct".split()
)
_POLARS_HINTS = {
    "Enum": "cast the column to pl.Categorical",
    "Object": "make it a column of text or numbers",
}


def _polars(pl: Any, kind: type) -> Handler | None:
    if kind is pl.DataFrame:
        return _polars_frame
    if kind is pl.Series:
        return _polars_series
    if kind is pl.LazyFrame:
        return _refuse("return x.collect()")
    if issubclass(kind, pl.DataFrame):
        return _refuse("return pl.DataFrame(x)")
    return None


def _polars_dtype(e: Encoder, dtype: Any) -> None:
    name = type(dtype).__name__
    if name not in _POLARS_PLAIN:
        hint = _POLARS_HINTS.get(name, "cast the column")
        e.refuse(dtype, f"polars' {name[:60]} does not travel: {hint}")
    if name == "Array" and 0 in dtype.shape:
        e.refuse(dtype, "an Array of width 0 does not travel: cast the column to a List")
    if name in ("List", "Array"):
        _polars_dtype(e, dtype.inner)
    elif name == "Struct":
        for field in dtype.fields:
            _polars_dtype(e, field.dtype)


def _as_arrow(e: Encoder, x: Any) -> Any:
    level = getattr(sys.modules["polars"], "CompatLevel", None)
    try:
        return x.to_arrow(compat_level=level.oldest()) if level else x.to_arrow()
    except ImportError:
        return e.refuse(x, "polars travels by Arrow: add pyarrow to the dependencies")


def _polars_frame(e: Encoder, x: Any) -> None:
    for name, dtype in x.schema.items():
        e.located(_polars_dtype, dtype, _step(name, "[?]"))
    table = _as_arrow(e, x)
    if any("Categorical" in str(dtype) for dtype in x.dtypes):
        # Chunks of one have dictionaries of their own, which are not joined outside.
        table = table.combine_chunks()
    e.open(1, 0x53)
    _arrow_table(e, table)
    e.close()


def _polars_series(e: Encoder, x: Any) -> None:
    _polars_dtype(e, x.dtype)
    array = _as_arrow(e, x)
    e.open(2, 0x54)
    e.value(x.name)
    _arrow_chunked(e, sys.modules["pyarrow"].chunked_array([array]))
    e.close()


_TENSOR_DTYPES = frozenset(
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 "
    "float16 float32 float64 bfloat16 complex64 complex128".split()
)


def _torch(torch: Any, kind: type) -> Handler | None:
    if kind in (torch.Tensor, torch.nn.Parameter):
        return _tensor
    if issubclass(kind, torch.Tensor):
        return _refuse("return x.detach().as_subclass(torch.Tensor)")
    if issubclass(kind, torch.nn.Module):
        return _refuse("return x.state_dict()")
    return None


def _tensor(e: Encoder, x: Any) -> None:
    torch = sys.modules["torch"]
    if x.is_nested:
        e.refuse(x, "it is nested: return list(x.unbind())")
    if x.device.type == "meta":
        e.refuse(x, "it is on the device meta, where tensors have no values")
    if x.device.type != "cpu":
        e.refuse(x, "it is not on the CPU: return x.cpu()")
    if x.layout is not torch.strided:
        e.refuse(x, f"its layout is {str(x.layout)[:60]}: return x.to_dense()")
    if x.is_quantized:
        e.refuse(x, "it is quantized: return x.dequantize()")
    name = str(x.dtype).removeprefix("torch.")
    if name not in _TENSOR_DTYPES:
        e.refuse(
            x, f"its dtype is {name[:60]}: return x.to(torch.float32), or another that travels"
        )
    size = x.numel() * x.element_size()
    e.open(3, 0x55)
    e.value(name)
    e.value(list(x.shape))
    if size:
        e.check_size(size)
        x = x.detach().resolve_conj().resolve_neg().contiguous()
        # Not by numpy, which may be missing and has no bfloat16. torch imported ctypes itself.
        held = (sys.modules["ctypes"].c_char * size).from_address(x.data_ptr())
        held.owner = x  # alive as long as the bytes are
        e.raw(held)
    else:
        e.raw(b"")
    e.close()


def _pil(image: Any, kind: type) -> Handler | None:
    return _image if issubclass(kind, image.Image) else None


def _image(e: Encoder, x: Any) -> None:
    pixels = x.tobytes()
    transparency = x.info.get("transparency")
    if type(transparency) not in (int, bytes, tuple):
        transparency = None
    palette = x.palette if x.mode in ("P", "PA") else None
    e.open(7, 0x60)
    e.value(x.mode)
    e.value(x.width)
    e.value(x.height)
    e.raw(pixels)
    e.value(palette and palette.mode)
    e.value(palette and bytes(palette.palette))
    e.value(transparency)
    e.close()
