# SPDX-License-Identifier: Apache-2.0
"""The fuzzers' seeds are what they are meant to be: results, as the decoder is now."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from hutch import _core

HERE = Path(__file__).resolve().parent
SEEDS = sorted((HERE / "corpus").glob("decode*/*"))


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_seed_of_the_decoder_is_a_result(seed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    import named

    try:
        text = seed.read_bytes()
        (body,) = struct.unpack_from("<I", text)
        _core.decode(bytearray(text[4:]), body, named.TYPES)
    finally:
        sys.modules.pop("named", None)


def test_there_are_seeds_for_every_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    import run

    for target in run.TARGETS:
        assert list((HERE / "corpus" / target.name).iterdir())
