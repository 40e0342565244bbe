# SPDX-License-Identifier: Apache-2.0
"""Text of what was printed: what Python's own codec makes of it, also in pieces."""

from __future__ import annotations

import itertools
import random

import pytest

from hutch import _core
from hutch._calls.printed import Decoder

# Whole characters, their beginnings, what is too long, half characters, beyond all characters.
PIECES = [
    *(b"a", b"\n", "ä".encode(), "€".encode(), "😀".encode(), b"\x00", b"\x7f"),
    *(b"\xc3", b"\xe2\x82", b"\xf0\x9f", b"\xf0\x9f\x98", b"\x80", b"\xbf", b"\xff", b"\xfe"),
    *(b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xed\x9f\xbf"),
    *(b"\xf0\x80\x80\x80", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80"),
]


def expected(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def test_it_is_what_the_codec_makes_of_it() -> None:
    for count in (0, 1, 2, 3):
        for pieces in itertools.product(PIECES, repeat=count):
            data = b"".join(pieces)
            assert _core.printed_text(data) == expected(data), data


def test_every_pair_of_bytes() -> None:
    for first in range(256):
        data = b"".join(bytes((first, second)) + b"\x80.\xbf\xbf" for second in range(256))
        assert _core.printed_text(data) == expected(data)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_give_the_same(seed: int) -> None:
    chance = random.Random(seed)
    data = b"".join(chance.choice(PIECES) for _ in range(2000))
    decoder, text, at = Decoder(), "", 0
    while at < len(data):
        piece = data[at : at + chance.randint(0, 5)]
        at += len(piece)
        text += decoder.decode(piece)
        assert len(decoder.getstate()[0]) < 4
    assert text + decoder.decode(b"", True) == expected(data)
