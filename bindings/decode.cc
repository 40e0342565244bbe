// SPDX-License-Identifier: Apache-2.0

// The reader of the format that decode.h specifies. Iterative: msgpack-cxx's parser calls the
// visitor below, which keeps finished values on one stack and open arrays and maps on another; an
// array or map is built when its last item is there.
#define MSGPACK_NO_BOOST  // its parser needs none
#include "bindings/decode.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <msgpack.hpp>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hutch {
namespace {

constexpr std::string_view kMagic("\xC1\x01", 2);

enum Ext : int8_t { kMark = 1, kBuffer = 2, kBigInt = 3, kSurrogates = 4 };

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

// And what builders make besides their fields.
uint64_t BuiltBytes(uint8_t kind) {
  if (kind == kNdarray) return 640;
  // Four times what they take: building one is slow, and this bounds how many there are.
  if (kind >= kFirstTabular && kind <= kLastTabular) return 12288;
  if (kind == kTensor) return 1152;
  if (kind >= kArrowArray) return 768;  // images, too
  return kBuiltBytes;
}
constexpr size_t kLargeCopy = 1 << 20;

// A refusal: becomes a DecodeError, with the path that the visitor's stacks give.
struct Refused {
  std::string message;
};

[[noreturn]] void Refuse(std::string message) { throw Refused{std::move(message)}; }

PyObject* OrThrow(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return object;
}

// A copy into fresh memory. Faulting pages in one by one would cost several times the copy: those
// written to are asked for in big ones, those of a mapped file all at once. Both are advice.
void CopyLarge(char* to, const char* from, size_t size) {
  const auto advise = [size](const char* begin, size_t page, int advice) {
    const size_t skipped = -reinterpret_cast<uintptr_t>(begin) % page;  // whole pages only
    if (skipped + page > size) return;
    ::madvise(const_cast<char*>(begin) + skipped, (size - skipped) / page * page, advice);
  };
  if (size >= kLargeCopy) {
    advise(to, 2 << 20, MADV_HUGEPAGE);
    advise(from, 4096, MADV_POPULATE_READ);
  }
  std::memcpy(to, from, size);
}

bool TakesRaw(uint8_t kind) {
  return kind == kByteArray || kind == kFloats || kind == kInts || kind == kNdarray ||
         kind == kArrowArray || kind == kTensor || kind == kImage;
}

// Pauses the cyclic collector: a million fresh containers would otherwise be traversed again and
// again.
class NoCollection {
 public:
  NoCollection() : was_enabled_(PyGC_Disable() != 0) {}
  ~NoCollection() {
    if (was_enabled_) PyGC_Enable();
  }
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;

 private:
  bool was_enabled_;
};

// A str or bytes hash is salted, so a cell cannot choose colliding keys.
bool HashIsSalted(PyObject* key) { return PyUnicode_CheckExact(key) || PyBytes_CheckExact(key); }

// Whether the sender can make others of the same hash: an int below 2^61 - 1 has one of its own.
bool HashCanBeShared(PyObject* key) {
  if (HashIsSalted(key)) return false;
  if (!PyLong_CheckExact(key)) return true;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(key, &overflow);
  constexpr long long kModulus = (1LL << 61) - 1;
  return overflow != 0 || value >= kModulus || value <= -kModulus;
}

// How many places CPython looks at while keys of these hashes go one by one into a dict or set that
// grows with them; stops counting above `most`. Which place is taken decides where it looks next,
// so a bit for each is enough. Its tables double whenever `kFullest` of them is taken.
uint64_t CountProbes(const std::vector<Py_hash_t>& hashes, bool of_set, uint64_t most) {
  constexpr size_t kSmallest = 8;
  constexpr size_t kRun = 10;  // a set looks at so many places in a row
  uint64_t probes = 0;
  std::vector<bool> taken;
  for (size_t size = kSmallest;; size *= 2) {
    const size_t room = of_set ? size * 3 / 5 + 1 : size * 2 / 3;
    const size_t count = std::min(hashes.size(), room);
    const size_t mask = size - 1;
    taken.assign(size, false);
    for (size_t k = 0; k < count; ++k) {
      auto perturb = static_cast<size_t>(hashes[k]);
      size_t i = perturb & mask;
      for (;;) {
        if (++probes > most) return probes;
        const size_t end = of_set && i + kRun - 1 <= mask ? i + kRun : i + 1;
        size_t free = i;
        while (free < end && taken[free]) ++free;
        if (free < end) {
          taken[free] = true;
          break;
        }
        perturb >>= 5;
        i = (i * 5 + perturb + 1) & mask;
      }
    }
    if (count == hashes.size()) return probes;
  }
}

// What the keys of a result's dicts and sets may cost CPython to put in their places.
class KeyCheck {
 public:
  // Which of these the result has yet.
  bool has_decimals = false;
  bool has_long_ints = false;

  // Refuses keys that would make a dict or set slow: every `stride`-th of `items`, in their order.
  void Check(std::span<PyObject* const> items, size_t stride, bool of_set);

 private:
  bool ComparesDearly(PyObject* key) const;
  static void AddWeight(PyObject* key, uint64_t& weight, size_t depth);
  static uint64_t Weight(PyObject* key) {
    uint64_t weight = 0;
    AddWeight(key, weight, 0);
    return weight;
  }

  uint64_t spare_probes_ = kSpareProbes;
  uint64_t spare_comparisons_ = kSpareComparisons;
};

// `free` of what it costs goes with the keys; the rest is taken from what one result may spend.
void Spend(uint64_t& spare, uint64_t cost, uint64_t free, const char* refusal) {
  if (cost <= free) return;
  if (cost - free > spare) Refuse(refusal);
  spare -= cost - free;
}

// Whether comparing this key with another of its hash may take more than its size explains: an
// int is written out in decimal to be compared with a Decimal, and each item of a frozenset is
// looked up in the other. Of what it does not know it assumes so.
bool KeyCheck::ComparesDearly(PyObject* key) const {
  if (key == Py_None || PyBool_Check(key) || PyFloat_CheckExact(key) || HashIsSalted(key) ||
      PyComplex_CheckExact(key)) {
    return false;
  }
  if (PyLong_CheckExact(key)) {
    return has_decimals && _PyLong_NumBits(key) > kLongIntBytes * 8;
  }
  if (PyTuple_Check(key)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
      if (ComparesDearly(PyTuple_GET_ITEM(key, i))) return true;
    }
    return false;
  }
  if (PyFrozenSet_Check(key)) {
    if (PySet_GET_SIZE(key) > static_cast<Py_ssize_t>(kSmallSet)) return true;
    for (const py::handle item : py::reinterpret_borrow<py::frozenset>(key)) {
      if (ComparesDearly(item.ptr())) return true;
    }
    return false;
  }
  return has_decimals && has_long_ints;
}

// Adds what comparing this key with an equal one takes, in values of the format: one for what is
// small. A record's own code may have made it refer to itself, so both ways there is an end.
void KeyCheck::AddWeight(PyObject* key, uint64_t& weight, size_t depth) {
  constexpr uint64_t kBytesOfOne = 64;
  constexpr uint64_t kMost = kMaxNodes;
  ++weight;
  if (weight > kMost || depth > kMaxFrames) return;
  const py::handle object(key);
  if (key == Py_None || PyBool_Check(key) || PyFloat_CheckExact(key)) return;
  if (PyUnicode_CheckExact(key)) {
    weight += static_cast<uint64_t>(PyUnicode_GET_LENGTH(key)) / kBytesOfOne;
  } else if (PyBytes_CheckExact(key)) {
    weight += static_cast<uint64_t>(PyBytes_GET_SIZE(key)) / kBytesOfOne;
  } else if (PyLong_CheckExact(key)) {
    weight += _PyLong_NumBits(key) / (8 * kBytesOfOne);
  } else if (PyTuple_Check(key)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
      AddWeight(PyTuple_GET_ITEM(key, i), weight, depth + 1);
    }
  } else if (PyFrozenSet_Check(key)) {
    for (const py::handle item : py::reinterpret_borrow<py::frozenset>(key)) {
      AddWeight(item.ptr(), weight, depth + 1);
    }
  } else if (const py::object fields =
                 py::getattr(py::type::of(object), "__dataclass_fields__", py::none());
             py::isinstance<py::dict>(fields)) {
    for (const auto& field : py::reinterpret_borrow<py::dict>(fields)) {
      const py::object value = py::getattr(object, field.first, py::none());
      AddWeight(value.ptr(), weight, depth + 1);
    }
  } else if (const py::object space = py::getattr(object, "__dict__", py::none());
             py::isinstance<py::dict>(space)) {
    for (const auto& field : py::reinterpret_borrow<py::dict>(space)) {
      AddWeight(field.second.ptr(), weight, depth + 1);
    }
  } else {
    const py::object size = py::type::of(object).attr("__sizeof__")(object);
    weight += py::cast<uint64_t>(size) / kBytesOfOne;
  }
}

void KeyCheck::Check(std::span<PyObject* const> items, size_t stride, bool of_set) {
  bool all_salted = true;
  for (size_t i = 0; all_salted && i < items.size(); i += stride) {
    all_salted = HashIsSalted(items[i]);
  }
  if (all_salted) return;
  std::vector<Py_hash_t> hashes;
  std::vector<std::pair<Py_hash_t, PyObject*>> shared;
  hashes.reserve(items.size() / stride);
  for (size_t i = 0; i < items.size(); i += stride) {
    const Py_hash_t hash = PyObject_Hash(items[i]);
    if (hash == -1) {
      if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
      PyErr_Clear();
      Refuse("a dict key or set item cannot be hashed");
    }
    hashes.push_back(hash);
    if (HashCanBeShared(items[i])) shared.emplace_back(hash, items[i]);
  }
  std::sort(shared.begin(), shared.end());
  uint64_t comparisons = 0;
  uint64_t free_comparisons = kComparisonsOfKey * hashes.size();
  uint64_t before = 0;  // what the keys of this hash weigh until now
  for (size_t i = 1, same = 0; i < shared.size(); ++i) {
    PyObject* const one = shared[i - 1].second;
    PyObject* const other = shared[i].second;
    if (shared[i].first != shared[i - 1].first) {
      same = before = 0;
      continue;
    }
    if (ComparesDearly(other) || ComparesDearly(one)) Refuse("large keys share one hash");
    if (same++ == 0) before = Weight(one);
    const uint64_t own = Weight(other);
    comparisons += std::min(before, same * own);  // each takes what the smaller of two takes
    before += own;
    free_comparisons += kComparisonsOfKey * (own - 1);
  }
  Spend(spare_comparisons_, comparisons, free_comparisons, "too many keys share one hash");
  const uint64_t free = kProbesOfKey * hashes.size();
  Spend(spare_probes_, CountProbes(hashes, of_set, free + spare_probes_), free,
        "too many keys fall into one place");
}

class Builder : public msgpack::null_visitor {
 public:
  Builder(py::object owner, std::span<const char> payload, size_t body_size, py::dict types,
          uint64_t result_bytes)
      : owner_(std::move(owner)),
        payload_(payload),
        cursor_(body_size),
        body_size_(body_size),
        budget_(kHostFloor +
                std::max(kHostFactor * payload.size(), kHostFactorOfLimit * result_bytes)),
        types_(std::move(types)) {}
  ~Builder() {
    for (PyObject* value : values_) Py_DECREF(value);
    for (PyObject* key : key_cache_) Py_XDECREF(key);
  }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // REQUIRES: the parser reported success.
  py::object Take() {
    if (cursor_ != payload_.size()) Refuse("bytes are left over after the last buffer");
    PyObject* value = values_.back();
    values_.pop_back();
    return py::reinterpret_steal<py::object>(value);
  }

  std::string Path() const;

  bool visit_nil() { return Push(Py_NewRef(Py_None), kSlotBytes); }
  bool visit_boolean(bool v) { return Push(Py_NewRef(v ? Py_True : Py_False), kSlotBytes); }
  bool visit_positive_integer(uint64_t v) {
    return Push(OrThrow(PyLong_FromUnsignedLongLong(v)),
                v <= kSharedInt ? kSlotBytes : kNumberBytes);
  }
  bool visit_negative_integer(int64_t v) {
    return Push(OrThrow(PyLong_FromLongLong(v)), kNumberBytes);
  }
  bool visit_float32(float) { Refuse("float32 is not part of the format"); }
  bool visit_float64(double v) { return Push(OrThrow(PyFloat_FromDouble(v)), kNumberBytes); }
  bool visit_str(const char* v, uint32_t size);
  bool visit_bin(const char* v, uint32_t size) {
    Charge(kTextBytes + size);
    return Push(OrThrow(PyBytes_FromStringAndSize(v, size)), 0);
  }
  bool visit_ext(const char* v, uint32_t size);
  bool start_array(uint32_t n) { return Open(kList, n); }
  bool end_array() { return Close(); }
  bool start_map(uint32_t n) { return Open(kMap, n); }
  bool start_map_key() {
    in_key_ = true;
    return true;
  }
  bool end_map_key() {
    in_key_ = false;
    return true;
  }
  bool end_map() { return Close(); }
  void parse_error(size_t, size_t) { Refuse("the result is malformed"); }
  void insufficient_bytes(size_t, size_t) { Refuse("the result is cut off"); }

 private:
  struct Frame {
    uint8_t kind;
    size_t base;  // its first item's place in values_
  };

  void Charge(uint64_t bytes) {
    if (++nodes_ > kMaxNodes) Refuse("the result holds too many values");
    if (bytes > budget_) Refuse("the result would take too much memory here, for so few bytes");
    budget_ -= bytes;
  }
  // Takes the reference.
  bool Push(PyObject* value, uint64_t bytes) {
    auto guard = py::reinterpret_steal<py::object>(value);
    Charge(bytes);
    values_.push_back(value);
    guard.release();
    return true;
  }
  bool Open(uint8_t kind, uint32_t claimed) {
    if (frames_.size() == kMaxFrames) Refuse("the result is nested too deeply");
    if (claimed > body_size_) Refuse("an array or map claims more items than there are bytes");
    frames_.push_back({kind, values_.size()});
    return true;
  }
  bool Close();
  bool Mark(uint8_t kind);
  bool Buffer(std::string_view length);
  PyObject* Build(uint8_t kind, std::span<PyObject*> items);
  PyObject* BuildDict(std::span<PyObject*> items);
  PyObject* BuildSet(uint8_t kind, std::span<PyObject*> items);
  PyObject* BuildNumbers(uint8_t kind, PyObject* raw);
  PyObject* BuildInPython(uint8_t kind, std::span<PyObject*> items);

  py::object owner_;
  py::object view_;      // memoryview of owner_, made at the first buffer
  py::object builders_;  // hutch._results.build.BUILDERS, looked up at the first need
  std::span<const char> payload_;
  size_t cursor_;  // where the last buffer ended
  size_t body_size_;
  uint64_t budget_;
  uint64_t nodes_ = 0;
  KeyCheck keys_;
  py::dict types_;
  bool in_key_ = false;
  std::vector<PyObject*> values_;
  std::vector<Frame> frames_;
  std::array<PyObject*, 256> key_cache_{};  // a table's rows repeat their keys: one str for all
};

bool Builder::visit_str(const char* v, uint32_t size) {
  Charge(kTextBytes + kTextFactor * uint64_t{size});
  PyObject** cached = nullptr;
  if (in_key_ && size > 0 && size <= 32) {
    const size_t mixed = size + 31 * static_cast<uint8_t>(v[0]) +
                         7 * static_cast<uint8_t>(v[size - 1]) +
                         17 * static_cast<uint8_t>(v[size / 2]);
    cached = &key_cache_[mixed % key_cache_.size()];
    if (*cached != nullptr && PyUnicode_GET_LENGTH(*cached) == static_cast<Py_ssize_t>(size) &&
        std::memcmp(PyUnicode_1BYTE_DATA(*cached), v, size) == 0) {
      return Push(Py_NewRef(*cached), 0);
    }
  }
  PyObject* text = PyUnicode_DecodeUTF8(v, size, nullptr);
  if (text == nullptr) {
    PyErr_Clear();
    Refuse("a string is not UTF-8");
  }
  if (cached != nullptr && PyUnicode_IS_ASCII(text)) {
    Py_XDECREF(*cached);
    *cached = Py_NewRef(text);
  }
  return Push(text, 0);
}

bool Builder::visit_ext(const char* v, uint32_t size) {
  if (size < 2) Refuse("an extension is empty");
  const auto type = static_cast<int8_t>(v[0]);
  const std::string_view content(v + 1, size - 1);
  switch (type) {
    case kMark:
      if (content.size() != 1) Refuse("a mark is not one byte");
      return Mark(static_cast<uint8_t>(content[0]));
    case kBuffer:
      return Buffer(content);
    case kBigInt: {
      if (content.size() > kMaxBigIntBytes) Refuse("an int is too large");
      Charge(kNumberBytes + 2 * content.size());
      if (content.size() > kLongIntBytes) keys_.has_long_ints = true;
      py::bytes bytes(content.data(), content.size());
      const py::object from_bytes =
          py::handle(reinterpret_cast<PyObject*>(&PyLong_Type)).attr("from_bytes");
      return Push(from_bytes(bytes, "little", py::arg("signed") = true).release().ptr(), 0);
    }
    case kSurrogates: {
      Charge(kTextBytes + 2 * content.size());
      PyObject* text = PyUnicode_DecodeUTF8(content.data(), static_cast<Py_ssize_t>(content.size()),
                                            "surrogatepass");
      if (text == nullptr) {
        PyErr_Clear();
        Refuse("a string with surrogates is malformed");
      }
      return Push(text, 0);
    }
    default:
      Refuse("extension type " + std::to_string(type) + " is not part of the format");
  }
}

bool Builder::Mark(uint8_t kind) {
  if (frames_.empty() || frames_.back().kind != kList || values_.size() != frames_.back().base) {
    Refuse("a mark stands where a value should");
  }
  if (kind == kList || kind == kMap) Refuse("a mark names no kind");
  frames_.back().kind = kind;
  return true;
}

bool Builder::Buffer(std::string_view content) {
  if (content.size() != 8) Refuse("a buffer's length is not eight bytes");
  uint64_t length = 0;
  for (char c : content) length = length << 8 | static_cast<uint8_t>(c);
  const size_t padding = (kBufferAlignment - cursor_ % kBufferAlignment) % kBufferAlignment;
  const size_t left = payload_.size() - cursor_;
  if (padding > left || length > left - padding) Refuse("a buffer lies outside the payload");
  const size_t start = cursor_ + padding;
  cursor_ = start + length;
  if (frames_.empty() || !TakesRaw(frames_.back().kind)) {
    Charge(kTextBytes + length);
    PyObject* bytes = OrThrow(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(length)));
    CopyLarge(PyBytes_AS_STRING(bytes), payload_.data() + start, length);
    return Push(bytes, 0);
  }
  if (!view_) {
    view_ = py::reinterpret_steal<py::object>(OrThrow(PyMemoryView_FromObject(owner_.ptr())));
    view_ = view_.attr("cast")("B");
  }
  return Push(OrThrow(PySequence_GetSlice(view_.ptr(), static_cast<Py_ssize_t>(start),
                                          static_cast<Py_ssize_t>(cursor_))),
              kBuiltBytes);
}

bool Builder::Close() {
  const Frame frame = frames_.back();
  std::span<PyObject*> items(values_.data() + frame.base, values_.size() - frame.base);
  PyObject* value = Build(frame.kind, items);  // on an exception the stacks still tell the path
  // Build took (and nulled) the references it kept.
  for (PyObject* item : items) Py_XDECREF(item);
  values_.resize(frame.base);
  frames_.pop_back();
  return Push(value, 0);
}

PyObject* Builder::Build(uint8_t kind, std::span<PyObject*> items) {
  const auto n = static_cast<Py_ssize_t>(items.size());
  Charge(kContainerBytes + kSlotBytes * items.size());
  switch (kind) {
    case kList: {
      PyObject* list = OrThrow(PyList_New(n));
      for (Py_ssize_t i = 0; i < n; ++i) PyList_SET_ITEM(list, i, std::exchange(items[i], nullptr));
      return list;
    }
    case kTuple: {
      PyObject* tuple = OrThrow(PyTuple_New(n));
      for (Py_ssize_t i = 0; i < n; ++i) {
        PyTuple_SET_ITEM(tuple, i, std::exchange(items[i], nullptr));
      }
      return tuple;
    }
    case kMap:
      return BuildDict(items);
    case kSet:
    case kFrozenset:
      return BuildSet(kind, items);
    case kByteArray:
    case kFloats:
    case kInts:
      if (n != 1) break;
      return BuildNumbers(kind, items[0]);
    case kRange:
      if (n != 3) break;
      for (PyObject* item : items) {
        if (!PyLong_CheckExact(item)) Refuse("a range is not made of ints");
        if (_PyLong_NumBits(item) > kMaxRangeBits) Refuse("a range goes too far");
      }
      return OrThrow(PyObject_CallFunctionObjArgs(reinterpret_cast<PyObject*>(&PyRange_Type),
                                                  items[0], items[1], items[2], nullptr));
    case kSlice:
      if (n != 3) break;
      return OrThrow(PySlice_New(items[0], items[1], items[2]));
    case kComplex:
      if (n != 2 || !PyFloat_CheckExact(items[0]) || !PyFloat_CheckExact(items[1])) break;
      return OrThrow(
          PyComplex_FromDoubles(PyFloat_AS_DOUBLE(items[0]), PyFloat_AS_DOUBLE(items[1])));
    default:
      return BuildInPython(kind, items);
  }
  Refuse("kind " + std::to_string(kind) + " has the wrong fields");
}

PyObject* Builder::BuildDict(std::span<PyObject*> items) {
  if (!items.empty()) Charge(std::max(kLeastEntries, kEntryBytes * items.size()));
  keys_.Check(items, 2, false);
  auto dict = py::reinterpret_steal<py::object>(OrThrow(PyDict_New()));
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    if (PyDict_SetItem(dict.ptr(), items[i], items[i + 1]) != 0) throw py::error_already_set();
  }
  if (static_cast<size_t>(PyDict_GET_SIZE(dict.ptr())) * 2 != items.size()) {
    Refuse("a dict holds one key twice");
  }
  return dict.release().ptr();
}

PyObject* Builder::BuildSet(uint8_t kind, std::span<PyObject*> items) {
  Charge(kSetBytes + kEntryBytes * items.size());
  keys_.Check(items, 1, true);
  auto set = py::reinterpret_steal<py::object>(
      OrThrow(kind == kSet ? PySet_New(nullptr) : PyFrozenSet_New(nullptr)));
  for (PyObject* item : items) {
    if (PySet_Add(set.ptr(), item) != 0) throw py::error_already_set();
  }
  if (static_cast<size_t>(PySet_GET_SIZE(set.ptr())) != items.size()) {
    Refuse("a set holds one item twice");
  }
  return set.release().ptr();
}

PyObject* Builder::BuildNumbers(uint8_t kind, PyObject* raw) {
  if (!PyBytes_CheckExact(raw) && !PyMemoryView_Check(raw)) Refuse("raw bytes are missing");
  const py::buffer_info info = py::reinterpret_borrow<py::buffer>(raw).request();
  const auto* data = static_cast<const char*>(info.ptr);
  const auto size = static_cast<size_t>(info.size);
  if (kind == kByteArray) {
    Charge(size);
    PyObject* array = OrThrow(PyByteArray_FromStringAndSize(nullptr, info.size));
    CopyLarge(PyByteArray_AS_STRING(array), data, size);
    return array;
  }
  if (size % 8 != 0) Refuse("packed numbers are cut off");
  const size_t n = size / 8;
  Charge(n * kNumberBytes);
  nodes_ += n;
  auto list = py::reinterpret_steal<py::object>(OrThrow(PyList_New(static_cast<Py_ssize_t>(n))));
  for (size_t i = 0; i < n; ++i) {
    PyObject* item = nullptr;
    if (kind == kFloats) {
      double v = 0;
      std::memcpy(&v, data + i * 8, 8);
      item = PyFloat_FromDouble(v);
    } else {
      long long v = 0;
      std::memcpy(&v, data + i * 8, 8);
      item = PyLong_FromLongLong(v);
    }
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), OrThrow(item));
  }
  return list.release().ptr();
}

PyObject* Builder::BuildInPython(uint8_t kind, std::span<PyObject*> items) {
  Charge(BuiltBytes(kind));
  if (kind == kDecimal) keys_.has_decimals = true;
  if (kind == kPath && items.size() == 1 && PyUnicode_CheckExact(items[0])) {
    const py::object parts = py::handle(items[0]).attr("count")("/");
    const auto count = py::cast<uint64_t>(parts);
    if (count > kFreeParts) Charge((count - kFreeParts) * kPartBytes);
  }
  if (!builders_) builders_ = py::module_::import("hutch._results.build").attr("BUILDERS");
  PyObject* builder = PyDict_GetItem(builders_.ptr(), py::int_(kind).ptr());
  if (builder == nullptr) Refuse("kind " + std::to_string(kind) + " is not part of the format");
  const bool named = kind >= kFirstNamed && kind <= kLastNamed;
  std::vector<PyObject*> fields;
  if (named) fields.push_back(types_.ptr());
  fields.insert(fields.end(), items.begin(), items.end());
  auto built = py::reinterpret_steal<py::object>(
      OrThrow(PyObject_Vectorcall(builder, fields.data(), fields.size(), nullptr)));
  if (kind < kNdarray || !PyTuple_CheckExact(built.ptr())) return built.release().ptr();
  // With how much it takes, or may at its first use, that no bytes of the result stand for.
  Charge(py::cast<uint64_t>(built[py::int_(1)]));
  return py::object(built[py::int_(0)]).release().ptr();
}

// One step of a path: the repr of a short str or an int, else "?".
std::string Step(PyObject* key) {
  const bool short_text = PyUnicode_CheckExact(key) && PyUnicode_GET_LENGTH(key) <= 64;
  int overflow = 0;
  if (PyLong_CheckExact(key)) PyLong_AsLongLongAndOverflow(key, &overflow);
  if (!short_text && (!PyLong_CheckExact(key) || overflow != 0)) return "[?]";
  std::string shown = py::repr(key).cast<std::string>();
  if (shown.front() == '\'' && shown.find('"') == std::string::npos) {
    shown.front() = shown.back() = '"';
  }
  return "[" + shown + "]";
}

std::string Builder::Path() const {
  std::string path = "result";
  for (size_t i = 0; i < frames_.size(); ++i) {
    const Frame& frame = frames_[i];
    const size_t end = i + 1 < frames_.size() ? frames_[i + 1].base : values_.size();
    const size_t done = end - frame.base;
    if (frame.kind == kMap) {
      if (done % 2 == 1) path += Step(values_[frame.base + done - 1]);
    } else if (frame.kind <= kTuple) {
      path += "[" + std::to_string(done) + "]";
    }
  }
  return path;
}

constexpr const char* kNoMemory = "there is not the memory here that the result would take";
constexpr const char* kErrorDoc =
    "A result that is not in the format or the closed set of types; .message and .path say more.";

// What an exception says, capped, as valid UTF-8.
std::string Message(const py::error_already_set& error) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_Str(error.value().ptr()));
  if (!text) {
    PyErr_Clear();
    return "a field was refused";
  }
  const py::object capped = text[py::slice(0, 1000, 1)];
  return capped.attr("encode")("utf-8", "backslashreplace").cast<std::string>();
}

[[noreturn]] void Raise(const std::string& message, const std::string& path, py::object cause) {
  py::object error = DecodeErrorType()(message + " (" + path + ")");
  error.attr("message") = message;
  error.attr("path") = path;
  if (cause) PyException_SetCause(error.ptr(), cause.release().ptr());
  PyErr_SetObject(DecodeErrorType().ptr(), error.ptr());
  throw py::error_already_set();
}

}  // namespace

py::object& DecodeErrorType() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> storage;
  return storage
      .call_once_and_store_result([] {
        return py::reinterpret_steal<py::object>(OrThrow(PyErr_NewExceptionWithDoc(
            "hutch._core.DecodeError", kErrorDoc, PyExc_ValueError, nullptr)));
      })
      .get_stored();
}

py::object Decode(py::object owner, const char* data, size_t size, size_t body_size, py::dict types,
                  uint64_t result_bytes) {
  const NoCollection no_collection;
  Builder builder(std::move(owner), {data, size}, body_size, std::move(types), result_bytes);
  try {
    if (body_size > size) Refuse("the body claims to be longer than the payload");
    if (std::string_view(data, std::min(body_size, kMagic.size())) != kMagic) {
      Refuse("this is not a result, or one of another version");
    }
    size_t offset = kMagic.size();
    if (!msgpack::parse(data, body_size, offset, builder)) Refuse("the result is malformed");
    if (offset != body_size) Refuse("bytes are left over after the value");
    return builder.Take();
  } catch (const Refused& refused) {
    Raise(refused.message, builder.Path(), {});
  } catch (const py::error_already_set& error) {
    // An interrupt is not the payload's fault; what else a constructor says of its fields is, and
    // that there is not the memory for what they claim.
    for (PyObject* own : {PyExc_KeyboardInterrupt, PyExc_SystemExit, PyExc_GeneratorExit}) {
      if (error.matches(own)) throw;
    }
    if (error.matches(PyExc_MemoryError)) Raise(kNoMemory, builder.Path(), {});
    Raise(Message(error), builder.Path(), error.value());
  } catch (const std::bad_alloc&) {
    Raise(kNoMemory, "result", {});
  } catch (const std::exception& error) {
    Raise(error.what(), builder.Path(), {});
  }
}

namespace {

// Whether no two items are equal, by a set of them; see KeyCheck.
bool Distinct(const py::list& given) {
  KeyCheck keys;
  keys.has_decimals = keys.has_long_ints = true;  // who knows
  const std::vector<PyObject*> items(PySequence_Fast_ITEMS(given.ptr()),
                                     PySequence_Fast_ITEMS(given.ptr()) + given.size());
  try {
    keys.Check(items, 1, true);
  } catch (const Refused& refused) {
    throw py::value_error(refused.message);
  }
  return py::set(given).size() == given.size();
}

}  // namespace

void BindDecode(py::module_& m) {
  m.def("distinct", &Distinct, py::arg("items"));
  m.attr("DecodeError") = DecodeErrorType();
  m.def(
      "decode",
      [](const py::buffer& owner, size_t body_size, py::dict types, uint64_t result_bytes) {
        const py::buffer_info info = owner.request();
        if (info.itemsize != 1 || info.ndim != 1 || (info.size > 1 && info.strides[0] != 1)) {
          throw py::type_error("a payload is a flat buffer of bytes");
        }
        return Decode(owner, static_cast<const char*>(info.ptr), static_cast<size_t>(info.size),
                      body_size, std::move(types), result_bytes);
      },
      py::arg("owner"), py::arg("body_size"), py::arg("types"), py::arg("result_bytes") = 0);
}

}  // namespace hutch
