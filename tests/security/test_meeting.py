# SPDX-License-Identifier: Apache-2.0
"""Meetings: two cells share nothing by which one could reach, signal, lock or count the other."""

from __future__ import annotations

import functools
import random
import time
from typing import Any

import pytest

from hutch import sandbox


@sandbox(timeout_sec=30)
def stay() -> list[str]:
    """Leaves a mark in everything that has a name, and waits there."""
    import ctypes
    import fcntl
    import os
    import socket

    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0hutch-meeting-place")
    abstract.listen()
    tcp = socket.socket()
    tcp.bind(("127.0.0.1", 7391))
    tcp.listen()
    for folder in ("/tmp", "/dev/shm", os.getcwd()):
        with open(os.path.join(folder, "meeting-place"), "w") as file:
            file.write("x")
    locked = os.open(os.__file__, os.O_RDONLY)
    fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(15, b"meeting-place", 0, 0, 0)
    held()  # type: ignore[name-defined]  # noqa: F821
    return sorted(os.listdir("/dev/shm"))


@sandbox(timeout_sec=30)
def look_around() -> dict[str, bool]:
    """By what of `stay`'s this cell could know of it."""
    import fcntl
    import os
    import socket
    import struct

    found = {}
    for name, family, address in (
        ("abstract socket", socket.AF_UNIX, "\0hutch-meeting-place"),
        ("loopback", socket.AF_INET, ("127.0.0.1", 7391)),
    ):
        with socket.socket(family) as sock:
            found[name] = sock.connect_ex(address) == 0
    for folder in ("/tmp", "/dev/shm", os.getcwd()):
        found["file in " + folder] = os.path.exists(os.path.join(folder, "meeting-place"))
    fd = os.open(os.__file__, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found["lock"] = False
    except OSError:
        found["lock"] = True
    record = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    seen = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, record))
    found["record lock"] = seen[0] != fcntl.F_UNLCK
    found["locks of the system"] = open("/proc/locks").read() != ""
    names = [
        open(f"/proc/{pid}/comm").read().strip() for pid in os.listdir("/proc") if pid.isdigit()
    ]
    found["process"] = "meeting-place" in names
    found["socket table"] = "meeting-place" in open("/proc/net/unix").read()
    return found


@pytest.mark.wall("network")
@pytest.mark.wall("overlays")
@pytest.mark.wall("masks")
@pytest.mark.wall("proc")
def test_two_calls_at_once_do_not_meet(hold: Any) -> None:
    staying = [stay.options(tools=[hold.tool]).submit() for _ in range(2)]
    hold.await_begun()  # of one, should they meet each other
    met = [look_around() for _ in range(4)]
    assert met and all(not any(one.values()) for one in met), met
    hold.await_begun()
    hold.release()
    assert [one.result() for one in staying] == [["meeting-place"]] * 2


def test_a_call_meets_itself() -> None:
    """The harmless counterpart: each of those places works within one call."""

    @sandbox
    def meet() -> list[bool]:
        import os
        import socket

        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind("\0hutch-meeting-place")
            server.listen()
            reached = client.connect_ex("\0hutch-meeting-place") == 0
        with open("/dev/shm/meeting-place", "w") as file:
            file.write("x")
        child = os.fork()
        if child == 0:
            os._exit(0 if os.path.exists("/dev/shm/meeting-place") else 1)
        return [reached, os.waitpid(child, 0)[1] == 0]

    assert meet() == [True, True]


def test_each_worker_has_a_uid_of_its_own() -> None:
    """What the kernel counts for a uid (keyrings, inotify, pipes, signals) no two workers share."""

    @sandbox
    def my_uid() -> list[int]:
        import os

        maps = open("/proc/self/uid_map").read().split()
        return [os.getuid(), int(maps[1])]

    seen = {name: my_uid.options(env={"WORKER": name})() for name in ("one", "two", "three")}
    inside = [uid for uid, _ in seen.values()]
    assert len(set(inside)) == 3, seen
    assert 0 not in inside
    assert all(uid == mapped for uid, mapped in seen.values())


@sandbox
def count_up() -> list[int]:
    return [remembered(1), remembered.cache_info().misses, remembered.cache_info().hits]


@functools.lru_cache
def remembered(x: int) -> int:
    return x


@pytest.mark.wall("fresh")
def test_a_cache_holds_nothing_of_the_last_call() -> None:
    assert [count_up() for _ in range(4)] == [[1, 1, 0]] * 4


@pytest.mark.wall("fresh")
def test_settings_of_numpy_are_reset() -> None:
    pytest.importorskip("numpy")

    @sandbox(dependencies=["numpy"])
    def set_numpy() -> list[Any]:
        import asyncio
        import locale

        import numpy as np

        found = [
            np.get_printoptions()["precision"],
            np.geterr()["divide"],
            hasattr(np, "intruder"),
            locale.setlocale(locale.LC_ALL),
            type(asyncio.get_event_loop_policy()).__name__,
            int(np.array([1, 2, 3]).sum()),
        ]
        np.set_printoptions(precision=2)
        np.seterr(all="ignore")
        np.intruder = True  # type: ignore[attr-defined]

        class Mine(asyncio.DefaultEventLoopPolicy):
            pass

        asyncio.set_event_loop_policy(Mine())
        return found

    first = set_numpy()
    assert first[-1] == 6
    assert [set_numpy() for _ in range(4)] == [first] * 4


@sandbox(timeout_sec=10)
def litter_slowly(seconds: float) -> str:
    import os
    import time

    os.environ["LITTER"] = "left"
    for folder in ("/tmp", "/dev/shm", "."):
        open(os.path.join(folder, "litter"), "w").close()
    print("litter")
    time.sleep(seconds)
    return "done"


@sandbox
def find_litter() -> list[str]:
    import os

    found = [f for f in ("/tmp", "/dev/shm", ".") if os.path.exists(os.path.join(f, "litter"))]
    return found + [name for name in os.environ if name == "LITTER"]


def test_calls_cancelled_anywhere_leave_nothing() -> None:
    chance = random.Random(4711)
    statuses = set()
    for _ in range(25):
        future = litter_slowly.submit(0.05)
        time.sleep(chance.random() * 0.06)
        future.cancel()
        statuses.add(future.outcome().status)
        outcome = find_litter.run()
        assert (outcome.value, outcome.stdout) == ([], "")
    assert statuses <= {"cancelled", "returned"}
    assert "cancelled" in statuses


@sandbox(timeout_sec=30, env={"SHARES": "a uid"})
def fill_sockets() -> int:
    """Descriptors that nobody receives: the kernel counts them for a uid, so for a whole worker."""
    import errno
    import os
    import socket

    null = os.open("/dev/null", os.O_RDONLY)
    pairs = [socket.socketpair() for _ in range(40)]
    sent = 0
    try:
        for sender, _ in pairs:
            for _ in range(4):
                socket.send_fds(sender, [b"x"], [null] * 250)
                sent += 250
    except OSError as error:
        assert error.errno == errno.ETOOMANYREFS
    held()  # type: ignore[name-defined]  # noqa: F821
    return sent


def test_a_quota_of_the_uid_used_up_harms_no_other_cell(hold: Any) -> None:
    @sandbox(env={"SHARES": "a uid"})
    def quick(x: int) -> int:
        return x + 1

    quick(0)
    filling = fill_sockets.options(tools=[hold.tool]).submit()
    hold.await_begun()
    outcomes = [quick.run(n) for n in range(20)]
    assert not filling.done()
    hold.release()
    assert [one.value for one in outcomes] == list(range(1, 21))
    assert len({one.worker_id for one in outcomes} | {filling.outcome().worker_id}) == 1
    assert filling.result() >= 1000
