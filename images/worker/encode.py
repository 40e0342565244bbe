# SPDX-License-Identifier: Apache-2.0
"""Writes what a call returned as data, inside the cell.

The byte format is specified in bindings/decode.h, the one authority. Nothing here is trusted: code
in the cell may have replaced any of it, and the host's decoder checks every byte. One encoder
serves one value, on one thread; the value must not change meanwhile.

Types are matched exactly. OrderedDict, defaultdict and Counter travel as the dict that they equal;
every other subclass of a builtin is refused, since the host would get something else than was
returned. A shared reference is written each time it is met: how much that makes of a value is
found out before much of it is written. Libraries (numpy, pandas, …) are only
looked up in `sys.modules`: if one is not imported, no value is of its types.
"""

from __future__ import annotations

from array import array
from itertools import chain
from struct import Struct
from typing import Any, Callable, Iterable, Iterator

import encode_arrays
import encode_standard
from encode_extent import Extent
from encode_refusals import (
    MAX_DEPTH,
    TOO_DEEP,
    TooLarge as TooLarge,
    Unencodable as Unencodable,
    hint_of,
    name_of,
    step_in_dict,
    step_in_list,
)

MAX_BIG_INT_BYTES = 1 << 20
MAX_RANGE_BITS = 8192  # of each bound
OUT_OF_BAND = 65536  # bytes: from here on data is not copied into the body
ALIGNMENT = 64
TEXT_CAP = 65536  # bytes of each text of an error

_LOOK_AT = 1 << 16  # bytes: beyond these a value is looked through before more is written
_PACK_AT = 16  # items: from here on a list of only floats, or only ints, is written as one block
_MEMO_ITEMS, _MEMO_LENGTH = (
    1024,
    24,
)  # short strings repeat (the keys of rows); their bytes are kept

_float = Struct(">Bd").pack
_u8, _u16, _u32, _u64 = (Struct(">B" + c).pack for c in "BHIQ")
_i8, _i16, _i32, _i64 = (Struct(">B" + c).pack for c in "bhiq")


class Payload:
    """A finished result: `body`, then `buffers`, each at the next multiple of 64; `size` bytes in
    all.
    """

    __slots__ = ("body", "buffers", "size")

    def __init__(self, body: bytearray, buffers: list[memoryview]) -> None:
        self.body = body
        self.buffers = buffers
        size = len(body)
        for buffer in buffers:
            size = _aligned(size) + buffer.nbytes
        self.size = size

    def chunks(self) -> Iterator[tuple[int, memoryview]]:
        """The pieces to write and their offsets, in order; what lies between two pieces may be
        anything.
        """
        yield 0, memoryview(self.body)
        end = len(self.body)
        for buffer in self.buffers:
            start = _aligned(end)
            yield start, buffer
            end = start + buffer.nbytes


def encode(value: Any, max_bytes: int, named: bool = True) -> Payload:
    """Raises Unencodable, TooLarge, or what the machine raises (MemoryError, KeyboardInterrupt).
    `named`: classes of the user's own travel, by their names.
    """
    encoder = Encoder(max_bytes, value)
    encoder.named = named
    try:
        encoder.value(value)
    except Unencodable as error:
        error.path = "result" + "".join(reversed(error.steps))
        error.args = (error.path, error.type_name, error.hint)
        raise
    except TooLarge as error:
        error.path = error.path or Extent(max_bytes).culprit(value)
        raise
    except RecursionError:
        raise Unencodable("result", type(value).__name__, TOO_DEEP) from None
    payload = Payload(encoder.out, encoder.buffers)
    if payload.size > max_bytes:
        raise TooLarge(payload.size, Extent(max_bytes).culprit(value))
    return payload


def error_fields(
    type_name: str,
    message: str,
    traceback_text: str,
    line: int | None,
    hint: str,
    bases: Iterable[str],
) -> dict[str, Any]:
    """An exception as a map of capped texts. `bases`: the builtin classes in its MRO, by name."""
    return {
        "type": _capped(type_name),
        "message": _capped(message),
        "traceback": _capped(traceback_text),
        "line": line if type(line) is int and 0 <= line < 1 << 31 else None,
        "hint": _capped(hint),
        "bases": [_capped(name) for name in list(bases)[:32]],
    }


def encode_error(fields: dict[str, Any]) -> bytes:
    """The body of `error_fields`."""
    return bytes(encode(fields, 1 << 24).body)


def builtin_bases(kind: type) -> list[str]:
    """The names of the builtin classes in a class's MRO, nearest first, without object."""
    import builtins

    return [
        base.__name__
        for base in type.mro(kind)
        if base is not object and vars(builtins).get(base.__name__) is base
    ]


def _capped(text: str) -> str:
    if type(text) is not str:
        text = f"<{type(text).__name__}>"
    data = text[:TEXT_CAP].encode("utf-8", "backslashreplace")
    if len(text) <= TEXT_CAP and len(data) <= TEXT_CAP:
        return data.decode()
    note = f"\n… (cut; it has {len(text):,} characters)"
    return data[: TEXT_CAP - 64].decode("utf-8", "ignore") + note


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


class Encoder:
    """Appends values to `out`. `nested` handlers (encode_arrays) use value, open, close, mark, raw,
    refuse.
    """

    __slots__ = ("buffers", "depth", "limit", "look_at", "memo", "named", "out", "outside", "root")

    def __init__(self, limit: int, root: Any = None) -> None:
        self.out = bytearray(b"\xc1\x01")
        self.buffers: list[memoryview] = []
        self.outside = 0  # bytes in buffers
        self.limit = limit
        self.root = root
        self.look_at = min(_LOOK_AT, limit)
        self.depth = 0
        self.named = True  # classes of the user's own travel, by names that the host looks up
        self.memo: dict[str, bytes] = {}

    def value(self, x: Any, step: str = "") -> None:
        """`step` is what to add to the path if x is refused."""
        self.located(_HANDLERS.get(type(x)) or _resolve(type(x)), x, step)

    def located(self, handler: Callable[[Encoder, Any], None], x: Any, step: str) -> None:
        try:
            handler(self, x)
        except Unencodable as error:
            if step:
                error.steps.append(step)
            raise

    def check_size(self, more: int = 0) -> None:
        size = len(self.out) + self.outside + more
        if size > self.look_at:
            if size > self.limit:
                raise TooLarge(size)
            self.look_at = self.limit
            extent = Extent(self.limit)
            size = extent.of(self.root)
            if size > self.limit:
                raise TooLarge(size, extent.culprit(self.root))

    def open(self, size: int, kind: int = 0) -> None:
        """Starts a list of `size` items, or, with a kind, that kind with `size` fields; `close`
        ends it.
        """
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unencodable("", "list", TOO_DEEP)
        self.check_size(size)
        if kind:
            _header(self.out, size + 1, 0x90, 0xDC)
            self.out += bytes((0xD4, 1, kind))
        else:
            _header(self.out, size, 0x90, 0xDC)

    def open_map(self, size: int) -> None:
        """Starts a dict of `size` keys, each followed by its value; `close` ends it."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unencodable("", "dict", TOO_DEEP)
        self.check_size(2 * size)
        _header(self.out, size, 0x80, 0xDE)

    def close(self) -> None:
        self.depth -= 1

    def mark(self, kind: int, *fields: Any) -> None:
        """A kind all of whose fields are values."""
        self.open(len(fields), kind)
        for field in fields:
            self.value(field)
        self.depth -= 1

    def raw(self, data: Any) -> None:
        """Bytes as they are; `data` is any contiguous buffer, and must not change any more."""
        view = memoryview(data)
        if view.nbytes == 0:
            self.out += b"\xc4\x00"
            return
        view = view.cast("B")
        size = view.nbytes
        if size >= OUT_OF_BAND:
            self.buffers.append(view)
            self.outside += size + ALIGNMENT
            self.check_size()
            self.out += b"\xd7\x02" + size.to_bytes(8, "big")
        else:
            _bin_header(self.out, size)
            self.out += view

    def map(self, mapping: dict[Any, Any]) -> None:
        self.open_map(len(mapping))
        try:
            self.items(chain.from_iterable(dict.items(mapping)))
        except _At as at:
            raise at.located(step_in_dict(mapping, at.item), mapping) from None
        self.depth -= 1

    def sequence(self, items: Any, kind: int = 0) -> None:
        self.open(len(items), kind)
        try:
            self.items(items)
        except _At as at:
            raise at.located(step_in_list(items, at.item), items) from None
        self.depth -= 1

    def items(self, items: Iterable[Any]) -> None:
        """The hot loop. An item that is refused leaves as _At."""
        out, memo, handlers = self.out, self.memo, _HANDLERS
        x = None
        try:
            for x in items:
                t = type(x)
                if t is str:
                    known = memo.get(x)
                    if known is not None:
                        out += known
                        continue
                    try:
                        data = x.encode()
                    except UnicodeEncodeError:
                        _surrogates(self, x)
                        continue
                    size = len(data)
                    if size < 32:
                        data = _FIX_STR[size] + data
                        out += data
                        if size <= _MEMO_LENGTH and len(memo) < _MEMO_ITEMS:
                            memo[x] = data
                    else:
                        _text(self, data)
                elif t is int:
                    if 0 <= x < 128:
                        out.append(x)
                    else:
                        _int(self, x)
                elif t is float:
                    out += _float(0xCB, x)
                elif x is None:
                    out.append(0xC0)
                else:
                    (handlers.get(t) or _resolve(t))(self, x)
        except Unencodable as error:
            raise _At(x, error) from None

    def refuse(self, x: Any, hint: str) -> Any:
        raise Unencodable("", name_of(type(x)), hint)


class _At(Exception):
    """Carries a refusal out of the hot loop, to where the item's place can be found."""

    def __init__(self, item: Any, error: Unencodable) -> None:
        self.item = item
        self.error = error

    def located(self, step: str, container: Any) -> Unencodable:
        self.error.steps.append(step)
        self.error.leave(container)
        return self.error


_FIX_STR = [bytes((0xA0 | size,)) for size in range(32)]


def _header(out: bytearray, size: int, fix: int, big: int) -> None:
    if size < 16:
        out.append(fix | size)
    elif size < 65536:
        out += _u16(big, size)
    else:
        out += _u32(big + 1, size)


def _bin_header(out: bytearray, size: int) -> None:
    out += _u8(0xC4, size) if size < 256 else _u16(0xC5, size)


def _extension(out: bytearray, kind: int, data: bytes) -> None:
    size = len(data)
    if size < 256:
        out += bytes((0xC7, size, kind))
    else:
        out += _u32(0xC9, size) + bytes((kind,))
    out += data


def _none(e: Encoder, x: None) -> None:
    e.out.append(0xC0)


def _bool(e: Encoder, x: bool) -> None:
    e.out.append(0xC3 if x else 0xC2)


def _int(e: Encoder, x: int) -> None:
    out = e.out
    if -32 <= x < 128:
        out.append(x & 0xFF)
    elif x >= 0:
        if x < 1 << 8:
            out += _u8(0xCC, x)
        elif x < 1 << 16:
            out += _u16(0xCD, x)
        elif x < 1 << 32:
            out += _u32(0xCE, x)
        elif x < 1 << 64:
            out += _u64(0xCF, x)
        else:
            _big_int(e, x)
    elif x >= -1 << 7:
        out += _i8(0xD0, x)
    elif x >= -1 << 15:
        out += _i16(0xD1, x)
    elif x >= -1 << 31:
        out += _i32(0xD2, x)
    elif x >= -1 << 63:
        out += _i64(0xD3, x)
    else:
        _big_int(e, x)


def _big_int(e: Encoder, x: int) -> None:
    size = x.bit_length() // 8 + 1
    if size > MAX_BIG_INT_BYTES:
        raise Unencodable("", "int", "it has more than 8,388,607 bits: return it as bytes or str")
    _extension(e.out, 3, x.to_bytes(size, "little", signed=True))


def _float64(e: Encoder, x: float) -> None:
    e.out += _float(0xCB, x)


def _str(e: Encoder, x: str) -> None:
    try:
        data = x.encode()
    except UnicodeEncodeError:
        _surrogates(e, x)
        return
    _text(e, data)


def _text(e: Encoder, data: bytes) -> None:
    size = len(data)
    if size < 32:
        e.out.append(0xA0 | size)
    elif size < 256:
        e.out += _u8(0xD9, size)
    elif size < 65536:
        e.out += _u16(0xDA, size)
    else:
        e.check_size(size)
        if size >= 1 << 32:
            raise Unencodable("", "str", "it is longer than 4 GiB: return it in parts, or as bytes")
        e.out += _u32(0xDB, size)
    e.out += data


def _surrogates(e: Encoder, x: str) -> None:
    data = x.encode("utf-8", "surrogatepass")
    e.check_size(len(data))
    if len(data) >= (1 << 32) - 1:
        raise Unencodable("", "str", "it is longer than 4 GiB: return it in parts, or as bytes")
    _extension(e.out, 4, data)


def _bytearray(e: Encoder, x: bytearray) -> None:
    e.open(1, 0x04)
    e.raw(x)
    e.close()


def _list(e: Encoder, x: list[Any]) -> None:
    if len(x) >= _PACK_AT:
        first = type(x[0])
        if (first is float or first is int) and len(set(map(type, x))) == 1:
            try:
                packed = array("d" if first is float else "q", x)
            except OverflowError:
                pass
            else:
                e.check_size(len(x))
                e.open(1, 0x05 if first is float else 0x06)
                e.raw(packed)
                e.close()
                return
    e.sequence(x)


def _range(e: Encoder, x: range) -> None:
    if max(x.start.bit_length(), x.stop.bit_length(), x.step.bit_length()) > MAX_RANGE_BITS:
        e.refuse(x, "it goes further than 8,192 bits: return its bounds")
    e.mark(0x07, x.start, x.stop, x.step)


def _complex(e: Encoder, x: complex) -> None:
    e.mark(0x09, x.real, x.imag)


_HANDLERS: dict[type, Callable[[Encoder, Any], None]] = {
    type(None): _none,
    bool: _bool,
    int: _int,
    float: _float64,
    str: _str,
    bytes: Encoder.raw,
    list: _list,
    dict: Encoder.map,
    tuple: lambda e, x: e.sequence(x, 0x01),
    set: lambda e, x: e.sequence(x, 0x02),
    frozenset: lambda e, x: e.sequence(x, 0x03),
    bytearray: _bytearray,
    range: _range,
    slice: lambda e, x: e.mark(0x08, x.start, x.stop, x.step),
    complex: _complex,
}


def _resolve(kind: type) -> Callable[[Encoder, Any], None]:
    """The handler of a type met for the first time; what it raises becomes a refusal of the value
    it got.
    """
    found = encode_standard.handler(kind) or encode_arrays.handler(kind) or _refusal(kind)

    def handle(e: Encoder, x: Any) -> None:
        try:
            found(e, x)
        except Unencodable as error:
            error.leave(x)
            raise
        except (TooLarge, MemoryError, RecursionError):
            raise
        except Exception as error:
            text = f"reading it raised {type(error).__name__}: {_capped(str(error))[:200]}"
            raise Unencodable("", name_of(kind), text) from None

    _HANDLERS[kind] = handle
    return handle


def _refusal(kind: type) -> Callable[[Encoder, Any], None]:
    hint = hint_of(kind)

    def refuse(e: Encoder, x: Any) -> None:
        e.refuse(x, hint)

    return refuse
