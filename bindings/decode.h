// SPDX-License-Identifier: Apache-2.0

// What a cell returns, as data: the byte format, and the one decoder that reads it.
//
// The writer is images/worker/encode.py, inside the cell, where hostile code may have replaced any
// part of it. So nothing here trusts the bytes: no pickle, no class or function by name, no second
// decoder to fall back to. This comment is the format's one authority. Thread contract: every
// function here needs the GIL, holds it throughout, and keeps no state. REQUIRES: nobody can write
// to the payload while it is decoded (a private copy, or sealed shared memory).
//
//   payload := body, buffers          `body_size` and `size` travel in the frame's header
//   body    := 0xC1 0x01 value      0xC1 starts no MessagePack, pickle or JSON: they end at byte 0
//   buffers := raw bytes of 64 KiB and more, in the order in which the body mentions them, each
//              starting at the next multiple of 64 from the payload's start; the last one ends
//              where the payload ends. They cannot overlap.
//
// A value is one MessagePack object; the body holds exactly one and nothing after it.
//
//   nil bool int float64 str(UTF-8) bin     None bool int float str bytes (float32 is refused)
//   array                                   list
//   map                                     dict, any hashable keys; two equal keys are an error
//                                           (NaN equals nothing: each NaN key is one of its own)
//   array whose first item is a mark        the mark's kind, with the other items as its fields
//
//   ext  name        content
//   1    mark        1 byte, the kind; only as an array's first item: a mark is no value to forge
//   2    buffer      u64 big-endian, the length of the next buffer; as a value it is a bytes
//   3    big int     two's complement, little-endian, 1 to 131072 bytes: ints beyond MessagePack's
//   4    surrogates  "surrogatepass" UTF-8: for str that UTF-8 cannot hold
//
// Kinds (hex) and their fields. `raw` is bin or a buffer; numbers in raw are little-endian unless a
// dtype says otherwise.
//
//   01 tuple item…              02 set item…                03 frozenset item…
//   04 bytearray raw            05 list of float: raw       06 list of int: raw of i64
//   07 range start stop step    08 slice start stop step    09 complex real imag
//   10 date y m d               11 time h m s us fold tz    12 datetime y m d h m s us fold tz
//   13 timedelta days s us      14 timezone offset name     15 ZoneInfo key
//   16 Decimal sign digits exponent (int, or "F" "n" "N")   17 Fraction numerator denominator
//   18 UUID bin16               19 path str
//   20 enum name member         21 flag name int            22 dataclass name {field: value}
//   23 NamedTuple name [item…]  24 pydantic model name {field: value} [set field…]
//   30 ndarray dtype [shape] raw (C order)                  31 numpy scalar dtype bin
//   32 numpy str_ str           33 numpy bytes_ bin
//   40 object column [value…]   41 tz-aware column unit tz|key i64-ndarray
//   42 categorical codes categories ordered                 43 masked column dtype-name data mask
//   44 string column storage is-NA [str|nil…]               45 Arrow-typed column chunked-array
//   46 Index column name freq   47 RangeIndex start stop step name
//   48 MultiIndex [levels] [codes] [names]                  49 Series column index name attrs
//   4a DataFrame columns index block|nil [column…] attrs    4b Timestamp i64 unit tz|key
//   4c Timedelta i64 unit       4d NaT                      4e NA
//   50 Arrow array type length offset [child…] dictionary|nil (raw|nil)…
//   51 Arrow chunked type [array…]
//   52 Arrow table [name…] [nullable…] [chunked…] rows
//   53 polars DataFrame table    54 polars Series name chunked
//   55 torch Tensor dtype-name [shape] raw (C order)
//   60 image mode width height raw palette-mode|nil palette|nil transparency|nil
//
// 01 to 09 are built in C++, the rest by the function of that number in hutch/_results/build.py,
// which checks every field. A name (20 to 24) is only looked up in the caller's `types`. What of
// Arrow's metadata is kept says hutch/_results/arrow_metadata.py.
//
// Budgets: kMaxFrames open arrays and maps; kMaxNodes values; and what the values will take in this
// process (an empty list is one byte here and 80 there): kHostFloor bytes, and kHostFactor times
// the payload's size or kHostFactorOfLimit times what the caller allows a result, the larger.
// Nothing is allocated for a length that is only claimed, and what has no bytes of its own (the
// rows of an Arrow null column, the labels of a RangeIndex that is a level) is charged by its
// length.
//
// Time: what takes more than time in proportion to its bytes is bounded. Of dicts and sets the
// places that CPython would look at are counted before they are built (hash flooding: keys of one
// hash, or that fall into one run of places): kProbesOfKey for each key are free, kSpareProbes more
// come with each result; so are the comparisons of keys of one hash, each by the values that the
// key holds, of which kComparisonsOfKey times are free. A path is charged by its parts, too.
// kMaxRangeBits bounds a range's
// bounds; a Fraction's parts, categories, flags and lengths are bounded where they are built.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bindings/python.h"

namespace hutch {

inline constexpr size_t kMaxFrames = 160;  // 128 levels of values, and the inside of the last
inline constexpr uint64_t kMaxNodes = uint64_t{1} << 27;
inline constexpr uint64_t kHostFloor = uint64_t{64} << 20;
inline constexpr uint64_t kHostFactor = 16;
inline constexpr uint64_t kHostFactorOfLimit = 2;
inline constexpr uint64_t kProbesOfKey = 96;  // honest ones that differ in high bits only take 80
inline constexpr uint64_t kSpareProbes = 4096;
inline constexpr uint64_t kComparisonsOfKey = 8;
inline constexpr uint64_t kSpareComparisons = 2048;
inline constexpr size_t kSmallSet = 16;      // items of a frozenset that is compared at once
inline constexpr size_t kLongIntBytes = 64;  // from here on to write an int in decimal takes long
inline constexpr size_t kMaxRangeBits = 8192;
inline constexpr size_t kMaxBigIntBytes = 1 << 20;
inline constexpr size_t kBufferAlignment = 64;

// Builds the payload of `size` bytes at `data`, which is the start of `owner`'s buffer. Arrays
// refer to `owner` and keep it alive when its buffer is writable (it must then be private to this
// payload); otherwise they get copies. `types` maps "module.qualname" to the class. `result_bytes`:
// how long the caller let the payload be; 0: what it is. Raises _core.DecodeError.
pybind11::object Decode(pybind11::object owner, const char* data, size_t size, size_t body_size,
                        pybind11::dict types, uint64_t result_bytes = 0);

// hutch._core.DecodeError.
pybind11::object& DecodeErrorType();

// Adds `decode(owner, body_size, types, result_bytes=0)`, `DecodeError` (a ValueError with
// .message and .path), and for the builders `distinct(items)` to `m`.
void BindDecode(pybind11::module_& m);

}  // namespace hutch
