# SPDX-License-Identifier: Apache-2.0
"""What the worker's Python repeats of wire/cell_frame.h is what stands there."""

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


KINDS = {
    "call.py": "CALL STARTED RESULT RAISED UNENCODABLE NEED MEMFD REFUSED TOO_LARGE LOAD PART",
    "zygote.py": "MAKE_SLOT ZYGOTE_READY SLOT_READY FAILED",
    "driver.py": "CALL STARTED RESULT RAISED UNENCODABLE NEED MEMFD REFUSED TOO_LARGE LOAD PART "
    "MISDIRECTED MAKE_SLOT MAKE_CELL ARM KILL RETIRE CONFIGURE END_SLOT HELLO ZYGOTE_READY "
    "SLOT_READY CELL_READY CELL_EXIT FAILED ZYGOTE_DIED SLOT_GONE",
}
OTHERS = {
    "IN_MEMFD": "kFlagInMemfd",
    "IN_PARTS": "kFlagInParts",
    "MOST_IN_PARTS": "kMostInParts",
    "MAX_PAYLOAD": "kMaxPayload",
    "PICKLE": "kPickled",
    "MARSHAL": "kMarshalled",
    "LIMIT_MEMORY": "kLimitMemory",
    "LIMIT_PIDS": "kLimitPids",
    "LIMIT_DISK": "kLimitDisk",
}


@pytest.mark.parametrize("file", KINDS)
def test_frames_have_the_numbers_of_the_header(file: str) -> None:
    here = constants(file)
    wanted = {name: in_header(camel(name)) for name in KINDS[file].split()}
    assert {name: here[name] for name in wanted} == wanted


def test_other_constants_are_those_of_the_header() -> None:
    here = constants("call.py")
    assert {name: here[name] for name in OTHERS} == {n: in_header(k) for n, k in OTHERS.items()}
    assert here["PLAIN"] == bytes([in_header("kPlain")])
    assert here["PLAIN_KEPT"] == bytes([in_header("kPlainKept")])
