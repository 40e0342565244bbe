# SPDX-License-Identifier: Apache-2.0
"""`make test-host`: Hutch on stock systems, as an ordinary user. Each test of the machine is one
here; the machine's console is shown where it said nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from machine import Boot, CannotBoot, boot_once

pytestmark = pytest.mark.machine
SYSTEMS = ("bookworm", "trixie", "noble")
GUEST = Path(__file__).parent / "guest"
# One of each area of tests/security, and what a cell's threads are like there: another kernel and
# another Podman must not make a hole. (Egress: guest/test_web.py, which waits for the proxy.) And
# what only an ordinary user can try.
ATTACKS = (
    "tests/security/test_posture.py::test_user_code_changes_nothing_of_it",
    "tests/security/test_posture.py::test_no_namespace_is_the_hosts_or_another_cells",
    "tests/security/test_files.py::test_the_root_cannot_be_changed",
    "tests/security/test_information.py::test_telling_files_of_proc_are_masked",
    "tests/security/test_kernel.py::test_dangerous_system_calls_are_refused",
    "tests/security/test_kernel.py::test_no_system_call_is_allowed_that_was_not_before",
    "tests/security/test_network.py::test_nothing_outside_can_be_reached",
    "tests/security/test_processes.py::test_a_cell_sees_only_its_own_processes",
    "tests/security/test_resources.py::test_a_fork_bomb_ends_and_others_are_served",
    "tests/security/test_state.py::test_a_call_begins_as_every_other_did",
    "tests/security/test_protocol.py::test_a_forger_disturbs_no_other_call",
    "tests/security/test_agent_socket.py::test_the_socket_and_its_directory_are_for_one_user",
    "tests/security/test_dependencies.py::test_a_package_runs_nothing_of_its_own_accord",
    "tests/security/test_time.py::test_timers_of_ones_own_move_no_deadline",
    "tests/end_to_end/test_mounts.py::test_what_others_may_not_read_is_named_with_the_choice",
    "tests/end_to_end/test_mounts.py::test_what_is_written_to_a_writable_mount_is_the_callers_and_never_executed",
    "tests/end_to_end/test_mounts.py::test_a_socket_or_fifo_that_comes_later_is_dead_inside",
)
_booted: dict[str, Boot | Exception] = {}


def names() -> list[str]:
    found = []
    for file in sorted(GUEST.glob("test_*.py")):
        for line in file.read_text().splitlines():
            if line.startswith("def test_"):
                found.append(f"{file.name}::{line[4 : line.index('(')]}")
    return found + [attack for attack in ATTACKS if "::" in attack]


@pytest.mark.parametrize("system", SYSTEMS)
def test_uninstall_leaves_nothing(system: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert booted_on(system, tmp_path_factory).left() == ""


def test_a_podman_that_apparmor_does_not_know_is_mended(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    told = booted_on("noble", tmp_path_factory).told
    assert told["bound"].startswith("False AppArmor lets only programs that it knows"), told
    assert told["unbound"].startswith("True usable") and told["unbound"].endswith(" 42")


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("system", SYSTEMS)
def test_on(system: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    result = booted_on(system, tmp_path_factory).check(name)
    if result.outcome == "skipped":
        pytest.skip(result.text)
    assert result.outcome == "passed", result.text


def booted_on(system: str, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """That system after all of its tests."""
    if system not in _booted:
        try:
            place = tmp_path_factory.mktemp(system)
            _booted[system] = boot_once(system, place, ["guest", *ATTACKS], 3600)
        except (CannotBoot, AssertionError) as reason:
            _booted[system] = reason  # reported by each test, not tried for each
    booted = _booted[system]
    if isinstance(booted, CannotBoot):
        pytest.skip(str(booted))
    if isinstance(booted, Exception):
        pytest.fail(str(booted))
    return booted
