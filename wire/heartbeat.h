// SPDX-License-Identifier: Apache-2.0

// Whether a process that is asked about once a second still answers: pure decisions over numbers.
//
// A process that is stopped, or hangs, keeps its connection, so silence is the only sign. Silence
// is counted in the checks that the asker made and not by the clock: where the whole machine stands
// still, or is short of processors, the asker is late too, and its check (a "look") counts less, or
// nothing.
#pragma once

#include <chrono>
#include <utility>

namespace hutch {

inline constexpr auto kLookPeriod = std::chrono::milliseconds(1000);
inline constexpr unsigned kWholeLook = 3;
// Three looks in a row that were in time; nine on a machine under pressure.
inline constexpr unsigned kSilent = 9;

// How much a look counts that was late by `late`, on a host under `pressure` (0 to 1).
constexpr unsigned WorthOfLook(std::chrono::duration<double> late, double pressure) {
  if (late >= kLookPeriod / 2) return 0;  // the machine slept, or had no time for anyone
  const bool hard = late >= kLookPeriod / 20 || pressure >= 0.9;
  return hard ? 1 : kWholeLook;
}

class Heartbeat {
 public:
  enum class Next { kAsk, kWait, kGiveUp };

  Next Look(unsigned worth) {
    if (!std::exchange(asked_, true)) {
      silence_ = 0;
      return Next::kAsk;
    }
    silence_ += worth;
    return silence_ < kSilent ? Next::kWait : Next::kGiveUp;
  }
  // It was asked, and has been silent for at least a whole look.
  bool overdue() const { return asked_ && silence_ >= kWholeLook; }
  // False: nothing was asked.
  bool Answered() { return std::exchange(asked_, false); }

 private:
  bool asked_ = false;
  unsigned silence_ = 0;  // since it was asked
};

}  // namespace hutch
