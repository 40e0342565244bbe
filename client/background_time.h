// SPDX-License-Identifier: Apache-2.0

// The CPU time that a session uses beside its calls: all that the warden measured, without what
// calls report as their own.
//
// The warden measures while a call runs, some milliseconds after it began. How much of that call it
// has seen is an estimate, which the next measurement replaces: no error adds up.
//
// One thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hutch {

class BackgroundTime {
 public:
  // A call is over that took so much CPU time of its own.
  void AddCall(uint64_t own_us) { of_calls_us_ += own_us; }
  // The same for one while which the warden measured, when the call had used `seen_us` of that.
  void AddMeasuredCall(uint64_t own_us, uint64_t seen_us) {
    seen_of_calls_us_ = of_calls_us_ + std::min(seen_us, own_us);
    AddCall(own_us);
  }
  // The warden measured so much since it last did. What of it, and of what was kept back until now,
  // no call has used.
  uint64_t AddMeasured(uint64_t all_us) {
    all_us_ += all_us;
    const uint64_t known_us = seen_of_calls_us_ + told_us_;
    const uint64_t new_us = all_us_ - std::min(all_us_, known_us);
    told_us_ += new_us;
    return new_us;
  }

 private:
  uint64_t all_us_ = 0;
  uint64_t of_calls_us_ = 0;
  uint64_t seen_of_calls_us_ = 0;  // of those, when the warden measured
  uint64_t told_us_ = 0;
};

}  // namespace hutch
