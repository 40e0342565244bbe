# SPDX-License-Identifier: Apache-2.0
"""What must be written in more than one place about an option is the same in each."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hutch._options.options import _MAX_CALLS, FIELDS, LIMITS, POLICY_FIELDS, SENT, Options
from hutch._options.policy import Policy

ROOT = Path(__file__).parents[1]
OPTIONS = ROOT / "bindings/hutch/_options/options.py"


def source(place: str) -> str:
    return (ROOT / place).read_text()


def typed(place: Path, name: str) -> set[str]:
    """The keys that a TypedDict declares itself."""
    for node in ast.walk(ast.parse(place.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {
                line.target.id
                for line in node.body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            }
    raise LookupError(name)


def names_in(text: str, begin: str, pattern: str) -> list[str]:
    found = re.findall(pattern, text[text.index(begin) :].partition("\n}")[0])
    assert found
    return found


def test_every_option_is_a_field_with_a_default_and_a_type() -> None:
    shared = typed(OPTIONS, "PolicyKeywords") | typed(OPTIONS, "SentKeywords")
    assert {*FIELDS, "environment"} == set(Options._fields)
    keywords = {name for name, field in FIELDS.items() if field.keyword}
    assert shared | typed(ROOT / "bindings/hutch/_options/keywords.py", "Keywords") == keywords | {
        "environment",
        "policy",
    }
    flags = typed(ROOT / "bindings/hutch/_options/policy.py", "PolicyFields")
    assert shared | flags == set(POLICY_FIELDS) and not shared & flags
    for name in POLICY_FIELDS:
        assert f"`{name}`" in (Policy.__doc__ or "") or name == "mounts"


def test_the_agents_bounds_are_those_of_the_keywords() -> None:
    pattern = r'\{"(\w+)", ([\w.]+), ([\w.]+), (true|false), (true|false),'
    rows = re.findall(pattern, source("agent/limits.h"))
    assert len(rows) == 8
    values = {"kMostMb": 1 << 20, "kYearSec": 366 * 86400.0}
    for name, low, high, whole, _ in rows:
        least, most = float(values.get(low, low)), float(values.get(high, high))
        check = FIELDS[name].check
        assert check(name, int(most) if whole == "true" else most) == most
        for bad in (most + 1, least - 1):
            with pytest.raises(ValueError, match=name):
                check(name, int(bad) if whole == "true" else bad)
        if whole == "true":
            assert check(name, int(least)) == least


def test_a_pool_is_described_alike_on_both_sides() -> None:
    values = source("wire/values.h")
    body = values[values.index("struct PoolSpec {") :].partition("\n};")[0]
    body = re.sub(r"//[^\n]*", "", body)
    members = re.findall(r"(\w+)(?: = [^;]*)?;", body)
    visited = names_in(values, "void ForEachField", r'visit\("(\w+)", spec\.(\w+)\)')
    assert [name for name, _ in visited] == [member for _, member in visited] == members
    stubs = ROOT / "bindings/hutch/_core.pyi"
    of_calls = "timeout_ms cpu_ms output_bytes result_bytes policy shared hard_limits".split()
    sent = typed(stubs, "LimitSpec") | typed(OPTIONS, "SentKeywords")
    assert sent == set(SENT)
    assert typed(stubs, "PoolSpec") | typed(stubs, "PackageSpec") | sent == {*members, *of_calls}


def test_limits_and_isolations_have_the_same_names_on_both_sides() -> None:
    frames, values = source("wire/cell_frame.h"), source("wire/values.h")
    names = re.search(r"kCellLimitNames\[\] = \{([^}]*)\}", frames)
    isolations = re.search(r"kIsolationNames = \{([^}]*)\}", values)
    assert names is not None and isolations is not None
    assert {*re.findall(r'"(\w+)"', names[1]), "result"} == set(LIMITS)
    assert set(re.findall(r'"(\w+)"', isolations[1])) == set(_MAX_CALLS)
