"""The two filters of system calls: each rule of images/worker/seccomp.json is tried by its name.

The rule's calls are made with arguments that would get past nothing but it: another errno than the
one that it answers is another wall, or none.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hutch import sandbox

ROOT = Path(__file__).parent.parent.parent
WORKER = ROOT / "images" / "worker"
RULES: dict[str, list[dict[str, Any]]] = json.loads((WORKER / "seccomp.json").read_text())
EVERY = [*RULES["profile"], *RULES["cell"]]
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
# Of calls that the header of an older system does not name.
NEWER = {"listmount": 458, "statmount": 457, "open_tree_attr": 467, "quotactl_fd": 443,
         "process_mrelease": 448, "memfd_secret": 447}  # fmt: skip

pytestmark = pytest.mark.skipif(not HEADER.exists(), reason="the numbers are those of x86-64")


def numbers() -> dict[str, int]:
    found = re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text())
    return NEWER | {name: int(number) for name, number in found}


def attempts(rule: dict[str, Any]) -> list[tuple[str, int, list[int]]]:
    """(what, number, arguments) of each try that the rule must answer."""
    number = numbers()
    found = []
    for call in rule["calls"]:
        if "argument" not in rule:
            # clone's and the sleepers' cousins are in other rules: zeros end at once
            found.append((call, number[call], [0] * 6))
            continue
        for name, value in (rule.get("is") or rule["any"]).items():
            arguments = [0] * 6
            arguments[rule["argument"]] = value | (17 if "any" in rule else 0)
            if "above" in rule:
                arguments[rule["above"][0]] = rule["above"][1] + 1
            found.append((f"{call} {name}", number[call], arguments))
            # the kernel reads an int: what stands above its 32 bits gets past nothing
            if rule in RULES["cell"] and "any" not in rule and "above" not in rule:
                high = list(arguments)
                high[rule["argument"]] |= 1 << 32
                found.append((f"{call} {name} in 64 bits", number[call], high))
    return found


def make_calls(tries: list[tuple[str, int, list[int]]]) -> dict[str, str]:
    """Each in a child of its own: the errno's name, "done" or the signal."""
    import ctypes
    import errno
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    found = {}
    for what, number, arguments in tries:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            ctypes.set_errno(0)
            result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
            code = errno.errorcode.get(ctypes.get_errno(), "?") if result == -1 else "done"
            os.write(write, code.encode())
            os._exit(0)
        os.close(write)
        status = os.waitpid(child, 0)[1]
        found[what] = os.read(read, 64).decode() or f"signal {os.WTERMSIG(status)}"
        os.close(read)
    return found


calls = sandbox(timeout_sec=60)(make_calls)


@pytest.mark.parametrize(
    "rule",
    [
        *(
            pytest.param(rule, id=rule["rule"], marks=pytest.mark.wall("profile"))
            for rule in RULES["profile"]
            if rule["does"] != "allow"
        ),
        *(
            pytest.param(rule, id=rule["rule"], marks=pytest.mark.wall("filter"))
            for rule in RULES["cell"]
        ),
    ],
)
def test_each_rule_answers_as_it_says(rule: dict[str, Any]) -> None:
    tries = attempts(rule)
    answers = calls(tries)
    for name in NEWER:  # a libseccomp that does not know the name leaves it to the default
        if answers.get(name) == "ENOSYS":
            answers[name] = rule["does"]
    assert answers == {what: rule["does"] for what, _, _ in tries}


@pytest.mark.wall("profile")
def test_a_call_of_no_rule_is_not_there() -> None:
    known = {call for rule in EVERY for call in rule["calls"]}
    unknown = {name: n for name, n in numbers().items() if name not in known}
    assert {"clone3", "remap_file_pages", "uselib"} <= set(unknown)
    assert set(calls([(name, n, [0] * 6) for name, n in unknown.items()]).values()) == {"ENOSYS"}


def test_every_rule_has_a_name_of_its_own_and_a_reason() -> None:
    names = [rule["rule"] for rule in EVERY]
    assert len(names) == len(set(names))
    assert all(len(rule["reason"]) > 8 and rule["calls"] for rule in EVERY)
    plain = [c for rule in RULES["profile"] if "argument" not in rule for c in rule["calls"]]
    assert len(plain) == len(set(plain))


def test_the_filters_are_those_of_the_rules() -> None:
    done = subprocess.run(
        [sys.executable, WORKER / "seccomp.py", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@sandbox
def by_pidfd() -> list[str]:
    import ctypes
    import errno
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(os.getpid())  # subprocess may use one: that is the honest twin
    found = []
    for kind in (0x10000000, 0x20000, 0x40000000, 0x20000000):
        ctypes.set_errno(0)
        found.append(
            "done" if libc.setns(pidfd, kind) == 0 else errno.errorcode[ctypes.get_errno()]
        )
    return found


@pytest.mark.wall("profile", "capabilities")
def test_no_namespace_is_entered_by_a_pidfd() -> None:
    assert set(by_pidfd()) == {"EPERM"}


def test_real_time_is_refused_and_being_nice_is_not() -> None:
    @sandbox
    def schedule() -> list[str]:
        import os

        found = []
        for policy in (os.SCHED_FIFO, os.SCHED_RR):
            try:
                os.sched_setscheduler(0, policy, os.sched_param(1))
                found.append("done")
            except PermissionError:
                found.append("EPERM")
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.nice(5)
        try:
            os.nice(-5)
            found.append("done")
        except PermissionError:
            found.append("EPERM")
        return found

    assert schedule() == ["EPERM"] * 3


def test_code_may_restrict_itself_further() -> None:
    @sandbox
    def restrict() -> list[str]:
        import ctypes
        import errno
        import os
        import struct

        libc = ctypes.CDLL(None, use_errno=True)
        allow_all_but_uname = [(0x20, 0, 0, 0), (0x15, 0, 1, 63), (0x06, 0, 0, 0x50001),
                               (0x06, 0, 0, 0x7FFF0000)]  # fmt: skip
        program = b"".join(struct.pack("HBBI", *line) for line in allow_all_but_uname)
        buffer = ctypes.create_string_buffer(program)
        head = struct.pack("HxxxxxxQ", len(allow_all_but_uname), ctypes.addressof(buffer))
        done = libc.prctl(22, 2, ctypes.create_string_buffer(head), 0, 0)
        found = ["filter" if done == 0 else "refused"]
        try:
            os.uname()
            found.append("done")
        except OSError as error:
            found.append(errno.errorcode[error.errno or 0])
        abi = libc.syscall(ctypes.c_long(444), None, ctypes.c_long(0), ctypes.c_long(1))
        if abi < 1:
            return [*found, "no landlock"]
        attribute = ctypes.create_string_buffer(struct.pack("Q", 1 << 2))  # reading files
        ruleset = libc.syscall(ctypes.c_long(444), attribute, ctypes.c_long(8), ctypes.c_long(0))
        libc.syscall(ctypes.c_long(446), ctypes.c_long(ruleset), ctypes.c_long(0))
        try:
            open("/etc/passwd").close()
            found.append("read")
        except OSError as error:
            found.append(errno.errorcode[error.errno or 0])
        return found

    found = restrict()
    assert found[:2] == ["filter", "EPERM"]
    assert found[2] in ("EACCES", "no landlock")


def test_honest_programs_need_no_refused_call() -> None:
    """The honest twin of every rule: what ordinary code does is let through."""

    @sandbox(pids=64, timeout_sec=60, memory_mb=1024)
    def honest() -> dict[str, object]:
        import asyncio
        import concurrent.futures
        import fcntl
        import mmap
        import multiprocessing
        import os
        import sqlite3
        import subprocess
        import tempfile

        found: dict[str, object] = {}
        found["subprocess"] = subprocess.run(
            ["sh", "-c", "echo hello | tr a-z A-Z"], capture_output=True, text=True
        ).stdout
        queue = multiprocessing.get_context("fork").SimpleQueue()
        child = multiprocessing.get_context("fork").Process(target=queue.put, args=(7,))
        child.start()
        found["multiprocessing"] = queue.get()
        child.join()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            found["threads"] = sum(pool.map(abs, [-1, -2]))

        async def serve() -> bytes:
            async def answer(reader, writer):  # type: ignore[no-untyped-def]
                writer.write(await reader.readline())
                writer.close()

            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello\n")
            line = await reader.readline()
            writer.close()
            server.close()
            return line

        found["asyncio"] = asyncio.run(serve())
        with tempfile.NamedTemporaryFile(suffix=".db") as file:
            database = sqlite3.connect(file.name)
            database.execute("pragma journal_mode=wal")
            database.execute("create table t(x)")
            database.execute("insert into t values (5)")
            database.commit()
            found["sqlite"] = database.execute("select x from t").fetchone()[0]
            database.close()
        _, write = os.pipe()
        found["pipe"] = fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 16384)
        shared = mmap.mmap(-1, 4096)
        if os.fork() == 0:
            shared[0] = 9
            os._exit(0)
        os.wait()
        found["shared"] = shared[0]
        return found

    assert honest() == {
        "subprocess": "HELLO\n", "multiprocessing": 7, "threads": 3, "asyncio": b"hello\n",
        "sqlite": 5, "pipe": 16384, "shared": 9,
    }  # fmt: skip


@sandbox(timeout_sec=100, pids=48)
def noise(seed: int, seconds: float) -> int:
    """Random system calls with random arguments, in children that may die of them."""
    import ctypes
    import os
    import random
    import signal
    import time

    libc = ctypes.CDLL(None)
    chance = random.Random(seed)
    interesting = [0, 1, 2, 3, 0xFFFFFFFF, 1 << 31, 1 << 63, 4096, 0x7FFF0000, (1 << 64) - 1]
    end = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < end:
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            for _ in range(300):
                number = chance.randrange(0, 470)
                if number in (35, 34, 230):  # sleeping is no noise
                    continue
                arguments = [
                    ctypes.c_ulong(
                        chance.choice(interesting)
                        if chance.random() < 0.6
                        else chance.getrandbits(64)
                    )
                    for _ in range(6)
                ]
                libc.syscall(ctypes.c_long(number), *arguments)
            os._exit(0)
        chance.random()
        chance.seed(rounds + seed)
        os.waitpid(child, 0)
        rounds += 1
    return rounds


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.soak)])
def test_noise_of_system_calls_harms_nobody_else(seconds: int, next_call_works: None) -> None:
    @sandbox
    def quick(x: int) -> int:
        return x + 1

    quick(0)
    noisy = [noise.submit(seed, float(seconds)) for seed in (1, 2)]
    for n in range(20):
        assert quick(n) == n + 1
    for one in noisy:
        assert one.outcome().status in ("returned", "died", "limit", "raised")
