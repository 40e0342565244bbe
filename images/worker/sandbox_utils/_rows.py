# SPDX-License-Identifier: Apache-2.0
"""Rows: dicts, sequences or objects, by their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, Union

from sandbox_utils._paths import checked_count

Row = TypeVar("Row")
# A field, several of them, or a function of the row.
Key = Union[str, int, Sequence[Union[str, int]], Callable[[Any], Any]]
MOST_NAMED = 20


def getter(key: Key) -> Callable[[Any], Any]:
    if callable(key):
        return key
    if isinstance(key, (str, int)):
        return lambda row: field(row, key)
    fields = list(key)
    return lambda row: tuple(field(row, one) for one in fields)


def field(row: Any, name: str | int) -> Any:
    if isinstance(name, str) and not isinstance(row, Mapping):
        return getattr(row, name)
    try:
        return row[name]
    except KeyError:
        there = ", ".join(repr(one) for one in list(row)[:MOST_NAMED])
        raise KeyError(f"a row has no {name!r}: it has {there or 'nothing'}") from None


def group_by(rows: Iterable[Row], key: Key) -> dict[Any, list[Row]]:
    """The rows by the value of a field, of several (then as tuples), or of a function of the row.

    Groups and rows are in the order of their first appearance. Raises KeyError or AttributeError
    where a row has no such field, TypeError for a value that cannot be a key.

        group_by([{"city": "Bern", "n": 1}, {"city": "Bern", "n": 2}], "city")
    """
    get, groups = getter(key), dict[Any, list[Row]]()
    for row in rows:
        groups.setdefault(get(row), []).append(row)
    return groups


def filter_by(
    rows: Iterable[Row], where: Callable[[Row], object] | None = None, /, **fields: Any
) -> Iterator[Row]:
    """The rows of which `where(row)` is true, and whose fields have these values.

    Raises KeyError or AttributeError where a row has no such field.

        list(filter_by(rows, lambda row: row["age"] > 30, city="Bern"))
    """
    wanted = list(fields.items())

    def fits(row: Row) -> bool:
        if where is not None and not where(row):
            return False
        return all(field(row, name) == value for name, value in wanted)

    return (row for row in rows if fits(row))


def sort_by(rows: Iterable[Row], key: Key, *, reverse: bool = False) -> list[Row]:
    """The rows in order of a field, of several, or of a function of the row.

    Those that are equal keep their order. None and NaN come last, also with `reverse`, which
    begins with the largest. Raises KeyError or AttributeError where a row has no such field,
    TypeError for values that have no order.
    """
    get = getter(key)
    present, absent = list[tuple[Any, Row]](), list[Row]()
    for row in rows:
        value = get(row)
        parts = value if type(value) is tuple else (value,)
        if any(part is None or part != part for part in parts):
            absent.append(row)
        else:
            present.append((value, row))
    present.sort(key=lambda pair: pair[0], reverse=reverse)
    return [row for _, row in present] + absent


def unique(rows: Iterable[Row], key: Key | None = None) -> Iterator[Row]:
    """The rows without those that are equal to an earlier one, as a whole or in `key`.

    Lists, dicts and sets are compared, too. Raises KeyError or AttributeError where a row has no
    such field.
    """
    get = getter((lambda row: row) if key is None else key)

    def kept() -> Iterator[Row]:
        seen = set()
        for row in rows:
            known = frozen(get(row))
            if known not in seen:
                seen.add(known)
                yield row

    return kept()


def frozen(value: Any) -> Any:
    """What is equal for values that are equal, and can be in a set."""
    if isinstance(value, Mapping):
        return Mapping, frozenset((name, frozen(one)) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(frozen, value))
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    if isinstance(value, bytearray):
        return bytes(value)
    return value


def chunk(items: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Lists of `size` items, the last one of what is left.

    list(chunk(range(5), 2))    # [[0, 1], [2, 3], [4]]
    """
    checked_count("size", size, 1)
    rest = iter(items)
    return iter(lambda: list(islice(rest, size)), [])
