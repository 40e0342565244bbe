// SPDX-License-Identifier: Apache-2.0

// The timer of the warden: each 20 ms while there is something to watch, once a second otherwise.
// A busy tick comes at a time from half to one and a half of that after the last one: code that
// knew the time of a sample could act in between.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>

namespace hutch {

class Ticker {
 public:
  void Open();
  int fd() const { return timer_; }

  // Before each wait: how the next tick is to come.
  void Set(bool busy);

  // Whether a tick has come. It is taken.
  bool Take();

  // Of the tick at `now`: for how long the machine had no time for us, 0: for no time worth it.
  int64_t HeldUpUs(int64_t now);

 private:
  uint64_t Random();

  int timer_ = -1;
  int64_t period_ms_ = 0;  // as set
  int64_t ticked_us_ = 0;
  uint64_t random_ = 0;
};

}  // namespace hutch
