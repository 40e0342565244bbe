"""The base image's tar, derived from the interpreter that runs the tests."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tarfile

import pytest

DERIVE = pathlib.Path(__file__).parent / "derive.py"
LIBRARY = f"opt/python/{sys.platlibdir}/python{sys.version_info[0]}.{sys.version_info[1]}/"


def derive() -> bytes:
    return subprocess.run(
        [sys.executable, "-I", "-S", str(DERIVE)], stdout=subprocess.PIPE, check=True
    ).stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("base") / "base.tar"
    path.write_bytes(derive())
    return path


@pytest.fixture(scope="module")
def members(image: pathlib.Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(image) as tar:
        return {member.name: member for member in tar}


def test_interpreter_shell_and_libraries_are_in_it(members: dict[str, tarfile.TarInfo]) -> None:
    for name in (
        "opt/python/bin/python3",
        "usr/bin/sh",
        "usr/bin/ls",
        "usr/bin/sort",
        LIBRARY + "os.py",
        "etc/passwd",
    ):
        assert name in members, name
    assert any(name.endswith("/libc.so.6") for name in members)
    assert any(name.endswith("/libstdc++.so.6") for name in members)
    for name in ("proc", "dev", "tmp", "work", "opt/env", "opt/hutch", "store"):
        assert members[name].isdir()


def test_tests_and_packages_are_not(members: dict[str, tarfile.TarInfo]) -> None:
    for part in (
        "/test/",
        "/tests/",
        "/idlelib/",
        "/tkinter/",
        "/site-packages/",
        "/dist-packages/",
        "/_bundled/",
    ):
        assert not [name for name in members if part in name], part


def test_every_module_has_bytecode_that_is_never_checked(image: pathlib.Path) -> None:
    with tarfile.open(image) as tar:
        names = tar.getnames()
        sources = [
            n for n in names if n.startswith(LIBRARY) and n.endswith(".py") and "lib2to3/" not in n
        ]
        cached = [n for n in names if n.endswith(".pyc")]
        assert len(cached) >= 0.95 * len(sources)
        file = tar.extractfile(cached[0])
        assert file is not None and file.read(8)[4:] == b"\1\0\0\0"


def test_all_belongs_to_root_and_has_no_time(members: dict[str, tarfile.TarInfo]) -> None:
    assert {(m.uid, m.gid, m.mtime, m.uname) for m in members.values()} == {(0, 0, 0, "")}
    assert not [m.name for m in members.values() if m.mode & 0o6000]


def test_no_path_of_the_host_is_in_it(image: pathlib.Path) -> None:
    prefix = os.path.realpath(sys.base_prefix)
    if prefix in ("/usr", "/usr/local"):
        pytest.skip("the interpreter lies where every host has it: its prefix tells nothing")
    assert prefix.encode() not in image.read_bytes()


def test_same_host_gives_the_same_bytes(image: pathlib.Path) -> None:
    assert derive() == image.read_bytes()
