# SPDX-License-Identifier: Apache-2.0
"""CSV, JSON and XML as plain data."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO, Union, overload

from sandbox_utils._paths import MIB, Path, confined, must_be_regular, open_file, read_whole
from sandbox_utils._text import MOST_OF_LINE, UTF_8

Rows = Union[Path, Iterable[Mapping[str, Any]]]
MOST_DEPTH = 200  # elements of XML within one another
PART = 1 << 16
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+|(?:\.[0-9]+)?[eE][+-]?[0-9]+)?")
MOST_OF_NUMBER = 300  # characters


def csv_to_json(
    path: Path | None = None,
    *,
    text: str | None = None,
    delimiter: str = ",",
    fields: Sequence[str] | None = None,
    numbers: bool = False,
    encoding: str = UTF_8,
    outside: bool = False,
) -> Iterator[dict[str, Any]]:
    """The rows of a CSV file, or of `text`, as dicts of the names in its first row.

    `fields`: the names, where the first row has none. `numbers`: what is a number becomes one, and
    what is empty None; "007" stays text. Cells that a row lacks are None; empty rows are left out.

    Raises FileNotFoundError, IsADirectoryError, PermissionError where it is outside; while it is
    read ValueError for a row with more cells than there are names, and names that are there twice.

        rows = list(csv_to_json("people.csv", numbers=True))
    """
    if (path is None) is (text is None):
        raise TypeError("csv_to_json() takes a path, or text=")
    csv.field_size_limit(max(csv.field_size_limit(), MOST_OF_LINE))
    file: TextIO
    if text is not None:
        file = io.StringIO(text.removeprefix("\ufeff"), newline="")
    else:
        found = open_file(confined(path or "", outside))
        file = io.TextIOWrapper(found, encoding, "replace", newline="")
    names = None if fields is None else list(fields)
    return rows_of(file, delimiter, names, number_of if numbers else str)


def rows_of(
    file: TextIO, delimiter: str, names: list[str] | None, value: Any
) -> Iterator[dict[str, Any]]:
    with file:
        rows = csv.reader(short_lines(file), delimiter=delimiter)
        try:
            for row in rows:
                if not row:
                    continue
                if names is None:
                    names = row
                    twice = sorted(name for name, count in Counter(row).items() if count > 1)
                    if twice:
                        raise ValueError(
                            f"{twice[0]!r} is the name of several columns: give fields="
                        )
                    continue
                if len(row) > len(names):
                    raise ValueError(
                        f"line {rows.line_num} has {len(row)} cells, for {len(names)} names"
                    )
                cells = [value(one) for one in row] + [None] * (len(names) - len(row))
                yield dict(zip(names, cells))
        except csv.Error as error:
            raise ValueError(f"line {rows.line_num} is no CSV: {error}") from None


def short_lines(file: TextIO) -> Iterator[str]:
    while True:
        line = file.readline(MOST_OF_LINE + 1)
        if not line:
            return
        if len(line) > MOST_OF_LINE:
            raise ValueError(f"a line has more than {MOST_OF_LINE:,} characters")
        yield line


def number_of(cell: str) -> Any:
    """What it is, if it is a number as JSON writes it."""
    if not cell:
        return None
    found = NUMBER.fullmatch(cell)
    if found is None or len(cell) > MOST_OF_NUMBER:
        return cell
    if found[1] is None:
        return int(cell)
    number = float(cell)
    return number if math.isfinite(number) else cell


@overload
def json_to_csv(
    rows: Rows,
    to: None = None,
    *,
    fields: Sequence[str] | None = None,
    delimiter: str = ",",
    max_mb: float = 64,
    outside: bool = False,
) -> str: ...
@overload
def json_to_csv(
    rows: Rows,
    to: Path,
    *,
    fields: Sequence[str] | None = None,
    delimiter: str = ",",
    max_mb: float = 64,
    outside: bool = False,
) -> int: ...
def json_to_csv(
    rows: Rows,
    to: Path | None = None,
    *,
    fields: Sequence[str] | None = None,
    delimiter: str = ",",
    max_mb: float = 64,
    outside: bool = False,
) -> str | int:
    """CSV of rows, which are dicts; its first row has their names.

    `rows`: the dicts, or the path of a JSON file of them, as one list or one in each line, of at
    most `max_mb` MiB. `to`: a file for it; then the number of rows is returned. `fields`: the names
    that are wanted, which spares holding all rows at once. What a row lacks, and None, is empty;
    lists, dicts and booleans are written as JSON.

    Raises FileNotFoundError, PermissionError where one is outside, TypeError for rows that are no
    dicts, ValueError for what is no JSON.

        json_to_csv([{"name": "Ada", "age": 36}], "people.csv")
    """
    if isinstance(rows, (str, os.PathLike)):
        rows = rows_in(confined(rows, outside), max_mb)
    place = None if to is None else confined(to, outside)
    if fields is None:
        rows = list(rows)
        for row in rows:
            must_be_dict(row)
        fields = list(dict.fromkeys(name for row in rows for name in row))
    if place is None:
        made = io.StringIO(newline="")
        write_rows(made, rows, fields, delimiter)
        return made.getvalue()
    must_be_regular(place)
    with open(place, "w", encoding="utf-8", newline="") as file:
        return write_rows(file, rows, fields, delimiter)


def write_rows(
    file: TextIO, rows: Iterable[Mapping[str, Any]], fields: Sequence[str], delimiter: str
) -> int:
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    writer.writerow(fields)
    count = 0
    for row in rows:
        must_be_dict(row)
        writer.writerow([cell_of(row.get(name)) for name in fields])
        count += 1
    return count


def must_be_dict(row: Any) -> None:
    if not isinstance(row, Mapping):
        raise TypeError(f"each row is a dict of names and values, not {type(row).__name__}")


def cell_of(value: Any) -> Any:
    if isinstance(value, (dict, list, tuple, bool)):
        return json.dumps(value, ensure_ascii=False)
    return value


def rows_in(path: str, max_mb: float) -> list[Any]:
    text = read_whole(path, max_mb).decode(UTF_8)
    try:
        found = json.loads(text)
    except json.JSONDecodeError as whole:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError:
            raise ValueError(f"{path!r} is no JSON: {whole}") from None
    return found if isinstance(found, list) else [found]


def xml_to_dict(
    path: Path | None = None,
    *,
    text: str | bytes | None = None,
    max_mb: float = 16,
    outside: bool = False,
) -> dict[str, Any]:
    """An XML file, or `text`, as a dict of its outermost element.

    An element is its text, None if it is empty, or a dict: its attributes as "@name", its elements
    by their names (several of one name as a list), its text as "#text". Names keep their prefixes.

    Raises ValueError for what is no XML, a document type (and so entities), elements more than 200
    deep, more than `max_mb` MiB; FileNotFoundError, PermissionError where it is outside.

        xml_to_dict(text='<a id="1"><b>x</b><b>y</b></a>')    # {'a': {'@id': '1', 'b': ['x', 'y']}}
    """
    if (path is None) is (text is None):
        raise TypeError("xml_to_dict() takes a path, or text=")
    if path is not None:
        data = read_whole(confined(path, outside), max_mb)
    else:
        data = text.encode() if isinstance(text, str) else bytes(text or b"")
        if len(data) > max_mb * MIB:
            raise ValueError(f"the text has more than {max_mb:g} MiB: give max_mb=")
    return Elements("utf-8" if isinstance(text, str) else None).parse(data)


class Elements:
    """Those that are open while a document is read."""

    def __init__(self, encoding: str | None) -> None:
        from xml.parsers import expat

        self.root: dict[str, Any] = {}
        self.open: list[tuple[dict[str, Any], list[str]]] = [(self.root, [])]
        self.parser = parser = expat.ParserCreate(encoding)
        self.errors = expat.ExpatError
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self.refuse
        parser.StartElementHandler = self.begin
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.add_text

    def parse(self, data: bytes) -> dict[str, Any]:
        try:
            for at in range(0, len(data), PART):
                self.parser.Parse(data[at : at + PART], False)
            self.parser.Parse(b"", True)
        except self.errors as error:
            raise ValueError(f"this is no XML: {error}") from None
        return self.root

    def refuse(self, *_: Any) -> None:
        raise ValueError("the XML has a document type, which may define entities: it is not read")

    def begin(self, _: str, attributes: dict[str, str]) -> None:
        if len(self.open) > MOST_DEPTH:
            raise ValueError(f"the XML has elements that are more than {MOST_DEPTH} deep")
        self.open.append(({f"@{name}": value for name, value in attributes.items()}, []))

    def add_text(self, text: str) -> None:
        self.open[-1][1].append(text)

    def end(self, name: str) -> None:
        made, texts = self.open.pop()
        text = "".join(texts).strip()
        value: Any = made or text or None
        if made and text:
            made["#text"] = text
        above = self.open[-1][0]
        if name not in above:
            above[name] = value
        elif type(above[name]) is list:
            above[name].append(value)
        else:
            above[name] = [above[name], value]
