// SPDX-License-Identifier: Apache-2.0

// Makes the Python values of a result from their items, within a budget of what they may take here.
//
// The kinds are those of the format (decode.h). Everything belongs to a thread that holds the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "bindings/decode.h"
#include "bindings/decode_keys.h"

namespace hutch::decoding {

enum Kind : uint8_t {
  kList = 0x00,  // an array without a mark
  kTuple = 0x01,
  kSet = 0x02,
  kFrozenset = 0x03,
  kByteArray = 0x04,
  kFloats = 0x05,
  kInts = 0x06,
  kRange = 0x07,
  kSlice = 0x08,
  kComplex = 0x09,
  kDecimal = 0x16,
  kPath = 0x19,
  kFirstNamed = 0x20,
  kLastNamed = 0x24,
  kNdarray = 0x30,
  kFirstTabular = 0x40,  // pandas' columns, indexes, Series and DataFrame
  kLastTabular = 0x4a,
  kArrowArray = 0x50,
  kTensor = 0x55,
  kImage = 0x60,
  kMap = 0xff,  // never on the wire
};

// What CPython takes for a value beyond its text or digits, measured: with its collector's head and
// the places that refer to it, one in its container and one in values_.
constexpr uint64_t kSlotBytes = 16;
constexpr uint64_t kNumberBytes = 48;
constexpr uint64_t kSharedInt = 256;  // ints up to this are shared by the interpreter
constexpr uint64_t kTextBytes = 72;
constexpr uint64_t kTextFactor = 4;  // one wide character makes all of a str's wide
constexpr uint64_t kContainerBytes = 80;
constexpr uint64_t kSetBytes = 240;
constexpr uint64_t kEntryBytes = 40;
constexpr uint64_t kLeastEntries = 160;  // the table of a dict that is not empty
constexpr uint64_t kBuiltBytes = 192;
constexpr uint64_t kPartBytes = 88;  // of a path, beyond the first few
constexpr uint64_t kFreeParts = 4;

// A refusal: becomes a DecodeError, with the path that the visitor's stacks give.
struct Refused {
  std::string message;
};

[[noreturn]] inline void Refuse(std::string message) { throw Refused{std::move(message)}; }

inline PyObject* OrThrow(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return object;
}

// A copy into fresh memory that is large: with fewer faults than memcpy() alone would take.
void CopyLarge(char* to, const char* from, size_t size);

// What one result may take.
class Budget {
 public:
  explicit Budget(uint64_t bytes) : bytes_(bytes) {}
  // One more value, of so many bytes. Refuses what goes beyond.
  void Charge(uint64_t bytes) {
    if (++nodes_ > kMaxNodes) Refuse("the result holds too many values");
    if (bytes > bytes_) Refuse("the result would take too much memory here, for so few bytes");
    bytes_ -= bytes;
  }
  void AddNodes(uint64_t count) { nodes_ += count; }  // their bytes were charged

 private:
  uint64_t bytes_;
  uint64_t nodes_ = 0;
};

class ValueBuilder {
 public:
  // `budget` outlives it. `types`: the caller's records, as decode.h says.
  ValueBuilder(Budget& budget, py::dict types) : budget_(budget), types_(std::move(types)) {}

  // A new reference to the value of that kind with these items. Takes (and nulls) the references
  // that it keeps.
  PyObject* Build(uint8_t kind, std::span<PyObject*> items);
  void NoteLongInt() { keys_.has_long_ints = true; }

 private:
  PyObject* BuildDict(std::span<PyObject*> items);
  PyObject* BuildSet(uint8_t kind, std::span<PyObject*> items);
  PyObject* BuildNumbers(uint8_t kind, PyObject* raw);
  PyObject* BuildInPython(uint8_t kind, std::span<PyObject*> items);

  Budget& budget_;
  KeyCheck keys_;
  py::dict types_;
  py::object builders_;  // hutch._results.build.BUILDERS, looked up at the first need
};

}  // namespace hutch::decoding
