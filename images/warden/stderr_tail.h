// SPDX-License-Identifier: Apache-2.0

// The last bytes that the zygote wrote on stderr: a traceback, or what the interpreter says before
// it aborts.
//
// The zygote gets the write end of a pipe; the warden empties it, so that a package that prints
// much is not held up, and keeps the end. No cell's output gets there: a slot puts /dev/null over
// its stderr before it makes a cell, and a cell has pipes of its call's. What is kept is a
// stranger's text: it is sent to the agent and looked at by nobody here. One thread; no heap.
#pragma once

#include <stddef.h>

#include "wire/cell_frame.h"

namespace hutch {

class StderrTail {
 public:
  // Without it (no descriptor is left) the zygote keeps the container's stderr.
  void Open();
  // For good: what is in the pipe is thrown away.
  void Close();
  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }  // -1: none
  // Takes what is in the pipe, but no more than a full pipe has: a zygote that never stops writing
  // does not keep the warden.
  void Read();
  void Clear() { size_ = 0; }
  const char* text() const { return text_; }
  size_t size() const { return size_; }

 private:
  void Add(const char* text, size_t size);

  int ends_[2] = {-1, -1};
  char text_[kMaxZygoteStderr];
  size_t size_ = 0;
};

}  // namespace hutch
