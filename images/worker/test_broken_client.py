# SPDX-License-Identifier: Apache-2.0
"""A client that breaks the protocol against a cell: one clear end, and the worker is unharmed."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Iterator

import pytest

driver = pytest.importorskip("driver", reason="cloudpickle and msgpack are not installed")
pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
pytest.importorskip("msgpack", reason="msgpack is not installed")

from driver import (  # noqa: E402
    CALL,
    NO_IDENTITY,
    RAISED,
    RESULT,
    Cell,
    Frame,
    Worker,
    make_memfd,
    receive,
    send,
)
from test_worker import podman_works  # noqa: E402

pytestmark = pytest.mark.skipif(
    not podman_works(),
    reason="needs Podman with the base image: HUTCH_TEST_PODMAN, HUTCH_TEST_RUNTIME, HUTCH_TEST_IMAGE",  # noqa: E501
)

AS_BYTES = 1 << 32  # in a buffer's place
IN_DESCRIPTOR = 0xFFFFFFFF
META = pickle.dumps({"mode": "function_source", "name": "f"}, 5)
SOURCE = b"def f(*args):\n    return 5\n"
NONE = pickle.dumps(((), {}), 5)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as made:
        made.ready()
        yield made


@pytest.fixture
def cell(request: pytest.FixtureRequest, worker: Worker) -> Iterator[Cell]:
    """And afterwards the same slot makes a cell that works, in the same worker. A parameter: in how
    many milliseconds its time is over.
    """
    made = worker.cell()
    made.arm(getattr(request, "param", 3_000))
    yield made
    made.kill()
    next_one = worker.cell()
    next_one.arm(10_000)
    reply = next_one.program("print('fine')")
    assert reply is not None and (reply.kind, reply.output) == (RESULT, "fine\n")
    next_one.kill()
    assert not [frame for frame in worker.inbox if frame.kind == driver.FAILED]


def call(
    cell: Cell, lengths: list[int], inline: bytes, descriptors: list[int], count: int = 4
) -> Frame | None:
    """Sends a call made by hand; what comes back, None: the cell is gone."""
    payload = NO_IDENTITY + struct.pack(f"<{len(lengths)}I", *lengths) + inline
    send(cell.socket, Frame(CALL, a=count, id=cell.id, payload=payload), descriptors)
    for fd in descriptors:
        os.close(fd)
    frame: Frame | None = receive(cell.socket)
    return frame


def raised(frame: Frame | None) -> str:
    assert frame is not None and frame.kind == RAISED, frame
    error: str = driver.decode(frame.payload[driver.USAGE.size :])["type"]
    return error


def test_honest_call_made_by_hand_is_served(cell: Cell) -> None:
    lengths = [len(META), IN_DESCRIPTOR, len(NONE), 0]
    frame = call(cell, lengths, META + NONE, [make_memfd(SOURCE)])
    assert frame is not None and frame.kind == RESULT


def test_descriptors_that_do_not_come_are_an_error_of_the_call(cell: Cell) -> None:
    assert raised(call(cell, [len(META), IN_DESCRIPTOR, len(NONE), 0], META + NONE, []))


def test_buffers_that_do_not_come_are_an_error_of_the_call(cell: Cell) -> None:
    places = struct.pack("<3Q", 0, 0, 1 << 20)
    lengths = [len(META), len(SOURCE), len(NONE), len(places)]
    assert raised(call(cell, lengths, META + SOURCE + NONE + places, []))


@pytest.mark.parametrize(
    "place", [(1, 0, 8), (0, 4096, 8), (0, 8, 4089), (0, 0, 1 << 40), (0, 1 << 63, 8)], ids=str
)
@pytest.mark.parametrize("kind", [0, AS_BYTES], ids=["view", "bytes"])
def test_a_buffer_that_is_not_there_is_an_error_of_the_call(
    cell: Cell, kind: int, place: tuple[int, int, int]
) -> None:
    arguments, places = with_buffer(8), struct.pack("<3Q", kind | place[0], *place[1:])
    lengths = [len(META), len(SOURCE), len(arguments), len(places)]
    memfd = make_memfd(bytes(4096))
    assert raised(call(cell, lengths, META + SOURCE + arguments + places, [memfd]))


def with_buffer(size: int) -> bytes:
    """Arguments with one buffer out of band."""
    buffers: list[pickle.PickleBuffer] = []
    value = pickle.PickleBuffer(bytes(size))
    return pickle.dumps(((value,), {}), 5, buffer_callback=buffers.append)


def not_a_memfd(kind: str) -> int:
    if kind == "pipe":
        read, write = os.pipe()
        os.close(write)
        return read
    if kind == "socket":
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours.detach()
    if kind == "directory":
        return os.open("/", os.O_RDONLY)
    return os.open("/dev/zero", os.O_RDONLY)


@pytest.mark.parametrize("kind", ["pipe", "socket", "directory", "device"])
@pytest.mark.parametrize("section", [0, 1, 2, 3])
def test_what_is_no_memfd_is_an_error_of_the_call(cell: Cell, kind: str, section: int) -> None:
    sections = [META, SOURCE, NONE, b""]
    lengths = [len(part) for part in sections]
    if section == 3:  # the memory of a buffer
        sections[2:] = [with_buffer(8), struct.pack("<3Q", 0, 0, 8)]
        lengths = [len(part) for part in sections]
    else:
        lengths[section] = IN_DESCRIPTOR
        sections[section] = b""
    frame = call(cell, lengths, b"".join(sections), [not_a_memfd(kind)])
    assert frame is None or frame.kind == RAISED


def test_more_descriptors_than_a_call_may_have_end_the_cell(cell: Cell) -> None:
    many = [os.open("/dev/null", os.O_RDONLY) for _ in range(253)]
    lengths = [len(META), len(SOURCE), len(NONE), 0]
    assert call(cell, lengths, META + SOURCE + NONE, many) is None


def test_memory_cut_short_under_a_call_ends_its_cell_alone(cell: Cell) -> None:
    memfd = make_memfd(bytes(1 << 20))
    kept = os.dup(memfd)
    source = b"def f(data):\n    while True:\n        data[-1]\n"
    arguments = with_buffer(1 << 20)
    places = struct.pack("<3Q", 0, 0, 1 << 20)
    payload = NO_IDENTITY
    payload += struct.pack("<4I", len(META), len(source), len(arguments), len(places))
    send(
        cell.socket,
        Frame(CALL, a=4, id=cell.id, payload=payload + META + source + arguments + places),
        [memfd],
    )
    os.close(memfd)
    with pytest.raises(TimeoutError):
        receive(cell.socket, 0.5)
    os.ftruncate(kept, 0)
    os.close(kept)
    assert receive(cell.socket) is None


@pytest.mark.parametrize("cell", [300], indirect=True, ids=[""])
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0", id="short"),
        pytest.param(NO_IDENTITY, id="no sections"),
        pytest.param(NO_IDENTITY + struct.pack("<4I", 1 << 31, 0, 0, 0), id="absurd meta"),
        pytest.param(NO_IDENTITY + struct.pack("<4I", 0, 0, 0, 1 << 30), id="absurd sizes"),
        pytest.param(b"x" * 60_000, id="garbage"),
    ],
)
def test_sections_that_are_not_there_are_an_error_of_the_call(cell: Cell, payload: bytes) -> None:
    send(cell.socket, Frame(CALL, a=4, id=cell.id, payload=payload))
    frame = receive(cell.socket)
    assert frame is None or frame.kind == RAISED


def test_a_lease_used_twice_runs_one_call(cell: Cell) -> None:
    source = b"def f():\n    with open('/tmp/ran', 'a') as file:\n        return file.write('x')\n"
    lengths = [len(META), len(source), len(NONE), 0]
    payload = NO_IDENTITY + struct.pack("<4I", *lengths) + META + source + NONE
    for _ in range(2):
        send(cell.socket, Frame(CALL, a=4, id=cell.id, payload=payload))
    frame = receive(cell.socket)
    assert frame is not None and frame.kind == RESULT
    with pytest.raises(TimeoutError):
        receive(cell.socket, 0.5)
