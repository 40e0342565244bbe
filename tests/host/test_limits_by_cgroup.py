# SPDX-License-Identifier: Apache-2.0
"""`make test`: the three limits of a delegated cgroup, and the end of an installation, on a Debian
12 that is booted for them.

Its disk is made where it is missing and this host has what that takes; otherwise each test says
why it cannot run. `make test-host` tries much more, on more systems.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from machine import Boot, CannotBoot, boot_once

DISK_SEC, BOOT_SEC = 360, 300
# The machine has its own limits, which say how far it came: of its disk, of a first boot that seeds
# it, and of the boot that counts.
pytestmark = pytest.mark.timeout(DISK_SEC + 2 * BOOT_SEC + 60)
CLAIMS = {
    "limits are the kernel's": "test_limits_are_the_kernels",
    "memory that no rlimit counts": "test_memory_that_no_rlimit_counts_ends_the_call",
    "processes": "test_processes_are_counted",
    "a share of a CPU": "test_a_share_of_a_cpu_is_all_that_is_had",
}


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boot]:
    checks = [f"guest/test_limits.py::{name}" for name in CLAIMS.values()]
    try:
        yield boot_once("bookworm", tmp_path_factory.mktemp("machine"), checks, BOOT_SEC, DISK_SEC)
    except CannotBoot as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_delegated_cgroup_limits(claim: str, booted: Boot) -> None:
    result = booted.check(CLAIMS[claim])
    assert result.outcome == "passed", result.text


def test_uninstall_leaves_nothing_of_an_ordinary_user(booted: Boot) -> None:
    assert booted.left() == ""
