# SPDX-License-Identifier: Apache-2.0
"""What must be written in more than one place about an option is the same in each."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hutch import _hints
from hutch._calls import command_run, outcomes
from hutch._not_python import LISTED_BY_PYTHON
from hutch._options.options import (
    _MAX_CALLS,
    ALIASES,
    FIELDS,
    KEYWORDS,
    LIMITS,
    POLICY_FIELDS,
    SENT,
    Options,
)
from hutch._options.policy import Policy
from hutch._session_options import WRITABLE

ROOT = Path(__file__).parents[1]
TYPES = ROOT / "bindings/hutch/_options/keyword_types.py"


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
    shared = {
        name
        for kind in ("PolicyKeywords", "SentKeywords", "LimitKeywords")
        for name in typed(TYPES, kind)
    }
    others = typed(ROOT / "bindings/hutch/_options/described.py", "Keywords") | typed(
        TYPES, "OutputKeywords"
    )
    assert {*FIELDS, "environment"} == set(Options._fields)
    keywords = {name for name, field in FIELDS.items() if field.keyword}
    assert shared | others == keywords | {"environment", "policy"}
    flags = typed(ROOT / "bindings/hutch/_options/policy.py", "PolicyFields")
    assert shared | flags == set(POLICY_FIELDS) and not shared & flags
    for name in POLICY_FIELDS:
        assert f"`{name}`" in (Policy.__doc__ or "") or name == "mounts"


def test_an_alias_means_one_option_and_is_none_itself() -> None:
    aliases = [alias for field in FIELDS.values() for alias in field.aliases]
    assert len(aliases) == len(ALIASES)
    assert not ALIASES.keys() & {*FIELDS, *KEYWORDS}


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
    sent = typed(stubs, "LimitSpec") | typed(TYPES, "SentKeywords")
    assert sent == set(SENT)
    assert typed(stubs, "PoolSpec") | typed(stubs, "PackageSpec") | sent == {*members, *of_calls}


def test_limits_and_isolations_have_the_same_names_on_both_sides() -> None:
    frames, values = source("wire/cell_frame.h"), source("wire/values.h")
    names = re.search(r"kCellLimitNames\[\] = \{([^}]*)\}", frames)
    isolations = re.search(r"kIsolationNames = \{([^}]*)\}", values)
    assert names is not None and isolations is not None
    assert {*re.findall(r'"(\w+)"', names[1]), "result"} == set(LIMITS)
    assert set(re.findall(r'"(\w+)"', isolations[1])) == set(_MAX_CALLS)


def test_the_agents_defaults_are_those_of_the_keywords() -> None:
    text = re.sub(r"//[^\n]*", "", source("wire/values.h"))
    found = {}
    for struct in ("CallLimits", "PoolSpec"):
        body = text[text.index(f"struct {struct} {{") :].partition("\n};")[0]
        for name, value in re.findall(r"(\w+) = ([\d'ul <.]+);", body):
            found[name] = eval(re.sub(r"'|(?<=\d)u?l*\b", "", value))
    normal = Options()
    assert found["timeout_ms"] == 1000 * (normal.timeout_sec or 0)
    assert found["queue_ms"] == 1000 * normal.queue_sec
    assert found["output_bytes"] == normal.output_mb * (1 << 20)
    assert found["result_bytes"] == normal.result_mb * (1 << 20)
    assert found["cpu_ms"] == 0 and normal.cpu_sec is None
    assert found["idle_sec"] == normal.pool.idle_sec
    same = found.keys() & {*Options._fields}
    assert len(same) >= 6
    for name in same:
        assert found[name] == getattr(normal, name), name


def test_pages_and_help_name_the_defaults() -> None:
    def read(text: str) -> float | None:
        return None if text in ("none", "None") else float(text.replace("_", ""))

    rows = re.findall(r"^\| `(\w+)` \| ([\w.]+) \|", source("docs/limits.md"), re.M)
    assert len(rows) >= 7
    said = re.findall(r"`(\w+)`\s+\((?:default )?(None|[\d_.]+)", Policy.__doc__ or "")
    assert len(said) >= 10
    for name, default in (*rows, *said):
        assert read(default) == getattr(Options(), name), name


# Numbers that code in two languages, or inside and outside of a sandbox, must agree on.
PAIRS = (
    ("images/worker/call.py", "SLOW_LOAD_NS", "images/worker/frames.cc", "kSlowLoadNs"),
    ("images/worker/zygote.py", "NOTES_LIMIT", "pool/worker.cc", "kMaxNotes"),
    ("images/environment/install.py", "RESERVE", "environments/builder.cc", "kReserve"),
    (
        "bindings/hutch/_options/environment.py",
        "_MOST_LOCK",
        "environments/environment_spec.h",
        "kMaxLock",
    ),
    ("images/worker/encode.py", "MAX_BIG_INT_BYTES", "bindings/decode.h", "kMaxBigIntBytes"),
    ("images/worker/encode.py", "MAX_RANGE_BITS", "bindings/decode.h", "kMaxRangeBits"),
    ("images/worker/encode.py", "ALIGNMENT", "bindings/decode.h", "kBufferAlignment"),
    ("images/worker/forwarder.cc", "kMaxListeners", "images/worker/network.cc", "kMaxListeners"),
    (
        "images/worker/encode_arrays.py",
        "ARROW_METADATA",
        "bindings/hutch/_results/arrow_metadata.py",
        "MOST_BYTES",
    ),
    (
        "images/worker/answers.py",
        "MOST_OPEN",
        "bindings/hutch/_calls/within.py",
        "MOST_OPEN",
    ),
    (
        "images/worker/answers.py",
        "MOST_BYTES",
        "bindings/hutch/_calls/within.py",
        "MOST_BYTES",
    ),
    ("images/worker/dialogue.py", "PLAIN", "bindings/hutch/_tool_stubs.py", "_PLAIN"),
    ("images/worker/dialogue.py", "AWAITED", "bindings/hutch/_tool_stubs.py", "_AWAITED"),
    ("images/worker/dialogue.py", "BESIDE", "bindings/hutch/_tool_stubs.py", "_BESIDE"),
)


@pytest.mark.parametrize(("file", "name", "other", "there"), PAIRS, ids=[one[1] for one in PAIRS])
def test_a_number_that_stands_twice_is_the_same(
    file: str, name: str, other: str, there: str
) -> None:
    def number(place: str, constant: str) -> object:
        found = re.search(rf"\b{constant} = ([\d'_ *+<xul]+)", source(place))
        assert found is not None, constant
        return eval(re.sub(r"'|(?<=\d)u?l*\b", "", found[1]))

    assert number(file, name) == number(other, there)


def test_the_directories_of_the_scratch_are_the_same_everywhere() -> None:
    def named(place: str, pattern: str) -> list[str]:
        found = re.findall(pattern, source(place))
        return [path for text in found for path in re.findall(r'"(/[\w/]+)"', text)]

    inside = named("images/worker/failures.py", r"\nSCRATCH = \((.*?)\)")
    assert inside == ["/work", "/tmp", "/dev/shm"]
    assert named("pool/confinement.cc", r"for \(const char\* path : \{(.*?)\}") == inside
    assert named("images/warden/single_cell.cc", r"= OpenScratch\((.*?)\)") == inside
    assert named("images/worker/beside.cc", r"kScratch\[\] = \{(.*?)\}") == inside
    mounted = named("images/worker/cell_init.cc", r'\n  Mount\("(?:cwd|tmp|shm)", (.*?),')
    assert sorted(mounted) == sorted(inside)
    # A link to /tmp in every sandbox.
    assert {*_hints._SCRATCH} - {"/var/tmp"} == {*inside}
    assert {*WRITABLE} == {*inside} - {"/dev/shm"}


def test_the_number_of_files_is_computed_alike() -> None:
    least, most, of_a_mib = (
        outcomes._LEAST_FILES,
        outcomes._MOST_FILES,
        outcomes._FILES_OF_A_MIB,
    )
    for place in ("images/worker/slot.cc", "images/warden/configuration.cc"):
        found = re.search(r"std::clamp<[^>]+>\((?:.*?) / (\d+), (\d+), (\d+)\)", source(place))
        assert found is not None, place
        assert tuple(map(int, found.groups())) == (1024 // of_a_mib, least, most)


def test_numbers_of_a_commands_end_are_those_of_the_wire() -> None:
    text = source("wire/cell_frame.h")
    names = {name: int(value) for name, value in re.findall(r"^  k(\w+) = (\d+),", text, re.M)}
    ends = ("CommandExited", "CommandCancelled", "CommandCpuTime", "CommandNoThread")
    here = (
        command_run._EXITED,
        command_run._CANCELLED,
        command_run._CPU_TIME,
        command_run._NO_THREAD,
    )
    assert tuple(names[name] for name in ends) == here
    for number, limit in command_run._LIMITS.items():
        assert names[f"Limit{limit.capitalize()}"] == number


def test_what_lists_packages_is_said_alike() -> None:
    assigned = ast.parse(source("images/worker/shell_lines.py")).body
    texts = {
        one.targets[0].id: ast.literal_eval(one.value)
        for one in assigned
        if isinstance(one, ast.Assign)
        and isinstance(one.targets[0], ast.Name)
        and one.targets[0].id == "LISTED_BY_PYTHON"
    }
    assert texts == {"LISTED_BY_PYTHON": LISTED_BY_PYTHON}
