# SPDX-License-Identifier: Apache-2.0
"""The package's modules stand in layers: none imports, at whatever time, what imports it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).with_name("hutch")
# A keyword of the options takes a policy, which is made of options.
KNOWN = {("hutch._options", "hutch._policy")}


def imports(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.ImportFrom) and child.module and child.level == 0:
            yield child.module
            yield from (f"{child.module}.{name.name}" for name in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is None:
            yield from (f"hutch.{name.name}" for name in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield f"hutch.{child.module}"
        elif isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        yield from imports(child)


def graph() -> dict[str, set[str]]:
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    return {
        name: set(imports(ast.parse(path.read_text()))) & files.keys() - {name}
        for name, path in files.items()
    }


def test_no_module_imports_what_imports_it() -> None:
    modules = graph()
    assert len(modules) > 50 and "hutch._core" not in modules
    for one, other in KNOWN:
        assert other in modules[one]
        modules[one].discard(other)
    TopologicalSorter(modules).prepare()


def test_a_circle_is_seen() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter(graph()).prepare()
