# SPDX-License-Identifier: Apache-2.0
"""Numbers of wire/cell_frame.h: the worker repeats none, the tests' driver repeats them right."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
HEADER = (HERE.parents[1] / "wire" / "cell_frame.h").read_text()


def constants(file: str) -> dict[str, Any]:
    """Module-level constants in capitals, of assignments that only use literals and range()."""
    found: dict[str, Any] = {}
    for node in ast.parse((HERE / file).read_text()).body:
        if not isinstance(node, ast.Assign):
            continue
        try:
            value = eval(compile(ast.Expression(node.value), file, "eval"), {"__builtins__": {}},
                         {"range": range})  # fmt: skip
        except Exception:
            continue
        for target in node.targets:
            if isinstance(target, ast.Name):
                found[target.id] = value
            elif isinstance(target, ast.Tuple):
                names = [name.id for name in target.elts if isinstance(name, ast.Name)]
                found.update(zip(names, value))
    return found


def in_header(name: str) -> int:
    match = re.search(
        rf"\b{name} = '\\?(x[0-9a-f]+|.)'|\b{name} = (?:uint64_t\{{)?([^,;}}]+)", HEADER
    )
    assert match is not None, name
    if match[1]:
        return int(match[1][1:], 16) if len(match[1]) > 1 else ord(match[1])
    return int(eval(re.sub(r"(?<=\d)u\b", "", match[2])))


def camel(name: str) -> str:
    return "k" + "".join(word.capitalize() for word in name.split("_"))


KINDS = (
    "CALL STARTED RESULT RAISED UNENCODABLE NEED MEMFD REFUSED TOO_LARGE LOAD PART "
    "MISDIRECTED MAKE_SLOT MAKE_CELL ARM KILL RETIRE CONFIGURE END_SLOT HELLO ZYGOTE_READY "
    "SLOT_READY CELL_READY CELL_EXIT FAILED ZYGOTE_DIED SLOT_GONE"
).split()


def test_frames_of_the_driver_have_the_numbers_of_the_header() -> None:
    here = constants("driver.py")
    wanted = {name: in_header(camel(name)) for name in KINDS}
    assert {name: here[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    "file", ["call.py", "failures.py", "loading.py", "replies.py", "zygote.py"]
)
def test_the_worker_takes_the_numbers_of_frames_from_the_extension(file: str) -> None:
    names = set(KINDS) - {"CALL"}  # a descriptor in zygote.py
    assert names.isdisjoint(constants(file))
