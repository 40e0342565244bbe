# SPDX-License-Identifier: Apache-2.0
"""Writes the seed corpora, `corpus/<name>/`, anew: valid results and honest runs of frames.

Run by hand when the format changes: `.venv/bin/python tests/fuzz/make_corpus.py`. What the fuzzers
find is not kept here, but in build/sanitized/; a seed that matters is added to the values below.
"""

from __future__ import annotations

import datetime
import json
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
    import polars as pl
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
    yield pl.DataFrame({"i": [1, None, 3], "s": ["a", None, "c"], "l": [[1], [], None]})
    yield pl.Series("c", ["p", None, "p"], dtype=pl.Categorical)


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
    usage, body = bytes(56), b"\xc1\x01\xc0"
    started, result, raised, unencodable, need, too_large, part = 2, 3, 4, 5, 6, 9, 11
    for kind in (result, raised, unencodable):
        yield step(1, frame(kind, b=3, c=3) + usage + body)
    yield step(1, frame(started)) + step(1, frame(result, b=3, c=3) + usage + body)
    yield step(1, frame(too_large, b=1 << 40))
    yield step(1, frame(need, b=4096)) + step(1, frame(result, 1, b=3, c=4000) + usage)
    yield step(1, frame(need, b=1 << 62)) + step(1, frame(too_large, b=1 << 62))
    pieces = step(1, frame(part, c=67) + body) + step(1, frame(part, c=67) + bytes(64))
    yield pieces + step(1, frame(result, 2, b=3, c=67) + usage)
    yield step(1, frame(result, b=3, c=67) + usage + body + bytes(64))
    user_ended, say, ask = 13, 14, 15
    end = step(1, frame(result, b=3, c=3) + usage + body)
    for kind in (say, ask):
        yield odd(step(1, frame(kind, 3, b=1, c=3) + body) + end)
        yield odd(step(1, frame(kind, 3, b=2, c=3) + body) + end)
        piece = step(1, frame(part, c=3) + body)
        yield odd(piece + step(1, frame(kind, 3, b=1, c=3)) + end)
    yield odd(step(1, frame(ask, 3, b=1, c=3) + body) + step(1, frame(say, 3, b=2, c=3) + body))
    yield odd(step(0, struct.pack("<HBBIQQQ", 0x4348, 3, user_ended, 0, 0, 0, 0)))


def odd(steps: bytes) -> bytes:
    """Of an odd size, by one empty datagram after the end."""
    return steps if len(steps) % 2 else steps + step(0, b"")


def worker() -> Iterable[bytes]:
    ready, slot_ready, cell_ready, cell_exit, failed, died, slot_gone = 65, 66, 67, 68, 69, 70, 71
    report = struct.pack("<iiIIQQQQQII", 0, 0, 0, 0, 5, 5, 0, 5, 5, 1, 0)
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
    kept, user_exit, user_ready, background = 74, 75, 76, 77
    keep, restart = step(2, b""), step(2, b"")
    session = made + keep + step(1, frame(kept, 0, 0))
    yield session + step(1, frame(background, 0, 0, 1000))
    again = step(1, frame(user_exit, 0, 0) + report) + step(1, frame(user_ready, 0, 0))
    yield session + restart + again + again
    yield session + step(1, frame(cell_exit, 0, 0) + report)
    yield made + step(1, frame(kept, 0, 0, 1))


def channel() -> Iterable[bytes]:
    for descriptors in (0, 1, 3, 4, 16):
        yield step(descriptors << 1 | 1, frame(33, 1, 2)) + step(0, b"")


def message() -> Iterable[bytes]:
    yield b"\0" * 12  # a Hello; the target makes the others by itself


# Of TLS: lengths in front, the number of bytes of each given.
def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")


def vector(data: bytes, size: int) -> bytes:
    return number(len(data), size) + data


def extension(kind: int, data: bytes) -> bytes:
    return number(kind, 2) + vector(data, 2)


def server_name(name: bytes) -> bytes:
    return extension(0, vector(number(0, 1) + vector(name, 2), 2))


def hello(extensions: bytes) -> bytes:
    ciphers = vector(b"\x13\x01\x13\x02\xc0\x2f", 2)
    return (
        b"\x03\x03" + bytes(32) + vector(bytes(32), 1) + ciphers + b"\1\0" + vector(extensions, 2)
    )


def records(body: bytes) -> bytes:
    return b"\x16\x03\x01" + vector(b"\1" + vector(body, 3), 2)


NEWER = (  # TLS 1.3: versions, groups, signatures, a share
    extension(43, vector(b"\x03\x04\x03\x03", 1))
    + extension(10, vector(b"\x00\x1d", 2))
    + extension(13, vector(b"\x08\x04\x04\x03", 2))
    + extension(51, vector(b"\x00\x1d" + vector(bytes(range(32)), 2), 2))
)
HOST = b"api.example.org"
HELLOS = [
    hello(server_name(HOST) + NEWER),
    hello(NEWER + extension(16, vector(vector(b"http/1.1", 1), 2)) + server_name(HOST)),
    hello(server_name(b"API.example.org")),
    hello(NEWER),
]


def sni() -> Iterable[bytes]:
    for body in HELLOS:
        yield b"\0" + records(body)
        yield b"\xff" + body
        yield b"\x07" + body


GET = b"GET /v1/x?y=1 HTTP/1.1\r\nHost: api.example.org\r\nAccept: */*\r\n\r\n"
POST = b"POST /v1/y HTTP/1.1\r\nHost: api.example.org:80\r\nContent-Length: 4\r\n\r\nbody"
CHUNKS = (
    b"PUT /v2/ HTTP/1.1\r\nhost: API.example.org\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n"
)
OLD = b"HEAD / HTTP/1.0\r\nHost: api.example.org\r\nAuthorization: Basic eDp5\r\n\r\n"
UPGRADE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: api.example.org\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\n\r\n"
)
ABSOLUTE = b"GET http://api.example.org:8080/v1?x HTTP/1.1\r\nHost: api.example.org\r\n\r\n"


def http() -> Iterable[bytes]:
    for requests in (GET, GET + POST, CHUNKS + GET, OLD, UPGRADE, POST + CHUNKS):
        yield b"\0" + requests
        yield b"\3" + requests


def socks(kind: int, address: bytes) -> bytes:
    return b"\5\1\0\5\1\0" + bytes([kind]) + address + b"\x01\xbb"


ASKED = [
    b"CONNECT api.example.org:443 HTTP/1.1\r\nHost: api.example.org:443\r\n\r\n",
    b"CONNECT [2001:db8::1]:8443 HTTP/1.1\r\nHost: x\r\n\r\n",
    ABSOLUTE,
    ABSOLUTE.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\nx"),
    socks(3, vector(HOST, 1)),
    socks(3, vector(b"2001:db8::1", 1)),
    socks(1, bytes([192, 0, 2, 1])),
    socks(4, bytes.fromhex("20010db8000000000000000000000001")),
]


def proxy() -> Iterable[bytes]:
    for asked in ASKED:
        yield b"\0" + asked
        yield b"\1" + asked


def gate() -> Iterable[bytes]:
    tls, either, secret, switches, literal, one = (1 << bit for bit in range(6))
    for body in HELLOS:
        for how in (tls, either, tls | literal):
            yield bytes([how, 0]) + records(body)
    yield bytes([either, 0]) + b"\0\0\0\x08\x04\xd2\x16\x2f"
    for requests in (GET + POST, CHUNKS + GET, OLD, UPGRADE, UPGRADE + GET):
        for how in (0, secret, secret | switches, secret | one, switches):
            yield bytes([how, 5]) + requests


def cell() -> Iterable[bytes]:
    proxy_listener = 0xFFFF
    for listener in (0, 1, 2, 3):
        yield step(1, frame(48, listener)) * 3
    begun = step(1, frame(48, proxy_listener))
    for asked in ASKED:
        yield begun + step(2, asked) + step(3, b"") + begun
    yield begun + step(2, b"CONNECT x.b.org:443 HTTP/1.1\r\nHost: x\r\n\r\n") + step(2, GET)


def control() -> Iterable[bytes]:
    record = {
        "host": "a.org",
        "port": 443,
        "allowed": True,
        "reason": "",
        "suggestion": "a.org:443",
    }
    record |= {"sent": 1, "received": 1 << 40, "count": 1}
    rule = {"host": "a.org", "header": "X", "value": [66, 255], "paths": ["/"], "methods": ["GET"]}
    for message in (
        {"is": "hello", "token": "0" * 32},
        {"is": "policy", "id": 1, "allow_network": ["a.org"], "secrets": [rule]},
        {"is": "forget", "id": 1},
        {"is": "add", "cell": 1, "policy": 1},
        {"is": "close", "cell": 1},
        {"is": "closed", "cell": 1, "records": [record, record]},
        {"is": "closed", "cell": 1, "records": [record | {"port": 1e300, "count": -1}]},
    ):
        yield json.dumps(message).encode()


def main() -> None:
    made = {
        "decode": map(payload, plain()),
        "decode_arrays": map(payload, arrays()),
        "lease": lease(),
        "worker": worker(),
        "channel": channel(),
        "message": message(),
        "sni": sni(),
        "http": http(),
        "proxy": proxy(),
        "gate": gate(),
        "cell": cell(),
        "control": control(),
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
