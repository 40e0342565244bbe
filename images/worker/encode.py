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
from itertools import chain, repeat
from struct import Struct
from typing import Any, Callable, Iterable, Iterator

import encode_arrays
import encode_standard

MAX_DEPTH = 128
MAX_BIG_INT_BYTES = 131072  # 1 MiB of bits
MAX_RANGE_BITS = 8192  # of each bound
OUT_OF_BAND = 65536  # bytes: from here on data is not copied into the body
ALIGNMENT = 64
TEXT_CAP = 65536  # bytes of each text of an error

_LOOK_AT = 1 << 16  # bytes: beyond these a value is looked through before more is written
_LONG = 4096  # items: of a longer list whose ends are plain, the rest is taken for plain, too
_PACK_AT = 16  # items: from here on a list of only floats, or only ints, is written as one block
_MEMO_ITEMS, _MEMO_LENGTH = (
    1024,
    24,
)  # short strings repeat (the keys of rows); their bytes are kept

_float = Struct(">Bd").pack
_u8, _u16, _u32, _u64 = (Struct(">B" + c).pack for c in "BHIQ")
_i8, _i16, _i32, _i64 = (Struct(">B" + c).pack for c in "bhiq")


class Unencodable(Exception):
    """A value that is not in the closed set: `path` (like `result["models"][2]`), `type_name`,
    `hint`.
    """

    def __init__(self, path: str, type_name: str, hint: str) -> None:
        super().__init__(path, type_name, hint)
        self.path = path
        self.type_name = type_name
        self.hint = hint
        self.steps: list[str] = []  # innermost first, until the encoder joins them into `path`
        self.around: set[int] = (
            set()
        )  # ids of the containers that a value nested too deeply lies in

    def __str__(self) -> str:
        article = "an" if self.type_name[0] in "aeiouAEIOU" else "a"
        return f"{self.path} is {article} {self.type_name}: {self.hint}"

    def leave(self, container: Any) -> None:
        """Called for each container, from the innermost: one met again holds itself; the outermost
        such is named.
        """
        if self.hint is not _TOO_DEEP and not self.around:
            return
        if id(container) in self.around:
            self.type_name = _name(type(container))
            self.hint = (
                f"a {self.type_name} that holds itself has no end: return ids in place of objects"
            )
            self.steps.clear()
        self.around.add(id(container))


class TooLarge(Exception):
    """The encoded value is larger than allowed: at least `size` bytes. `path`: of what is large."""

    def __init__(self, size: int, path: str = "") -> None:
        super().__init__(size)
        self.size = min(size, 1 << 62)
        self.path = path


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
        raise Unencodable("result", type(value).__name__, _TOO_DEEP) from None
    payload = Payload(encoder.out, encoder.buffers)
    if payload.size > max_bytes:
        raise TooLarge(payload.size, Extent(max_bytes).culprit(value))
    return payload


class Extent:
    """At least how many bytes a value makes, in time that grows with what is in memory: each
    container is looked through once, however often it is met.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.known: dict[int, int] = {}  # by id of the container

    def of(self, x: Any, depth: int = 0) -> int:
        if type(x) in _TEXTS:
            return 1 + len(x)
        children = _children(x)
        if children is None:
            return 1 + _bytes_beside(x)
        if self.has_too_many(x):
            return 1 + len(x)
        known = self.known.get(id(x))
        if known is not None:
            return known
        self.known[id(x)] = size = 1  # what holds itself is refused elsewhere
        if depth <= MAX_DEPTH:
            for child in children:
                kind = type(child)
                if kind in _PLAIN:
                    size += 1
                else:
                    size += 1 + len(child) if kind is str else self.of(child, depth + 1)
        self.known[id(x)] = size
        return size

    def has_too_many(self, x: Any) -> bool:
        """Whether its items alone are too many, which then need not be looked through."""
        return type(x) in _CONTAINERS and len(x) > self.limit

    def culprit(self, value: Any) -> str:
        """The path of the innermost value that alone is too large."""
        path = "result"
        try:
            while True:
                children = _children(value)
                if children is None or self.has_too_many(value):
                    return path
                large = [child for child in children if self.of(child) > self.limit]
                if len(large) != 1:
                    return path
                path += _step_to(value, large[0])
                value = large[0]
        except Exception:
            return path


def _children(x: Any) -> Iterable[Any] | None:
    kind = type(x)
    if kind is list or kind is tuple:
        if len(x) >= _LONG and {type(x[0]), type(x[len(x) // 2]), type(x[-1])} <= _PLAIN:
            return repeat(None, len(x))
        return x  # type: ignore[no-any-return]
    if kind is dict:
        return chain(x, x.values())
    if kind is set or kind is frozenset:
        return x  # type: ignore[no-any-return]
    if kind in _PLAIN or kind in _TEXTS:
        return None
    return encode_standard.fields_of(x)


def _bytes_beside(x: Any) -> int:
    """Of what is written as its bytes, and holds no other values."""
    if type(x).__module__ in ("numpy", "pandas", "pandas.core.frame", "pandas.core.series"):
        size = getattr(x, "nbytes", 0)
        return size if type(size) is int else 0
    return 0


def _step_to(x: Any, child: Any) -> str:
    if type(x) is dict:
        return _step_in_dict(x, child)
    if type(x) in (list, tuple, set, frozenset):
        return _step_in_list(x, child)
    names = (name for name, value in encode_standard.named_fields_of(x) if value is child)
    return "." + next(names, "?")


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
            raise Unencodable("", "list", _TOO_DEEP)
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
            raise Unencodable("", "dict", _TOO_DEEP)
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
            raise at.located(_step_in_dict(mapping, at.item), mapping) from None
        self.depth -= 1

    def sequence(self, items: Any, kind: int = 0) -> None:
        self.open(len(items), kind)
        try:
            self.items(items)
        except _At as at:
            raise at.located(_step_in_list(items, at.item), items) from None
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
        raise Unencodable("", _name(type(x)), hint)


class _At(Exception):
    """Carries a refusal out of the hot loop, to where the item's place can be found."""

    def __init__(self, item: Any, error: Unencodable) -> None:
        self.item = item
        self.error = error

    def located(self, step: str, container: Any) -> Unencodable:
        self.error.steps.append(step)
        self.error.leave(container)
        return self.error


def _step_in_list(items: Iterable[Any], item: Any) -> str:
    if type(items) in (set, frozenset):
        return "{…}"
    return next((f"[{i}]" for i, x in enumerate(items) if x is item), "[?]")


def _step_in_dict(mapping: dict[Any, Any], item: Any) -> str:
    for key, value in dict.items(mapping):
        if value is item:
            if type(key) is str and len(key) <= 64:
                return '["' + key.replace("\\", "\\\\").replace('"', '\\"') + '"]'
            if (type(key) is int and key.bit_length() < 64) or key is None or type(key) is bool:
                return f"[{key}]"
            return f"[<{_name(type(key))}>]"
        if key is item:
            break
    return ".keys()"


_CONTAINERS = {list, tuple, dict, set, frozenset}
_PLAIN = {type(None), bool, int, float}
_TEXTS = {str, bytes, bytearray}
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep: return it flattened"
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
        raise Unencodable("", "int", "it has more than 1,048,575 bits: return it as bytes or str")
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


def _name(kind: type) -> str:
    module, name = kind.__module__, kind.__qualname__
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


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
            raise Unencodable("", _name(kind), text) from None

    _HANDLERS[kind] = handle
    return handle


_HINTS = {
    "coroutine": "await it, or make the function `async def` and return what it awaits",
    "generator": "return list(…) of it",
    "async_generator": "collect it with `[x async for x in …]` and return the list",
    "function": "code does not travel back: return its results, or its source as str",
    "method": "code does not travel back: call it and return its result",
    "builtin_function_or_method": "code does not travel back: call it and return its result",
    "module": "return the values that you need from it",
    "TextIOWrapper": "return its content, `f.read()`",
    "BufferedReader": "return its content, `f.read()`",
    "BufferedWriter": "close it and return the file's content as bytes",
    "BufferedRandom": "return its content as bytes",
    "FileIO": "return its content, `f.read()`",
    "BytesIO": "return its content, `f.getvalue()`",
    "StringIO": "return its content, `f.getvalue()`",
    "memoryview": "return bytes(…) of it",
    "array": "return list(…) of it",
    "deque": "return list(…) of it",
    "dict_keys": "return list(…) of it",
    "dict_values": "return list(…) of it",
    "dict_items": "return list(…) of it",
    "mappingproxy": "return dict(…) of it",
    "Figure": "save it into an io.BytesIO with `savefig` and return the bytes",
    "DuckDBPyRelation": "return `x.fetchall()` or `x.df()`",
    "Row": "return `dict(x)`",
    "csr_matrix": "return its parts (`data`, `indices`, `indptr`), or `toarray()`",
}


_BUILTINS = (int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)


def _refusal(kind: type) -> Callable[[Encoder, Any], None]:
    if issubclass(kind, type):
        hint = "a class does not travel back: return an instance's data, or its name as str"
    elif issubclass(kind, BaseException):
        hint = "raise it, or return str(…) of it"
    elif kind.__name__ in _HINTS:
        hint = _HINTS[kind.__name__]
    else:
        for base in _BUILTINS:
            if issubclass(kind, base):
                name = base.__name__
                hint = f"a subclass of {name} would lose what it adds: return {name}(…) of it"
                break
        else:
            if hasattr(kind, "__next__"):
                hint = "return list(…) of it"
            else:
                hint = "return plain data: a dict of its fields, a dataclass, numbers, text, bytes"

    def refuse(e: Encoder, x: Any) -> None:
        e.refuse(x, hint)

    return refuse
