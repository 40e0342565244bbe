// SPDX-License-Identifier: Apache-2.0

#include "agent/load_watch.h"

namespace hutch {

void LoadWatch::Add(uint64_t cell, uint64_t cpu_ms) {
  loading_.push_back({Clock::now() + kDelay, cell, cpu_ms});
  if (loading_.size() == 1) timer_ = loop_.After(kDelay, [this] { ArmDue(); });
}

void LoadWatch::ArmDue() {
  const Clock::time_point now = Clock::now();
  for (; !loading_.empty() && loading_.front().due <= now; loading_.pop_front())
    arm_(loading_.front().cell, loading_.front().cpu_ms);
  if (!loading_.empty()) timer_ = loop_.After(loading_.front().due - now, [this] { ArmDue(); });
}

}  // namespace hutch
