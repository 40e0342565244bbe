// SPDX-License-Identifier: Apache-2.0

// The body of a short result: MessagePack with the same bytes as encode.py writes, in a buffer of
// this process. What is no short plain value is left to encode.py.
//
// Thread contract: the GIL is held; one body at a time.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

namespace hutch {

class ShortBody {
 public:
  ShortBody();

  // False: no value for here.
  bool Encode(PyObject* value);
  // (value, None): what a session's code gives that made no names. False: no pair for here.
  bool EncodePair(PyObject* pair);
  // ("ok", values): what a chunk gives of which no item raised.
  bool EncodeAll(PyObject* values);

  size_t size() const { return size_; }
  iovec bytes() const;

 private:
  void Put(int byte);
  void PutBig(uint64_t value, int bytes);
  void PutSize(size_t size, int one, int two);
  void PutAll(const char* bytes, size_t size);
  bool EncodeInt(PyObject* value);
  bool EncodeText(PyObject* value);

  size_t size_ = 0;
};

}  // namespace hutch
