# SPDX-License-Identifier: Apache-2.0
"""What the install step decides by itself: import names, progress, and what it refuses in an
installed tree."""

from __future__ import annotations

import json
import os
import pathlib
import py_compile
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

Script = Callable[[str], ModuleType]


@pytest.fixture
def fetch(script: Script) -> ModuleType:
    return script("install")


@pytest.mark.parametrize(
    ("distribution", "record", "names"),
    [
        ("six", ["six.py", "six-1.0.dist-info/RECORD", "__pycache__/six.cpython-311.pyc"], ["six"]),
        (
            "scikit-learn",
            ["sklearn/__init__.py", "sklearn/svm/__init__.py", "sklearn/base.py"],
            ["sklearn"],
        ),
        ("pyyaml", ["_yaml/__init__.py", "yaml/__init__.py"], ["yaml"]),
        ("attrs", ["attr/__init__.py", "attrs/__init__.py"], ["attrs"]),
        ("ruamel-yaml", ["ruamel/yaml/__init__.py", "ruamel/yaml/main.py"], ["ruamel.yaml"]),
        ("plain-namespace", ["space/one.py", "space/two.py"], ["space.one", "space.two"]),
        ("native", ["native.cpython-311-x86_64-linux-gnu.so", "native.libs/libx.so"], ["native"]),
        ("careless", ["careless_pkg/__init__.py", "tests/__init__.py"], ["careless_pkg"]),
        ("types-stubs", ["stubs-stubs/__init__.pyi"], []),
        ("private", ["_private.py"], ["_private"]),
        ("escape", ["../../evil.py", "bin/tool"], []),
        ("absent", [], []),
    ],
)
def test_import_names_come_from_the_files_listed(
    fetch: ModuleType, distribution: str, record: list[str], names: list[str]
) -> None:
    assert fetch.import_names(record, distribution) == names


def test_modules_of_the_direct_requirements_only_in_their_order(
    fetch: ModuleType, tmp_path: pathlib.Path
) -> None:
    modules = ("Big_Name-1.0", "big"), ("other-2", "other"), ("indirect-3", "indirect")
    for name, module in (*modules, ("pytest_mock-3.1", "pytest_mock")):
        (tmp_path / (name + ".dist-info")).mkdir()
        (tmp_path / (name + ".dist-info") / "RECORD").write_text(
            module + "/__init__.py,sha256=x,3\n"
        )
    requirements = [
        "other[extra]>=1; python_version > '3'",
        "big-name",
        "left-out; os_name == 'nt'",
        "pytest-mock",
    ]
    assert fetch.direct_modules(str(tmp_path), requirements) == ["other", "big"]


def test_modules_are_followed_by_their_common_parts_that_are_there(
    fetch: ModuleType, tmp_path: pathlib.Path
) -> None:
    for name in ("lxml/etree.abi3.so", "lxml/html/__init__.py", "scipy/fft.py", "own/etree.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = fetch.with_parts(str(tmp_path), ["lxml", "own", "scipy", "scipy.fft"])
    assert found == ["lxml", "lxml.etree", "lxml.html", "own", "scipy", "scipy.fft"]


def test_modules_without_bytecode_are_distinguished(
    fetch: ModuleType, tmp_path: pathlib.Path
) -> None:
    for name in ("one.py", "two.py", "pkg/__init__.py", "sub/mod.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "ext.abi3.so").write_text("")
    py_compile.compile(str(tmp_path / "two.py"))
    modules = ["one", "two", "pkg", "sub.mod", "ext"]
    assert fetch.uncompiled(str(tmp_path), modules) == ["one", "pkg", "sub.mod"]


def test_tree_is_made_readable_for_the_worker(fetch: ModuleType, tmp_path: pathlib.Path) -> None:
    (tmp_path / "pkg").mkdir(mode=0o700)
    source = tmp_path / "pkg" / "a.py"
    source.write_text("x")
    source.chmod(0o6700)
    size, files = fetch.check_tree(str(tmp_path), 1 << 20, 10)
    assert source.stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "pkg").stat().st_mode & 0o7777 == 0o755
    assert files == 2 and size >= 1


def test_link_out_of_the_tree_is_refused(fetch: ModuleType, tmp_path: pathlib.Path) -> None:
    (tmp_path / "inner").symlink_to("x.py")  # to a neighbour: harmless
    fetch.check_tree(str(tmp_path), 1 << 20, 10)
    (tmp_path / "evil").symlink_to("/etc")
    with pytest.raises(fetch.Failed, match="leads out"):
        fetch.check_tree(str(tmp_path), 1 << 20, 10)


def test_special_file_is_refused(fetch: ModuleType, tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(fetch.Failed, match="special file"):
        fetch.check_tree(str(tmp_path), 1 << 20, 10)


def test_too_much_is_refused(fetch: ModuleType, tmp_path: pathlib.Path) -> None:
    for index in range(5):
        (tmp_path / str(index)).write_bytes(b"x" * 1000)
    with pytest.raises(fetch.Failed, match="more than"):
        fetch.check_tree(str(tmp_path), 4000, 100)
    with pytest.raises(fetch.Failed, match="more than"):
        fetch.check_tree(str(tmp_path), 1 << 20, 4)


def test_tree_that_is_too_deep_is_refused(fetch: ModuleType, tmp_path: pathlib.Path) -> None:
    (tmp_path / "/".join(["d"] * 60)).mkdir(parents=True)
    fetch.check_tree(str(tmp_path), 1 << 20, 100)
    (tmp_path / "/".join(["d"] * 70)).mkdir(parents=True)
    with pytest.raises(fetch.Failed, match="deep"):
        fetch.check_tree(str(tmp_path), 1 << 20, 100)


def test_bytecode_beside_sources_is_taken_out(fetch: ModuleType, tmp_path: pathlib.Path) -> None:
    files = ["a/__pycache__/m.cpython-311.pyc", "a/__pycache__/m.nbi", "a/m.pyc", "space/m.pyc"]
    kept = ["a/m.py", "a/only.pyc", "a/data.bin", "__pycache__.py"]
    for name in [*files, *kept]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "space" / "m.py").symlink_to("../a/m.py")
    (tmp_path / "space" / "__pycache__").symlink_to("../a")
    (tmp_path / "locked").mkdir(mode=0o000)
    fetch.check_tree(str(tmp_path), 1 << 20, 100)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*kept, "space/m.py"}


def test_second_look_reports_what_is_there(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    files = {"a.py": "", "a-1.dist-info/RECORD": "a.py,,\n", "a-1.dist-info/METADATA": "Name: a\n"}
    for name, text in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    settings = {"requirements": ["a"], "max_bytes": 1 << 20, "max_files": 9, "cache": "/none"}

    def check() -> dict[str, Any]:
        (tmp_path / "check.json").write_text(json.dumps(settings))
        monkeypatch.setattr("sys.argv", ["install.py", "--check", str(tmp_path)])
        fetch.main()
        lines = (tmp_path / "checked.jsonl").read_text().splitlines()
        return dict(json.loads(lines[-1]))

    found = check()
    assert (found["packages"], found["modules"], found["files"]) == (["a==1"], ["a"], 4)
    os.mkfifo(tmp_path / "tree" / "pipe-\udcff")
    assert "special file: pipe-" in check()["log"]


def test_lock_lists_versions_without_hashes(fetch: ModuleType, tmp_path: pathlib.Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "six==1.17.0 \\\n    --hash=sha256:00\n"
        "b.c==2 ; python_version < '4' \\\n    --hash=sha256:01\n"
    )
    assert fetch.locked_packages(str(lock)) == ["six==1.17.0", "b.c==2"]


def installer_lines(fetch: ModuleType, text: str) -> Any:
    echo = subprocess.Popen(["printf", "%s", text], stdout=subprocess.PIPE)
    echo.stderr, echo.stdout = echo.stdout, None
    lines = fetch.Lines(echo)
    lines.join(10)
    echo.wait()
    assert echo.stderr is not None
    echo.stderr.close()
    return lines


def test_download_sizes_are_read_from_the_installers_lines(fetch: ModuleType) -> None:
    lines = installer_lines(
        fetch, "Downloading numpy (1.5MiB)\nDownloading x (512.0KiB)\n Downloaded x\nPrepared 2\n"
    )
    assert lines.announced == (1 << 20) * 2
    assert lines.current == "numpy"
    assert lines.prepared and lines.log == ""


def test_what_is_no_progress_is_kept_as_the_log(fetch: ModuleType) -> None:
    lines = installer_lines(fetch, "error: No solution\n  cause: because\n")
    assert lines.log == "error: No solution\n  cause: because\n"


def test_settings_reach_the_installer_and_nothing_of_the_callers_does(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    settings = {
        "cache": "/c",
        "index_url": "https://i/",
        "extra_index_urls": ["https://j/"],
        "proxies": {"HTTPS_PROXY": "p"},
    }
    environment = fetch.installer_environment(settings, "/d")
    assert (
        environment["UV_DEFAULT_INDEX"] == "https://i/" and environment["UV_INDEX"] == "https://j/"
    )
    assert environment["https_proxy"] == environment["HTTPS_PROXY"] == "p"
    assert "SECRET" not in environment and environment["UV_NO_CONFIG"] == "1"


def test_a_tree_is_a_virtual_environment(fetch: ModuleType, tmp_path: pathlib.Path) -> None:
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    script, data = tree / "bin" / "tool", tree / "bin" / "data"
    script.write_bytes(b"#!/some/where/python3.11\nprint(1)\n")
    data.write_bytes(b"#!/bin/sh\necho python\n")
    os.link(script, tmp_path / "cached")
    fetch.be_virtual_environment(str(tree))
    assert script.read_bytes() == b"#!/opt/env/bin/python\nprint(1)\n"
    assert (tmp_path / "cached").read_bytes().startswith(b"#!/some/where")
    assert data.read_bytes() == b"#!/bin/sh\necho python\n"
    assert "home = " in (tree / "pyvenv.cfg").read_text()
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert (tree / "lib" / version / "site-packages").resolve() == tree.resolve()
    assert os.readlink(tree / "bin" / "python3") == fetch.PYTHON


def test_a_package_keeps_its_place_in_a_tree(fetch: ModuleType, tmp_path: pathlib.Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    fetch.be_virtual_environment(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["lib"]
