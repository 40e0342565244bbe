// SPDX-License-Identifier: Apache-2.0

// The wall time of one call: its limit, by the client's clock, and when the agent, which holds the
// cell to it as well, is to be informed of it.
//
// The agent is informed of a call that has been running for some milliseconds: for a shorter one
// the message would cost more than the call. That the clock stands is reported at once; that it
// goes on, when it has gone on for a while, so that code that calls one tool after another costs no
// message for each.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "wire/clock.h"

namespace hutch {

class CallClock {
 public:
  // The call is being sent. 0: it has no limit.
  void Begin(uint64_t timeout_ms);
  Clock::time_point sent() const { return sent_; }
  // The cell says that it has loaded the call: then the limit counts from now, once. Loading gets a
  // second of its own at most, for code of the call may have run in that time. True: the agent is
  // to be informed.
  bool BeginAnew();
  // From now on it has so long, whatever its limit is, and does not stand.
  void LimitTo(Clock::duration left) {
    stopped_at_.reset();
    deadline_ = Clock::now() + left;
  }

  bool Stop();  // True: the agent is to be informed.
  void Resume();

  Clock::time_point due() const;  // when IsOver() or IsToBeTold() may be true
  bool IsOver(Clock::time_point now) const { return !stopped_at_ && now >= deadline_; }
  Clock::duration left(Clock::time_point now) const;  // max(): it has no limit, or stands
  bool IsToBeTold(Clock::time_point now);             // True once.

  void SetTold() { told_ = true; }
  bool told() const { return told_; }
  // What the agent is sent: the limit from now on; 0: none.
  uint64_t timeout_ms() const { return timeout_ms_; }

 private:
  Clock::time_point sent_, deadline_;
  uint64_t limit_ms_ = 0;
  uint64_t timeout_ms_ = 0;
  bool anew_ = false;  // it has begun anew
  bool told_ = false;
  std::optional<Clock::time_point> stopped_at_;  // since when it stands
  bool agent_stopped_ = false;                   // so the agent was informed
  Clock::time_point resumed_at_;
};

}  // namespace hutch
