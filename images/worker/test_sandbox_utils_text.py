# SPDX-License-Identifier: Apache-2.0
"""sandbox_utils: text, rows and formats. It runs here, without a sandbox."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sandbox_utils as u  # type: ignore[import-not-found,unused-ignore]
from sandbox_utils import _paths, _text  # type: ignore[import-not-found,unused-ignore]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_paths, "ROOT", os.path.realpath(tmp_path))
    return tmp_path


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is true of lines of 16 MiB is tried with some of 100 characters."""
    from sandbox_utils import _formats, _search

    for module in (_text, _search, _formats):
        monkeypatch.setattr(module, "MOST_OF_LINE", 100)


# ---- lines


CONTENTS = [
    b"",
    b"\n",
    b"one",
    b"one\n",
    b"one\ntwo",
    b"a\n\n\nb\n",
    b"\n" * 200_000,
    "ä\n".encode() * 50_000,
    b"x" * 200_000 + b"\n" + b"y" * 70_000,
    b"a\r\nb\r\n",
    b"\x00\xff\xfe\n\x80",
    b"line\n" * (_text.BLOCK // 5) + b"z",
]


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
@pytest.mark.parametrize("count", [0, 1, 2, 3, 70_000])
def test_head_and_tail_are_ends_of_the_lines(content: bytes, count: int) -> None:
    Path("f").write_bytes(content)
    text = content.decode("utf-8", "replace")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if lines[-1] == "":
        lines.pop()
    assert u.head("f", count) == lines[:count]
    assert u.tail("f", count) == (lines[-count:] if count else [])


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
def test_wc_counts_as_wc_does(content: bytes) -> None:
    Path("f").write_bytes(content)
    told = subprocess.run(
        ["wc", "-l", "-w", "-c", "f"], capture_output=True, env={"LC_ALL": "C"}, check=True
    )
    counts = u.wc("f")
    lines, _, size = map(int, told.stdout.split()[:3])
    assert (counts["lines"], counts["bytes"]) == (lines, size)
    assert counts["words"] == len(content.split())


def test_wc_joins_a_word_that_two_parts_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_text, "MIB", 3)
    Path("f").write_bytes("abcd ef  ghé\n".encode())
    assert u.wc("f") == {"lines": 1, "words": 3, "characters": 13, "bytes": 14}


def test_text_has_encodings_and_may_have_a_byte_order_mark() -> None:
    Path("bom").write_bytes("\ufefffirst\nsecond\n".encode())
    Path("wide").write_text("first\nsecond\n", encoding="utf-16")
    Path("latin").write_text("é\n", encoding="latin-1")
    assert u.head("bom", 1) == ["first"] and u.cat("bom") == "first\nsecond\n"
    assert u.tail("wide", 1, encoding="utf-16") == ["second"]
    assert list(u.grep("^first", "wide", encoding="utf-16", binary=True)) == [("wide", 1, "first")]
    assert u.head("latin") == ["\ufffd"] and u.head("latin", encoding="latin-1") == ["é"]
    assert list(u.grep("^first", "bom")) == [("bom", 1, "first")]


def test_a_long_line_is_cut_and_says_so(short_lines: None) -> None:
    Path("f").write_text("a" * 250 + "\n" + "b" * 100 + "\n" + "c" * 101 + "\nd")
    cut = ["a" * 100 + "… (150 more characters are cut)", "b" * 100]
    cut += ["c" * 100 + "… (1 more characters are cut)", "d"]
    assert u.head("f") == cut and u.tail("f", 2) == cut[2:]
    assert [number for _, number, _ in u.grep("[acd]", "f")] == [1, 3, 4]
    with pytest.raises(ValueError, match="line 1 has more than 100 characters"):
        u.sed("a", "b", "f", in_place=True)
    assert Path("f").read_text().startswith("a" * 250) and os.listdir() == ["f"]
    with pytest.raises(ValueError, match="more than 100"):
        list(u.csv_to_json("f"))


@pytest.mark.parametrize("value", [-1, 1.5, "3", True])
def test_a_number_of_lines_is_one(value: Any) -> None:
    Path("f").touch()
    for use in (u.head, u.tail):
        with pytest.raises((ValueError, TypeError), match="lines="):
            use("f", value)


def test_what_is_too_large_says_what_to_do() -> None:
    Path("f").write_bytes(b"x" * (1 << 20))
    for use in (u.cat, u.xml_to_dict, u.json_to_csv):
        with pytest.raises(ValueError, match="max_mb="):
            use("f", max_mb=0.5)
    with pytest.raises(ValueError, match="max_mb="):
        u.diff("f", "f", max_mb=0.5)
    assert len(u.cat("f", max_mb=1)) == 1 << 20
    with pytest.raises(ValueError, match="max_mb="):
        u.cat("f", "f", max_mb=1.5)


# ---- grep


@pytest.fixture
def sources() -> None:
    os.makedirs("src/inner")
    Path("src/a.py").write_text("import os\nprint('A.b')\n")
    Path("src/inner/b.txt").write_text("a+b\naab\nImport")
    Path("src/c.bin").write_bytes(b"import\0os")
    os.symlink("../src", "src/again")


@pytest.mark.parametrize(
    ("pattern", "options", "found"),
    [
        ("^import", {}, [("src/a.py", 1, "import os")]),
        ("a.b", {}, [("src/inner/b.txt", 1, "a+b"), ("src/inner/b.txt", 2, "aab")]),
        ("a+b", {"fixed": True}, [("src/inner/b.txt", 1, "a+b")]),
        ("A.B", {"fixed": True, "ignore_case": True}, [("src/a.py", 2, "print('A.b')")]),
        ("import", {"ignore_case": True, "name": "*.txt"}, [("src/inner/b.txt", 3, "Import")]),
        (re.compile("IMPORT$", re.I), {}, [("src/inner/b.txt", 3, "Import")]),
        ("import", {"binary": True, "name": "*.bin"}, [("src/c.bin", 1, "import\0os")]),
        (
            "[ab]",
            {"invert": True, "name": "*.??"},
            [("src/a.py", 1, "import os")],
        ),
        ("nothing", {}, []),
    ],
)
def test_grep_finds_lines(sources: None, pattern: Any, options: Any, found: Any) -> None:
    assert list(u.grep(pattern, "src", recursive=True, **options)) == found


def test_grep_takes_several_paths_and_begins_at_once(sources: None) -> None:
    found = u.grep("import", ["src/a.py", Path("src/inner/b.txt")])
    assert next(found) == ("src/a.py", 1, "import os")
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        u.grep("x", "src")
    with pytest.raises(ValueError, match="fixed=True"):
        u.grep("a(", "src", recursive=True)
    with pytest.raises(ValueError, match="flags of its own"):
        u.grep(re.compile("a"), "src", recursive=True, ignore_case=True)


# ---- sed and diff


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("a", "b"), {}, "bb\nb\n"),
        (("a", "b"), {"count": 1}, "ba\nb\n"),
        (("^(.)", r"\1-"), {}, "a-a\na-\n"),
        (("A", "b"), {"ignore_case": True, "count": 1}, "ba\nb\n"),
        (("a$", ""), {}, "a\n\n"),
        (("a", r"\1"), {"fixed": True, "count": 1}, "\\1a\n\\1\n"),
        (("a", lambda match: match[0].upper()), {}, "AA\nA\n"),
        (("a\na", "x"), {}, "aa\na\n"),
    ],
)
def test_sed_replaces_in_each_line(arguments: Any, options: Any, text: str) -> None:
    Path("f").write_text("aa\na\n")
    assert u.sed(*arguments, "f", **options) == text
    assert u.sed(*arguments, text="aa\na\n", **options) == text
    assert Path("f").read_text() == "aa\na\n"
    u.sed(*arguments, "f", in_place=True, **options)
    assert Path("f").read_text() == text and os.listdir() == ["f"]


@pytest.mark.parametrize(
    ("content", "after"),
    [
        (b"", b""),
        (b"a", b"b"),
        (b"a\r\na", b"b\r\nb"),
        (b"\xff\x80a\x00\n", b"\xff\x80b\x00\n"),
        (b"\xef\xbb\xbfa", b"\xef\xbb\xbfb"),
    ],
)
def test_sed_in_place_keeps_every_other_byte(content: bytes, after: bytes) -> None:
    Path("f").write_bytes(content)
    os.chmod("f", 0o640)
    os.symlink("f", "link")
    assert u.sed("a", "b", "link", in_place=True) == content.count(b"a")
    assert Path("f").read_bytes() == after and os.stat("f").st_mode & 0o777 == 0o640
    assert sorted(os.listdir()) == ["f", "link"] and os.path.islink("link")


def test_sed_that_fails_leaves_the_file_and_nothing_else() -> None:
    Path("f").write_text("a\n")
    with pytest.raises(re.error):
        u.sed("a", r"\9", "f", in_place=True)
    assert Path("f").read_text() == "a\n" and os.listdir() == ["f"]
    before = os.stat("f")
    assert u.sed("x", "y", "f", in_place=True) == 0
    assert (os.stat("f").st_ino, os.stat("f").st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    for wrong in ({}, {"path": "f", "text": "x"}, {"text": "x", "in_place": True}):
        with pytest.raises(TypeError):
            u.sed("a", "b", **wrong)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"a\nb\nc\n", b"a\nB\nc\n"),
        (b"a", b"a\n"),
        (b"", b"a\nb"),
        (b"a\r\nb\n", b"a\nb\n"),
        (b"x\n" * 2000, b"x\n" * 1000 + b"y\n" + b"x\n" * 1000),
        ("é\n\x0cä\x85b\n".encode(), "é\n\x0cä\x85c\n".encode()),
    ],
)
def test_a_diff_is_what_patch_takes(one: bytes, other: bytes) -> None:
    Path("one").write_bytes(one)
    Path("other").write_bytes(other)
    made = u.diff("one", "other")
    assert made.startswith("--- one\n+++ other\n@@ ")
    if subprocess.run(["which", "patch"], capture_output=True).returncode == 0:
        subprocess.run(["patch", "-s", "--binary", "one"], input=made.encode(), check=True)
        assert Path("one").read_bytes() == other
    assert u.diff("other", "other") == ""


def test_binary_files_differ_or_not() -> None:
    Path("one").write_bytes(b"\0a")
    Path("other").write_bytes(b"\0b")
    assert u.diff("one", "one") == ""
    assert u.diff("one", "other") == "Binary files one and other differ\n"


# ---- rows

ROWS = [
    {"city": "Bern", "n": 2},
    {"city": "Basel", "n": 3},
    {"city": "Bern", "n": None},
    {"city": "Aarau", "n": 2},
]


def test_rows_are_grouped() -> None:
    assert {key: len(rows) for key, rows in u.group_by(ROWS, "city").items()} == {
        "Bern": 2, "Basel": 1, "Aarau": 1,
    }  # fmt: skip
    assert list(u.group_by(ROWS, ("city", "n"))) == [tuple(row.values()) for row in ROWS]
    assert list(u.group_by([(1, "a"), (2, "b")], 1)) == ["a", "b"]
    assert u.group_by("aab", str.upper) == {"A": ["a", "a"], "B": ["b"]}
    assert u.group_by([], "x") == {} and list(u.group_by([1j], "imag")) == [1.0]


def test_rows_are_filtered_one_after_another() -> None:
    assert list(u.filter_by(ROWS, city="Bern")) == [ROWS[0], ROWS[2]]
    assert list(u.filter_by(ROWS, lambda row: row["n"], city="Bern")) == [ROWS[0]]
    assert next(u.filter_by(iter([ROWS[0], None]), n=2)) == ROWS[0]
    assert list(u.filter_by([{"where": 1}], where=1)) == [{"where": 1}]


def test_rows_are_sorted_with_those_that_lack_a_value_last() -> None:
    assert [row["n"] for row in u.sort_by(ROWS, "n")] == [2, 2, 3, None]
    assert [row["city"] for row in u.sort_by(ROWS, "n")][:2] == ["Bern", "Aarau"]
    assert [row["n"] for row in u.sort_by(ROWS, "n", reverse=True)] == [3, 2, 2, None]
    assert [row["city"] for row in u.sort_by(ROWS, ["n", "city"])] == [
        "Aarau",
        "Bern",
        "Basel",
        "Bern",
    ]
    nan = float("nan")
    assert u.sort_by([nan, 2.0, 1.0], lambda x: x)[:2] == [1.0, 2.0]
    assert u.sort_by(["b", "A"], str.lower) == ["A", "b"]


def test_a_field_that_is_not_there_is_reported_with_those_that_are() -> None:
    for use in (u.group_by, u.sort_by, u.unique):
        with pytest.raises(KeyError, match="no 'town': it has 'city', 'n'"):
            list(use(ROWS, "town"))
    with pytest.raises(KeyError, match="no 'town'"):
        list(u.filter_by(ROWS, town="Bern"))


def test_what_is_equal_is_there_once() -> None:
    rows = [{"a": [1]}, {"a": [1]}, {"a": (1,)}, [{1}], [{1}], 1, 1.0, "1", bytearray(b"x")]
    assert list(u.unique(rows)) == [{"a": [1]}, {"a": (1,)}, [{1}], 1, "1", bytearray(b"x")]
    assert list(u.unique(ROWS, "city")) == [ROWS[0], ROWS[1], ROWS[3]]
    assert next(u.unique(iter([1, object()]))) == 1


def test_chunks_have_a_size() -> None:
    assert list(u.chunk(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(u.chunk([], 2)) == [] and list(u.chunk("ab", 5)) == [["a", "b"]]
    with pytest.raises(ValueError, match="size="):
        u.chunk([1], 0)


# ---- CSV and JSON


@pytest.mark.parametrize(
    ("text", "options", "rows"),
    [
        ("a,b\n1,x\n", {}, [{"a": "1", "b": "x"}]),
        ("\ufeffa;b\r\n1;\"x;\ny\"\r\n\r\n2\r\n", {"delimiter": ";"},
         [{"a": "1", "b": "x;\ny"}, {"a": "2", "b": None}]),
        ("1,2\n", {"fields": ["a", "b"], "numbers": True}, [{"a": 1, "b": 2}]),
        ("", {}, []),
        ("a,b", {}, []),
        ('a\n"x ""y"""', {}, [{"a": 'x "y"'}]),
    ],
)  # fmt: skip
def test_csv_becomes_dicts(text: str, options: Any, rows: Any) -> None:
    Path("f").write_bytes(text.encode())
    assert list(u.csv_to_json("f", **options)) == list(u.csv_to_json(text=text, **options)) == rows


def test_numbers_of_csv_are_those_of_json() -> None:
    cells = ["0", "-1", "1.50", "1e3", "007", "1_0", "", "nan", "1e999", " 1", "1.", "9" * 400]
    [row] = u.csv_to_json(
        text=",".join(cells), fields=[str(i) for i in range(len(cells))], numbers=True
    )
    assert list(row.values()) == [0, -1, 1.5, 1000.0, "007", "1_0", None, *cells[7:]]
    assert [type(row[name]) for name in "023"] == [int, float, float]


@pytest.mark.parametrize(
    ("text", "said"),
    [("a,a\n", "several columns"), ("a\n1\n1,2\n", "line 3 has 2 cells"), ('a\n"x\n', "")],
)
def test_csv_that_is_none_says_where(text: str, said: str) -> None:
    if said:
        with pytest.raises(ValueError, match=said):
            list(u.csv_to_json(text=text))
    else:
        assert list(u.csv_to_json(text=text)) == [{"a": "x\n"}]


def test_rows_of_csv_come_one_after_another() -> None:
    Path("f").write_text("a\n" + "1\n" * 10 + "1,2\n")
    rows = u.csv_to_json("f")
    assert [next(rows) for _ in range(10)] == [{"a": "1"}] * 10
    with pytest.raises(ValueError, match="line 12"):
        next(rows)


def test_dicts_become_csv_and_come_back() -> None:
    rows = [{"a": 1, "b": 'x,\n"y"'}, {"b": None, "c": [1, {"d": True}]}, {"a": False}]
    text = u.json_to_csv(rows)
    assert text.splitlines()[0] == "a,b,c"
    back = list(u.csv_to_json(text=text, numbers=True))
    assert back[0] == {"a": 1, "b": 'x,\n"y"', "c": None}
    assert json.loads(back[1]["c"]) == [1, {"d": True}] and back[2]["a"] == "false"
    assert u.json_to_csv(iter(rows), "f", fields=["c", "a"]) == 3
    assert Path("f").read_text().splitlines()[0] == "c,a"
    assert u.json_to_csv([]) == "\n" and u.json_to_csv([], fields=["a"]) == "a\n"
    with pytest.raises(TypeError, match="each row is a dict"):
        u.json_to_csv([[1]])


@pytest.mark.parametrize(
    ("text", "csv"),
    [
        ('[{"a": 1}, {"a": 2}]', "a\n1\n2\n"),
        ('{"a": 1}\n\n{"a": 2}\n', "a\n1\n2\n"),
        ('\ufeff{"a": 1}', "a\n1\n"),
    ],
)
def test_a_json_file_becomes_csv(text: str, csv: str) -> None:
    Path("f.json").write_text(text)
    assert u.json_to_csv("f.json") == csv == u.json_to_csv(Path("f.json"))
    Path("bad").write_text("{'a': 1}")
    with pytest.raises(ValueError, match="no JSON"):
        u.json_to_csv("bad")


# ---- XML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<a/>", {"a": None}),
        ("<a> x </a>", {"a": "x"}),
        ("<a><b>1</b><c/><b>2</b><b/></a>", {"a": {"b": ["1", "2", None], "c": None}}),
        ('<a id="1">x<b/>y</a>', {"a": {"@id": "1", "b": None, "#text": "xy"}}),
        ("<a>&lt;&#65;<![CDATA[<b>]]></a>", {"a": "<A<b>"}),
        ('<x:a xmlns:x="u"><x:b/></x:a>', {"x:a": {"@xmlns:x": "u", "x:b": None}}),
        ("<?xml version='1.0'?><!-- c --><a>é</a>", {"a": "é"}),
    ],
)
def test_xml_becomes_a_dict(text: str, value: Any) -> None:
    Path("f").write_text(text)
    assert u.xml_to_dict("f") == u.xml_to_dict(text=text) == value
    assert u.xml_to_dict(text=text.encode()) == value


def test_xml_has_the_encoding_that_it_names() -> None:
    text = "<?xml version='1.0' encoding='iso-8859-1'?><a>é</a>"
    Path("f").write_bytes(text.encode("latin-1"))
    assert u.xml_to_dict("f") == {"a": "é"} == u.xml_to_dict(text=text)


LAUGHS = "".join(f'<!ENTITY l{i + 1} "{f"&l{i};" * 10}">' for i in range(9))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'<!DOCTYPE a [<!ENTITY l0 "ha">{LAUGHS}]><a>&l9;</a>', "document type"),
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', "document type"),
        ('<!DOCTYPE a SYSTEM "http://host.example/a.dtd"><a/>', "document type"),
        ("<a>&x;</a>", "no XML: undefined entity"),
        ("<a>" * 1000 + "</a>" * 1000, "200 deep"),
        ("<a>", "no XML"),
        ("", "no XML"),
        ("<a/><b/>", "no XML"),
    ],
)
def test_xml_that_could_do_harm_or_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        u.xml_to_dict(text=text)
