// SPDX-License-Identifier: Apache-2.0

#include "bindings/decode_values.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace hutch::decoding {
namespace {

constexpr size_t kLargeCopy = 1 << 20;

// And what builders make besides their fields.
uint64_t BuiltBytes(uint8_t kind) {
  if (kind == kNdarray) return 640;
  // Four times what they take: building one is slow, and this bounds how many there are.
  if (kind >= kFirstTabular && kind <= kLastTabular) return 12288;
  if (kind == kTensor) return 1152;
  if (kind >= kArrowArray) return 768;  // images, too
  return kBuiltBytes;
}

}  // namespace

// Faulting pages in one by one would cost several times the copy: those
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

PyObject* ValueBuilder::Build(uint8_t kind, std::span<PyObject*> items) {
  const auto n = static_cast<Py_ssize_t>(items.size());
  budget_.Charge(kContainerBytes + kSlotBytes * items.size());
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

PyObject* ValueBuilder::BuildDict(std::span<PyObject*> items) {
  if (!items.empty()) budget_.Charge(std::max(kLeastEntries, kEntryBytes * items.size()));
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

PyObject* ValueBuilder::BuildSet(uint8_t kind, std::span<PyObject*> items) {
  budget_.Charge(kSetBytes + kEntryBytes * items.size());
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

PyObject* ValueBuilder::BuildNumbers(uint8_t kind, PyObject* raw) {
  if (!PyBytes_CheckExact(raw) && !PyMemoryView_Check(raw)) Refuse("raw bytes are missing");
  const py::buffer_info info = py::reinterpret_borrow<py::buffer>(raw).request();
  const auto* data = static_cast<const char*>(info.ptr);
  const auto size = static_cast<size_t>(info.size);
  if (kind == kByteArray) {
    budget_.Charge(size);
    PyObject* array = OrThrow(PyByteArray_FromStringAndSize(nullptr, info.size));
    CopyLarge(PyByteArray_AS_STRING(array), data, size);
    return array;
  }
  if (size % 8 != 0) Refuse("packed numbers are cut off");
  const size_t n = size / 8;
  budget_.Charge(n * kNumberBytes);
  budget_.AddNodes(n);
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

PyObject* ValueBuilder::BuildInPython(uint8_t kind, std::span<PyObject*> items) {
  budget_.Charge(BuiltBytes(kind));
  if (kind == kDecimal) keys_.has_decimals = true;
  if (kind == kPath && items.size() == 1 && PyUnicode_CheckExact(items[0])) {
    const py::object parts = py::handle(items[0]).attr("count")("/");
    const auto count = py::cast<uint64_t>(parts);
    if (count > kFreeParts) budget_.Charge((count - kFreeParts) * kPartBytes);
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
  budget_.Charge(py::cast<uint64_t>(built[py::int_(1)]));
  return py::object(built[py::int_(0)]).release().ptr();
}

}  // namespace hutch::decoding
