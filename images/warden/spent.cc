// SPDX-License-Identifier: Apache-2.0

#include "images/warden/spent.h"

#include <algorithm>

namespace hutch {
namespace {

// So many faults are lost only where processes are not waited for: none is lost where they are.
constexpr uint64_t kProof = 16;
constexpr uint64_t kUnitUs = 10'000;  // of the times that the kernel shows

}  // namespace

void SpentTime::Missing::Add(uint64_t gone, uint64_t received) {
  const uint64_t late = received - std::min(received, gone);
  certain_ += last_ - std::min(last_, late);
  last_ = gone - std::min(gone, received);
}

void SpentTime::AddSample(ProcessTimes* processes, size_t count, const ProcessTimes* before,
                          size_t before_count, int64_t now_us, double share, unsigned cpus) {
  if (sampled_us_ == 0) before_count = 0;  // those of another cell
  const int64_t since_us = sampled_us_ == 0 ? 0 : now_us - sampled_us_;
  sampled_us_ = now_us;
  const auto step_us = static_cast<uint64_t>(static_cast<double>(since_us) * share);
  uint64_t gone_us = 0, guessed_us = 0, ran_us = 0, gone_faults = 0;
  uint64_t received_us = 0, received_faults = 0;
  const auto ended = [&](const ProcessTimes& one) {
    const uint64_t own_us = one.cpu_us - one.given_us;
    gone_us += one.cpu_us;
    // A short one stands for all that ran since the last sample; a long one ran on for half of it.
    const uint64_t short_by = step_us - std::min(step_us, own_us);
    uint64_t after_us = 0;
    if (one.running) after_us += short_by > 0 ? short_by : step_us / 2;
    if (one.running) after_us += step_us * (std::max(one.threads, 1u) - 1);
    ran_us += after_us;
    // What several samples saw of it, where processors are scarce, may be less than one unit.
    const uint64_t unshown_us = one.ran_us - std::min(one.ran_us, own_us + after_us);
    guessed_us += one.cpu_us + std::min(unshown_us, kUnitUs);
    gone_faults += std::max<uint64_t>(one.faults, 1);  // one that made none has some by its end
  };
  size_t old = 0;
  for (size_t i = 0; i < count; ++i) {
    ProcessTimes& one = processes[i];
    while (old < before_count && before[old].pid < one.pid) ended(before[old++]);
    ProcessTimes then;
    if (old < before_count && before[old].pid == one.pid) {
      if (before[old].began == one.began)
        then = before[old];
      else
        ended(before[old]);
      ++old;
    }
    one.ran_us = then.ran_us + (one.running ? step_us : 0);
    received_us += one.given_us - std::min(one.given_us, then.given_us);
    received_faults += one.given_faults - std::min(one.given_faults, then.given_faults);
  }
  while (old < before_count) ended(before[old++]);
  guessed_us += std::min(ran_us, static_cast<uint64_t>(since_us) * cpus);
  seen_.Add(gone_us, received_us);
  estimated_.Add(guessed_us, received_us);
  faults_.Add(gone_faults, received_faults);
}

uint64_t SpentTime::lost_us() const {
  return loses() ? std::max(seen_.certain(), estimated_.certain()) : seen_.certain();
}

bool SpentTime::loses() const { return faults_.certain() >= kProof; }

}  // namespace hutch
