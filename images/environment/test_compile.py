"""The compile step takes a list from packages' code: only plain files of the tree count."""

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
def compile_listed(script: Script, tmp_path: pathlib.Path) -> Callable[[list[object]], int]:
    module = script("compile")
    (tmp_path / "env").mkdir()

    def run(listed: list[object]) -> int:
        (tmp_path / "list").write_text(json.dumps(listed))
        paths = [str(tmp_path / name) for name in ("env", "list", "report", "cache")]
        argv, sys.argv = sys.argv, ["compile.py", *paths]
        try:
            assert module.main() == 0
        finally:
            sys.argv = argv
        return int(json.loads((tmp_path / "report").read_text())["compiled"])

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
