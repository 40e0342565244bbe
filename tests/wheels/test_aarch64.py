# SPDX-License-Identifier: Apache-2.0
"""The wheels for aarch64, run by qemu's user mode: that all of their machine code loads and works.

A whole call cannot be tried so: user mode has neither namespaces nor seccomp of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from installation import DIST, MACHINE, ROOT

QEMU = shutil.which("qemu-aarch64-static") or ""
WHEELS = "hutch*_aarch64.whl"
pytestmark = [
    pytest.mark.wheels,
    pytest.mark.skipif(
        MACHINE == "aarch64" or not QEMU or not list(DIST.glob(WHEELS)),
        reason="there is no qemu-aarch64-static, or no wheel for it",
    ),
]

ROUND_TRIP = """
import datetime, os, sys
sys.path[:0] = [{site!r}, {site!r} + "/hutch/_runtime/worker"]
import _hutch_cell, encode
from hutch import _core

value = dict(a=[1, 2.5, 2**70, "\\u00e9", b"b", None], b=(True, datetime.date(2026, 1, 2)))
encoded = encode.encode(value, 1 << 20)
whole = bytearray(encoded.size)
for offset, piece in encoded.chunks():
    whole[offset:offset + len(piece)] = piece
assert _core.decode(whole, len(encoded.body), {{}}) == value
try:
    _core.decode(b"x" * 20, 20, {{}})
except ValueError as error:
    print("refused:", error)
try:
    _core.egress_rule("no host")
except _core.Error as error:
    print(error.code)
print(_core.VERSION, os.uname().machine, _core.egress_rule("API.example.org"))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both wheels are unpacked, as pip does it for that machine."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(directory)]
    command += ["--platform", "manylinux_2_28_aarch64", "--python-version", "3.11"]
    command += ["--no-deps", "--no-index", "--find-links", str(DIST), "hutch", "hutch-runtime"]
    subprocess.run([*command, "--only-binary", ":all:"], check=True)
    return directory


def emulated(*command: str, root: str = "/") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "QEMU_LD_PREFIX": root, "HOME": os.environ["HOME"]}
    return subprocess.run(
        [QEMU, *command], capture_output=True, text=True, env=environment, timeout=300
    )


def test_the_agent_checks_a_host(site: Path) -> None:
    done = emulated(str(site / "hutch" / "_runtime" / "hutch-agent"), "--doctor")
    names = [check["name"] for check in json.loads(done.stdout.splitlines()[-1])["checks"]]
    assert {"podman", "user namespaces", "network helper"} <= set(names), done.stderr


def test_the_warden_and_the_forwarder_say_how_they_are_started(site: Path) -> None:
    done = emulated(str(site / "hutch" / "_runtime" / "hutch-warden"))
    assert (done.returncode, "started by hutch-agent" in done.stderr) == (2, True), done.stderr
    assert emulated(str(site / "hutch" / "_runtime" / "hutch-forwarder")).returncode == 2


def test_the_modules_load_and_carry_a_result(site: Path) -> None:
    subprocess.run([ROOT / "scripts" / "wheels" / "foreign_root"], check=True)
    root = ROOT / "build" / "wheels" / "root-aarch64"
    python = str(root / "usr" / "bin" / "python3.11")
    done = emulated(python, "-S", "-c", ROUND_TRIP.format(site=str(site)), root=str(root))
    assert done.returncode == 0, done.stderr
    refused, code, last = done.stdout.splitlines()
    assert refused.startswith("refused:")
    assert code == "invalid_argument"
    assert last.endswith("aarch64 api.example.org")
