// SPDX-License-Identifier: Apache-2.0

#include "client/call_clock.h"

#include <algorithm>
#include <utility>

namespace hutch {
namespace {

constexpr auto kTellAfter = std::chrono::milliseconds(5);
constexpr auto kMostLoading = std::chrono::seconds(1);
constexpr auto kSlowLoading = std::chrono::milliseconds(15);  // the cell reports 20 ms and more
constexpr auto kResumeAfter = std::chrono::milliseconds(50);

Clock::time_point DeadlineFrom(Clock::time_point start, uint64_t timeout_ms) {
  if (timeout_ms == 0 || ClampToYear(timeout_ms) == kYear) return Clock::time_point::max();
  return start + ClampToYear(timeout_ms);
}

}  // namespace

void CallClock::Begin(uint64_t timeout_ms) {
  *this = {};
  limit_ms_ = timeout_ms_ = timeout_ms;
  sent_ = Clock::now();
  deadline_ = DeadlineFrom(sent_, timeout_ms);
}

bool CallClock::BeginAnew() {
  const Clock::duration loading = Clock::now() - sent_;
  if (anew_ || loading < kSlowLoading) return false;
  anew_ = true;
  deadline_ = DeadlineFrom(sent_ + std::min<Clock::duration>(loading, kMostLoading), limit_ms_);
  return true;
}

bool CallClock::Stop() {
  if (stopped_at_ || deadline_ == Clock::time_point::max()) return false;
  stopped_at_ = Clock::now();
  if (std::exchange(agent_stopped_, true)) return false;
  timeout_ms_ = static_cast<uint64_t>(kYear.count());
  return true;
}

void CallClock::Resume() {
  if (!stopped_at_) return;
  resumed_at_ = Clock::now();
  deadline_ += resumed_at_ - *std::exchange(stopped_at_, {});
}

Clock::time_point CallClock::due() const {
  if (stopped_at_) return Clock::time_point::max();
  if (agent_stopped_) return std::min(deadline_, resumed_at_ + kResumeAfter);
  return told_ ? deadline_ : std::min(deadline_, sent_ + kTellAfter);
}

Clock::duration CallClock::left(Clock::time_point now) const {
  if (stopped_at_ || deadline_ == Clock::time_point::max()) return Clock::duration::max();
  return std::max(Clock::duration{}, deadline_ - now);
}

bool CallClock::IsToBeTold(Clock::time_point now) {
  if (stopped_at_) return false;
  if (agent_stopped_) {
    if (now - resumed_at_ < kResumeAfter) return false;
    agent_stopped_ = false;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - now);
    timeout_ms_ = static_cast<uint64_t>(std::max<int64_t>(1, left.count()));
    return true;
  }
  return !told_ && now - sent_ >= kTellAfter;
}

}  // namespace hutch
