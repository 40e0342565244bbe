# SPDX-License-Identifier: Apache-2.0
"""The tables of claims: README.md beside this file, and SECURITY.md. They name tests that exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TABLE = (HERE / "README.md").read_text()
PROMISES = (ROOT / "SECURITY.md").read_text()

# How many cases each area of the catalogue has.
AREAS = {
    "PR": 11, "FS": 16, "KS": 15, "PI": 9, "NW": 8, "EP": 18, "RX": 12, "CS": 6, "WP": 11,
    "RD": 11, "AS": 13, "DB": 17, "PF": 18, "PO": 15, "TL": 7,
}  # fmt: skip
ROW = re.compile(r"^\| ([A-Z]{2}-\d\d) \| ([^|]+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([\w/.-]+\.(?:py|cc))(?:::([\w.]+))?`")


def rows() -> list[tuple[str, str, str]]:
    return ROW.findall(TABLE)


def named(text: str) -> Iterator[tuple[str, str]]:
    """Each (file from the root, test or "") that a text names."""
    for place, test in NAMED.findall(text):
        yield (place if "/" in place else f"tests/security/{place}"), test


def exists(place: str, test: str) -> bool:
    file = ROOT / place
    if not file.is_file():
        return False
    if not test:
        return True
    if file.suffix == ".py":
        return re.search(rf"^ *(?:async )?def {test}\(", file.read_text(), re.MULTILINE) is not None
    suite, _, name = test.partition(".")
    return (
        re.search(rf"^TEST(?:_F|_P)?\({suite},\s*{name}\)", file.read_text(), re.MULTILINE)
        is not None
    )


def test_every_case_has_one_row() -> None:
    cases = [case for case, _, _ in rows()]
    assert len(cases) == len(set(cases)) == sum(AREAS.values()) == 187
    assert Counter(case[:2] for case in cases) == AREAS


def test_every_row_says_who_tries_it_or_why_not() -> None:
    for case, claim, tried in rows():
        assert len(claim) > 10, case
        told = "does not apply: " in tried or tried == "not tried"
        assert told or any(named(tried)), case


@pytest.mark.parametrize("page", ["README.md", "SECURITY.md"])
def test_every_named_test_exists(page: str) -> None:
    text = TABLE if page == "README.md" else PROMISES
    assert any(named(text))
    assert [f"{place}::{test}" for place, test in named(text) if not exists(place, test)] == []


def test_a_name_that_is_no_test_is_found_out() -> None:
    assert not exists("tests/security/test_table.py", "test_of_nothing")
    assert not exists("tests/security/test_nothing.py", "")
    assert not exists("podman/podman_test.cc", "Podman.IsNothing")


def test_every_file_of_attacks_is_in_the_table() -> None:
    files = {path.name for path in HERE.glob("test_*.py")}
    assert {name for name in files if f"`{name}" not in TABLE} == set()


def test_every_attack_has_a_control_or_a_reason() -> None:
    """Of the areas whose walls are a cell's own."""
    excused = TABLE.partition("## The table")[0]
    unmarked = set()
    for case, _, tried in rows():
        if case[:2] not in ("PR", "FS", "KS", "PI", "NW", "RX", "CS", "TL", "DB"):
            continue
        for place, test in named(tried):
            if not place.startswith("tests/security/") or not test:
                continue
            source = (ROOT / place).read_text()
            before = source[: source.index(f"\ndef {test}(")]
            decorators = before[before.rindex("\n\n") :]
            if "pytest.mark.wall(" in decorators or re.search(
                rf"`{Path(place).name}`[,;]", excused
            ):
                continue
            if f"`{test}`" not in excused:
                unmarked.add(f"{place}::{test}")
    assert unmarked == set()


def test_what_is_installed_knows_no_switch() -> None:
    """The word that takes walls down is in no file that runs sandboxes."""
    import hutch

    runtime = Path(hutch.__file__).parent / "_runtime"
    files = [runtime / "hutch-warden", *runtime.glob("worker/_hutch_cell*.so")]
    assert len(files) == 2
    assert [file.name for file in files if b"/opt/hutch/without" in file.read_bytes()] == []


def test_every_promise_names_its_tests() -> None:
    promises = re.findall(r"^\d\. .*?(?=^\d\. |^## )", PROMISES, re.MULTILINE | re.DOTALL)
    assert len(promises) >= 5
    assert [text[:60] for text in promises if not any(named(text))] == []
