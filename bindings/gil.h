// SPDX-License-Identifier: Apache-2.0

// The interpreter's lock (GIL) in code that waits.
//
// A daemon thread may wait here while the interpreter ends. Once it asks for the lock, Python ends
// it by unwinding its stack, as pthread_exit() does, and in C++ that ends the whole process by
// abort(). Such a thread sleeps instead, until the process has ended.
#pragma once

#include <unistd.h>

#include <optional>

#include "bindings/python.h"

namespace hutch {

[[noreturn]] inline void SleepUntilTheProcessEnds() {
  for (;;) ::pause();
}

// The calling thread is without the lock while it lives. REQUIRES: it has it.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // the unwinding: nothing is thrown
      SleepUntilTheProcessEnds();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// The calling thread has the lock while it lives.
class WithGil {
 public:
  WithGil() {
    try {
      held_.emplace();
    } catch (...) {
      SleepUntilTheProcessEnds();
    }
  }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  std::optional<py::gil_scoped_acquire> held_;
};

}  // namespace hutch
