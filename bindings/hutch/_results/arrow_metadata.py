# SPDX-License-Identifier: Apache-2.0
"""The metadata of an Arrow table and of its columns, as a cell reports it.

It is bytes by name, and nobody here reads it, but for two kinds. Names that begin with ARROW: say
to Arrow which class to load: they are left out. "pandas" says to `to_pandas()` what to make: it is
written anew, of what pandas itself writes, and left out where that cannot be done.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hutch._results.fields import want

MOST_BYTES = 1 << 20  # of a table, with those of its columns
CHARGED = 16  # times its size, for what is parsed and copied
_MOST_NESTED = 100  # dicts and lists, each in another
_PANDAS = b"pandas"
_TYPES = re.compile(
    r"bool|u?int(8|16|32|64)|float(16|32|64)|unicode|string|bytes|object|decimal|date|time|empty"
    r"|categorical|datetime(tz)?|timedelta|mixed(-integer)?|integer|floating|list\[[a-z0-9\[\]]{1,60}\]"
)
_NUMPY_TYPES = re.compile(
    r"bool|u?int(8|16|32|64)|float(16|32|64)|object|(datetime|timedelta)64\[(s|ms|us|ns)\]"
)
# Types of pandas' own, each with the kinds of Arrow that it takes.
_EXTENSIONS = (
    (re.compile(r"U?Int(8|16|32|64)"), ("is_integer",)),
    (re.compile(r"Float(32|64)"), ("is_floating",)),
    (re.compile(r"boolean"), ("is_boolean",)),
    (re.compile(r"str|string"), ("is_string", "is_large_string")),
)
_OF_COLUMN_NAMES = {  # what pandas says of them: the type that it infers, and that of numpy
    "unicode": ("object", "str", "string"),
    "string": ("object", "str", "string"),
    "empty": ("object", "str"),
    "int64": ("int64",),
}
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def kept(given: Any) -> dict[bytes, bytes] | None:
    """What is kept of one, which may be None. Raises ValueError for what is no metadata."""
    if want(given, dict, type(None)) is None:
        return None
    for key, value in given.items():
        want(key, bytes), want(value, bytes)
    return {key: value for key, value in given.items() if not key.startswith(b"ARROW:")} or None


def of_table(
    pa: Any, given: dict[bytes, bytes] | None, fields: list[Any], rows: int
) -> dict[bytes, bytes] | None:
    """What was kept of a table's, with the note of pandas written anew."""
    if given is None or _PANDAS not in given:
        return given
    made = {**given}
    try:
        made[_PANDAS] = _written_anew(pa, given[_PANDAS], fields, rows)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        del made[_PANDAS]
    return made or None


def size_of(metadata: dict[bytes, bytes] | None) -> int:
    return sum(len(key) + len(value) for key, value in (metadata or {}).items())


def _written_anew(pa: Any, data: bytes, fields: list[Any], rows: int) -> bytes:
    note = json.loads(data)
    types = {field.name: field.type for field in fields}
    if len(types) != len(fields):
        raise ValueError("two columns have one name")
    columns = [_column(pa, one, types) for one in want(note["columns"], list)]
    known = {one["field_name"] for one in columns}
    if len(known) != len(columns):
        raise ValueError("a column is described twice")
    index = [_index(one, known, rows) for one in want(note["index_columns"], list)]
    levels = [one for one in index if type(one) is str]
    if len(set(levels)) != len(levels):
        raise ValueError("a column is two levels of an index")
    made = {
        "index_columns": index,
        "column_indexes": _column_indexes(note["column_indexes"], types.keys() - set(levels)),
        "columns": columns,
        "attributes": _attributes(note.get("attributes", {})),
        "creator": {name: _short(one) for name, one in want(note["creator"], dict).items()},
        "pandas_version": _short(note["pandas_version"]),
    }
    return data if made == note else json.dumps(made).encode()


def _attributes(given: Any) -> dict[str, Any]:
    """pandas copies them by recursion, with each operation on the frame."""
    inner = [want(given, dict)]
    for _ in range(_MOST_NESTED):
        inner = [one for each in inner for one in (each.values() if type(each) is dict else each)]
        inner = [one for one in inner if type(one) in (dict, list)]
    if inner:
        raise ValueError("attributes are nested too deep")
    attributes: dict[str, Any] = given
    return attributes


def _short(text: Any) -> str:
    if len(want(text, str)) > 1000:
        raise ValueError("a text is too long")
    return str(text)


def _name(value: Any) -> str | None:
    name: str | None = want(value, str, type(None))
    return name


def _column(pa: Any, given: Any, types: dict[str, Any]) -> dict[str, Any]:
    name, field_name = _name(given["name"]), want(given["field_name"], str)
    kind, numpy_type = want(given["pandas_type"], str), want(given["numpy_type"], str)
    arrow_type = types[field_name]
    if not _TYPES.fullmatch(kind):
        raise ValueError("an unknown type")
    if not _NUMPY_TYPES.fullmatch(numpy_type) and not _takes(pa, numpy_type, arrow_type):
        numpy_type = "object"
    metadata = None
    if kind == "datetimetz":
        zone = getattr(arrow_type, "tz", None)
        if zone is None or given["metadata"] != {"timezone": zone}:
            raise ValueError("another time zone than the column's")
        metadata = {"timezone": zone}
    elif kind == "categorical":
        of = given["metadata"]
        count, ordered = want(of["num_categories"], int), want(of["ordered"], bool)
        metadata = {"num_categories": count, "ordered": ordered}
    return {
        "name": name,
        "field_name": field_name,
        "pandas_type": kind,
        "numpy_type": numpy_type,
        "metadata": metadata,
    }


def _takes(pa: Any, numpy_type: str, arrow_type: Any) -> bool:
    for names, kinds in _EXTENSIONS:
        if names.fullmatch(numpy_type):
            return any(getattr(pa.types, kind)(arrow_type) for kind in kinds)
    return False


def _index(given: Any, known: set[str], rows: int) -> Any:
    if type(given) is str:
        if given not in known:
            raise ValueError("a level of the index is no column")
        return given
    start, stop, step = (want(given[name], int) for name in ("start", "stop", "step"))
    if max(abs(start), abs(stop), abs(step)) >= 1 << 62:
        raise ValueError("the index is out of range")
    if given["kind"] != "range" or len(range(start, stop, step)) != rows:
        raise ValueError("the index does not fit the rows")
    named = _name(given["name"])
    return {"kind": "range", "name": named, "start": start, "stop": stop, "step": step}


def _column_indexes(given: Any, names: set[str]) -> list[dict[str, Any]]:
    """Of one level at most: `to_pandas()` evaluates the names of several."""
    if len(want(given, list)) > 1:
        raise ValueError("the columns have several levels")
    made = []
    for one in given:
        kind, numpy_type = want(one["pandas_type"], str), want(one["numpy_type"], str)
        if numpy_type not in _OF_COLUMN_NAMES[kind]:
            raise ValueError("an unknown type of names")
        if kind == "int64" and not all(map(_WHOLE.fullmatch, names)):
            raise ValueError("a name is no number")
        metadata = one["metadata"]
        if metadata not in (None, {"encoding": "UTF-8"}):
            raise ValueError("an unknown encoding")
        made.append(
            {
                "name": _name(one["name"]),
                "field_name": _name(one["field_name"]),
                "pandas_type": kind,
                "numpy_type": numpy_type,
                "metadata": metadata,
            }
        )
    return made
