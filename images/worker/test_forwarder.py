# SPDX-License-Identifier: Apache-2.0
"""hutch-forwarder by itself: it asks for a stream for each connection, and relays bytes.

The test plays slot, cell and egress process, on loopback addresses of this machine.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hutch

PROGRAM = Path(hutch.__file__).parent / "_runtime" / "hutch-forwarder"
HEADER = struct.Struct("<HBBIQQQ")
MAGIC, VERSION = 0x4348, 3
OPEN_STREAM, STREAM, NO_STREAM = 48, 49, 50


class Forwarder:
    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(10)
        listeners = []
        for _ in range(2):
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            listener.setblocking(False)
            listeners.append(listener)
        self.addresses = [listener.getsockname() for listener in listeners]
        fds = [listener.fileno() for listener in listeners]
        self.process = subprocess.Popen(
            [PROGRAM, str(theirs.fileno()), f"{fds[0]}:0,{fds[1]}:65535"],
            pass_fds=[theirs.fileno(), *fds],
        )
        theirs.close()
        for listener in listeners:
            listener.close()

    def connect(self, listener: int = 0) -> socket.socket:
        return socket.create_connection(self.addresses[listener], timeout=10)

    def asked(self) -> tuple[int, int]:
        """The listener and number of the next stream that is asked for."""
        magic, version, kind, listener, number, b, c = HEADER.unpack(self.channel.recv(4096))
        assert (magic, version, kind, b, c) == (MAGIC, VERSION, OPEN_STREAM, 0, 0)
        return listener, number

    def grant(self, number: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(10)
        frame = HEADER.pack(MAGIC, VERSION, STREAM, 0, number, 0, 0)
        rights = array.array("i", [theirs.fileno()])
        self.channel.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        theirs.close()
        return ours

    def refuse(self, number: int) -> None:
        self.channel.send(HEADER.pack(MAGIC, VERSION, NO_STREAM, 0, number, 0, 0))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@pytest.fixture
def forwarder() -> Iterator[Forwarder]:
    made = Forwarder()
    yield made
    made.process.kill()
    made.process.wait()
    made.channel.close()


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_bytes_go_both_ways_and_half_closes_are_kept(forwarder: Forwarder) -> None:
    with forwarder.connect(1) as inside:
        listener, number = forwarder.asked()
        assert (listener, number) == (65535, 1)
        inside.sendall(b"before it is granted, ")
        with forwarder.grant(number) as outside:
            inside.sendall(b"and after")
            inside.shutdown(socket.SHUT_WR)
            assert read_all(outside) == b"before it is granted, and after"
            outside.sendall(b"an answer to the end of the question")
            outside.close()
            assert read_all(inside) == b"an answer to the end of the question"


def test_streams_are_distinguished_by_their_numbers(forwarder: Forwarder) -> None:
    first, second = forwarder.connect(), forwarder.connect()
    numbers = [forwarder.asked()[1], forwarder.asked()[1]]
    outer_second, outer_first = forwarder.grant(numbers[1]), forwarder.grant(numbers[0])
    outer_first.sendall(b"1")
    outer_second.sendall(b"2")
    assert (first.recv(1), second.recv(1)) == (b"1", b"2")
    for end in (first, second, outer_first, outer_second):
        end.close()


def test_a_refused_connection_is_reset(forwarder: Forwarder) -> None:
    with forwarder.connect() as inside:
        forwarder.refuse(forwarder.asked()[1])
        with pytest.raises(ConnectionResetError):
            inside.recv(1)


def test_megabytes_arrive_as_they_were_sent_though_the_reader_is_slow(
    forwarder: Forwarder,
) -> None:
    sent = os.urandom(1 << 20) * 8
    with forwarder.connect() as inside, forwarder.grant(forwarder.asked()[1]) as outside:

        def send() -> None:
            outside.sendall(sent)
            outside.shutdown(socket.SHUT_WR)

        writer = threading.Thread(target=send)
        writer.start()
        time.sleep(0.1)
        assert read_all(inside) == sent
        writer.join()


def test_it_holds_no_descriptor_of_a_connection_that_is_over(forwarder: Forwarder) -> None:
    before = forwarder.descriptors()
    for _ in range(300):
        with forwarder.connect() as inside, forwarder.grant(forwarder.asked()[1]) as outside:
            outside.close()
            assert inside.recv(1) == b""
    with forwarder.connect() as inside, forwarder.grant(forwarder.asked()[1]) as outside:
        outside.sendall(b"x")
        assert inside.recv(1) == b"x"  # all that came before has been dealt with
        assert forwarder.descriptors() <= before + 4


def test_connections_beyond_its_table_wait_and_are_served_then(forwarder: Forwarder) -> None:
    with contextlib.ExitStack() as stack:
        inside = [stack.enter_context(forwarder.connect()) for _ in range(258)]
        numbers = [forwarder.asked()[1] for _ in range(256)]
        forwarder.channel.settimeout(0.2)
        with pytest.raises(TimeoutError):
            forwarder.asked()
        forwarder.channel.settimeout(10)
        forwarder.refuse(numbers[0])
        assert forwarder.asked()[1] == 257
        inside[0].close()


def test_it_ends_with_its_channel_and_every_connection_with_it(forwarder: Forwarder) -> None:
    with forwarder.connect() as inside, forwarder.grant(forwarder.asked()[1]):
        forwarder.channel.close()
        assert forwarder.process.wait(10) == 0
        with contextlib.suppress(ConnectionResetError):
            assert inside.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            forwarder.connect()


def test_it_ends_on_a_frame_that_is_none(forwarder: Forwarder) -> None:
    forwarder.channel.send(b"nonsense")
    assert forwarder.process.wait(10) == 0


def test_it_has_a_filter_and_cannot_be_looked_into(forwarder: Forwarder) -> None:
    with forwarder.connect():
        forwarder.asked()  # it serves: the filter is there
        status = Path(f"/proc/{forwarder.process.pid}/status").read_text()
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status
