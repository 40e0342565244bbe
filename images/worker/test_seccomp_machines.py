# SPDX-License-Identifier: Apache-2.0
"""What libseccomp, by which OCI runtimes read a profile, makes of ours for each machine that Hutch
runs on: the filter is run here, call by call, whatever this machine is.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PROFILES = [HERE / "seccomp-worker.json", HERE.parent / "environment" / "seccomp-builder.json"]
LIBRARY = ctypes.util.find_library("seccomp")
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_…, and libseccomp's tokens
OTHERS = {"i386": 0x40000003, "arm": 0x40000028}
COMPARISONS = {"SCMP_CMP_EQ": 4, "SCMP_CMP_GT": 6, "SCMP_CMP_MASKED_EQ": 7}
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x00000000

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="there is no libseccomp")


class Comparison(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("how", ctypes.c_int),
        ("value", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


def library() -> Any:
    found = ctypes.CDLL(LIBRARY)
    found.seccomp_init.restype = ctypes.c_void_p
    found.seccomp_init.argtypes = [ctypes.c_uint32]
    for name in ("seccomp_arch_add", "seccomp_arch_remove"):
        getattr(found, name).argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    found.seccomp_arch_native.restype = ctypes.c_uint32
    found.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    found.seccomp_release.argtypes = [ctypes.c_void_p]
    found.seccomp_syscall_resolve_name_arch.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    found.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p,
    ]  # fmt: skip
    return found


def number_of(call: str, machine: str) -> int:
    """Negative where the machine has no such call, or libseccomp does not know it."""
    return int(library().seccomp_syscall_resolve_name_arch(MACHINES[machine], call.encode()))


def answer_of(entry: dict[str, Any]) -> int:
    return ALLOW if entry["action"] == "SCMP_ACT_ALLOW" else ERRNO | entry["errnoRet"]


def compiled(profile: Path, machine: str) -> list[tuple[int, int, int, int]]:
    """The filter as crun and runc make it on a host of that machine."""
    said = json.loads(profile.read_text())
    assert "architectures" not in said  # it would name one that the host is not
    seccomp = library()
    context = seccomp.seccomp_init(ERRNO | said["defaultErrnoRet"])
    if MACHINES[machine] != seccomp.seccomp_arch_native():
        assert seccomp.seccomp_arch_add(context, MACHINES[machine]) == 0
        assert seccomp.seccomp_arch_remove(context, seccomp.seccomp_arch_native()) == 0
    for entry in said["syscalls"]:
        given = entry.get("args", [])
        comparisons = (Comparison * len(given))(
            *(
                (one["index"], COMPARISONS[one["op"]], one["value"], one["valueTwo"])
                for one in given
            )
        )
        for name in entry["names"]:
            number = seccomp.seccomp_syscall_resolve_name(name.encode())
            if number == -1:  # newer than the library: passed over
                continue
            answer = answer_of(entry)
            added = seccomp.seccomp_rule_add_array(context, answer, number, len(given), comparisons)
            same_as_default = -errno.EACCES
            assert added in (0, same_as_default), (name, os.strerror(-added))
    with tempfile.TemporaryFile() as file:
        assert seccomp.seccomp_export_bpf(context, file.fileno()) == 0
        file.seek(0)
        program = list(struct.iter_unpack("=HBBI", file.read()))
    seccomp.seccomp_release(context)
    return program


def answers(
    program: list[tuple[int, int, int, int]], architecture: int, number: int, *arguments: int
) -> int:
    """What the filter returns: the instructions of classic BPF that libseccomp writes."""
    six = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", number, architecture, 0, *(one & (1 << 64) - 1 for one in six))
    accumulator = at = 0
    while True:
        code, true, false, value = program[at]
        at += 1
        if code == 0x20:  # load a word
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:  # and
            accumulator &= value
        elif code == 0x06:  # return
            return value
        elif code == 0x05:  # jump
            at += value
        else:
            holds = {
                0x15: accumulator == value,
                0x25: accumulator > value,
                0x35: accumulator >= value,
                0x45: accumulator & value != 0,
            }[code]
            at += true if holds else false


def plain_rules(profile: Path) -> Iterator[tuple[str, int]]:
    """(call, answer) of those that look at no argument."""
    for entry in json.loads(profile.read_text())["syscalls"]:
        if "args" not in entry:
            for call in entry["names"]:
                yield call, answer_of(entry)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_each_machine_gets_the_answers_of_the_profile(profile: Path, machine: str) -> None:
    program, own = compiled(profile, machine), MACHINES[machine]
    tried = {call: answer for call, answer in plain_rules(profile) if number_of(call, machine) >= 0}
    assert {"read", "openat", "futex", "execve", "ptrace", "bpf", "open_tree"} <= tried.keys()
    found = {call: answers(program, own, number_of(call, machine)) for call in tried}
    assert found == tried
    assert answers(program, own, 4000) == ERRNO | errno.ENOSYS
    assert answers(program, own, number_of("clone3", machine)) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_each_machine_has_its_arguments_compared(machine: str) -> None:
    program, own = compiled(PROFILES[0], machine), MACHINES[machine]

    def said(call: str, *arguments: int) -> int:
        return answers(program, own, number_of(call, machine), *arguments)

    assert said("socket", 2, 1, 0) == ALLOW  # AF_INET, SOCK_STREAM
    assert said("socket", 2, 3, 0) == ERRNO | errno.EPROTONOSUPPORT  # SOCK_RAW
    assert said("socket", 40, 1, 0) == ERRNO | errno.EAFNOSUPPORT  # AF_VSOCK
    assert said("clone", 17) == ALLOW  # SIGCHLD alone
    assert said("clone", 0x10000) == ERRNO | errno.EINVAL  # a thread with its own descriptors
    assert said("prlimit64", 1) == ERRNO | errno.EPERM
    assert said("setns", 0, 128) == ALLOW  # CLONE_NEWTIME
    assert said("setns", 0, 0) == said("setns", 0, 128 | 1 << 32) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_of_another_machine_end_the_process(machine: str) -> None:
    program = compiled(PROFILES[0], machine)
    for other in {**MACHINES, **OTHERS}.values():
        if other != MACHINES[machine]:
            assert answers(program, other, 0) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_of_a_cell_names_calls_that_each_machine_has(machine: str) -> None:
    rules = json.loads((HERE / "seccomp.json").read_text())["cell"]
    calls = {call for rule in rules for call in rule["calls"]}
    assert [call for call in calls if number_of(call, machine) < 0] == []
