# SPDX-License-Identifier: Apache-2.0
"""Resources and time: every limit bites, says so, and leaves the next caller alone."""

from __future__ import annotations

import threading
import time

import pytest

import hutch
from hutch import sandbox


@sandbox(memory_mb=128, timeout_sec=20)
def allocate(megabytes: int, chunk: int) -> int:
    held = []
    for _ in range(0, megabytes, chunk):
        held.append(bytearray(b"x" * (chunk << 20)))
    return len(held)


@pytest.mark.wall("RLIMIT_DATA", "watch")
@pytest.mark.parametrize("chunk", [256, 4], ids=["at once", "bit by bit"])
def test_too_much_memory_hits_the_memory_limit(chunk: int, next_call_works: None) -> None:
    outcome = allocate.run(512, chunk)
    assert (outcome.status, outcome.limit) == ("limit", "memory")
    with pytest.raises(MemoryError):
        outcome.unwrap()


def test_half_the_memory_may_be_used() -> None:
    assert allocate(48, 4) == 12


@sandbox(memory_mb=128, timeout_sec=20)
def allocate_in_children(count: int, megabytes: int) -> int:
    import os
    import time

    for _ in range(count):
        if os.fork() == 0:
            kept = bytearray(b"x" * (megabytes << 20))
            time.sleep(10)
            os._exit(len(kept) & 1)
    time.sleep(8)
    return count


@pytest.mark.wall("watch")
def test_memory_of_all_processes_counts_together(next_call_works: None) -> None:
    outcome = allocate_in_children.run(6, 60)
    assert (outcome.status, outcome.limit) == ("limit", "memory")


@pytest.mark.wall("watch")
def test_shared_memory_and_scratch_count_as_memory(next_call_works: None) -> None:
    @sandbox(memory_mb=128, disk_mb=64, timeout_sec=20)
    def share() -> int:
        import mmap
        import time

        kept = mmap.mmap(-1, 400 << 20)
        for at in range(0, len(kept), 4096):
            kept[at] = 1
        time.sleep(3)
        return len(kept)

    outcome = share.run()
    assert (outcome.status, outcome.limit) == ("limit", "memory")


@sandbox(pids=16, timeout_sec=2)
def fork_bomb() -> None:
    import os

    while True:
        try:
            os.fork()
        except OSError:
            pass


def test_a_fork_bomb_ends_and_others_are_served(next_call_works: None) -> None:
    @sandbox
    def other() -> int:
        return 7

    other()
    bomb = fork_bomb.submit()
    time.sleep(0.5)
    assert other() == 7  # while it explodes
    outcome = bomb.outcome()
    assert (outcome.status, outcome.limit) == ("limit", "time"), outcome.error


@sandbox(pids=20, timeout_sec=20)
def count_forks() -> int:
    import os
    import signal

    children = []
    try:
        for _ in range(200):
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, 9)
    return len(children)


@pytest.mark.wall("RLIMIT_NPROC")
def test_processes_are_counted() -> None:
    assert 10 <= count_forks() <= 20


@pytest.mark.wall("RLIMIT_NPROC")
def test_an_uncaught_refusal_is_the_process_limit(next_call_works: None) -> None:
    @sandbox(pids=16)
    def too_many() -> None:
        import os
        import signal

        for _ in range(100):
            if os.fork() == 0:
                signal.pause()

    outcome = too_many.run()
    assert (outcome.status, outcome.limit) == ("limit", "pids")


@pytest.mark.wall("RLIMIT_NPROC")
def test_threads_hit_the_process_limit(next_call_works: None) -> None:
    @sandbox(pids=32)
    def threads() -> int:
        import threading

        stay = threading.Event()
        started = []
        try:
            for _ in range(10_000):
                thread = threading.Thread(target=stay.wait, daemon=True)
                thread.start()
                started.append(thread)
        except RuntimeError:
            pass
        stay.set()
        return len(started)

    assert 16 <= threads() <= 32


def test_descriptors_are_bounded(next_call_works: None) -> None:
    @sandbox
    def open_all() -> int:
        import os

        held = []
        try:
            while len(held) < 100_000:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        return len(held)

    assert 50 <= open_all() <= 5000


@pytest.mark.wall("RLIMIT_SIGPENDING")
@pytest.mark.wall("RLIMIT_MSGQUEUE")
def test_timers_signals_and_queues_are_bounded() -> None:
    @sandbox
    def kernel_objects() -> dict[str, int]:
        import ctypes
        import resource

        libc = ctypes.CDLL(None, use_errno=True)
        made = 0
        timer = ctypes.c_void_p()
        while made < 50_000 and libc.timer_create(1, None, ctypes.byref(timer)) == 0:
            made += 1
        return {
            "timers": made,
            "pending": resource.getrlimit(resource.RLIMIT_SIGPENDING)[1],
            "queues": resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1],
            "core": resource.getrlimit(resource.RLIMIT_CORE)[1],
        }

    found = kernel_objects()
    assert 0 < found["timers"] < 20_000
    assert 0 < found["pending"] <= 4096
    assert found["queues"] == 0
    assert found["core"] == 0


@sandbox(timeout_sec=10)
def crash(how: str) -> int:
    import ctypes
    import os
    import signal
    import sys

    if how == "null":
        return ctypes.string_at(0)[0]
    if how == "abort":
        os.abort()
    if how == "stack":
        sys.setrecursionlimit(10**9)

        class Deep:
            def __repr__(self) -> str:
                return repr([self])

        return len(repr(Deep()))
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    return 0


@pytest.mark.parametrize(
    ("how", "signals"), [("null", {11, 7}), ("abort", {6}), ("stack", {11}), ("segv", {11})]
)
def test_a_crash_is_named_by_its_signal(how: str, signals: set[int], next_call_works: None) -> None:
    outcome = crash.run(how)
    assert outcome.status == "died", outcome
    assert outcome.signal in signals
    with pytest.raises(hutch.SandboxDied):
        outcome.unwrap()


@sandbox(timeout_sec=0.5)
def spend_time(how: str) -> None:
    import os
    import sys
    import time

    if how == "sleep":
        time.sleep(1000)
    if how == "spin":
        while True:
            pass
    if how == "c loop":
        sum(range(10**13))
    if how == "fifo":
        os.mkfifo("pipe")
        os.open("pipe", os.O_RDONLY)
    if how == "interrupts refused":
        import signal

        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        sys.setswitchinterval(10**6)
        sys.settrace(lambda *_: None)
        while True:
            pass
    if how == "threads":
        import threading

        threading.Thread(target=time.sleep, args=(1000,)).start()
        time.sleep(1000)


@pytest.mark.parametrize(
    "how", ["sleep", "spin", "c loop", "fifo", "interrupts refused", "threads"]
)
def test_whatever_takes_too_long_hits_the_time_limit(how: str, next_call_works: None) -> None:
    outcome = spend_time.run(how)
    assert (outcome.status, outcome.limit) == ("limit", "time")
    with pytest.raises(TimeoutError):
        outcome.unwrap()


def test_cpu_time_is_a_limit_of_its_own(next_call_works: None) -> None:
    @sandbox(cpu_sec=0.5, timeout_sec=20)
    def burn() -> None:
        while True:
            pass

    outcome = burn.run()
    assert (outcome.status, outcome.limit) == ("limit", "cpu_time")


@pytest.mark.wall("cpu")
def test_cpu_time_of_all_processes_counts_together(next_call_works: None) -> None:
    @sandbox(cpu_sec=0.5, timeout_sec=60)
    def burn_in_turns(count: int) -> int:
        import os
        import time

        for _ in range(count):
            child = os.fork()
            if child == 0:
                while time.process_time() < 0.3:
                    pass
                os._exit(0)
            os.waitpid(child, 0)
        return count

    outcome = burn_in_turns.run(8)
    assert (outcome.status, outcome.limit) == ("limit", "cpu_time")
    assert burn_in_turns(1) == 1  # the harmless counterpart


@sandbox(cpu_sec=0.5, timeout_sec=60)
def burn_in_children(how: str, each_sec: float, total_sec: float) -> float:
    """One child after another, whose time is given to nobody: what was burnt in all."""
    import ctypes
    import os
    import signal
    import struct
    import time

    libc = ctypes.CDLL(None, use_errno=True)
    if how in ("ignored", "grandchildren", "a thread", "a thread alone"):
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if how == "no zombies":  # sigaction with SA_NOCLDWAIT, and a handler of SIG_DFL
        libc.sigaction(17, struct.pack("Q128siP", 0, b"", 2, 0), None)
    if how == "adopted":
        libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def burn() -> None:
        end = time.process_time() + each_sec
        while time.process_time() < end:
            pass

    def burn_in_a_thread(first_thread_ends: bool) -> None:
        import threading

        def work() -> None:
            burn()
            os._exit(0)

        threading.Thread(target=work).start()
        if first_thread_ends:
            libc.syscall(60, 0)
        time.sleep(60)

    burnt = 0.0
    while burnt < total_sec:
        child = os.fork()
        if child == 0:
            if how == "waited for":
                burn()
            elif how in ("a thread", "a thread alone"):
                burn_in_a_thread(first_thread_ends=how == "a thread alone")
            elif how == "grandchildren" or how == "adopted":
                if os.fork() == 0:
                    burn()
                    os._exit(0)
                if how == "grandchildren":
                    burn()
            else:
                burn()
            os._exit(0)
        try:
            os.waitpid(child, 0)
        except ChildProcessError:
            pass
        if how == "adopted":
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                pass
        burnt += each_sec
    return burnt


# What is not marked is seen without the estimate too: many short ones are met alive, and
# grandchildren's parents waited for them.
@pytest.mark.parametrize(
    ("how", "each_sec"),
    [
        *(
            pytest.param(how, each_sec, marks=pytest.mark.wall("lost_time"))
            for how in ("ignored", "no zombies", "adopted", "a thread", "a thread alone")
            for each_sec in (0.2, 0.03)
        ),
        *((how, 0.008) for how in ("a thread", "a thread alone")),
        *((how, 0.005) for how in ("ignored", "no zombies", "adopted")),
        *(("grandchildren", each_sec) for each_sec in (0.2, 0.03, 0.005)),
    ],
)
def test_cpu_time_of_children_that_nobody_waits_for_counts(how: str, each_sec: float) -> None:
    outcome = burn_in_children.run(how, each_sec, 8.0)
    assert (outcome.status, outcome.limit) == ("limit", "cpu_time"), outcome
    assert 0.5 <= outcome.usage.cpu_sec < 3, outcome.usage


@pytest.mark.parametrize("each_sec", [0.05, 0.01])
def test_cpu_time_of_children_that_are_waited_for_counts_once(each_sec: float) -> None:
    """The harmless counterpart: below its limit, were it not counted twice."""
    honest = burn_in_children.options(cpu_sec=2)
    outcome = honest.run("waited for", each_sec, 1.0)
    assert outcome.status == "returned", outcome
    assert outcome.value >= 1.0


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "ten", 2**63])
def test_a_timeout_that_is_none_is_refused_before_a_call(seconds: object) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        sandbox(timeout_sec=seconds)(len)([])  # type: ignore[call-overload]


def test_tiny_huge_and_no_timeouts_are_defined() -> None:
    @sandbox
    def nap(seconds: float) -> float:
        import time

        time.sleep(seconds)
        return seconds

    assert nap.options(timeout_sec=0.05).run(5).limit == "time"
    assert nap.options(timeout_sec=10**6)(0.01) == 0.01
    assert nap.options(timeout_sec=None)(0.01) == 0.01


def test_a_cancelled_call_is_gone_and_the_client_usable(next_call_works: None) -> None:
    @sandbox
    def forever() -> None:
        while True:
            pass

    future = forever.submit()
    time.sleep(0.3)
    assert future.cancel()
    assert future.outcome().status == "cancelled"


def test_callers_side_by_side_get_their_own_answers() -> None:
    @sandbox
    def echo(x: int) -> int:
        return x

    answers: dict[int, list[int]] = {}

    def ask(base: int) -> None:
        answers[base] = [echo(base + n) for n in range(20)]

    threads = [threading.Thread(target=ask, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {1000 * n: [1000 * n + k for k in range(20)] for n in range(4)}


def test_a_sandboxed_function_inside_a_sandbox_is_the_plain_function() -> None:
    @sandbox
    def inner(x: int) -> int:
        return x + 1

    @sandbox
    def outer(x: int) -> int:
        return inner(x) * 2

    assert outer(1) == 4


def test_a_stack_without_a_limit_is_memory_of_the_call() -> None:
    text = """
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
deep = "import sys; sys.setrecursionlimit(10**9)\\ndef f(): return eval('f()', {'f': f})\\nf()"
print(subprocess.run([sys.executable, "-c", deep]).returncode)
"""
    outcome = hutch.run(text, memory_mb=256)
    assert outcome.limit == "memory" or "RecursionError" in outcome.stderr, outcome
