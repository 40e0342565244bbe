# SPDX-License-Identifier: Apache-2.0
"""What comes on the channel of a command: frames of a hostile cell."""

from __future__ import annotations

import random
import struct

import pytest

from hutch import _core

BEGUN, ENDED, DONE, RAISED = 18, 19, 20, 4  # wire/cell_frame.h


def frame(
    kind: int,
    a: int = 0,
    b: int = 0,
    payload: bytes = b"",
    magic: int = 0x4348,
    version: int = _core.FRAME_VERSION,
) -> bytes:
    return struct.pack("<HBBIQQQ", magic, version, kind, a, 0, b, 0) + payload


def test_what_an_honest_cell_sends_is_read() -> None:
    usage = struct.pack("<6QII", 1, 2, 30_000, 40, 5, 6, 7, 8)
    assert _core.command_frame(frame(BEGUN)) == ("begun", 0, 0, 0, 0, b"")
    assert _core.command_frame(frame(ENDED, 2, 137, usage)) == ("ended", 2, 137, 30_000, 40, b"")
    assert _core.command_frame(frame(DONE)) == ("done", 0, 0, 0, 0, b"")
    assert _core.command_frame(frame(RAISED, 3, 4, b"data")) == ("raised", 3, 4, 0, 0, b"data")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        frame(BEGUN)[:-1],
        frame(BEGUN, magic=1),
        frame(BEGUN, version=99),
        frame(RAISED, b=5, payload=b"data"),
        frame(RAISED, b=1 << 63, payload=b"data"),
        frame(BEGUN, payload=bytes(70_000)),
    ],
)
def test_anything_else_is_none(data: bytes) -> None:
    assert _core.command_frame(data) is None


def test_frames_of_other_kinds_are_none() -> None:
    others = set(range(256)) - {BEGUN, ENDED, DONE, RAISED}
    assert not any(_core.command_frame(frame(kind)) for kind in others)


def test_bytes_of_any_kind_are_a_frame_or_none() -> None:
    numbers = random.Random(5)
    for _ in range(20_000):
        data = bytearray(frame(numbers.choice((BEGUN, ENDED, DONE, RAISED)), payload=bytes(56)))
        for _ in range(numbers.randrange(4)):
            data[numbers.randrange(len(data))] = numbers.randrange(256)
        found = _core.command_frame(bytes(data[: numbers.randrange(len(data) + 1)]))
        assert found is None or len(found) == 6


def test_output_is_bounded() -> None:
    output = _core.Output(4000)
    for _ in range(100):
        output.add(0, b"x" * 1000)
    output.add(1, b"\xff")
    assert output.size(0) == 100_000 and output.truncated(0) and not output.truncated(1)
    assert len(output.text(0)) < 5000 and output.text(1) == r"\xff"
