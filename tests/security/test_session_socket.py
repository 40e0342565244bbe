# SPDX-License-Identifier: Apache-2.0
"""What a session's code does to the socket of its calls costs it its names, is reported as its
doing, and is nothing that the next interpreter finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import hutch
from hutch import Session
from hutch._core import FRAME_VERSION as VERSION


def x(count: int) -> str:
    """Answers with so many characters."""
    return "x" * count


@pytest.fixture(params=["cell", "container"])
def s(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(memory_mb=256, timeout_sec=5, tools=[x], isolation=request.param) as session:
        session.exec("open('file', 'w').write('there')").unwrap()
        yield session


def told(s: Session, code: str) -> tuple[Any, ...]:
    try:
        outcome = s.exec(code)
    except hutch.SandboxError as error:
        return type(error).__name__, str(error)
    return outcome.status, outcome.value, outcome.restarted, str(outcome.error)


def expect_served(s: Session, seen: list[tuple[Any, ...]]) -> None:
    assert not any(issubclass(getattr(hutch, one[0], int), Exception) for one in seen), seen
    assert s.exec("1 + 1").value == 2, seen
    assert s.files.read("file") == "there"
    assert s.info()["restarts"] == 1


@pytest.mark.parametrize("how", ["SHUT_RD", "SHUT_WR", "SHUT_RDWR"])
def test_a_socket_that_is_shut_is_replaced(s: Session, how: str) -> None:
    shut = f"import os, socket\nsocket.socket(fileno=os.dup(3)).shutdown(socket.{how})"
    expect_served(s, [told(s, shut), told(s, "1 + 1")])


FORGE = f"""
import gc, os, socket, struct, time, _hutch_cell as cell
talk = next(o for o in gc.get_objects() if type(o).__name__ == 'Dialogue')
encode = type(talk).ask.__globals__['encoding']
s = socket.socket(fileno=os.dup(3))
def encoded(value):
    payload = encode.encode(value, cell.MOST_IN_PARTS, False)
    return b''.join(bytes(chunk) for _, chunk in payload.chunks()), len(payload.body)
def frame(kind, a, b, data, usage=b''):
    head = struct.pack('<HBBIQQQ', 0x4348, {VERSION}, kind, a, talk.call_id, b, len(data))
    s.send(head + usage + data)
def ask():
    data, body = encoded(['tool', 'x', [60000], {{}}])
    talk.number += 1
    frame(cell.ASK, body, talk.number, data)
def result(value):
    data, body = encoded(value)
    frame(cell.RESULT, 0, body, data, bytes(cell.USAGE_SIZE))
"""


def test_a_socket_that_is_full_is_replaced(s: Session) -> None:
    s.exec(FORGE).unwrap()
    fill = "for _ in range(2000): ask()\nresult((7, None))\ntime.sleep(1000)"
    expect_served(s, [told(s, fill), told(s, "1 + 1")])


def test_an_answer_that_is_read_fills_nothing(s: Session) -> None:
    assert s.exec("sum(len(x(60000)) for _ in range(500))").value == 30_000_000


OPTIONS = """
import os, socket
def options():
    found = {}
    s = socket.socket(fileno=os.dup(3))
    for option in range(1, 90):
        try: found[str(option)] = bytes(s.getsockopt(1, option, 16)).hex()
        except OSError as error: found[str(option)] = str(error.errno)
    del found['57']  # SO_COOKIE, which is each socket's own
    return found
"""
SET = """
import struct
s = socket.socket(fileno=os.dup(3))
for option in range(1, 90):
    for value in (struct.pack('i', 1), struct.pack('i', 4096), struct.pack('qq', 1, 1)):
        try: s.setsockopt(1, option, value)
        except OSError: pass
options()
"""


PIPES = """
import fcntl, os
def settings():
    gets = fcntl.F_GETFL, fcntl.F_GETOWN, 11  # F_GETSIG
    return [fcntl.fcntl(fd, get) for fd in (1, 2) for get in gets]
def may_grow(fd, size):
    if fcntl.fcntl(fd, 1032) >= size:  # F_GETPIPE_SZ
        return False
    try: fcntl.fcntl(fd, 1031, size)  # F_SETPIPE_SZ
    except PermissionError: return False  # the pipes of this user have too much
    return True
def lock():
    for fd in (1, 2):
        fcntl.flock(os.open(f'/proc/self/fd/{fd}', os.O_WRONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""
SET_PIPES = """
for fd in (1, 2):
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT | os.O_APPEND)
    fcntl.fcntl(fd, 1031, 4096)
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, 10, 34)  # F_SETSIG
    fcntl.flock(fd, fcntl.LOCK_EX)
settings()
"""


def test_no_setting_of_the_pipes_of_its_output_is_the_next_ones(s: Session) -> None:
    before = s.exec(PIPES + "settings()").unwrap()
    assert s.exec(SET_PIPES).value != before
    s.reset()
    assert s.exec(PIPES + "settings()").unwrap() == before
    assert s.exec("[may_grow(fd, 65536) for fd in (1, 2)]").unwrap() == [False, False]
    s.exec("lock()").unwrap()
    assert s.exec("print('x' * (1 << 20))").stdout_size == (1 << 20) + 1


def test_no_option_of_it_is_the_next_ones(s: Session) -> None:
    before = s.exec(OPTIONS + "options()").unwrap()
    assert s.exec(SET).value != before
    s.reset()
    assert s.exec(OPTIONS + "options()").unwrap() == before
    assert len(s.exec("bytes(4 << 20)").unwrap()) == 4 << 20
