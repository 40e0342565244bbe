# SPDX-License-Identifier: Apache-2.0
"""The compile steps: a list from packages' code, of which only plain files of the tree count; and
what the sources say that they import.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import pathlib
import shutil
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


@pytest.fixture
def compile_module(script: Script) -> ModuleType:
    return script("compile")


@pytest.fixture
def compile_step(
    compile_module: ModuleType, tmp_path: pathlib.Path
) -> Callable[[dict[str, list[object]]], int]:
    module = compile_module
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


@pytest.fixture
def wheels(tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    """Unpacks a wheel into the installer's cache, and installs it as the installer does."""

    def install(name: str, files: dict[str, bytes]) -> pathlib.Path:
        wheel = tmp_path / "cache" / "archive-v0" / name
        for path, content in {**files, f"{name}-1.dist-info/RECORD": b""}.items():
            (wheel / path).parent.mkdir(parents=True, exist_ok=True)
            (wheel / path).write_bytes(content)
            (tmp_path / "env" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "env" / path).unlink(missing_ok=True)
            (tmp_path / "env" / path).hardlink_to(wheel / path)
        return wheel

    return install


def contents(directory: pathlib.Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def kept(tmp_path: pathlib.Path) -> dict[str, bytes]:
    magic = importlib.util.MAGIC_NUMBER.hex()
    return contents(tmp_path / "cache" / "hutch-bytecode-1" / magic)


def test_bytecode_is_kept_for_the_wheel_it_came_from_and_no_other(
    compile_listed: Callable[[list[object]], int],
    wheels: Callable[..., pathlib.Path],
    tmp_path: pathlib.Path,
) -> None:
    own = wheels("x", {"pkg/a.py": b"x = 1\n"})
    other = tmp_path / "cache" / "archive-v0" / "other"
    shutil.copytree(own, other)
    before = contents(own), contents(other)
    assert compile_listed(["pkg/a.py"]) == 1
    made = cached(tmp_path / "env" / "pkg" / "a.py").read_bytes()
    assert kept(tmp_path) == {"x/pkg/a.pyc": made}
    assert (contents(own), contents(other)) == before
    assert compile_listed(["pkg/a.py"]) == 0  # it is there already


def hostile_bytecode(source: bytes, flags: int) -> bytes:
    code = compile("x = 'hostile'", "/opt/env/m.py", "exec")
    head = importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little")
    return head + importlib.util.source_hash(source) + marshal.dumps(code)


@pytest.mark.parametrize("flags", [0, 1, 3])
@pytest.mark.parametrize("source", [b"x = 'own'\n", b"x = (\n"], ids=["compiles", "does_not"])
def test_bytecode_that_another_wheel_brings_is_not_kept(
    compile_listed: Callable[[list[object]], int],
    wheels: Callable[..., pathlib.Path],
    script: Script,
    tmp_path: pathlib.Path,
    flags: int,
    source: bytes,
) -> None:
    own = wheels("b", {"pkg/m.py": source, "pkg/n.py": b"y = 1\n"})
    bytecode = f"pkg/__pycache__/{cached(pathlib.Path('m.py')).name}"
    evil = hostile_bytecode(source, flags)
    wheels("a", {bytecode: evil, "pkg/m.pyc": evil, "pkg/only.pyc": evil})
    before = contents(own)
    tree = str(tmp_path / "env")
    fetch = script("install")
    fetch.check_tree(tree, 1 << 20, 100)
    fetch.take_bytecode(str(tmp_path / "cache"), tree)
    assert not (tmp_path / "env" / bytecode).exists()
    assert not (tmp_path / "env" / "pkg" / "m.pyc").exists()
    assert (tmp_path / "env" / "pkg" / "only.pyc").exists()  # a module of its own
    compile_listed(["pkg/m.py", "pkg/n.py"])
    assert contents(own) == before
    assert all(b"hostile" not in content for content in kept(tmp_path).values())
    assert set(kept(tmp_path)) == {"b/pkg/n.pyc"} | ({"b/pkg/m.pyc"} if b"own" in source else set())


def test_bytecode_in_its_place_is_replaced_though_nobody_took_it_out(
    compile_listed: Callable[[list[object]], int],
    wheels: Callable[..., pathlib.Path],
    tmp_path: pathlib.Path,
) -> None:
    wheels("b", {"pkg/m.py": b"x = (\n", "pkg/n.py": b"y = 1\n"})
    names = [cached(pathlib.Path(name)).name for name in ("m.py", "n.py")]
    evil = hostile_bytecode(b"x = (\n", 3)
    wheels("a", {f"pkg/__pycache__/{name}": evil for name in names})
    assert compile_listed(["pkg/m.py", "pkg/n.py"]) == 1
    assert (
        set(kept(tmp_path)) == {"b/pkg/n.pyc"} and b"hostile" not in kept(tmp_path)["b/pkg/n.pyc"]
    )
    assert not cached(tmp_path / "env" / "pkg" / "m.py").exists()


@pytest.mark.parametrize("how", ["killed", "exit", "cut"])
def test_of_a_compiler_that_dies_nothing_is_kept(
    compile_listed: Callable[[list[object]], int],
    wheels: Callable[..., pathlib.Path],
    compile_module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    how: str,
) -> None:
    """Of two children one dies in the middle: after it has written some, and before it is done."""
    files = {f"pkg/m{i}.py": b"x = 1\n" + b"#" * (100 - i) + b"\n" for i in range(6)}
    wheels("b", {**files, "pkg/deadly.py": b"#" * 100})
    really = compile_module.bytecode_of

    def dies(path: str, shown: str) -> bytes:
        content: bytes = really(path, shown)
        if path.endswith("/m2.py"):
            os.kill(os.getpid(), 9) if how == "killed" else os._exit(how == "exit")
        return content

    monkeypatch.setattr(compile_module, "bytecode_of", dies)
    assert compile_listed(sorted(files)) == 3
    share = [f"pkg/m{i}.py" for i in (1, 3, 5)]  # largest first, in turn
    assert set(kept(tmp_path)) == {f"b/{name}c" for name in share}
    for name in files:
        assert cached(tmp_path / "env" / name).exists() == (name in share)


def test_what_takes_too_much_is_left_out_and_the_rest_compiled(
    compile_listed: Callable[[list[object]], int],
    compile_module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    """A power of two of copies of a line."""
    monkeypatch.setattr(compile_module, "MEMORY", 400 << 20)
    text = ""
    for depth in range(28):
        text += " " * depth + "try: pass\n" + " " * depth + "finally:\n"
    (tmp_path / "env" / "huge.py").write_text(text + " " * 28 + "pass\n")
    (tmp_path / "env" / "small.py").write_text("x = 1\n")
    compile_listed(["huge.py", "small.py"])
    assert cached(tmp_path / "env" / "small.py").exists()
    assert not cached(tmp_path / "env" / "huge.py").exists()


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


def test_the_fetch_step_looks_where_this_one_keeps(script: Script) -> None:
    assert script("install").STORE == script("compile").STORE
