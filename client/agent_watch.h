// SPDX-License-Identifier: Apache-2.0

// When those who wait for the agent ask whether it still answers, and when they give it up: a
// Heartbeat that any waiting thread may look at, as often as it likes.
//
// Pure decisions; time comes in as an argument. One thread at a time.
#pragma once

#include <cstdint>

#include "wire/clock.h"
#include "wire/heartbeat.h"

namespace hutch {

class AgentWatch {
 public:
  // kAsk: Asked() follows. `late`, `pressure`: see WorthOfLook().
  Heartbeat::Next Look(Clock::time_point now, Clock::duration late, double pressure) {
    if (now - looked_ < kLookPeriod) return Heartbeat::Next::kWait;
    // No thread waited meanwhile: that an answer is missing means nothing.
    if (now - looked_ > 3 * kLookPeriod) heartbeat_ = {};
    looked_ = now;
    return heartbeat_.Look(WorthOfLook(late, pressure));
  }
  void Asked(uint64_t request) { request_ = request; }
  // True if that is what was asked: it is answered.
  bool TakeAnswer(uint64_t request) {
    if (request == 0 || request != request_) return false;
    heartbeat_.Answered();
    return true;
  }
  bool overdue() const { return heartbeat_.overdue(); }

 private:
  Heartbeat heartbeat_;
  uint64_t request_ = 0;
  Clock::time_point looked_{};
};

}  // namespace hutch
