# SPDX-License-Identifier: Apache-2.0
"""The kernel's surface: what a call may ask of it, and what it may not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REFUSED = {
    "EPERM",
    "ENOSYS",
    "EACCES",
    "EROFS",
    "ENOENT",
    "ENXIO",
    "ENODEV",
    "ENOTDIR",
    "EINVAL",
    "EAFNOSUPPORT",
}
GOLDEN = Path(__file__).parent / "golden_syscalls.txt"


@pytest.fixture(scope="module")
def seen(probes: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return probes("kernel")


@pytest.mark.wall("profile")
def test_dangerous_system_calls_are_refused(seen: dict[str, Any]) -> None:
    allowed = {
        k: v for k, v in seen["refused_calls"].items() if v not in ("EPERM", "ENOSYS", "signal 31")
    }
    assert allowed == {}


@pytest.mark.wall("filter", "namespaces")
def test_no_namespace_can_be_made_or_entered(seen: dict[str, Any]) -> None:
    assert set(seen["namespaces"].values()) <= {"EPERM", "ENOSPC", "ENOSYS"}
    assert set(seen["enter_namespaces"].values()) <= REFUSED
    assert seen["namespace_limit"] == "0" or seen["namespace_limit"].startswith("!")


@pytest.mark.wall("profile")
def test_only_four_families_of_sockets_exist(seen: dict[str, Any]) -> None:
    assert set(seen["socket_families"]) == {"1", "2", "10", "16"}
    assert 3 not in seen["socket_families"]["2"] + seen["socket_families"]["10"]
    assert set(seen["raw_sockets"].values()) <= {
        "EPERM",
        "EACCES",
        "EAFNOSUPPORT",
        "EPROTONOSUPPORT",
    }


@pytest.mark.wall("profile")
def test_the_address_space_stays_random(seen: dict[str, Any]) -> None:
    answers = dict(seen["personality"])
    assert answers.pop("ask") == "done"
    assert set(answers.values()) <= REFUSED


@pytest.mark.wall("filter", "profile")
def test_another_instruction_set_does_not_pass_the_filter(seen: dict[str, Any]) -> None:
    assert seen["foreign_architecture"] in (
        "signal 31",
        "signal 11",
        "refused",
        "OSError",
        "PermissionError",
    )
    assert seen["x32"] in ("ENOSYS", "EPERM", "signal 31")


def test_the_kernels_log_and_clocks_are_out_of_reach(seen: dict[str, Any]) -> None:
    assert set(seen["kernel_log"].values()) <= REFUSED
    assert set(seen["clocks"].values()) <= REFUSED


@pytest.mark.wall("filter", "namespaces")
def test_a_filter_of_ones_own_loosens_nothing(seen: dict[str, Any]) -> None:
    assert seen["loosen_filter"] == "kept"


@pytest.mark.wall("filter")
@pytest.mark.wall("capabilities")
def test_every_thread_has_no_capability_and_two_filters(seen: dict[str, Any]) -> None:
    assert len(seen["posture"]) >= 2
    for thread in seen["posture"]:
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(thread[name][0], 16) == 0, name
        assert thread["NoNewPrivs"] == ["1"]
        assert thread["Seccomp"] == ["2"]
        assert int(thread.get("Seccomp_filters", ["2"])[0]) >= 2
        assert set(thread["Groups"]) <= {"65534", *thread["Gid"]}
        assert "0" not in thread["Uid"]


def test_only_harmless_devices_exist(seen: dict[str, Any]) -> None:
    harmless = {
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "ptmx",
        "stdin",
        "stdout",
        "stderr",
    }
    there = {Path(path).name for path, answer in seen["devices"].items() if answer == "done"}
    assert there <= harmless
    assert {"null", "urandom"} <= there
    assert set(seen["dangerous_devices"].values()) <= REFUSED


def test_no_setting_of_the_kernel_can_be_written(seen: dict[str, Any]) -> None:
    assert seen["writable_proc"] == []
    assert set(seen["others_settings"].values()) <= REFUSED


def landlock() -> int:
    """Which ABI of Landlock this kernel has; 0: none."""
    libc = ctypes.CDLL(None)
    return max(0, int(libc.syscall(ctypes.c_long(444), None, ctypes.c_long(0), ctypes.c_long(1))))


@pytest.mark.skipif(landlock() < 6, reason="this kernel's Landlock knows no scope of signals")
@pytest.mark.wall("landlock")
def test_a_signal_does_not_leave_the_cells_domain(seen: dict[str, Any]) -> None:
    """PID 1 of a cell has its uid: without Landlock it may be signalled, in vain."""
    assert seen["signals"] == {"init": "EPERM", "own child": "done", "own group": "done"}


@pytest.mark.skipif(landlock() < 1, reason="this kernel has no Landlock")
@pytest.mark.wall("landlock", "filter", "capabilities")
def test_mounting_has_a_second_wall(seen: dict[str, Any]) -> None:
    assert seen["mount_by_itself"] == "EPERM"


@pytest.mark.wall("profile")
def test_no_system_call_is_allowed_that_was_not_before(
    probes: Callable[[str], dict[str, Any]],
) -> None:
    """golden_syscalls.txt: x86-64 numbers that zeros do not refuse. A new one needs a reason."""
    allowed = set(probes("sweep")["sweep"])
    if not allowed:
        pytest.skip("the list is of x86-64's numbers")
    golden = {
        int(line.split()[0])
        for line in GOLDEN.read_text().splitlines()
        if line and line[0].isdigit()
    }
    assert allowed - golden == set()
