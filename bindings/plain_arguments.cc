// SPDX-License-Identifier: Apache-2.0

#include "bindings/plain_arguments.h"

#include <marshal.h>

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace hutch {
namespace {

namespace py = pybind11;

constexpr Py_ssize_t kLarge = 64 << 10;  // bytes; those travel beside the pickle
constexpr Py_ssize_t kShort = 4096;      // bytes of text: a long one would keep its UTF-8 beside it

bool IsLarge(PyObject* value) {
  return PyBytes_CheckExact(value) && PyBytes_GET_SIZE(value) >= kLarge;
}

bool IsPlain(PyObject* value) {
  return value == Py_None || PyLong_CheckExact(value) || PyUnicode_CheckExact(value) ||
         PyFloat_CheckExact(value) || PyBool_Check(value) || PyBytes_CheckExact(value);
}

// Pickles by protocol 5.
class Pickle {
 public:
  Pickle() : text_("\x80\x05(") {}

  // False: an argument of another kind.
  bool Add(PyObject* value) {
    if (value == Py_None) return Put("N");
    if (PyBool_Check(value)) return Put(value == Py_True ? "\x88" : "\x89");
    if (PyLong_CheckExact(value)) return AddInt(value);
    if (PyFloat_CheckExact(value)) {
      const auto bits = std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(value));
      Put("G");
      for (int shift = 56; shift >= 0; shift -= 8) text_ += static_cast<char>(bits >> shift);
      return true;
    }
    if (PyUnicode_CheckExact(value)) {
      if (PyUnicode_GET_LENGTH(value) > kShort) return false;
      Py_ssize_t size = 0;
      const char* const utf8 = PyUnicode_AsUTF8AndSize(value, &size);
      if (utf8 == nullptr) PyErr_Clear();  // surrogates
      return utf8 != nullptr && AddBytes("X", {utf8, static_cast<size_t>(size)});
    }
    const auto size = static_cast<size_t>(PyBytes_GET_SIZE(value));
    if (!IsLarge(value)) return AddBytes("B", {PyBytes_AS_STRING(value), size});
    large_.append(value);
    return Put("\x97");  // the next buffer, of which the cell makes a bytes
  }
  Arguments Take() {
    Put("t}\x86.");  // (args, {})
    return Arguments(py::bytes(text_), std::move(large_));
  }

 private:
  bool Put(std::string_view bytes) { return text_.append(bytes), true; }
  void PutLittle(uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) text_ += static_cast<char>(value >> shift);
  }
  bool AddInt(PyObject* value) {
    int overflow = 0;
    const long number = PyLong_AsLongAndOverflow(value, &overflow);
    if (overflow != 0 || number != static_cast<int32_t>(number)) return false;
    Put("J");
    PutLittle(static_cast<uint32_t>(number));
    return true;
  }
  bool AddBytes(std::string_view opcode, std::string_view bytes) {
    Put(opcode);
    PutLittle(static_cast<uint32_t>(bytes.size()));
    return Put(bytes);
  }

  std::string text_;
  py::list large_;
};

}  // namespace

std::optional<Arguments> PlainArguments(const py::tuple& args) {
  bool any_large = false;
  for (const py::handle arg : args) {
    if (!IsPlain(arg.ptr())) return std::nullopt;
    any_large |= IsLarge(arg.ptr());
  }
  if (!any_large) {
    PyObject* const bytes = PyMarshal_WriteObjectToString(args.ptr(), 2);
    if (bytes == nullptr) throw py::error_already_set();
    return Arguments(py::reinterpret_steal<py::bytes>(bytes), py::tuple());
  }
  Pickle pickle;
  for (const py::handle arg : args) {
    if (!pickle.Add(arg.ptr())) return std::nullopt;
  }
  return pickle.Take();
}

}  // namespace hutch
