// SPDX-License-Identifier: Apache-2.0

// How many inputs of a run were good ones, reported at the end: a fuzzer whose inputs are all
// turned away at the door tests the door. One thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace hutch {

class Tally {
 public:
  Tally() {
    std::atexit([] {
      std::fprintf(stderr, "tally: %llu of %llu accepted\n",
                   static_cast<unsigned long long>(accepted_),
                   static_cast<unsigned long long>(inputs_));
    });
  }
  void Count(bool accepted) {
    ++inputs_;
    accepted_ += accepted ? 1 : 0;
  }
  static uint64_t inputs() { return inputs_; }

 private:
  static inline uint64_t inputs_ = 0;
  static inline uint64_t accepted_ = 0;
};

}  // namespace hutch
