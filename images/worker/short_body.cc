// SPDX-License-Identifier: Apache-2.0

#include "images/worker/short_body.h"

#include <string.h>

#include "wire/cell_frame.h"

namespace hutch {
namespace {

constexpr size_t kShort = 4096;       // bytes of a text that is encoded here
constexpr size_t kLongestHeader = 9;  // of a value, in bytes

char encoded[kMaxPayload - sizeof(CallUsage)];

}  // namespace

ShortBody::ShortBody() {
  Put(0xC1);
  Put(1);
}

bool ShortBody::Encode(PyObject* value) {
  if (size_ + kLongestHeader + kShort > sizeof encoded) return false;
  if (value == Py_None) return Put(0xC0), true;
  if (PyBool_Check(value)) return Put(value == Py_True ? 0xC3 : 0xC2), true;
  if (PyLong_CheckExact(value)) return EncodeInt(value);
  if (PyFloat_CheckExact(value)) {
    const double number = PyFloat_AsDouble(value);
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    Put(0xCB);
    PutBig(bits, 8);
    return true;
  }
  if (PyUnicode_CheckExact(value)) return EncodeText(value);
  if (!PyBytes_CheckExact(value)) return false;
  const auto size = static_cast<size_t>(PyBytes_Size(value));
  if (size > kShort) return false;
  PutSize(size, 0xC4, 0xC5);
  PutAll(PyBytes_AsString(value), size);
  return true;
}

bool ShortBody::EncodePair(PyObject* pair) {
  constexpr char kPair[] = "\x93\xd4\x01\x01";
  if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2 || PyTuple_GetItem(pair, 1) != Py_None)
    return false;
  PutAll(kPair, sizeof kPair - 1);
  return Encode(PyTuple_GetItem(pair, 0)) && Encode(Py_None);
}

bool ShortBody::EncodeAll(PyObject* values) {
  const auto count = static_cast<size_t>(PyList_Size(values));
  constexpr char kPairOfOk[] = "\x93\xd4\x01\x01\xa2ok";
  if (count > 0xffff) return false;
  PutAll(kPairOfOk, sizeof kPairOfOk - 1);
  Put(0xDC);
  PutBig(count, 2);
  for (size_t i = 0; i < count; ++i) {
    if (!Encode(PyList_GetItem(values, static_cast<Py_ssize_t>(i)))) return false;
  }
  return true;
}

iovec ShortBody::bytes() const { return {encoded, size_}; }

void ShortBody::Put(int byte) { encoded[size_++] = static_cast<char>(byte); }

void ShortBody::PutBig(uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) Put(static_cast<int>(value >> shift));
}

void ShortBody::PutSize(size_t size, int one, int two) {
  const bool small = size < 256;
  Put(small ? one : two);
  PutBig(size, small ? 1 : 2);
}

void ShortBody::PutAll(const char* bytes, size_t size) {
  memcpy(encoded + size_, bytes, size);
  size_ += size;
}

bool ShortBody::EncodeInt(PyObject* value) {
  int overflow = 0;
  const long long x = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0) return false;
  const auto bits = static_cast<uint64_t>(x);
  if (x >= -32 && x < 128) {
    Put(static_cast<int>(x & 0xFF));
  } else if (x >= 0) {
    const int step = x < 1 << 8 ? 0 : x < 1 << 16 ? 1 : x < 1LL << 32 ? 2 : 3;
    Put(0xCC + step);
    PutBig(bits, 1 << step);
  } else {
    const int step = x >= -(1 << 7) ? 0 : x >= -(1 << 15) ? 1 : x >= -(1LL << 31) ? 2 : 3;
    Put(0xD0 + step);
    PutBig(bits, 1 << step);
  }
  return true;
}

bool ShortBody::EncodeText(PyObject* value) {
  // A long one is not even looked at: it would keep its UTF-8 beside it.
  if (static_cast<size_t>(PyUnicode_GetLength(value)) > kShort) return false;
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(value, &length);
  if (text == nullptr) PyErr_Clear();  // surrogates
  const auto size = static_cast<size_t>(length);
  if (text == nullptr || size > kShort) return false;
  if (size < 32) {
    Put(static_cast<int>(0xA0 | size));
  } else {
    PutSize(size, 0xD9, 0xDA);
  }
  PutAll(text, size);
  return true;
}

}  // namespace hutch
