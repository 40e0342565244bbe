# SPDX-License-Identifier: Apache-2.0
"""A zygote that speaks the protocol and lies: packages run in it, so it may be anybody's.

What it can end is its own worker. The agent's memory and descriptors stay as they were, and calls
of other pools do not notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import sandbox
from hutch._core import FRAME_VERSION as VERSION

GROWTH_KB = 24 << 10  # of the agent, sanitizers and caches of glibc included
SPARE_DESCRIPTORS = 24  # of workers that come and go meanwhile


def hostile(how: str) -> Callable[[], None]:
    """A `setup=` function, which runs in the zygote, where a package's import runs too."""

    def act() -> None:
        import os
        import signal
        import socket
        import struct
        import time

        control = socket.socket(fileno=os.dup(3))
        make_slot, ready, slot_ready, cell_ready, failed = 32, 65, 66, 67, 69
        importing, skip, cell_made = 128, 130, 131

        def frame(kind: int, a: int = 0, number: int = 0, b: int = 0) -> bytes:
            return struct.pack("<HBBIQQQ", 0x4348, VERSION, kind, a, number, b, 0)

        def say(*args: int, text: bytes = b"", fds: tuple[int, ...] = ()) -> None:
            try:
                socket.send_fds(control, [frame(*args), text], list(fds))
            except OSError:
                os._exit(1)

        def serve(answer: Any) -> None:
            say(ready, text=b"{}")
            while True:
                data, fds, _, _ = socket.recv_fds(control, 1 << 17, 8)
                if not data:
                    os._exit(0)
                if data[3] == make_slot:
                    answer(struct.unpack_from("<I", data, 4)[0], fds)

        if how == "no frame":
            os.write(3, b"READY:9000\n")
        elif how == "another version":
            os.write(3, struct.pack("<HBBIQQQ", 0x4348, 255, ready, 0, 0, 0, 0))
        elif how == "the agent's own frames":
            for kind in range(256):
                say(kind)
        elif how == "ready twice":
            say(ready, text=b"{}")
            say(ready, text=b"{}")
        elif how == "words that are no text":
            serve_words = b"\xff\x1b]0;owned\x07\x00" * 4000
            say(ready, text=serve_words)
            time.sleep(1)
        elif how == "descriptors":
            null = os.open("/dev/null", os.O_RDONLY)
            for _ in range(2000):
                say(importing, 0, 0, 30, text=b"me", fds=(null,) * 16)
        elif how == "a flood":
            end = time.monotonic() + 3
            while time.monotonic() < end:
                say(importing, 0, 0, 1 << 63, text=b"x" * 60_000)
        elif how == "skips without end":
            for number in range(5000):
                say(skip, text=b"module%d\tbecause\n\0" % number * 20)
        elif how == "never answers":
            serve(lambda slot, fds: None)
        elif how == "is every slot itself":

            def claim(slot: int, fds: list[int]) -> None:
                socket.socket(fileno=fds[0]).send(frame(slot_ready, slot))

            serve(claim)
        elif how == "fails every slot":
            serve(lambda slot, fds: say(failed, slot, 0, 12, text=b"\x1b[2J" * 1000))
        elif how == "slots that lie":

            def lie(slot: int, fds: list[int]) -> None:
                if os.fork() == 0:
                    own = socket.socket(fileno=fds[0])
                    own.send(frame(slot_ready, slot))
                    asked = own.recv(1 << 17)
                    cell = struct.unpack_from("<Q", asked, 8)[0]
                    null = os.open("/dev/null", os.O_RDONLY)
                    socket.send_fds(own, [frame(cell_made, 0, cell)], [null, null])
                    own.send(frame(cell_ready, 0, cell))
                    time.sleep(60)

            serve(lie)
        elif how == "cells of others":

            def boast(slot: int, fds: list[int]) -> None:
                if os.fork() == 0:
                    own = socket.socket(fileno=fds[0])
                    own.send(frame(slot_ready, slot))
                    for cell in range(200):
                        own.send(frame(cell_ready, 0, cell))
                    time.sleep(60)

            serve(boast)
        elif how == "forks":
            for _ in range(5_000):
                try:
                    if os.fork() == 0:
                        time.sleep(600)
                        os._exit(0)
                except OSError:
                    break
        elif how == "kills all it can":
            os.kill(-1, signal.SIGKILL)
            os.kill(1, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "stops itself":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif how == "hangs up":
            os.close(3)
            control.close()
            time.sleep(600)

    return act


HOWS = [
    "no frame", "another version", "the agent's own frames", "ready twice",
    "words that are no text", "descriptors", "a flood", "skips without end", "never answers",
    "is every slot itself", "fails every slot", "slots that lie", "cells of others", "forks",
    "kills all it can", "hangs up",
]  # fmt: skip


def answer() -> int:
    return 42


honest = sandbox(answer)


def agent_memory_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def agent_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.parametrize("how", HOWS)
def test_a_hostile_zygote_ends_its_own_worker_alone(how: str, host: Any) -> None:
    assert honest() == 42
    pid = host.agent_pid()
    memory, descriptors = agent_memory_kb(pid), agent_descriptors(pid)
    victim = sandbox(
        answer, setup=hostile(how), queue_sec=6, labels={"test": how}, pool=hutch.Pool(max_cells=2)
    )
    flight = victim.submit()
    while not flight.done():
        assert honest() == 42, "another pool's call notices"
        time.sleep(0.1)
    outcome = flight.outcome()
    # Either it is said that no cell was to be had, or what it did was of no consequence.
    assert outcome.status in ("fault", "returned"), outcome
    if outcome.status == "fault":
        assert outcome.safe_to_retry and not outcome.may_have_run
        with pytest.raises(hutch.SandboxStartupError) as caught:
            outcome.unwrap()
        assert not set(str(caught.value)) & set("\x1b\x07\x00")
    assert host.agent_pid() == pid, "the agent is another"
    assert agent_memory_kb(pid) - memory < GROWTH_KB
    assert agent_descriptors(pid) - descriptors < SPARE_DESCRIPTORS


def test_an_honest_setup_serves(host: Any) -> None:
    assert sandbox(answer, setup=hostile("nothing at all"))() == 42
