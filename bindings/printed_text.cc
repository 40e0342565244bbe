// SPDX-License-Identifier: Apache-2.0

#include "bindings/printed_text.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace hutch {
namespace {

constexpr size_t kLongest = 4;  // bytes of a character
constexpr char kDigits[] = "0123456789abcdef";

struct Sequence {
  size_t size = 0;      // bytes that are one character; 0: none, or not yet
  bool is_cut = false;  // more bytes could make it one
};

bool IsIn(unsigned char byte, unsigned char least, unsigned char most) {
  return least <= byte && byte <= most;
}

// What the bytes begin with, by table 3-7 of the Unicode standard.
Sequence FirstOf(std::string_view data) {
  const auto first = static_cast<unsigned char>(data[0]);
  if (first < 0x80) return {.size = 1};
  if (!IsIn(first, 0xc2, 0xf4)) return {};
  const size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  unsigned char least = 0x80, most = 0xbf;  // of the second byte
  if (first == 0xe0) least = 0xa0;
  if (first == 0xed) most = 0x9f;
  if (first == 0xf0) least = 0x90;
  if (first == 0xf4) most = 0x8f;
  for (size_t i = 1; i < size; ++i) {
    if (i == data.size()) return {.is_cut = true};
    if (!IsIn(static_cast<unsigned char>(data[i]), least, most)) return {};
    least = 0x80;
    most = 0xbf;
  }
  return {.size = size};
}

std::string Escaped(std::string_view data) {
  std::string text;
  text.reserve(data.size() + data.size() / 2);
  size_t begin = 0;  // of what is taken as it is
  for (size_t at = 0; at < data.size();) {
    const size_t size = FirstOf(data.substr(at, kLongest)).size;
    if (size == 0) {
      const auto byte = static_cast<unsigned char>(data[at]);
      text.append(data.substr(begin, at - begin));
      text.append({'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]});
      begin = at + 1;
    }
    at += size == 0 ? 1 : size;
  }
  return text.append(data.substr(begin));
}

PyObject* Decoded(std::string_view data) {
  return PyUnicode_DecodeUTF8(data.data(), static_cast<Py_ssize_t>(data.size()), nullptr);
}

// How much of it is not the beginning of a character whose end is still to come.
size_t WholeOf(std::string_view data) {
  for (size_t back = 1; back < kLongest && back <= data.size(); ++back) {
    const std::string_view end = data.substr(data.size() - back);
    if (FirstOf(end).is_cut) return data.size() - back;
  }
  return data.size();
}

}  // namespace

py::str PrintedText(std::string_view data) {
  PyObject* text = Decoded(data);
  if (text == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
    PyErr_Clear();
    text = Decoded(Escaped(data));
  }
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

void BindPrintedText(py::module_& m) {
  m.def("printed_text", [](const py::bytes& data) { return PrintedText(std::string_view(data)); });
  m.def("printed_prefix", [](const py::bytes& data) { return WholeOf(std::string_view(data)); });
}

}  // namespace hutch
