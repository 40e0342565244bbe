# SPDX-License-Identifier: Apache-2.0
"""Builders for numpy, pandas and PIL (see build.py, whose rules hold here).

Arrays refer to the payload where it is writable and private to this result, else they get bytes of
their own.
"""

from __future__ import annotations

import re
from typing import Any

from hutch import _core
from hutch._results.fields import need, want, zone, zone_key

_UNIT = r"Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as"
_DTYPE = re.compile(
    r"\|b1|[<>|][iu][1248]|[<>]f(2|4|8|16)|[<>]c(8|16|32)|\|S\d{1,9}|[<>]U\d{1,9}"
    rf"|[<>][mM]8(\[([1-9]\d{{0,5}})?({_UNIT})\])?"
)
_MASKED = {
    **{f"{u}Int{n}": f"{u.lower()}int{n}" for u in ("", "U") for n in (8, 16, 32, 64)},
    "Float32": "float32",
    "Float64": "float64",
    "boolean": "bool",
}
MOST_EMPTY = 1 << 31  # the extents of an array without items, multiplied
_EMPTY_SIDE = 1 << 16  # pixels of an image's side, where the other is 0: it keeps a place for each
_FAR = 1 << 40  # of a length: no result may take so much
_LABEL_BYTES = 8  # of a label that no bytes stand for, once somebody looks at them
_COLUMN_BYTES = 64  # of a column that has a label and nothing else
_MOST_DATES = 1000  # of an index whose frequency is no fixed time
_FREQ = re.compile(r"[A-Za-z0-9.:-]{1,64}")
_PIXEL_BITS = {
    "1": 1,
    "L": 8,
    "P": 8,
    "LA": 16,
    "PA": 16,
    "La": 16,
    "I;16": 16,
    "I;16L": 16,
    "I;16B": 16,
}
_PIXEL_BITS |= dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 24)
_PIXEL_BITS |= dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK", "I", "F"), 32)


def _numpy() -> Any:
    return need("numpy", "a numpy array")


def _pandas() -> Any:
    return need("pandas", "a pandas object")


def _dtype(np: Any, name: Any) -> Any:
    if not _DTYPE.fullmatch(want(name, str)):
        raise ValueError(f"{name[:80]!r} is not a dtype that can be returned")
    kind = np.dtype(name)
    if kind.itemsize == 0:  # numpy would make it one byte, or one character, for each item
        raise ValueError(f"{name!r} is a dtype of no bytes")
    return kind


def _checked(np: Any, array: Any) -> Any:
    """Refuses bit patterns that no array of this dtype has: numpy takes them as they are."""
    if array.size and array.dtype.kind == "b" and array.view(np.uint8).max() > 1:
        raise ValueError("a bool array holds other bytes than 0 and 1")
    if array.size and array.dtype.kind == "U":
        points = array.view(array.dtype.str[0] + "u4")
        if points.max() > 0x10FFFF:
            raise ValueError("a text array holds a value that is not a character")
    return array


def items_of(shape: Any, most: int) -> tuple[int, int]:
    """How many items an array of a shape has, and the product of the extents that are not 0."""
    if len(want(shape, list)) > most:
        raise ValueError(f"an array has more than {most} dimensions")
    items = slots = 1
    for extent in shape:
        if want(extent, int) < 0 or extent >= 1 << 62:
            raise ValueError("an array's extent is out of range")
        items *= extent
        slots *= extent or 1
    return items, slots


def writable(raw: Any) -> Any:
    """The buffer itself, if it can be written to, and so belongs to this result alone."""
    if type(raw) is not memoryview:
        return bytearray(want(raw, bytes))
    return bytearray(raw) if raw.readonly else raw


def ndarray(dtype: Any, shape: Any, raw: Any) -> Any:
    np = _numpy()
    kind = _dtype(np, dtype)
    items, slots = items_of(shape, 32)
    raw = writable(raw)
    if items * kind.itemsize != len(raw):
        raise ValueError("an array's bytes do not fit its shape")
    if items == 0:
        if max(slots, kind.itemsize) > MOST_EMPTY:
            raise ValueError("an array without items has too large an extent")
        return np.zeros(shape, kind)
    return _checked(np, np.frombuffer(raw, kind)).reshape(shape)


def scalar(dtype: Any, data: Any) -> Any:
    np = _numpy()
    kind = _dtype(np, dtype)
    if kind.kind in "SU" or len(want(data, bytes)) != kind.itemsize:
        raise ValueError("a numpy scalar's bytes do not fit its dtype")
    return _checked(np, np.frombuffer(data, kind))[0]


def numpy_str(text: Any) -> Any:
    return _numpy().str_(want(text, str))


def numpy_bytes(data: Any) -> Any:
    return _numpy().bytes_(want(data, bytes))


def _vector(value: Any, *kinds: str) -> Any:
    """A field that is a one-dimensional array of one of these dtype kinds."""
    np = _numpy()
    if want(value, np.ndarray).ndim != 1 or (kinds and value.dtype.kind not in kinds):
        raise ValueError("a column is not a one-dimensional array of the right dtype")
    return value


def object_column(values: Any) -> Any:
    np = _numpy()
    column = np.empty(len(want(values, list)), dtype=object)
    for i, value in enumerate(values):
        column[i] = value  # one by one: a list of lists would be taken for a second dimension
    return column


def zoned_column(unit: Any, tz: Any, data: Any) -> Any:
    pd = _pandas()
    values = _vector(data, "i").astype("i8", copy=False).view(f"M8[{_time_unit(unit)}]")
    zoned = _zone(pd, tz)
    if zoned is None:
        raise ValueError("a tz-aware column has no timezone")
    return pd.array(pd.DatetimeIndex(values).tz_localize("UTC").tz_convert(zoned))


def _zone(pd: Any, tz: Any) -> Any:
    """A timezone, or the key of one, for which this pandas has a class of its own."""
    return pd.DatetimeTZDtype("ns", zone_key(tz)).tz if type(tz) is str else zone(tz)


def _time_unit(unit: Any) -> str:
    if want(unit, str) not in ("s", "ms", "us", "ns"):
        raise ValueError(f"{unit[:20]!r} is not a unit of time of pandas")
    return str(unit)


def categorical(codes: Any, categories: Any, ordered: Any) -> Any:
    pd = _pandas()
    if not isinstance(categories, pd.Index):
        raise ValueError("categories are not an index")
    _require_distinct(pd, categories)
    # Unlike the constructor this one does not look for what is there twice, which was done.
    dtype = pd.CategoricalDtype._from_fastpath(categories, want(ordered, bool))
    return pd.Categorical.from_codes(_vector(codes, "i"), dtype=dtype), _unbacked(pd, categories)


def _unbacked(pd: Any, labels: Any) -> int:
    """The bytes to charge for labels that no bytes of the result stand for."""
    return min(len(labels), _FAR) * _LABEL_BYTES if isinstance(labels, pd.RangeIndex) else 0


def _require_distinct(pd: Any, labels: Any) -> None:
    """That no label is there twice, or missing: as pandas does it, whose tables of hashes can be
    made to take quadratic time by who chooses the labels.
    """
    np = _numpy()
    if isinstance(labels, pd.RangeIndex):
        return
    if isinstance(labels, pd.MultiIndex):
        raise ValueError("labels that are categories or a level have levels of their own")
    if isinstance(labels, pd.CategoricalIndex):
        values = np.asarray(labels.codes)
        missing = bool(len(values)) and values.min() < 0
    elif isinstance(labels.dtype, pd.DatetimeTZDtype):
        values, missing = labels.asi8, labels.hasnans
    elif isinstance(labels.dtype, np.dtype) and not labels.dtype.hasobject:
        values = np.asarray(labels)
        missing = bool(pd.isna(values).any())
    else:
        if str(labels.dtype).startswith("null"):
            raise ValueError("labels that are categories or a level are missing")
        held = labels.astype(object)
        if not _core.distinct(held.tolist()):
            raise ValueError("labels that are categories or a level are there twice")
        values, missing = np.empty(0), bool(pd.isna(held).any())
    if missing:
        raise ValueError("labels that are categories or a level are missing")
    if len(values) > 1:
        values = np.sort(values)
        if bool((values[1:] == values[:-1]).any()):
            raise ValueError("labels that are categories or a level are there twice")


def masked_column(name: Any, data: Any, mask: Any) -> Any:
    np, pd = _numpy(), _pandas()
    numpy_name = _MASKED.get(want(name, str))
    _vector(data)
    if (
        numpy_name is None
        or data.dtype != np.dtype(numpy_name)
        or len(data) != len(_vector(mask, "b"))
    ):
        raise ValueError("a nullable column's values or mask do not fit its dtype")
    if name == "boolean":
        return pd.arrays.BooleanArray(data, mask)
    return (pd.arrays.FloatingArray if name.startswith("Float") else pd.arrays.IntegerArray)(
        data, mask
    )


def string_column(storage: Any, is_na: Any, values: Any) -> Any:
    pd = _pandas()
    if want(storage, str) not in ("python", "pyarrow"):
        raise ValueError("a string column's storage is unknown")
    for value in want(values, list):
        want(value, str, type(None))
    if storage == "pyarrow":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            storage = "python"  # the same text, kept another way
    if want(is_na, bool):
        return pd.array(values, dtype=pd.StringDtype(storage))
    try:
        # pandas' own default: kept as this side keeps it, with pyarrow or without.
        dtype = pd.StringDtype(na_value=float("nan"))
    except TypeError:
        return object_column(
            values
        )  # pandas before 2.3 has text that misses as NaN only as objects
    return pd.array(values, dtype=dtype)


def _is_column(value: Any) -> Any:
    np, pd = _numpy(), _pandas()
    if type(value) is np.ndarray:
        return _vector(value)
    if not isinstance(value, pd.api.extensions.ExtensionArray):
        raise ValueError(f"a column is a {type(value).__name__}")
    return value


def _is_object(column: Any) -> bool:
    """Whether a column holds Python objects: it keeps its dtype, whatever pandas would infer."""
    return isinstance(column.dtype, _numpy().dtype) and column.dtype.hasobject


def _name(value: Any) -> Any:
    hash(value)
    return value


def index(column: Any, name: Any, freq: Any) -> Any:
    pd = _pandas()
    dtype = object if _is_object(_is_column(column)) else None
    built = pd.Index(column, dtype=dtype, name=_name(name))
    if freq is not None:
        if not _FREQ.fullmatch(want(freq, str)) or not hasattr(built, "freq"):
            raise ValueError("an index's frequency is malformed")
        # pandas refuses one that the values do not have. Of what is no fixed time, as business
        # hours, it makes every date in Python for that: a long index comes without.
        offset = pd.tseries.frequencies.to_offset(freq)
        if isinstance(offset, (pd.offsets.Tick, pd.offsets.Day)) or len(built) <= _MOST_DATES:
            built.freq = offset
    return built


def range_index(start: Any, stop: Any, step: Any, name: Any) -> Any:
    for bound in (start, stop, step):
        if abs(want(bound, int)) >= 1 << 62:
            raise ValueError("a RangeIndex goes too far")
    return _pandas().RangeIndex(start, stop, step, name=_name(name))


def multi_index(levels: Any, codes: Any, names: Any) -> Any:
    pd = _pandas()
    for level in want(levels, list):
        if not isinstance(level, pd.Index):
            raise ValueError("a MultiIndex's level is not an index")
        _require_distinct(pd, level)
    codes = [_vector(code, "i") for code in want(codes, list)]
    names = [_name(name) for name in want(names, list)]
    if not 0 < len(levels) == len(codes) == len(names) or len({len(code) for code in codes}) > 1:
        raise ValueError("a MultiIndex's codes and names do not fit its levels")
    for level, code in zip(levels, codes):
        if len(code) and (code.min() < -1 or code.max() >= len(level)):
            raise ValueError("a MultiIndex's code is outside its level")
    # pandas would make a table of each level, also of labels that no bytes stand for.
    built = pd.MultiIndex(levels=levels, codes=codes, names=names, verify_integrity=False)
    return built, sum(_unbacked(pd, level) for level in levels)


def series(column: Any, labels: Any, name: Any, attrs: Any) -> Any:
    pd = _pandas()
    built = _series(pd, column, _index(pd, labels, _is_column(column)))
    built.name = _name(name)
    if want(attrs, dict):
        built.attrs = attrs
    return built


def _index(pd: Any, labels: Any, column: Any = None) -> Any:
    if not isinstance(labels, pd.Index) or (column is not None and len(labels) != len(column)):
        raise ValueError("an index is missing or of another length")
    return labels


def _series(pd: Any, column: Any, labels: Any) -> Any:
    dtype = object if _is_object(column) else None
    return pd.Series(column, index=labels, dtype=dtype, copy=False)


def data_frame(columns: Any, labels: Any, block: Any, parts: Any, attrs: Any) -> Any:
    np, pd = _numpy(), _pandas()
    _index(pd, columns)
    _index(pd, labels)
    if block is not None:
        if want(block, np.ndarray).shape != (len(columns), len(labels)) or want(parts, list):
            raise ValueError("a DataFrame's block does not fit its labels")
        built = pd.DataFrame(block.T, index=labels, columns=columns, copy=False)
    else:
        if len(want(parts, list)) != len(columns):
            raise ValueError("a DataFrame's columns do not fit their labels")
        series_of = {
            i: _series(pd, part, _index(pd, labels, _is_column(part)))
            for i, part in enumerate(parts)
        }
        built = pd.DataFrame(series_of, index=labels, copy=False)
        built.columns = columns
    if want(attrs, dict):
        built.attrs = attrs
    unbacked = 0 if len(columns) else _unbacked(pd, labels)
    if isinstance(columns, pd.RangeIndex) and not len(labels):
        unbacked += min(len(columns), _FAR) * _COLUMN_BYTES
    return built, unbacked


def timestamp(value: Any, unit: Any, tz: Any) -> Any:
    np, pd = _numpy(), _pandas()
    built = pd.Timestamp(np.datetime64(want(value, int), _time_unit(unit)))
    zoned = _zone(pd, tz)
    return built if zoned is None else built.tz_localize("UTC").tz_convert(zoned)


def timedelta(value: Any, unit: Any) -> Any:
    np, pd = _numpy(), _pandas()
    return pd.Timedelta(np.timedelta64(want(value, int), _time_unit(unit)))


def not_a_time() -> Any:
    return _pandas().NaT


def not_available() -> Any:
    return _pandas().NA


def image(
    mode: Any,
    width: Any,
    height: Any,
    pixels: Any,
    palette_mode: Any,
    palette: Any,
    transparency: Any,
) -> Any:
    module = need("PIL.Image", "an image")
    if want(mode, str) not in _PIXEL_BITS:
        raise ValueError(f"{mode[:20]!r} is not an image mode that can be returned")
    want(pixels, bytes, memoryview)
    if not (0 <= want(width, int) < 1 << 31 and 0 <= want(height, int) < 1 << 31):
        raise ValueError("an image's size is out of range")
    if (width * _PIXEL_BITS[mode] + 7) // 8 * height != len(pixels):
        raise ValueError("an image's pixels do not fit its size")
    if width * height == 0:
        if max(width, height) > _EMPTY_SIDE:
            raise ValueError("an image without pixels has too long a side")
        built = module.new(mode, (width, height))
    else:
        built = module.frombytes(mode, (width, height), pixels)
    if palette is not None:
        if want(palette_mode, str) not in ("RGB", "RGBA") or len(want(palette, bytes)) > 1024:
            raise ValueError("an image's palette is malformed")
        built.putpalette(palette, palette_mode)
    if transparency is not None:
        built.info["transparency"] = want(transparency, int, bytes, tuple)
    return built
