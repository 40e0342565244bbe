# SPDX-License-Identifier: Apache-2.0
"""Hogs: what eats processors, memory or the host's patience, and who is served beside it."""

from __future__ import annotations

import pytest
from support import grows_by_less_than

from hutch import sandbox

alone = pytest.mark.alone  # it takes all of the processors


@sandbox
def quick(x: int) -> int:
    return x + 1


@sandbox(pids=32, timeout_sec=2)
def spin(count: int) -> None:
    import os
    import threading

    def burn() -> None:
        while True:
            pass

    for _ in range(count):
        if os.fork() == 0:
            threading.Thread(target=burn).start()
            burn()
    burn()


@alone
def test_others_are_served_beside_spinners(next_call_works: None) -> None:
    quick(0)
    hogs = [spin.submit(8) for _ in range(2)]
    assert [quick(n) for n in range(20)] == list(range(1, 21))
    for hog in hogs:
        outcome = hog.outcome()
        assert (outcome.status, outcome.limit) in (("limit", "time"), ("limit", "cpu_time"))


@sandbox(timeout_sec=2)
def read_everything() -> int:
    import os

    seen = 0
    while True:
        for folder, _, names in os.walk("/usr"):
            for name in names:
                try:
                    with open(os.path.join(folder, name), "rb", buffering=0) as file:
                        while part := file.read(1 << 20):
                            seen += len(part)
                except OSError:
                    pass


@alone
def test_others_are_served_beside_a_reader_of_everything(next_call_works: None) -> None:
    quick(0)
    hog = read_everything.submit()
    assert [quick(n) for n in range(20)] == list(range(1, 21))
    outcome = hog.outcome()
    assert (outcome.status, outcome.limit) == ("limit", "time")


@sandbox(memory_mb=128, timeout_sec=1)
def bomb(kind: str) -> int:
    if kind == "zlib":
        import zlib

        layer = zlib.compress(bytes(200 << 20), 9)
        return len(zlib.decompress(layer))
    if kind == "regex":
        import re

        return len(re.findall("(a+)+$", "a" * 64 + "b"))
    if kind == "power":
        return (7 ** (10**9)).bit_length()
    if kind == "nesting":
        import json

        deep = json.loads("[" * 900 + "]" * 900)
        while True:
            deep = [deep, deep, json.loads("[" * 900 + "]" * 900)]
    return 0


@pytest.mark.parametrize(
    ("kind", "limit"),
    [("zlib", "memory"), ("regex", "time"), ("power", "time"), ("nesting", "memory")],
)
def test_bombs_meet_a_limit(kind: str, limit: str, next_call_works: None) -> None:
    outcome = bomb.options(timeout_sec=1 if limit == "time" else 30).run(kind)
    assert (outcome.status, outcome.limit) == ("limit", limit), outcome


def test_what_is_no_bomb_is_no_limit() -> None:
    """The harmless counterpart."""
    assert bomb.options(timeout_sec=20)("none") == 0


def test_millions_of_small_things_do_not_grow_the_host(next_call_works: None) -> None:
    @sandbox(result_mb=2, memory_mb=1024, timeout_sec=60)
    def many(count: int) -> list[object]:
        return [[] for _ in range(count)]

    with grows_by_less_than(16):
        outcome = many.run(3_000_000)
    assert (outcome.status, outcome.limit) == ("limit", "result"), outcome
    assert many(1000) == [[]] * 1000  # the harmless counterpart


@pytest.mark.wall("profile")
@pytest.mark.wall("RLIMIT_MEMLOCK")
def test_locked_and_huge_memory_is_refused() -> None:
    @sandbox
    def grab() -> dict[str, str]:
        import ctypes
        import errno
        import mmap

        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (
            [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        )

        def name() -> str:
            return errno.errorcode.get(ctypes.get_errno(), "done")

        found = {}
        for call, args in (("mlockall", (3,)), ("shmget", (0, 4096, 0o600 | 0o1000))):
            ctypes.set_errno(0)
            found[call] = "done" if getattr(libc, call)(*args) >= 0 else name()
        plain = mmap.mmap(-1, 1 << 20)
        address = ctypes.addressof(ctypes.c_char.from_buffer(plain))
        ctypes.set_errno(0)
        locked = libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(1 << 20))
        found["mlock"] = "done" if locked == 0 else name()
        ctypes.set_errno(0)
        huge = libc.mmap(None, 2 << 20, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000, -1, 0)
        found["huge page"] = "done" if huge != ctypes.c_void_p(-1).value else name()
        try:
            import os

            os.memfd_create("mine")
            found["memfd"] = "done"
        except OSError as error:
            found["memfd"] = errno.errorcode[error.errno or 0]
        plain[0] = 1  # the harmless counterpart: plain memory is there
        return found

    found = grab()
    assert found["mlockall"] in ("EPERM", "ENOMEM")
    assert found["mlock"] in ("EPERM", "ENOMEM")
    assert found["shmget"] == "EPERM"
    assert found["memfd"] == "ENOSYS"
    assert found["huge page"] in ("ENOMEM", "EPERM", "EINVAL")


def test_a_storm_of_mappings_is_bounded(next_call_works: None) -> None:
    @sandbox(timeout_sec=30)
    def storm() -> int:
        import mmap

        held = []
        try:
            for n in range(200_000):
                kind = mmap.PROT_READ if n % 2 else mmap.PROT_READ | mmap.PROT_WRITE
                held.append(mmap.mmap(-1, 4096, prot=kind))
        except OSError:
            pass
        return len(held)

    outcome = storm.run()
    assert outcome.status in ("returned", "limit"), outcome
    assert outcome.status != "returned" or 1000 < outcome.value < 70_000


@sandbox(memory_mb=128, timeout_sec=20)
def fill_sockets(pairs: int, asked: int = 0) -> int:
    """What was sent and nobody receives: kernel memory, in no map of any process. `asked`: bytes
    that a socket is to hold."""
    import socket
    import time

    held, sent = [], 0
    for _ in range(pairs):
        pair = socket.socketpair()
        held.append(pair)
        for end in pair:
            if asked:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, asked)
            end.setblocking(False)
            try:
                while True:
                    sent += end.send(b"x" * 65536)
            except BlockingIOError:
                pass
    time.sleep(2)
    return sent


@pytest.mark.wall("watch")
def test_memory_in_sockets_counts(next_call_works: None) -> None:
    outcome = fill_sockets.run(500)
    assert (outcome.status, outcome.limit) == ("limit", "memory")
    assert fill_sockets(20) > 1 << 20  # the harmless counterpart


@pytest.mark.wall("profile")
def test_a_socket_holds_no_more_than_any_socket_does() -> None:
    assert fill_sockets.options(memory_mb=64)(30, 64 << 20) < 32 << 20


@sandbox(memory_mb=128, timeout_sec=20)
def fill_page_tables(gigabytes: int) -> int:
    """Reads a page of each 2 MiB of nothing: a table of 4 KiB for each, and no page of its own."""
    import mmap
    import time

    held = []
    for _ in range(gigabytes):
        part = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        part.madvise(mmap.MADV_NOHUGEPAGE)
        held.append(part)
        for at in range(0, len(part), 2 << 20):
            part[at]
    time.sleep(2)
    return len(held)


@pytest.mark.wall("watch")
def test_memory_in_page_tables_counts(next_call_works: None) -> None:
    outcome = fill_page_tables.run(100)
    assert (outcome.status, outcome.limit) == ("limit", "memory"), outcome
    assert fill_page_tables(2) == 2  # the harmless counterpart


@sandbox(pids=64, timeout_sec=20)
def fill_maps(processes: int, maps: int) -> int:
    """Many processes of as many maps as there may be: who walks them all does nothing else."""
    import mmap
    import os
    import time

    kinds = (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_EXEC)
    for _ in range(processes):
        if os.fork() == 0:
            held = []
            try:
                for n in range(maps):
                    held.append(mmap.mmap(-1, 4096, prot=kinds[n % 2]))
            except OSError:
                pass
            time.sleep(30)
    time.sleep(10 if processes > 1 else 0.5)
    return processes


@alone
def test_others_are_served_beside_millions_of_maps(next_call_works: None) -> None:
    quick(0)
    hog = fill_maps.submit(60, 64_000)
    for n in range(50):
        assert quick(n) == n + 1
    outcome = hog.outcome()
    assert outcome.status in ("limit", "returned"), outcome
    assert fill_maps(1, 1000) == 1  # the harmless counterpart
