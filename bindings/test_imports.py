# SPDX-License-Identifier: Apache-2.0
"""The package's modules stand in layers: none imports, at whatever time, what imports it. Imports
inside functions and those for types alone count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).with_name("hutch")


def imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None and node.level == 0, "relative imports are not counted"
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def graph() -> dict[str, set[str]]:
    """What each module imports of the package's others."""
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    return {
        name: set(imports(path.read_text())) & files.keys() - {name} for name, path in files.items()
    }


def test_no_module_imports_what_imports_it() -> None:
    modules = graph()
    assert len(modules) > 50 and "hutch._core" not in modules
    TopologicalSorter(modules).prepare()


def test_a_circle_is_seen() -> None:
    modules = graph()
    modules["hutch._errors"].add("hutch._sandbox")
    with pytest.raises(CycleError):
        TopologicalSorter(modules).prepare()
