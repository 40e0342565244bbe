# SPDX-License-Identifier: Apache-2.0
"""The tests that verl has of its reward by SandboxFusion, and SandboxFusion's own of the languages
that are here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]
Suite = Callable[..., set[str]]
pytestmark = pytest.mark.compat

VERL = ("volcengine/verl", "b178a3cd56f58b2d502255daba591e92833930a7")
VERL_TESTS = {
    "tests/utils/reward_score/reward_score/test_sandbox_fusion_on_cpu.py":
        "f7139ae572092f7260fb2fead4d70072339277627844ce2c7b88c54a54bd9498",
}  # fmt: skip
FUSION = ("bytedance/SandboxFusion", "469de0845cb7d665bc68044d541aa3aa28c5b30a")
FUSION_TESTS = {
    "sandbox/tests/runners/test_bash.py":
        "dccf176a864d3d6a568fa69b805fd0bb717e50014541277397cba19f0447479f",
    "sandbox/tests/runners/test_isolation.py":
        "706f8b5eb96ebaf9dcd2b0058d3eec899b002817c1a8c7dada28999ba6df96e4",
    "sandbox/tests/runners/test_jupyter.py":
        "ffe5ab3a02e4ae25014c7ccf26a8c13533de1d6eee10251eddfe55bb7bdb0305",
    "sandbox/tests/runners/test_nodejs.py":
        "92faddb8ad78765ec2887c5119be7881414f3f02adccd940c7591853d6e56f50",
    "sandbox/tests/runners/test_pytest.py":
        "65a1e5c69d97a7d06e20d20029c6e23b7c2e89c0f9433c89fccb1d1f4eff6f95",
    "sandbox/tests/runners/test_python.py":
        "b3b33839c7fae320117f31327f0762b25aaa4995361e6a9106c3ffab05a4582b",
}  # fmt: skip


def test_verls_own_tests(
    serving: Serving, installed: Callable[..., Path], fetched: Callable[..., Path], suite: Suite
) -> None:
    tests = fetched(*VERL, VERL_TESTS)
    places = [installed("--no-deps", "verl==0.9.1"), installed("requests>=2")]
    with serving() as (url, _):
        passed = suite("verl", str(tests), places=places, SANDBOX_FUSION_URL=f"{url}/run_code")
    assert len(passed) == 13


def test_sandbox_fusions_own_tests(
    serving: Serving, installed: Callable[..., Path], fetched: Callable[..., Path], suite: Suite
) -> None:
    tests = fetched(*FUSION, FUSION_TESTS)
    places = [
        installed("sandbox-fusion==0.3.7"),
        installed("--no-deps", "pytest-asyncio==1.5.0"),
    ]
    with serving("--with", "matplotlib,pytest,requests") as (url, _):
        arguments = ["-o", "asyncio_mode=auto", str(tests)]
        passed = suite("fusion", *arguments, places=places, FUSION_URL=url)
    assert len(passed) == 26
