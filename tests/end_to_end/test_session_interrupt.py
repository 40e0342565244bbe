# SPDX-License-Identifier: Apache-2.0
"""An interrupt is of the call whose turn it is, from when others are refused until its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
from support import until

from hutch import SandboxStartupError, Session, SessionBusy
from hutch._calls import command_run


@pytest.fixture
def s() -> Iterator[Session]:
    with Session(memory_mb=256) as session:
        yield session


class Slow:
    """It is being pickled until `go` is set, so its call has its turn and is not sent."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        self.begun.set()
        assert self.go.wait(60)
        return int, ()


def sleep(_: Any) -> None:
    import time

    time.sleep(60)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_call_that_is_not_sent_yet_is_interrupted(s: Session, is_first: bool) -> None:
    if not is_first:
        s.exec("kept = 1")
    slow = Slow()
    with ThreadPoolExecutor() as threads:
        call = threads.submit(s.call, sleep, slow)
        assert slow.begun.wait(60)
        with pytest.raises(SessionBusy):
            s.exec("1")
        s.interrupt()
        slow.go.set()
        error = call.exception()
    assert error is not None and "KeyboardInterrupt" in str(error)
    assert s.exec("1 + 1").unwrap() == 2


def test_one_that_came_to_nothing_is_of_no_later_call(s: Session) -> None:
    """Its call was never sent, as it could not be pickled."""

    class Never(Slow):
        def __reduce__(self) -> tuple[Any, ...]:
            super().__reduce__()
            raise TypeError("not this one")

    s.exec("import time")
    for _ in range(3):
        never = Never()
        with ThreadPoolExecutor() as threads:
            call = threads.submit(s.call, sleep, never)
            assert never.begun.wait(60)
            s.interrupt()
            never.go.set()
            assert call.exception() is not None
        assert s.exec("time.sleep(0.05)\n6 * 7").unwrap() == 42


OF_ANOTHER_CALL = "import ctypes, os; ctypes.CDLL(None).sigqueue(os.getpid(), 2, 12345)"


@pytest.mark.parametrize("isolation", ["cell", "container", "gvisor"])
def test_an_event_loop_of_before_lets_no_interrupt_of_another_call_through(isolation: str) -> None:
    with Session(memory_mb=256, isolation=isolation) as s:
        s.exec("import asyncio; asyncio.run(asyncio.sleep(0))").unwrap()
        assert s.exec(f"{OF_ANOTHER_CALL}; 'went on'").unwrap() == "went on"
        s.exec("import signal; hits = []")
        s.exec("signal.signal(signal.SIGINT, lambda *_: hits.append(1))").unwrap()
        assert s.exec("os.kill(os.getpid(), signal.SIGINT); len(hits)").unwrap() == 1, (
            "its own stays"
        )


OWN = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    while True: pass
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("isolation", ["cell", "container", "gvisor"])
def test_code_may_interrupt_itself(isolation: str) -> None:
    with Session(memory_mb=256, isolation=isolation) as s:
        for _ in range(2):
            assert s.exec(OWN).stdout == "interrupted\n"
        assert s.exec("1 + 1").value == 2


SEND_SIGNALS = """
import os, signal, sys, time
while True:
    os.kill(int(sys.argv[1]), signal.SIGUSR1)
    time.sleep(0.0002)
"""


def test_a_signal_handler_may_interrupt_at_any_moment(s: Session) -> None:
    """Also within what begins a turn. Another process sends them: a thread of this one would have
    to wait until Python lets it run, which is not at any moment.
    """
    interrupts = 0

    def interrupt(*_: object) -> None:
        nonlocal interrupts
        interrupts += 1
        s.interrupt()

    before = signal.signal(signal.SIGUSR1, interrupt)
    sending = subprocess.Popen([sys.executable, "-c", SEND_SIGNALS, str(os.getpid())])
    try:
        until(lambda: interrupts)
        for _ in range(200):
            s.exec("1")
            s.bash("true")
    finally:
        sending.kill()
        sending.wait()
        signal.signal(signal.SIGUSR1, before)
    assert s.exec("1 + 1").unwrap() == 2


def test_a_forked_child_interrupts_nothing_of_its_parent(s: Session) -> None:
    s.exec("kept = 1")
    pid = os.fork()
    if pid == 0:
        try:
            s.interrupt()
        except SandboxStartupError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert s["kept"] == 1


def test_ctrl_c_while_a_command_closes_its_pipes_costs_no_later_one(s: Session) -> None:
    left = 0

    def look(frame: FrameType, event: str, called: Any) -> None:
        nonlocal left
        if frame.f_code.co_filename == command_run.__file__ and event == "c_return":
            left -= called is os.close
            if called is os.close and left == -1:
                raise KeyboardInterrupt  # the interpreter looks for signals here

    s.bash("true")
    for place in range(5):
        left = place
        sys.setprofile(look)
        try:
            with pytest.raises(KeyboardInterrupt):
                s.bash("true")
        finally:
            sys.setprofile(None)
        assert s.bash("echo a").stdout == "a\n"
