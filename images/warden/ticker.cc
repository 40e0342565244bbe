// SPDX-License-Identifier: Apache-2.0

#include "images/warden/ticker.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include "images/warden/clock.h"

namespace hutch {
namespace {

constexpr int64_t kBusyMs = 20;
constexpr int64_t kIdleMs = 1000;
constexpr int64_t kHeldUpUs = 100'000;  // a tick that is so much later

}  // namespace

void Ticker::Open() {
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (getentropy(&random_, sizeof random_) != 0 || random_ == 0) random_ = 1;
}

uint64_t Ticker::Random() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_;
}

void Ticker::Set(bool busy) {
  const int64_t period = busy ? kBusyMs : kIdleMs;
  if (period == period_ms_) return;
  period_ms_ = period;
  ticked_us_ = NowUs();
  itimerspec time{};
  time.it_interval.tv_sec = period / 1000;
  time.it_interval.tv_nsec = period % 1000 * 1'000'000;
  time.it_value = time.it_interval;
  if (busy)
    time.it_value.tv_nsec = static_cast<long>(kBusyMs * 500'000 + Random() % (kBusyMs * 1'000'000));
  timerfd_settime(timer_, 0, &time, nullptr);
}

bool Ticker::Take() {
  uint64_t times;
  if (read(timer_, &times, sizeof times) <= 0) return false;
  if (period_ms_ == kBusyMs) period_ms_ = 0;  // the next one comes at another time
  return true;
}

int64_t Ticker::HeldUpUs(int64_t now) {
  const int64_t delay = now - ticked_us_ - period_ms_ * 1000;
  ticked_us_ = now;
  return delay > kHeldUpUs ? delay : 0;
}

}  // namespace hutch
