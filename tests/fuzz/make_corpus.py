"""Writes the seed corpora, `corpus/<name>/`, anew: valid results and honest runs of frames.

Run by hand when the format changes: `.venv/bin/python tests/fuzz/make_corpus.py`. What the fuzzers
find is not kept here, but in build/fuzz/; a seed that matters is added to the values below.
"""

from __future__ import annotations

import datetime
import struct
import sys
import uuid
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any
from zoneinfo import ZoneInfo

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT.parent.parent / "images" / "worker")]

import encode  # noqa: E402
from named import Access, Colour, Point, Row  # noqa: E402

encode.OUT_OF_BAND = 64  # so that small seeds have buffers outside the body
BLOB = bytes(range(256))


def plain() -> Iterable[Any]:
    yield None
    yield [True, False, 0, -1, 127, 128, -32, -33, 255, 65535, 1 << 31, 1 << 63, -(1 << 63)]
    yield [1 << 64, -(1 << 200), 0.5, -0.0, float("inf"), float("nan"), 1j]
    yield ["", "a", "ü" * 40, "\ud800", "x" * 300, b"", b"bytes", bytearray(b"array")]
    yield {"a": 1, 2: "b", (3, 4): [5], None: None, 1.5: 2, b"k": {}, frozenset([1]): 1}
    yield [{"name": f"row {i}", "value": i * 0.5, "tags": ["x", i]} for i in range(12)]
    yield [(1, 2), {3, 4, "s"}, frozenset([b"f"]), [[[[[]]]]], {}, ()]
    yield [list(range(40)), [i / 2 for i in range(40)], range(3, 90, 7), slice(1, None, "step")]
    yield {i: [i] for i in range(30)}
    yield [BLOB, bytearray(BLOB), [1.5] * 50]
    yield [
        datetime.date(2024, 2, 29),
        datetime.time(23, 59, 59, 999999, tzinfo=datetime.timezone.utc, fold=1),
        datetime.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        datetime.timedelta(-1, 5, 7),
        datetime.timezone(datetime.timedelta(hours=5, minutes=45), "name"),
    ]
    yield [Decimal("-3.14159"), Decimal("NaN"), Decimal("1e999"), Decimal("Infinity")]
    yield [Fraction(-3, 7), uuid.UUID(int=7), PurePosixPath("/a/b"), ZoneInfo("UTC")]
    yield [Colour.RED, Access.READ | Access.WRITE, Point(1, 2.5), Row("a", Point(1), ["x"])]
    yield encode.error_fields("ValueError", "no", "Traceback…", 3, "", ["ValueError", "Exception"])


def arrays() -> Iterable[Any]:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from PIL import Image

    yield [np.arange(24).reshape(2, 3, 4).astype(t) for t in "?bBhHiIlLefdFD"]
    yield [np.array(["a", "äö"]), np.array([b"x"]), np.array(["2024", "NaT"], dtype="M8[D]")]
    yield [np.float32(1.5), np.int8(3), np.str_("s"), np.bytes_(b"b"), np.bool_(True)]
    yield np.arange(90.0).reshape(9, 10)
    yield pd.DataFrame({"i": [1, 2, 3], "f": [1.5, None, 0.0], "s": ["x", None, "ü"]})
    yield pd.DataFrame({"c": pd.Categorical(["a", None, "b"]), "n": pd.array([1, None, 0], "Int8")})
    yield pd.DataFrame(
        {"a": [1, 2, 3]}, index=pd.date_range("2024-03-30", periods=3, tz="Europe/Berlin")
    )
    index = pd.MultiIndex.from_product([["x", "y"], [1.5, 2.5]], names=["l", None])
    yield pd.Series([1, "x", None, [2]], dtype=object, index=index, name="o")
    yield [pd.Timestamp("2024-01-01", tz="UTC"), pd.Timedelta("1h"), pd.NaT, pd.NA]
    yield [pd.RangeIndex(4, 0, -2, name="r"), pd.Index(["x", "y"])]
    yield pa.table({"i": pa.array([1, None, 3]), "s": ["a", None, "c"], "l": [[1], [], None]})
    yield pa.table({"d": pa.array(["p", "q", "p"]).dictionary_encode()})
    yield [Image.new(mode, (3, 2), 1) for mode in ("L", "RGB", "RGBA")]


def payload(value: Any) -> bytes:
    encoded = encode.encode(value, 1 << 24)
    whole = bytearray(encoded.size)
    for offset, piece in encoded.chunks():
        whole[offset : offset + len(piece)] = piece
    return struct.pack("<I", len(encoded.body)) + bytes(whole)


# Of a run of frames: u8 how, u16 length, bytes; see the targets.
def step(how: int, content: bytes) -> bytes:
    return struct.pack("<BH", how, len(content)) + content


def frame(kind: int, a: int = 0, number: int = 0, b: int = 0, c: int = 0) -> bytes:
    return struct.pack("<HBBIQQQ", 0, 0, kind, a, number, b, c)


def lease() -> Iterable[bytes]:
    usage, body = bytes(48), b"\xc1\x01\xc0"
    started, result, raised, unencodable, need, too_large = 2, 3, 4, 5, 6, 9
    for kind in (result, raised, unencodable):
        yield step(1, frame(kind, b=3, c=3) + usage + body)
    yield step(1, frame(started)) + step(1, frame(result, b=3, c=3) + usage + body)
    yield step(1, frame(too_large, b=1 << 40))
    yield step(1, frame(need, b=4096)) + step(1, frame(result, 1, b=3, c=4000) + usage)
    yield step(1, frame(need, b=1 << 62)) + step(1, frame(too_large, b=1 << 62))
    yield step(1, frame(result, b=3, c=67) + usage + body + bytes(64))


def worker() -> Iterable[bytes]:
    ready, slot_ready, cell_ready, cell_exit, failed, died, slot_gone = 65, 66, 67, 68, 69, 70, 71
    report = struct.pack("<iiIIQQQQII", 0, 0, 0, 0, 5, 5, 5, 5, 1, 0)
    begun = step(1, frame(ready) + b"{}")
    made = begun + step(1, frame(slot_ready, 0)) + step(1, frame(cell_ready, 0, 0))
    add, end_slots, kill = step(2, b"\0"), step(2, b"\1"), step(2, b"\2")
    yield begun
    yield made
    yield made + step(1, frame(cell_exit, 0, 0) + report)
    yield made + kill + step(1, frame(cell_exit, 0, 0) + report) + step(1, frame(cell_ready, 0, 1))
    yield made + step(1, frame(failed, 0, 0, 12) + b"words")
    yield begun + add + step(1, frame(slot_ready, 1)) + step(1, frame(slot_ready, 0))
    yield made + add + step(1, frame(failed, 1, 0, 11) + b"no slot")
    ended = step(1, frame(cell_exit, 0, 0) + report) + end_slots + step(1, frame(slot_gone, 0))
    yield made + ended + add + step(1, frame(slot_ready, 0))
    yield begun + step(1, frame(died, 9) + b"the zygote died")


def channel() -> Iterable[bytes]:
    for descriptors in (0, 1, 3, 4, 16):
        yield step(descriptors << 1 | 1, frame(33, 1, 2)) + step(0, b"")


def message() -> Iterable[bytes]:
    yield b"\0" * 12  # a Hello; the target makes the others by itself


def main() -> None:
    made = {
        "decode": map(payload, plain()),
        "decode_arrays": map(payload, arrays()),
        "lease": lease(),
        "worker": worker(),
        "channel": channel(),
        "message": message(),
    }
    for name, seeds in made.items():
        place = ROOT / "corpus" / name
        place.mkdir(parents=True, exist_ok=True)
        for old in place.iterdir():
            old.unlink()
        for number, seed in enumerate(seeds):
            (place / f"{number:02}").write_bytes(seed)


if __name__ == "__main__":
    main()
