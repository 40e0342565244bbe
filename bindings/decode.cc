// SPDX-License-Identifier: Apache-2.0

// The reader of the format that decode.h specifies. Iterative: msgpack-cxx's parser calls the
// visitor below, which keeps finished values on one stack and open arrays and maps on another; an
// array or map is built when its last item is there.
#define MSGPACK_NO_BOOST  // its parser needs none
#include "bindings/decode.h"

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

#include "bindings/decode_keys.h"
#include "bindings/decode_values.h"

namespace hutch {
namespace {

using namespace decoding;

constexpr std::string_view kMagic("\xC1\x01", 2);

enum Ext : int8_t { kMark = 1, kBuffer = 2, kBigInt = 3, kSurrogates = 4 };

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

class Reader : public msgpack::null_visitor {
 public:
  Reader(py::object owner, std::span<const char> payload, size_t body_size, py::dict types,
         uint64_t result_bytes)
      : owner_(std::move(owner)),
        payload_(payload),
        cursor_(body_size),
        body_size_(body_size),
        budget_(kHostFloor +
                std::max(kHostFactor * payload.size(), kHostFactorOfLimit * result_bytes)),
        builder_(budget_, std::move(types)) {}
  ~Reader() {
    for (PyObject* value : values_) Py_DECREF(value);
    for (PyObject* key : key_cache_) Py_XDECREF(key);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

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
    budget_.Charge(kTextBytes + size);
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

  // Takes the reference.
  bool Push(PyObject* value, uint64_t bytes) {
    auto guard = py::reinterpret_steal<py::object>(value);
    budget_.Charge(bytes);
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

  py::object owner_;
  py::object view_;  // memoryview of owner_, made at the first buffer
  std::span<const char> payload_;
  size_t cursor_;  // where the last buffer ended
  size_t body_size_;
  Budget budget_;
  ValueBuilder builder_;
  bool in_key_ = false;
  std::vector<PyObject*> values_;
  std::vector<Frame> frames_;
  std::array<PyObject*, 256> key_cache_{};  // a table's rows repeat their keys: one str for all
};

bool Reader::visit_str(const char* v, uint32_t size) {
  budget_.Charge(kTextBytes + kTextFactor * uint64_t{size});
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

bool Reader::visit_ext(const char* v, uint32_t size) {
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
      budget_.Charge(kNumberBytes + 2 * content.size());
      if (content.size() > kLongIntBytes) builder_.NoteLongInt();
      py::bytes bytes(content.data(), content.size());
      const py::object from_bytes =
          py::handle(reinterpret_cast<PyObject*>(&PyLong_Type)).attr("from_bytes");
      return Push(from_bytes(bytes, "little", py::arg("signed") = true).release().ptr(), 0);
    }
    case kSurrogates: {
      budget_.Charge(kTextBytes + 2 * content.size());
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

bool Reader::Mark(uint8_t kind) {
  if (frames_.empty() || frames_.back().kind != kList || values_.size() != frames_.back().base) {
    Refuse("a mark stands where a value should");
  }
  if (kind == kList || kind == kMap) Refuse("a mark does not name a kind");
  frames_.back().kind = kind;
  return true;
}

bool Reader::Buffer(std::string_view content) {
  if (content.size() != 8) Refuse("a buffer's length is not eight bytes");
  uint64_t length = 0;
  for (char c : content) length = length << 8 | static_cast<uint8_t>(c);
  const size_t padding = (kBufferAlignment - cursor_ % kBufferAlignment) % kBufferAlignment;
  const size_t left = payload_.size() - cursor_;
  if (padding > left || length > left - padding) Refuse("a buffer lies outside the payload");
  const size_t start = cursor_ + padding;
  cursor_ = start + length;
  if (frames_.empty() || !TakesRaw(frames_.back().kind)) {
    budget_.Charge(kTextBytes + length);
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

bool Reader::Close() {
  const Frame frame = frames_.back();
  std::span<PyObject*> items(values_.data() + frame.base, values_.size() - frame.base);
  PyObject* value =
      builder_.Build(frame.kind, items);  // on an exception the stacks still tell the path
  // Build() took (and nulled) the references it kept.
  for (PyObject* item : items) Py_XDECREF(item);
  values_.resize(frame.base);
  frames_.pop_back();
  return Push(value, 0);
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

std::string Reader::Path() const {
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
std::string TextOf(const py::error_already_set& error) {
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
  Reader reader(std::move(owner), {data, size}, body_size, std::move(types), result_bytes);
  try {
    if (body_size > size) Refuse("the body claims to be longer than the payload");
    if (std::string_view(data, std::min(body_size, kMagic.size())) != kMagic) {
      Refuse("this is not a result, or one of another version");
    }
    size_t offset = kMagic.size();
    if (!msgpack::parse(data, body_size, offset, reader)) Refuse("the result is malformed");
    if (offset != body_size) Refuse("bytes are left over after the value");
    return reader.Take();
  } catch (const Refused& refused) {
    Raise(refused.message, reader.Path(), {});
  } catch (const py::error_already_set& error) {
    // An interrupt is not the payload's fault; what else a constructor says of its fields is, and
    // that there is not the memory for what they claim.
    for (PyObject* own : {PyExc_KeyboardInterrupt, PyExc_SystemExit, PyExc_GeneratorExit}) {
      if (error.matches(own)) throw;
    }
    if (error.matches(PyExc_MemoryError)) Raise(kNoMemory, reader.Path(), {});
    Raise(TextOf(error), reader.Path(), error.value());
  } catch (const std::bad_alloc&) {
    Raise(kNoMemory, "result", {});
  } catch (const std::exception& error) {
    Raise(error.what(), reader.Path(), {});
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
