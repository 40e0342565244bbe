# SPDX-License-Identifier: Apache-2.0
"""Memory by what the host loses: what no size of a process shows, and its kernel pays for.

The figures are the host's own (/proc/meminfo, /proc/net/sockstat), taken while the attack holds
what it got; others use the machine too, so they are judged with large margins, against attacks that
would take far more.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import sandbox
from hutch._core import FRAME_VERSION as VERSION

ISOLATIONS = ("cell", "container", "shared")


def slab_mb() -> float:
    found = re.search(r"^SUnreclaim:\s+(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def tcp_mb() -> float:
    found = re.search(r"^TCP:.* mem (\d+)", Path("/proc/net/sockstat").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 4096 / (1 << 20)


class Loss:
    """The most that was lost while it was watched, in MiB."""

    most = 0.0


@contextmanager
def lost(measure: Callable[[], float]) -> Iterator[Loss]:
    loss, over, before = Loss(), threading.Event(), measure()

    def watch() -> None:
        while not over.wait(0.05):
            loss.most = max(loss.most, measure() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield loss
    finally:
        over.set()
        thread.join()


@sandbox(memory_mb=64, timeout_sec=30)
def fill_tcp(pairs: int) -> int:
    """What was sent and nobody receives, as much as each socket takes."""
    import socket
    import time

    held, sent = [], 0
    server = socket.create_server(("127.0.0.1", 0), backlog=128)
    for _ in range(pairs):
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        held += [near, far]
        for end in (near, far):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, 64 << 20)
            end.setblocking(False)
    for _ in range(20):
        for end in held:
            try:
                while True:
                    sent += end.send(b"x" * 65536)
            except BlockingIOError:
                pass
        time.sleep(0.05)
    time.sleep(1)
    return sent


@pytest.mark.alone  # the figure is the whole machine's
@pytest.mark.wall("tcp_memory")
def test_tcp_of_a_call_holds_little_of_the_hosts_budget(next_call_works: None) -> None:
    with lost(tcp_mb) as loss:
        use = fill_tcp.submit(2)
        outcome = fill_tcp.run(30)
    assert outcome.status in ("returned", "limit"), outcome
    assert loss.most < 64, loss.most
    assert use.result() > 1 << 17  # the harmless counterpart


@sandbox(timeout_sec=60)
def transfer(megabytes: int) -> int:
    import socket
    import threading

    server = socket.create_server(("127.0.0.1", 0))

    def send() -> None:
        with socket.create_connection(server.getsockname()) as out:
            for _ in range(megabytes):
                out.sendall(bytes(1 << 20))

    thread = threading.Thread(target=send)
    thread.start()
    received = 0
    end, _ = server.accept()
    while part := end.recv(1 << 20):
        received += len(part)
    thread.join()
    return received


def test_tcp_of_a_call_still_carries_much() -> None:
    """The harmless counterpart: small buffers stop no transfer."""
    assert transfer(200) == 200 << 20


# With a budget of CPU time a cell serves a call in Python, where the call's id can be found.
@sandbox(memory_mb=64, result_mb=1024, timeout_sec=30, cpu_sec=60)
def keep_a_result(megabytes: int, sec: float) -> Any:
    """Asks for memory to answer in, fills it, and does not answer."""
    import array
    import os
    import socket
    import struct
    import sys
    import time

    frame: Any = sys._getframe()
    while frame is not None and "call_id" not in frame.f_locals:
        frame = frame.f_back
    worker, call = frame.f_locals["self"], frame.f_locals["call_id"]
    raw = socket.socket(fileno=worker.fd)
    size = megabytes << 20
    raw.send(struct.pack("<HBBIQQQ", 0x4348, VERSION, 6, 0, call, size, 0))
    _, more, _, _ = raw.recvmsg(4096, socket.CMSG_SPACE(64))
    memfd = array.array("i", more[0][2])[0]
    for at in range(megabytes):
        os.pwrite(memfd, b"x" * (1 << 20), at << 20)
    raw.detach()
    kept = bytearray(b"x" * (30 << 20))
    time.sleep(sec)
    os._exit(len(kept) & 1)


@pytest.mark.parametrize("megabytes", [322, 50], ids=["too much at once", "too much together"])
def test_memory_of_a_result_that_never_comes_counts(megabytes: int, next_call_works: None) -> None:
    outcome = keep_a_result.run(megabytes, 20)
    assert (outcome.status, outcome.limit) == ("limit", "memory"), outcome


def test_a_large_result_comes() -> None:
    """The harmless counterpart: it is there twice while it is on its way, and may be."""
    give = sandbox(lambda megabytes: bytes(megabytes << 20), memory_mb=64)
    assert len(give(40)) == 40 << 20


@sandbox(memory_mb=64, timeout_sec=120, pids=64)
def make_objects(kind: str, count: int) -> int:
    """Kernel objects that no size of a process shows. Returns how many; waits to be seen."""
    import ctypes
    import fcntl
    import mmap
    import os
    import select
    import socket
    import struct
    import time

    libc = ctypes.CDLL(None, use_errno=True)
    made = 0
    if kind in ("locks", "open file locks", "locks on their way", "hidden locks"):
        if kind == "hidden locks":
            libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        pair = socket.socketpair()
        files = []
        each = count // 800 + 1  # of a file: each lock is compared with all that there are
        for n in range(count):
            if n % each == 0:
                if kind == "locks on their way" and len(files) == 100:
                    socket.send_fds(pair[0], [b"x"], files)
                    while files:
                        os.close(files.pop())
                files.append(os.open(f"locked {n}", os.O_RDWR | os.O_CREAT))
            if kind in ("locks", "hidden locks"):
                fcntl.lockf(files[-1], fcntl.LOCK_EX, 1, 2 * n)
            else:
                fcntl.fcntl(files[-1], 37, struct.pack("hhqqixxxx", 1, 0, 2 * n, 1, 0))
            made += 1
    if kind == "watches":
        ends = [os.eventfd(0) for _ in range(500)]
        polls = []
        while made < count and len(polls) < 400:
            poll = select.epoll()
            polls.append(poll)
            for end in ends:
                poll.register(end, select.EPOLLIN)
                made += 1
    if kind == "mappings":
        kinds = (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_EXEC)
        while made < count:
            many = min(60_000, count - made)
            if os.fork() == 0:
                held = [mmap.mmap(-1, 4096, prot=kinds[n % 2]) for n in range(many)]
                time.sleep(60 + len(held) % 2)
            made += many
        time.sleep(30 if count > 100_000 else 1)
    if kind == "pipes":
        ends = []
        for _ in range(count):
            read, write = os.pipe()
            os.write(write, bytes(60_000))
            os.close(write)
            ends.append(read)
            made += 1
    time.sleep(2)
    return made


@pytest.mark.alone  # the figure is the whole machine's
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        pytest.param("locks", 800_000, marks=pytest.mark.wall("objects")),
        pytest.param("open file locks", 800_000, marks=pytest.mark.wall("objects")),
        pytest.param("locks on their way", 800_000, marks=pytest.mark.wall("objects")),
        pytest.param("hidden locks", 800_000, marks=pytest.mark.wall("objects")),
        ("mappings", 2_400_000),  # whose pages of tables count too
    ],
)
def test_the_kernels_objects_count(kind: str, count: int, next_call_works: None) -> None:
    with lost(slab_mb) as loss:
        outcome = make_objects.run(kind, count)
    assert (outcome.status, outcome.limit) == ("limit", "memory"), outcome
    assert loss.most < 300, loss.most  # of 500 and more


@pytest.mark.alone  # the figure is the whole machine's
def test_ordinary_use_of_the_kernels_objects_is_none_of_it() -> None:
    """The harmless counterpart."""
    kinds = {"locks": 20_000, "open file locks": 20_000, "watches": 20_000, "mappings": 20_000}
    kinds["pipes"] = 100
    made = {kind: make_objects.submit(kind, count) for kind, count in kinds.items()}
    for kind, count in kinds.items():
        assert made[kind].result() >= count, kind


# Harmless counterparts last until they were looked at: all of a kind are begun at once.
Uses = dict[tuple[Any, ...], hutch.SandboxFuture[int]]


def begun(function: Any, *uses: tuple[Any, ...]) -> Uses:
    return {
        (isolation, *arguments): function.options(isolation=isolation).submit(*arguments)
        for isolation in ISOLATIONS
        for arguments in uses
    }


@sandbox(memory_mb=64, timeout_sec=30)
def take_in_threads(first_thread: str, megabytes: int) -> int:
    """A child's second thread takes memory, with or without a first thread beside it."""
    import ctypes
    import os
    import threading
    import time

    libc = ctypes.CDLL(None, use_errno=True)
    read, write = os.pipe()
    if os.fork() == 0:

        def take() -> None:
            time.sleep(0.2)
            held = [b"x" * (4 << 20) for _ in range(megabytes // 4)]
            time.sleep(2)
            os.write(write, bytes((len(held),)))
            os._exit(0)

        taker = threading.Thread(target=take)
        taker.start()
        if first_thread == "ends":
            libc.syscall(60, 0)  # SYS_exit: this thread alone
        if first_thread == "takes turns":

            def next_one() -> None:
                threading.Thread(target=next_one).start()

            next_one()
            libc.syscall(60, 0)
        taker.join()
    os.close(write)
    return os.read(read, 1)[0] * 4


FIRST_THREADS = ("stays", "ends", "takes turns")


@pytest.fixture(scope="module")
def uses_of_threads() -> Uses:
    return begun(take_in_threads, *((first_thread, 8) for first_thread in FIRST_THREADS))


@pytest.mark.wall("watch")
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("first_thread", FIRST_THREADS)
def test_memory_of_a_process_without_its_first_thread_counts(
    first_thread: str, isolation: Any, uses_of_threads: Uses, next_call_works: None
) -> None:
    outcome = take_in_threads.options(isolation=isolation).run(first_thread, 400)
    assert (outcome.status, outcome.limit) == ("limit", "memory"), outcome
    # the harmless counterpart: pthread_exit in main()
    assert uses_of_threads[isolation, first_thread, 8].result() == 8


@sandbox(memory_mb=64, timeout_sec=60)
def make_objects_in_a_thread(locks: int) -> int:
    """The kernel's objects of a process whose first thread has ended."""
    import ctypes
    import fcntl
    import os
    import threading
    import time

    libc = ctypes.CDLL(None, use_errno=True)
    read, write = os.pipe()
    if os.fork() == 0:

        def make() -> None:
            time.sleep(0.2)
            each = locks // 800 + 1
            for n in range(locks):
                if n % each == 0:
                    file = os.open(f"locked {n}", os.O_RDWR | os.O_CREAT)
                fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * n)
            time.sleep(3)
            os.write(write, b"x")
            os._exit(0)

        maker = threading.Thread(target=make)
        maker.start()
        libc.syscall(60, 0)
    os.close(write)
    return len(os.read(read, 1)) * locks


@pytest.mark.alone  # the figure is the whole machine's
@pytest.mark.wall("objects")
def test_the_kernels_objects_of_a_process_without_its_first_thread_count(
    next_call_works: None,
) -> None:
    outcome = make_objects_in_a_thread.run(800_000)
    assert (outcome.status, outcome.limit) == ("limit", "memory"), outcome
    assert make_objects_in_a_thread(2_000) == 2_000


@sandbox(memory_mb=64, timeout_sec=30)
def share(how: str, megabytes: int) -> int:
    """Shared memory without a file, in somebody's page tables or in nobody's."""
    import mmap
    import os
    import time

    step, kept = 4 << 20, []
    if how == "by a child":
        for _ in range(megabytes // 8):
            area = mmap.mmap(-1, 8 << 20)
            read, write = os.pipe()
            if len(kept) < 50 and os.fork() == 0:
                os.close(write)
                os.read(read, 1)
                os._exit(0)
            kept.append(write)
            area[:] = b"x" * (8 << 20)
            area.close()
    else:
        area = mmap.mmap(-1, megabytes << 20)
        for at in range(0, megabytes << 20, step):
            area[at : at + step] = b"x" * step
            if how == "dropped":
                area.madvise(mmap.MADV_DONTNEED, at, step)
    time.sleep(2)
    return megabytes


@pytest.fixture(scope="module")
def uses_of_shares() -> Uses:
    return begun(share, *((how, 24) for how in ("mapped", "dropped", "by a child")))


@pytest.mark.alone  # what they are seen by is the whole machine's
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(
    "how",
    [
        pytest.param("mapped", marks=pytest.mark.wall("watch")),
        pytest.param("dropped", marks=pytest.mark.wall("objects")),
        pytest.param("by a child", marks=pytest.mark.wall("objects", "watch")),
    ],
)
def test_shared_memory_counts_though_nobody_has_it_in_page_tables(
    how: str, isolation: Any, uses_of_shares: Uses, next_call_works: None
) -> None:
    outcome = share.options(isolation=isolation).run(how, 320)
    assert (outcome.status, outcome.limit) == ("limit", "memory"), outcome
    # the harmless counterpart
    assert uses_of_shares[isolation, how, 24].result() == 24


@sandbox(memory_mb=64, timeout_sec=30)
def share_honestly() -> int:
    import mmap
    import multiprocessing
    import time

    context = multiprocessing.get_context("fork")
    value, area = context.Value("i", 0), mmap.mmap(-1, 4 << 20)

    def work() -> None:
        for at in range(0, len(area), 4096):
            area[at] = 1
        with value.get_lock():
            value.value += 1

    workers = [context.Process(target=work) for _ in range(4)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    time.sleep(2)
    return int(value.value)


def test_a_call_with_small_shared_areas_is_not_blamed_for_what_others_share() -> None:
    import mmap

    over = threading.Event()

    def take() -> None:
        areas = []
        for _ in range(40):
            if over.wait(0.05):
                return
            areas.append(mmap.mmap(-1, 8 << 20))
            areas[-1][:] = b"x" * (8 << 20)
        over.wait(30)

    neighbour = threading.Thread(target=take)
    neighbour.start()
    try:
        assert [use.result() for use in begun(share_honestly, ()).values()] == [4] * 3
    finally:
        over.set()
        neighbour.join()


@sandbox(memory_mb=200, disk_mb=200, timeout_sec=30)
def fill_both(scratch: int, shared: int, mapped: bool) -> int:
    import mmap
    import time

    step = b"x" * (1 << 20)
    with open("f", "w+b") as file:
        for _ in range(scratch):
            file.write(step)
        file.flush()
        of_scratch = mmap.mmap(file.fileno(), scratch << 20) if mapped else b""
        seen = sum(of_scratch[at] for at in range(0, len(of_scratch), 4096))
    area = mmap.mmap(-1, max(shared, 1) << 20)
    for at in range(shared):
        area[at << 20 : (at + 1) << 20] = step
    time.sleep(2)
    return scratch + shared + (seen & 0)


@pytest.fixture(scope="module")
def uses_of_both() -> Uses:
    return begun(fill_both, (70, 70, False), (140, 1, True))


@pytest.mark.wall("watch")
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_scratch_and_shared_memory_count_together(
    isolation: Any, uses_of_both: Uses, next_call_works: None
) -> None:
    outcome = fill_both.options(isolation=isolation).run(140, 140, False)
    assert (outcome.status, outcome.limit) == ("limit", "memory"), outcome
    # the harmless counterparts: the scratch counts once, though a process maps it
    assert uses_of_both[isolation, 70, 70, False].result() == 140
    assert uses_of_both[isolation, 140, 1, True].result() == 141


@sandbox
def ask_for_landlock() -> list[str]:
    import ctypes
    import errno

    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    for arguments in ((None, 0, 1), (ctypes.create_string_buffer(bytes(8)), 8, 0)):
        ctypes.set_errno(0)
        made = libc.syscall(ctypes.c_long(444), *arguments)
        found.append("done" if made >= 0 else errno.errorcode[ctypes.get_errno()])
    return found


@pytest.mark.wall("filter")
def test_landlock_is_as_on_a_kernel_that_has_it_switched_off() -> None:
    """A million rules of ports were 80 MB of it. (A kernel without it says ENOSYS.)"""
    assert set(ask_for_landlock()) <= {"EOPNOTSUPP", "ENOTSUP", "ENOSYS"}


def test_the_peak_is_the_wardens_word_where_it_says_so(next_call_works: None) -> None:
    """A cell that tells of a peak of its own, in a call that ends before many looks."""

    @sandbox(timeout_sec=20, cpu_sec=10)
    def claim() -> None:
        import socket
        import struct
        import sys
        import time

        frame: Any = sys._getframe()
        while frame is not None and "call_id" not in frame.f_locals:
            frame = frame.f_back
        worker, call = frame.f_locals["self"], frame.f_locals["call_id"]
        raw = socket.socket(fileno=worker.fd)
        usage = struct.pack("<QQQQQQII", 1, 1, 1, 1 << 50, 1, 1, 0, 0)
        time.sleep(0.015)
        head = struct.pack("<HBBIQQQ", 0x4348, VERSION, 3, 0, call, 3, 3)
        raw.send(head + usage + b"\xc1\x01\xc0")
        raw.detach()
        time.sleep(5)

    outcome: hutch.Outcome[None] = claim.run()
    assert outcome.usage.source != "warden" or outcome.usage.peak_memory_bytes < 1 << 40
