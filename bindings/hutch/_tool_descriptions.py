# SPDX-License-Identifier: Apache-2.0
"""What the documentation of a function says of its parameters: in the sections of Google and NumPy,
or the fields of Sphinx.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SECTION = re.compile(r"(args|arguments|parameters|params)\s*:?$", re.IGNORECASE)
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY = re.compile(r"\*{0,2}(\w+)(?:\s*,\s*\*{0,2}\w+)*\s*(?::.*)?$")
_SPHINX = re.compile(r":(?:param|parameter|arg)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$")


def descriptions_of(documentation: str, names: Iterable[str]) -> dict[str, str]:
    """By the name of a parameter, of those that are known."""
    lines = documentation.expandtabs().splitlines()
    found = {**_of_fields(lines), **_of_sections(lines)}
    return {name: found[name] for name in names if found.get(name)}


def _of_fields(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        match = _SPHINX.match(line.strip())
        if match:
            name, found[match[1]] = match[1], match[2].strip()
        elif name and line.strip() and line[:1].isspace() and not line.strip().startswith(":"):
            found[name] = f"{found[name]} {line.strip()}".strip()
        else:
            name = ""
    return found


def _of_sections(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for at, line in enumerate(lines):
        if _SECTION.match(line.strip()):
            underlined = at + 1 < len(lines) and set(lines[at + 1].strip()) == {"-"}
            begin = at + 1 + underlined
            found.update(_entries(lines[begin:], _indent(line), _NUMPY if underlined else _GOOGLE))
    return found


def _entries(lines: list[str], outer: int, form: re.Pattern[str]) -> dict[str, str]:
    """Of one section, until it ends: names at one indentation, what is said of them at a larger."""
    found: dict[str, str] = {}
    name, level = "", None
    for line in lines:
        if not line.strip():
            continue
        indent = _indent(line)
        if indent < outer or (form is _GOOGLE and indent == outer):
            break
        level = indent if level is None else level
        if indent > level:
            if name:
                found[name] = f"{found[name]} {line.strip()}".strip()
            continue
        match = form.match(line.strip())
        if indent < level or not match:
            break
        name = match[1]
        found[name] = match[2].strip() if form is _GOOGLE else ""
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
