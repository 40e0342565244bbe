# SPDX-License-Identifier: Apache-2.0
"""The base image's tar, derived from the interpreter that runs the tests."""

from __future__ import annotations

import os
import pathlib
import stat
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


def unpacked(image: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    with tarfile.open(image) as tar:
        tar.extractall(directory, filter="tar")
    return directory


def test_programs_of_any_linux_are_in_it_and_run(
    image: pathlib.Path, tmp_path: pathlib.Path, members: dict[str, tarfile.TarInfo]
) -> None:
    for name in "awk bash diff find grep gzip ps sed tar which xargs".split():
        assert f"usr/bin/{name}" in members, name
    if os.geteuid() != 0:
        pytest.skip("only root can run programs in the unpacked image")
    root = unpacked(image, tmp_path)
    script = r"printf 'b 2\na 1\n' | sort | awk '{print $2}' | sed s/1/one/ | tr '\n' ,"
    done = subprocess.run(
        ["chroot", str(root), "/usr/bin/bash", "-c", script], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("one,2,", "")


def test_git_and_jq_are_in_it_where_the_host_has_them(
    image: pathlib.Path, tmp_path: pathlib.Path, members: dict[str, tarfile.TarInfo]
) -> None:
    for name in ("git", "jq"):
        assert (f"usr/bin/{name}" in members) == os.path.exists(f"/usr/bin/{name}"), name
    if os.geteuid() != 0:
        pytest.skip("only root can run programs in the unpacked image")
    if not {"usr/bin/git", "usr/bin/jq"} <= members.keys():
        pytest.skip("this host has no git, or no jq")
    root = unpacked(image, tmp_path)
    os.mknod(root / "dev/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(root / "dev/urandom", 0o666 | stat.S_IFCHR, os.makedev(1, 9))
    script = (
        "export HOME=/tmp; cd /tmp && git init -q a && cd a && echo x >f && git add f"
        " && git -c user.name=n -c user.email=e commit -qm first"
        " && git clone -q . ../b && cat ../b/f && git log --format=%s && git submodule status"
        """ && echo '{"a": [1, 2]}' | jq -c .a"""
    )
    done = subprocess.run(
        ["chroot", str(root), "/usr/bin/bash", "-c", script], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("x\nfirst\n[1,2]\n", "")


def test_find_library_finds_what_is_in_it(image: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can run programs in the unpacked image")
    root = unpacked(image, tmp_path)
    os.mknod(root / "dev/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    text = "from ctypes.util import find_library as f; print(f('c'), f('expat'), f('nothing'))"
    done = subprocess.run(
        ["chroot", str(root), "/opt/python/bin/python3", "-c", text], capture_output=True, text=True
    )
    assert done.stdout.split() == ["libc.so.6", "libexpat.so.1", "None"], done.stderr


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
        pytest.skip("the interpreter lies where every host has it: its prefix shows nothing")
    assert prefix.encode() not in image.read_bytes()


def test_same_host_gives_the_same_bytes(image: pathlib.Path) -> None:
    assert derive() == image.read_bytes()
