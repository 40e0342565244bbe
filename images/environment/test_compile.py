"""The compile steps: a list from packages' code, of which only plain files of the tree count; and
what the sources say that they import.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


@pytest.fixture
def compile_step(
    script: Script, tmp_path: pathlib.Path
) -> Callable[[dict[str, list[object]]], int]:
    module = script("compile")
    (tmp_path / "env").mkdir()

    def run(given: dict[str, list[object]]) -> int:
        (tmp_path / "list").write_text(json.dumps(given))
        paths = [str(tmp_path / name) for name in ("env", "list", "report", "cache")]
        argv, sys.argv = sys.argv, ["compile.py", *paths]
        try:
            assert module.main() == 0
        finally:
            sys.argv = argv
        return int(json.loads((tmp_path / "report").read_text())["compiled"])

    return run


@pytest.fixture
def compile_listed(
    compile_step: Callable[[dict[str, list[object]]], int],
) -> Callable[[list[object]], int]:
    return lambda listed: compile_step({"files": listed})


@pytest.fixture
def compiled_of(
    compile_step: Callable[[dict[str, list[object]]], int], tmp_path: pathlib.Path
) -> Callable[..., set[str]]:
    """The files that get bytecode, with these sources and for these modules."""
    tree = tmp_path / "env"

    def run(sources: dict[str, str], *modules: str) -> set[str]:
        for name, text in sources.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
        compile_step({"modules": list(modules)})
        return {name for name in sources if cached(tree / name).exists()}

    return run


def cached(path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(importlib.util.cache_from_source(str(path), optimization=""))


def test_listed_files_get_bytecode_that_is_never_checked(
    compile_listed: Callable[[list[object]], int], tmp_path: pathlib.Path
) -> None:
    sources = [tmp_path / "env" / name for name in ("a.py", "b.py", "c.py")]
    for source in sources:
        source.write_text("raise SystemExit('executed')\n")
    assert compile_listed(["a.py", "b.py"]) == 2
    for source in sources[:2]:
        assert cached(source).read_bytes()[4:8] == b"\1\0\0\0"
    assert not cached(sources[2]).exists()


def test_paths_and_links_that_lead_out_are_left_alone(
    compile_listed: Callable[[list[object]], int], tmp_path: pathlib.Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.py").write_text("x = 1\n")
    tree = tmp_path / "env"
    (tree / "link.py").symlink_to(outside / "x.py")
    (tree / "way").symlink_to(outside)
    (tree / "pkg").mkdir()
    (tree / "pkg" / "y.py").write_text("y = 1\n")
    (tree / "pkg" / "__pycache__").symlink_to(outside)
    listed = [
        "../outside/x.py",
        str(outside / "x.py"),
        "link.py",
        "way/x.py",
        "pkg/y.py",
        "pkg",
        7,
        None,
        "a\0.py",
    ]
    assert compile_listed(listed) == 0
    assert sorted(p.name for p in outside.iterdir()) == ["x.py"]


def test_file_that_does_not_compile_is_left_out(
    compile_listed: Callable[[list[object]], int], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "env" / "bad.py").write_text("def (:\n")
    (tmp_path / "env" / "good.py").write_text("x = 1\n")
    compile_listed(["bad.py", "good.py"])
    assert cached(tmp_path / "env" / "good.py").exists()
    assert not cached(tmp_path / "env" / "bad.py").exists()


def test_bytecode_is_kept_beside_the_wheel_it_came_from_and_no_other(
    compile_listed: Callable[[list[object]], int], tmp_path: pathlib.Path
) -> None:
    tree = tmp_path / "env"
    own, other = (tmp_path / "cache" / "archive-v0" / name for name in ("own", "other"))
    for wheel in (own, other):
        (wheel / "pkg").mkdir(parents=True)
        (wheel / "x-1.dist-info").mkdir()
        (wheel / "pkg" / "a.py").write_text("x = 1\n")
    (tree / "pkg").mkdir()
    (tree / "x-1.dist-info").mkdir()
    (tree / "pkg" / "a.py").hardlink_to(own / "pkg" / "a.py")
    assert compile_listed(["pkg/a.py"]) == 1
    assert cached(own / "pkg" / "a.py").samefile(cached(tree / "pkg" / "a.py"))
    assert not cached(other / "pkg" / "a.py").exists()
    assert compile_listed(["pkg/a.py"]) == 0  # it is there already


IMPORTS = {
    "import a, b.c as d  # and so on": {"a.py", "b/c.py"},
    "import a\nimport b.c": {"a.py", "b/c.py"},
    "from b import c": {"b/c.py"},
    "from b import (\n    c,  # the first\n    e as f,\n)": {"b/c.py", "b/e/__init__.py"},
    "from b.e import name_of_no_module": {"b/e/__init__.py"},
    "from . import s": {"m/s.py"},
    "from .s import *": {"m/s.py"},
    "from .. import a": set(),
    "from .... import a": set(),
    "r'''\nimport .a, ..a, /a, a/../a, a..b, \\0\n'''": {"a.py"},
    "'''\nimport a\n'''": {"a.py"},  # only time is lost
    "import os": set(),
    "def f():\n    import a": set(),
    "if TYPE_CHECKING:\n    import a": set(),
    "x = 'import a'": set(),
    "imports = from_ = 1": set(),
    "import m": set(),
}


@pytest.mark.parametrize("text", IMPORTS)
def test_sources_that_a_module_imports_get_bytecode_too(
    compiled_of: Callable[..., set[str]], text: str
) -> None:
    others = {"a.py", "b/c.py", "b/e/__init__.py", "m/s.py"}
    found = compiled_of({"m/__init__.py": text, **dict.fromkeys(others, "")}, "m")
    assert found == {"m/__init__.py"} | IMPORTS[text]


def test_imports_are_followed_through_modules_and_the_packages_above_them(
    compiled_of: Callable[..., set[str]],
) -> None:
    sources = {
        "p/__init__.py": "import x",
        "p/q/__init__.py": "",
        "p/q/r.py": "from ..t import f",
        "p/t.py": "",
        "p/unused.py": "",
        "x.py": "",
        "two.py": "",
    }
    assert compiled_of(sources, "p.q.r", "two") == set(sources) - {"p/unused.py"}


def test_what_came_with_bytecode_is_not_read_again(compiled_of: Callable[..., set[str]]) -> None:
    sources = {"a.py": "import b", "b.py": "import c", "c.py": ""}
    assert compiled_of(sources, "b") == {"b.py", "c.py"}
    sources |= {"b.py": "import d", "d.py": ""}  # nobody looks
    assert compiled_of(sources, "a") == {"a.py", "b.py", "c.py"}


def test_names_of_any_length_cost_little(compiled_of: Callable[..., set[str]]) -> None:
    words = ".".join("b" * 1_000_000)
    sources = {"a.py": f"'''\nimport {words}\n'''\nimport c", "c.py": ""}
    assert compiled_of(sources, "a") == {"a.py", "c.py"}
