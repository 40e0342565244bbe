# SPDX-License-Identifier: Apache-2.0
"""The package's modules import in one direction, and its layers in one order: none imports, at
whatever time, what imports it. Imports inside functions and those for types alone count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import hutch

PACKAGE = Path(__file__).with_name("hutch")
# A module imports from its own layer and from those before it, as docs/architecture.md draws them.
LAYERS = (
    "_results",
    "basics",
    "_options",
    "_connect",
    "_carry",
    "_calls",
    "top",
    "_remote",
    "evals",
    "serve",
    "cli",
)
BASICS = (
    "_callers",
    "_cancelled",
    "_choices",
    "_display",
    "_distributions",
    "_errors",
    "_explain",
    "_faults",
    "_hints",
    "_node_hints",
    "_not_python",
    "_not_yet",
    "_outcome",
    "_text",
    "_tool_calls",
    "_tool_classes",
    "_tool_data",
    "_tool_descriptions",
    "_tool_kinds",
    "_tool_late",
    "_tool_results",
    "_given_schema",
    "_key_values",
    "_saved_states",
    "_session_hold",
    "_storage",
    "_storage_directory",
    "_storage_fsspec",
    "_storage_of",
    "_storage_sqlite",
    "_strict_json",
    "_tool_stubs",
    "_tool_types",
    "_tools",
    "_twins",
    "_uncaught",
)


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


def layer(module: str) -> str:
    names = module.split(".")
    if names[1] in BASICS:
        return "basics"
    if names[1] == "__main__":
        return "cli"
    return names[1] if len(names) > 2 else "top"


def test_no_module_imports_what_imports_it() -> None:
    modules = graph()
    assert len(modules) > 50 and "hutch._core" not in modules
    TopologicalSorter(modules).prepare()


def test_a_circle_is_seen() -> None:
    modules = graph()
    modules["hutch._errors"].add("hutch._sandbox")
    with pytest.raises(CycleError):
        TopologicalSorter(modules).prepare()


def test_layers_import_from_those_before_them() -> None:
    upward = [
        (name, other)
        for name, others in graph().items()
        for other in others
        if LAYERS.index(layer(other)) > LAYERS.index(layer(name))
    ]
    assert not upward
    assert {layer(name) for name in graph()} == set(LAYERS)


def test_the_page_for_contributors_names_every_module_that_has_no_folder() -> None:
    page = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text()
    names = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    worker = PACKAGE.parents[1] / "images" / "worker"
    files = {path.name for path in worker.glob("*.py") if not path.name.startswith("test_")}
    names |= files - {"conftest.py", "driver.py", "seccomp.py"}
    assert not [name for name in sorted(names) if f"`{name}`" not in page]


def test_a_layer_loads_nothing_by_itself() -> None:
    for name in LAYERS:
        if name.startswith("_"):
            assert not list(imports((PACKAGE / name / "__init__.py").read_text()))


def test_public_names_show_no_layer() -> None:
    """What pickles name stays where it is when a module moves."""
    for name in hutch.__all__:
        place = getattr(getattr(hutch, name), "__module__", None) or "hutch"
        assert place.count(".") <= 1 and not place.endswith(LAYERS)
