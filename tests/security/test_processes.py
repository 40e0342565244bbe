# SPDX-License-Identifier: Apache-2.0
"""The supervisor and other processes: signals, tracing, execution, disguise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import hutch
from hutch import sandbox

REFUSED = {"EPERM", "ESRCH", "EACCES", "ENOSYS", "EROFS", "ETXTBSY", "ENOENT", "EINVAL"}


@pytest.fixture(scope="module")
def seen(probes: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return probes("processes")


@pytest.mark.wall("proc")
def test_a_cell_sees_only_its_own_processes(seen: dict[str, Any]) -> None:
    assert set(seen["visible"]) <= {1, *seen["my_pids"]}


def test_signals_reach_own_children_and_nothing_else(seen: dict[str, Any]) -> None:
    answers = dict(seen["signal_everything"])
    assert answers.pop("own child") == 9
    reached = {k: v for k, v in answers.items() if v not in REFUSED and not k.endswith("/0")}
    assert reached == {} or all(k.startswith("1/") for k in reached)


def test_init_of_a_cell_survives_every_signal(seen: dict[str, Any]) -> None:
    assert seen["init_survives_signals"] is True


@pytest.mark.wall("capabilities", "dumpable", "landlock", "profile")
def test_tracing_init_hits_its_wall(seen: dict[str, Any]) -> None:
    assert set(seen["trace"].values()) <= REFUSED
    assert set(seen["memory_of_init"].values()) <= REFUSED
    assert seen["read_other_memory"] in REFUSED


def test_orphans_and_zombies_are_reaped(seen: dict[str, Any]) -> None:
    assert seen["orphans_and_zombies"] == 0


def test_disguise_changes_nothing(seen: dict[str, Any]) -> None:
    assert set(seen["disguise"]) == {"name", "subreaper", "death signal"}
    assert seen["visible"]  # the call went on and answered


def test_there_is_no_terminal_to_type_into(seen: dict[str, Any]) -> None:
    assert set(seen["terminal"].values()) <= REFUSED | {"ENOTTY", "ENXIO", "ENODEV", "EBADF"}


def test_programs_cannot_be_overwritten(seen: dict[str, Any]) -> None:
    assert set(seen["write_binaries"].values()) <= REFUSED


def test_no_file_grants_another_user(seen: dict[str, Any]) -> None:
    assert seen["setuid_files"] == []


def test_a_program_of_its_own_is_behind_the_same_walls(seen: dict[str, Any]) -> None:
    assert set(map(str, seen["posture_after_exec"].values())) <= {
        "True",
        "EACCES",
        "EPERM",
        "ENOSYS",
    }


def test_the_process_that_runs_a_call_holds_no_secret(seen: dict[str, Any]) -> None:
    assert seen["secrets_in_the_heap"] == []


@sandbox(timeout_sec=10)
def signal_group(number: int, how: str) -> str:
    import os
    import time

    target = {"self": os.getpid(), "group": 0, "everything": -1}[how]
    os.kill(target, number)
    time.sleep(8)
    return "still here"


@pytest.mark.parametrize("how", ["self", "group"])
def test_killing_oneself_is_a_death_by_that_signal(how: str, next_call_works: None) -> None:
    begin = time.monotonic()
    outcome = signal_group.run(9, how)
    assert (outcome.status, outcome.signal) == ("died", 9)
    assert time.monotonic() - begin < 8  # long before it would have answered


def test_killing_every_process_harms_only_the_cell(next_call_works: None) -> None:
    outcome = signal_group.run(9, "everything")
    assert outcome.status in ("died", "returned", "raised")  # raised: there was nobody else


@sandbox(timeout_sec=1)
def stop_myself() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSTOP)


def test_stopping_oneself_is_no_way_to_stay(next_call_works: None) -> None:
    outcome = stop_myself.run()
    assert (outcome.status, outcome.limit, outcome.signal) in (
        ("limit", "time", None),
        ("died", None, 19),
    )


@sandbox
def leave_a_zombie_crowd(count: int) -> int:
    import os

    made = 0
    for _ in range(count):
        try:
            if os.fork() == 0:
                os._exit(0)
        except OSError:
            break
        made += 1
    return made


def test_zombies_do_not_keep_the_answer(next_call_works: None) -> None:
    assert leave_a_zombie_crowd(500) > 10


@sandbox
def send_descriptors(count: int) -> list[str]:
    import os
    import socket

    answers = []
    for fd in range(3, 64):
        try:
            if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                continue
            channel = socket.socket(fileno=os.dup(fd))
            null = os.open("/dev/null", os.O_RDONLY)
            socket.send_fds(channel, [b"x"], [null] * count)
            answers.append("sent")
        except OSError as error:
            answers.append(str(error.errno))
    return answers


def test_descriptors_sent_to_the_host_end_the_call_only(next_call_works: None) -> None:
    import os

    def of_null() -> int:
        """What the attack sends; how many leases wait here is another matter."""
        return sum(
            os.path.realpath(f"/proc/self/fd/{fd}") == "/dev/null"
            for fd in os.listdir("/proc/self/fd")
        )

    before = of_null()
    for _ in range(3):
        with pytest.raises(hutch.SandboxError):
            send_descriptors(100)
    assert of_null() == before
