# SPDX-License-Identifier: Apache-2.0
"""Memory that carries large arguments: a cell reads what it was lent, and nothing else of it.

The attack runs while the call is loaded: then the descriptors are still there, before the
arguments are mapped.
"""

from __future__ import annotations

import textwrap
from typing import Any

import hutch
from hutch import Session

SIZE = 1 << 20

SPY = """
    import fcntl, mmap, os

    def attempt(work):
        try:
            work()
        except (OSError, ValueError, PermissionError):
            return False
        return True

    def lent():
        for name in os.listdir("/proc/self/fd"):
            try:
                if "memfd:" in os.readlink("/proc/self/fd/" + name):
                    yield int(name)
            except OSError:
                pass

    attacks, honest, seen, offsets = {}, {}, b"", []
    for fd in lent():
        path = f"/proc/self/fd/{fd}"
        offsets.append(os.lseek(fd, 0, os.SEEK_CUR))
        attacks["write"] = attempt(lambda: os.pwrite(fd, b"x", 0))
        attacks["shared writable mapping"] = attempt(lambda: mmap.mmap(fd, 4096, mmap.MAP_SHARED))
        attacks["open to write"] = attempt(lambda: os.open(path, os.O_RDWR))
        attacks["open to read anew"] = attempt(lambda: os.open(path, os.O_RDONLY))
        attacks["truncate"] = attempt(lambda: os.ftruncate(fd, 0))
        attacks["truncate by name"] = attempt(lambda: os.truncate(path, 0))
        attacks["grow"] = attempt(lambda: os.posix_fallocate(fd, 0, 1 << 30))
        attacks["change its mode"] = attempt(lambda: os.fchmod(fd, 0o777))
        attacks["change its times"] = attempt(lambda: os.utime(fd))
        lock = fcntl.LOCK_EX | fcntl.LOCK_NB
        attacks["lock it for oneself"] = attempt(lambda: fcntl.flock(fd, lock))
        attacks["leave an attribute"] = attempt(lambda: os.setxattr(fd, "user.note", b"x"))
        honest["read"] = attempt(lambda: os.pread(fd, 10, 0))
        honest["private writable mapping"] = attempt(
            lambda: mmap.mmap(fd, 4096, mmap.MAP_PRIVATE)
        )
        content = os.pread(fd, os.fstat(fd).st_size, 0)
        seen += content
        os.lseek(fd, 4711, os.SEEK_SET)

    def solve(data):
        kept = sum(len(seen.split(mark)) - 1 for mark in (b"FIRST", b"OTHER"))
        return attacks, honest, kept, offsets, bytes(data[:5])
"""

spy = hutch.function(textwrap.dedent(SPY), "solve")


def test_a_cell_cannot_write_to_what_it_was_lent() -> None:
    attacks, honest, _, _, begin = spy(b"FIRST" + bytes(SIZE))
    assert begin == b"FIRST"
    assert attacks and not any(attacks.values()), attacks
    assert honest and all(honest.values()), honest


def test_memory_used_again_carries_nothing_from_call_to_call() -> None:
    for _ in range(4):  # in time the same segment serves again
        _, _, kept, offsets, begin = spy(b"FIRST" * (SIZE // 5))
        assert (begin, kept, offsets) == (b"FIRST", SIZE // 5, [0])
        for size in (SIZE - 8192, 3 * SIZE // 4):
            _, _, kept, offsets, begin = spy(b"OTHER" + bytes(size))
            assert (begin, kept, offsets) == (b"OTHER", 1, [0])


def test_a_large_function_carries_nothing_from_call_to_call() -> None:
    """It is placed once, and lent to each call of it."""
    text = textwrap.dedent(SPY) + "\n# " + "x" * 20_000 + "\n"
    text = text.replace("in lent():", "in named:").replace(
        "attacks, honest", "named = list(lent())\nattacks, honest", 1
    )
    large = hutch.function(text, "solve")
    for _ in range(3):
        attacks, honest, _, offsets, _ = large(b"small")
        assert offsets == [0], "one memfd, the function's own"
        assert not any(attacks.values()), attacks
        assert all(honest.values())


@hutch.sandbox
def linger(data: bytes, seconds: float) -> int:
    """Leaves a process behind that has closed the call's socket and streams."""
    import os
    import time

    if os.fork() == 0:
        os.closerange(0, 1024)
        time.sleep(seconds)
        os._exit(0)
    return len(data)


@hutch.sandbox
def checked(data: bytes) -> bool:
    import time

    first = data.count(b"\x07")
    time.sleep(0.01)
    return first == len(data) == data.count(b"\x07")


def test_a_process_left_behind_harms_no_later_call() -> None:
    for _ in range(3):
        assert linger(b"\x01" * SIZE, 30.0) == SIZE
        assert checked(b"\x07" * SIZE)


def test_a_slice_of_shared_memory_shows_nothing_around_it() -> None:
    np: Any = __import__("pytest").importorskip("numpy")
    whole = hutch.empty(2 * SIZE, np.uint8)
    whole[:] = np.frombuffer(b"OTHER" * (2 * SIZE // 5) + b"\0\0", np.uint8)
    whole[:SIZE] = 0
    attacks, _, kept, _, _ = spy(memoryview(whole[:SIZE]).tobytes())
    assert attacks and kept == 0
    _, _, kept, _, _ = spy.options(dependencies=["numpy"])(whole[:SIZE])
    assert kept == 0, "the rest of the array was within reach"
    attacks, _, kept, _, _ = spy.options(dependencies=["numpy"])(whole)
    assert kept > 0, "the harmless counterpart: all of it was passed"
    assert not any(attacks.values()), attacks


def keep(data: bytes) -> int:
    globals()["kept"] = data
    return len(data)


def size_of(data: bytes) -> int:
    return len(data)


def test_what_a_session_keeps_stays_as_it_was_lent() -> None:
    """Of one that is lent more it is lending_test.cc that tells what is given back."""
    with Session(memory_mb=512) as s, Session(memory_mb=512) as other:
        assert s.call(keep, b"FIRST" * SIZE) == 5 * SIZE
        for session in (s, other) * 3:
            assert session.call(size_of, b"OTHER" * SIZE) == 5 * SIZE
        assert s.exec("kept == b'FIRST' * (1 << 20)").value is True
