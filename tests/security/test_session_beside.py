# SPDX-License-Identifier: Apache-2.0
"""What a session's code answers in place of what runs its commands is no exit code, ends no other
command, costs the host nothing, and is nothing that the session's next interpreter has.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import until

import hutch
from hutch import Session
from hutch._core import FRAME_VERSION as VERSION


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(params=["cell", "container"])
def s(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=20, isolation=request.param) as session:
        yield session


@pytest.fixture(scope="module", params=["cell", "container"])
def lasting(request: pytest.FixtureRequest) -> Iterator[Session]:
    """One for many lies: it has another interpreter after each."""
    with Session(memory_mb=256, timeout_sec=20, isolation=request.param) as session:
        yield session


FORGE = f"""
import os, socket, struct, sys, time, _thread, _hutch_cell as cell
ordered = []
def frame(kind, a=0, b=0, data=b'', version={VERSION}):
    return struct.pack('<HBBIQQQ', 0x4348, version, kind, a, 0, b, len(data)) + data
def stands_in(answer):
    def run(channel, out, err, order):
        ordered.append((channel, out, err, order))
        try:
            answer(socket.socket(fileno=os.dup(channel)))
        except OSError as error:
            ordered.append(error)
    cell.commands_by(_thread.start_new_thread, _thread.stack_size, run)
begun, ended, done = (frame(k) for k in (cell.COMMAND_BEGUN, cell.COMMAND_ENDED, cell.COMMAND_DONE))
def close_all(channel):
    channel.close()
    for fd in ordered[-1]: os.close(fd)
"""

LIES = {
    "an exit code that is none": "c.send(begun); c.send(frame(cell.COMMAND_ENDED, 0, 256))",
    "a huge one": "c.send(frame(cell.COMMAND_ENDED, 0, (1 << 64) - 1)); c.send(done)",
    "an end of no kind": "c.send(frame(cell.COMMAND_ENDED, 77, 0)); c.send(done)",
    "that it was killed as nobody asked": "c.send(frame(cell.COMMAND_ENDED, 1, 0)); c.send(done)",
    "that it is done and never ended": "c.send(begun); c.send(done)",
    "no frame": "c.send(b'x' * 20)",
    "a frame of another version": f"c.send(frame(cell.COMMAND_ENDED, version={VERSION + 1}))",
    "a frame of a call": "c.send(frame(cell.RESULT, 0, 4, b'\\0' * 52))",
    "frames without an end": "while True: c.send(begun)",
    "an error that is cut short": "c.send(frame(cell.RAISED, 0, 60000, b'x'))",
    "an error that is none": "c.send(frame(cell.RAISED, 0, 9, b'\\xc1\\x01\\xdf' + b'\\xff' * 6))",
    "that it ran for too long": "c.send(frame(cell.RAISED, 1, 1, b'x'))",
    "a limit that is none": "c.send(frame(cell.RAISED, 4000000000, 1, b'x'))",
    "an empty frame": "c.send(begun); c.send(b'')",
    "a closed channel": "c.send(begun); close_all(c)",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_what_answers_for_a_command_is_not_believed(lasting: Session, lie: str) -> None:
    s = lasting
    s.exec(FORGE + f"def answer(c):\n    {lie}\nkept = 1\nstands_in(answer)").unwrap()
    outcome = s.command(["true"])
    assert outcome.status == "raised" and outcome.exit_code is None, outcome
    with pytest.raises(hutch.SandboxError):
        outcome.unwrap()
    assert s["kept"] == 1
    s.reset()
    assert s.command(["echo", "honest"]).stdout == "honest\n"


def test_one_that_lies_ends_no_other_one(s: Session) -> None:
    begun = threading.Event()
    with ThreadPoolExecutor() as threads:
        text = "echo up; until [ -e go ]; do sleep 0.01; done; echo $((6 * 7)); exit 5"
        other = threads.submit(s.bash, text, on_stdout=lambda _: begun.set())
        assert begun.wait(20)
        s.exec(FORGE + "stands_in(lambda c: (c.send(ended), c.send(done)))").unwrap()
        assert s.bash("exit 7").exit_code == 0  # its own answer is all that it can forge
        s.exec("open('go', 'w').close()")
        outcome = other.result()
    assert (outcome.stdout, outcome.exit_code) == ("up\n42\n", 5)


def test_one_that_never_answers_is_ended_with_its_interpreter() -> None:
    with contextlib.ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor())
        waiting = []
        for isolation in ("cell", "container"):
            s = stack.enter_context(Session(memory_mb=256, timeout_sec=20, isolation=isolation))
            s.exec("kept = 1")
            s.exec(FORGE + "stands_in(lambda c: c.send(begun) and time.sleep(1000))").unwrap()
            waiting.append((s, threads.submit(s.bash, "echo x", timeout_sec=0.5)))
        for s, command in waiting:
            outcome = command.result()
            assert outcome.limit == "time" and outcome.restarted
            assert s.bash("echo honest").stdout == "honest\n" and "kept" in s.lost


def test_what_it_was_given_is_of_no_use_once_it_is_over(s: Session) -> None:
    """Neither the order, which the host has emptied, nor a pipe or a channel."""
    s.exec(FORGE + "stands_in(lambda c: (c.send(begun), c.send(ended), c.send(done)))").unwrap()
    assert s.bash("exit 3", input="x" * 1_000_000).exit_code == 0
    said = s.exec(
        "import fcntl\nchannel, out, err, order = ordered[0]\nfound = [os.fstat(order).st_size]\n"
        "for attempt in (lambda: os.ftruncate(order, 1 << 20), lambda: os.write(order, b'x'),\n"
        "                lambda: fcntl.fcntl(order, 1033, 2),\n"
        "                lambda: socket.socket(fileno=os.dup(channel)).send(begun)):\n"
        "    try: found.append(attempt())\n"
        "    except OSError as error: found.append(type(error).__name__)\nfound"
    ).unwrap()
    assert said == [0, "PermissionError", "PermissionError", "PermissionError", "BrokenPipeError"]


def test_commands_that_nobody_reads_are_of_no_answer(s: Session) -> None:
    """They wait as long as they may, and never ran."""
    s.exec("import signal, time; signal.signal(signal.SIGURG, signal.SIG_IGN)")
    up = threading.Event()
    with ThreadPoolExecutor() as threads:
        call = threads.submit(s.exec, "print(1)\ntime.sleep(1000)", on_stdout=lambda _: up.set())
        assert up.wait(20)
        found = list(threads.map(lambda _: s.bash("true", timeout_sec=0.02), range(300)))
        s.interrupt()
        assert call.result().status == "raised"
    assert {(one.limit, one.may_have_run) for one in found} == {("time", False)}
    assert s.bash("echo honest").stdout == "honest\n"


def test_no_room_for_descriptors_leaves_none_behind(s: Session) -> None:
    s.bash("true").unwrap()
    before, limits = descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    for room in range(2, 7):
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            for _ in range(room):
                os.close(taken.pop())
            with pytest.raises(OSError):
                s.bash("true")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            while taken:
                os.close(taken.pop())
    assert s.bash("echo honest").stdout == "honest\n"
    assert descriptors() == before


def test_commands_leave_no_descriptor_behind(s: Session) -> None:
    def seen() -> tuple[int, int]:
        s.bash("true").unwrap()  # which closes pipes that are at their end
        found: int = s.exec("import os; len(os.listdir('/proc/self/fd'))").unwrap()
        return descriptors(), found

    # The thread of the command before may be about to close its pipes: the fewest of many looks.
    outside, inside = map(min, zip(*(seen() for _ in range(20))))
    with ThreadPoolExecutor(8) as threads:
        for text in ("exit 3", "sleep 9 >/dev/null 2>&1 &", "nosuchprogram", "cd /nowhere"):
            found = [threads.submit(s.bash, text) for _ in range(32)]
            for one in found:
                assert one.result().exit_code is not None
            late = [threads.submit(s.bash, "sleep 555", timeout_sec=0.1) for _ in range(8)]
            for one in late:
                assert one.result().limit == "time"

    def are_gone() -> bool:
        now = seen()
        return now[0] == outside and now[1] <= inside

    until(are_gone, f"there are not {outside} outside again, or more than {inside} inside")


def processes_of(s: Session, mark: str) -> list[str]:
    text = f"""
import os
found = []
for name in os.listdir("/proc"):
    try:
        if name.isdigit() and {mark!r} in open(f"/proc/{{name}}/cmdline").read(): found.append(name)
    except OSError:
        pass
found"""
    found: list[str] = s.exec(text).unwrap()
    return found


@pytest.mark.parametrize("isolation", ["cell", "container"])
def test_one_that_is_killed_at_any_moment_leaves_no_process(isolation: Any) -> None:
    """Also where its bash is just about to start something, and a list of all takes its time."""
    threads = ThreadPoolExecutor(8)
    with Session(memory_mb=256, pids=200, isolation=isolation) as s, threads:
        s.bash("for i in $(seq 100); do sleep 600 >/dev/null 2>&1 & done").unwrap()
        kill = functools.partial(s.bash, "sleep 555")
        late = [threads.submit(kill, timeout_sec=0.03 + n % 20 / 200) for n in range(160)]
        assert {one.result().limit for one in late} == {"time"}
        assert processes_of(s, "555") == []
        assert len(processes_of(s, "600")) == 100


HOPS = """
import os
while True:
    try:
        if os.fork(): os._exit(0)
    except OSError:
        os._exit(1)
"""


@pytest.mark.parametrize("isolation", ["cell", "container", "gvisor"])
def test_processes_that_start_another_and_end_are_caught(isolation: Any) -> None:
    with Session(memory_mb=256, isolation=isolation) as s:
        for _ in range(3):
            text = f"nohup sleep 9876 & python3 -c '{HOPS}' hop; sleep 1000"
            assert s.bash(text, timeout_sec=0.5).limit == "time"
            assert processes_of(s, "hop") == processes_of(s, "9876") == []
        honest = s.bash("sleep 4321 >/dev/null 2>&1 & echo one")
        assert honest.stdout == "one\n" and len(processes_of(s, "4321")) == 1


def test_a_command_reaches_nothing_of_another_one(s: Session) -> None:
    """It has its input and its output, and no more."""
    with ThreadPoolExecutor() as threads:
        up = threading.Event()
        other = threads.submit(s.bash, "echo up; sleep 20 & wait", on_stdout=lambda _: up.set())
        assert up.wait(20)
        seen = s.command(["ls", "/proc/self/fd"]).stdout.split()
        assert seen == ["0", "1", "2", "3"]  # the last is the directory that it reads
        s.interrupt()
        assert other.result().stdout == "up\n"


STRANGE_PARENTS = {
    "that of its parent": "libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0) != 0 or stay()",
    "the first process": "libc.prctl(36, 0, 0, 0, 0); twice() or stay()",
    "its own": "twice() or stay()",
}


@pytest.mark.parametrize("isolation", ["cell", "container", "gvisor"])
@pytest.mark.parametrize("parent", STRANGE_PARENTS)
def test_a_process_chooses_no_other_parent_to_outlive_its_command(
    isolation: Any, parent: str
) -> None:
    program = f"""
import ctypes, os, time
libc = ctypes.CDLL(None)
def stay():
    while True: time.sleep(1)
def twice():
    if os.fork():
        return 1
    os.setsid()
    if os.fork():
        os._exit(0)
    return 0
{STRANGE_PARENTS[parent]}
print("up", flush=True)
stay()
"""
    with Session(memory_mb=256, isolation=isolation, files={"outlives.py": program}) as s:
        up = threading.Event()
        with ThreadPoolExecutor() as threads:
            run = functools.partial(s.bash, on_stdout=lambda _: up.set(), timeout_sec=50)
            running = threads.submit(run, "exec python3 outlives.py")
            assert up.wait(50)
            s.interrupt()
            assert running.result().status == "raised"
        assert processes_of(s, "outlives") == []
