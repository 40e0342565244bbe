# SPDX-License-Identifier: Apache-2.0
"""The two filters of system calls: each rule of images/worker/seccomp.json is tried by its name.

The rule's calls are made with arguments that would get past nothing but it: another errno than the
one that it answers is another wall, or none.
"""

from __future__ import annotations

import errno
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


def values(rule: dict[str, Any]) -> dict[str, int]:
    """Of the argument that the rule looks at, by name."""
    if "more_than" in rule:
        return {f"above {name}": most + 1 for name, most in rule["more_than"].items()}
    if "masked" in rule:
        # any size of what is asked for, and either direction
        return {
            f"{name} {high:#x}": high | value | 11
            for name, (_, value) in rule["masked"].items()
            for high in (0xC0400000, 0xC0500000, 0)
        }
    return dict(rule.get("is") or rule["any"])


def attempts(rule: dict[str, Any]) -> list[tuple[str, int, list[int]]]:
    """(what, number, arguments) of each try that the rule must answer."""
    number = numbers()
    found = []
    for call in rule["calls"]:
        if "argument" not in rule:
            # clone's and the sleepers' cousins are in other rules: zeros end at once. What does
            # nothing is distinguished from what does by a descriptor that is none.
            found.append((call, number[call], [-1 if rule["does"] == "nothing" else 0] * 6))
            continue
        for name, value in values(rule).items():
            arguments = [0] * 6
            if rule["argument"] > 0:  # of a descriptor: one that is none, which has no owner to ask
                arguments[0] = -1
            if "given" in rule:
                arguments[rule["given"][0]] = rule["given"][1]
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
    does = rule["does"]  # one of the names of its number
    expected = "done" if does == "nothing" else errno.errorcode[getattr(errno, does)]
    for name in NEWER:  # a libseccomp that does not know the name leaves it to the default
        if answers.get(name) == "ENOSYS":
            answers[name] = expected
    assert answers == {what: expected for what, _, _ in tries}


@pytest.mark.wall("profile")
def test_no_option_of_a_socket_gets_past_in_64_bits() -> None:
    """The kernel reads an int: what stands above its 32 bits must not hide what it is."""
    high, number = 1 << 32, numbers()["setsockopt"]
    options = [(level, option) for level in (1, 1 | high) for option in (7, 8, 26, 60)]
    tries = [
        (f"{level:x} {option:x}", number, [0, level, option | high, 0, 0, 0])
        for level, option in options
    ]
    assert set(calls(tries).values()) == {"ENOPROTOOPT"}


def test_a_program_may_ask_for_buffers_and_options() -> None:
    """The harmless counterpart: a size is advice, as it always was; the rest is as elsewhere."""

    @sandbox
    def ask() -> dict[str, object]:
        import shutil
        import socket

        with socket.socket() as one:
            before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 9)
            one.settimeout(5)
            after = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        with open("a", "wb") as file:
            file.write(b"text" * 1000)
        shutil.copyfile("a", "b")
        shutil.copy2("a", "c")
        left, right = socket.socketpair()
        with left, right, open("a", "rb") as file:
            sent = left.sendfile(file)
            got = len(right.recv(10_000))
        with open("b", "rb") as b, open("c", "rb") as c:
            return {"same": before == after, "copied": b.read() == c.read(), "sent": (sent, got)}

    assert ask() == {"same": True, "copied": True, "sent": (4000, 4000)}


@pytest.mark.wall("profile")
def test_no_page_is_left_in_a_pipe_or_socket() -> None:
    tries = [(name, numbers()[name], [0] * 6) for name in ("splice", "tee", "vmsplice", "sendfile")]
    assert set(calls(tries).values()) == {"ENOSYS"}


@pytest.mark.wall("profile")
def test_a_call_of_no_rule_is_not_there() -> None:
    known = {call for rule in EVERY for call in rule["calls"]}
    unknown = {name: n for name, n in numbers().items() if name not in known}
    assert {"clone3", "remap_file_pages", "uselib"} <= set(unknown)
    assert set(calls([(name, n, [0] * 6) for name, n in unknown.items()]).values()) == {"ENOSYS"}


def test_every_rule_has_a_name_of_its_own_and_a_reason() -> None:
    rules = EVERY + RULES["builder"]
    names = [rule["rule"] for rule in rules]
    assert len(names) == len(set(names))
    assert all(len(rule["reason"]) > 8 and rule["calls"] for rule in rules)
    plain = [
        call
        for rule in RULES["profile"]
        if not {"argument", "arguments"} & set(rule)
        for call in rule["calls"]
    ]
    assert len(plain) == len(set(plain))


def test_the_filters_are_those_of_the_rules() -> None:
    done = subprocess.run(
        [sys.executable, WORKER / "seccomp.py", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@sandbox(timeout_sec=60)
def make_sockets() -> dict[str, list[tuple[int, int, int]]]:
    """(family, type, protocol) of each that could be made, of all there are and more."""
    import ctypes
    import os
    import socket

    libc = ctypes.CDLL(None, use_errno=True)
    found: dict[str, list[tuple[int, int, int]]] = {"socket": [], "socketpair": [], "high": []}
    for family in range(48):
        for kind in range(16):
            for protocol in range(300):
                try:
                    socket.socket(family, kind, protocol).close()
                    found["socket"].append((family, kind, protocol))
                except OSError:
                    pass
            for protocol in range(20):
                try:
                    for end in socket.socketpair(family, kind, protocol):
                        end.close()
                    found["socketpair"].append((family, kind, protocol))
                except OSError:
                    pass
    # the kernel reads ints: what stands above their 32 bits gets past nothing
    for family, kind, protocol in ((2, 1, 262), (2, 2, 136), (16, 3, 12), (2, 3, 1), (2, 1, -1)):
        for high in range(1, 8):
            numbers = [
                number | ((high >> at & 1) << 32)
                for at, number in enumerate((family, kind | 0o2000000, protocol))
            ]
            fd = libc.syscall(ctypes.c_long(41), *[ctypes.c_long(number) for number in numbers])
            if fd >= 0:
                os.close(fd)
                found["high"].append((family, kind, protocol))
    return found


def allowed_sockets(name: str) -> set[tuple[int, ...]]:
    rule = next(rule for rule in RULES["profile"] if rule["rule"] == name)
    return {
        tuple(one["is"][word] for one, word in zip(rule["arguments"], words))
        for words in rule["together"]
    }


@pytest.mark.wall("profile")
def test_sockets_speak_tcp_and_udp_and_nothing_else() -> None:
    made = make_sockets()
    assert {tuple(one) for one in made["socket"]} == allowed_sockets("families")
    assert {tuple(one) for one in made["socketpair"]} == allowed_sockets("pairs")
    assert made["high"] == []


@sandbox(timeout_sec=60)
def split_descriptors() -> dict[str, str]:
    """Each way for a thread to have a table of descriptors that is not its process's."""
    import ctypes
    import errno
    import os
    import threading

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    thread, shared, files = 0x10000 | 0x800 | 0x100 | 0x200, 0x10000 | 0x800 | 0x100, 0x400
    tries = {
        # CLONE_THREAD, CLONE_SIGHAND, CLONE_VM, and CLONE_FS or not. Where the kernel takes them
        # this is a crash, as the thread has no stack.
        "clone": (56, thread, 0, 0, 0, 0),
        "clone without a shared directory": (56, shared, 0, 0, 0, 0),
        "clone in 64 bits": (56, thread | 1 << 32, 0, 0, 0, 0),
        "close_range": (436, 1 << 30, 1 << 30, 2),
        "close_range and a mark": (436, 1 << 30, 1 << 30, 2 | 4),
        "close_range in 64 bits": (436, 1 << 30, 1 << 30, 2 | 1 << 32),
        "unshare": (272, files),
    }
    found = {}
    for what, (number, *arguments) in tries.items():
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
        found[what] = "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
    # the harmless counterparts
    ran = threading.Thread(target=found.__setitem__, args=("thread", "done"))
    ran.start()
    ran.join()
    for what, flags in (("close_range", 0), ("mark", 4)):
        kept = os.dup(0)
        result = libc.syscall(ctypes.c_long(436), *[ctypes.c_long(a) for a in (kept, kept, flags)])
        found[f"honest {what}"] = "done" if result == 0 else "refused"
    for what, flags in (("process", 17), ("process that shares descriptors", 17 | files)):
        child = libc.syscall(ctypes.c_long(56), *[ctypes.c_long(a) for a in (flags, 0, 0, 0, 0)])
        if child == 0:
            os._exit(0)
        found[f"honest {what}"] = "done" if os.waitpid(child, 0)[1] == 0 else "refused"
    return found


@pytest.mark.wall("profile")
def test_a_thread_has_the_descriptors_of_its_process() -> None:
    """A table of its own would be read by nobody who counts what a call holds."""
    found = split_descriptors()
    refused = {what: answer for what, answer in found.items() if answer != "done"}
    assert refused == {
        "clone": "EINVAL", "clone without a shared directory": "EINVAL",
        "clone in 64 bits": "EINVAL", "close_range": "EINVAL", "close_range and a mark": "EINVAL",
        "close_range in 64 bits": "EINVAL", "unshare": "EPERM",
    }  # fmt: skip
    assert len(found) == len(refused) + 5


@sandbox
def limit_others() -> dict[str, object]:
    """PID 1 of a cell has the uid of its code."""
    import ctypes
    import errno
    import resource

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    low = (ctypes.c_uint64 * 2)(64, 64)
    found: dict[str, object] = {}
    for what, pid in (("PID 1", 1), ("in 64 bits", 1 | 1 << 32), ("any other", 2)):
        ctypes.set_errno(0)
        arguments = [ctypes.c_long(302), ctypes.c_long(pid), ctypes.c_long(7), low, None]
        result = libc.syscall(*arguments)
        found[what] = "done" if result == 0 else errno.errorcode[ctypes.get_errno()]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    found["own"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - soft
    return found


@pytest.mark.wall("profile")
def test_a_process_limits_itself_alone() -> None:
    refused = dict.fromkeys(("PID 1", "in 64 bits", "any other"), "EPERM")
    assert limit_others() == {**refused, "own": -1}


@sandbox
def odd_protocols() -> dict[str, str]:
    import errno
    import socket

    found = {}
    for name, numbers in {
        "mptcp": (2, 1, 262), "mptcp6": (10, 1, 262), "udplite": (2, 2, 136),
        "udplite6": (10, 2, 136), "sctp": (2, 1, 132), "sctp many": (2, 5, 132),
        "dccp": (2, 6, 33), "l2tp": (2, 2, 115), "smc": (2, 1, 256), "smc family": (43, 1, 0),
        "ping": (2, 2, 1), "raw": (2, 3, 255), "netlink": (16, 3, 12), "none": (0, 1, 0),
    }.items():  # fmt: skip
        try:
            socket.socket(*numbers).close()
            found[name] = "done"
        except OSError as error:
            found[name] = errno.errorcode[error.errno or 0]
    return found


@pytest.mark.wall("profile")
def test_other_protocols_are_refused_as_by_a_kernel_without_them() -> None:
    """Programs that would use one, such as Go's for MPTCP, then fall back to TCP."""
    found = odd_protocols()
    assert {found.pop(name) for name in ("smc family", "none")} == {"EAFNOSUPPORT"}
    assert set(found.values()) == {"EPROTONOSUPPORT"}


@sandbox
def by_pidfd() -> list[str]:
    import ctypes
    import errno
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(os.getpid())  # subprocess may use one: that is the harmless counterpart
    found = []
    for kind in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x80):
        ctypes.set_errno(0)
        found.append(
            "done" if libc.setns(pidfd, kind) == 0 else errno.errorcode[ctypes.get_errno()]
        )
    return found


@pytest.mark.wall("filter", "profile", "capabilities")
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


@sandbox
def set_ipv6_options() -> dict[str, str]:
    import errno
    import socket

    found = {}
    options = {"only": 26, "hops": 16, "loop": 19, "traffic class": 67, "labels": 32, "flow": 33}
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        for name, option in options.items():
            try:
                sock.setsockopt(socket.IPPROTO_IPV6, option, 1)
                found[name] = "done"
            except OSError as error:
                found[name] = errno.errorcode[error.errno or 0]
    return found


@pytest.mark.wall("profile")
def test_options_of_ipv6_are_set_but_for_flow_labels() -> None:
    """A label outlives its socket in the network namespace, with 16 bytes of the caller's."""
    found = set_ipv6_options()
    assert {found.pop("labels"), found.pop("flow")} == {"EPERM"}
    assert set(found.values()) == {"done"}, "the harmless counterpart"


def test_honest_programs_need_no_refused_call() -> None:
    """The harmless counterpart of every rule: what ordinary code does is let through."""

    @sandbox(pids=64, timeout_sec=60, memory_mb=1024)
    def honest() -> dict[str, object]:
        import asyncio
        import concurrent.futures
        import fcntl
        import http.server
        import mmap
        import multiprocessing
        import os
        import socket
        import sqlite3
        import subprocess
        import tempfile
        import threading
        import urllib.request

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

        class Hello(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"hello")

            def log_message(self, *_: object) -> None:
                pass

        with http.server.ThreadingHTTPServer(("localhost", 0), Hello) as web:
            threading.Thread(target=web.serve_forever, daemon=True).start()
            found["http"] = urllib.request.urlopen(f"http://localhost:{web.server_port}").read()
            web.shutdown()
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as unix:
            unix.bind(f"{directory}/socket")
            unix.listen()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to_unix:
                to_unix.connect(f"{directory}/socket")
                to_unix.sendall(b"hello")
                found["unix"] = unix.accept()[0].recv(5)
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.send(b"hello")
        found["pair"] = other.recv(5)
        with socket.socket(type=socket.SOCK_DGRAM, proto=socket.IPPROTO_UDP) as server:
            server.bind(("127.0.0.1", 0))
            with socket.socket(type=socket.SOCK_DGRAM) as client:
                client.sendto(b"hello", server.getsockname())
            found["udp"] = server.recv(5)
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
        "http": b"hello", "unix": b"hello", "pair": b"hello", "udp": b"hello",
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
