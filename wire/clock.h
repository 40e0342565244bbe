// SPDX-License-Identifier: Apache-2.0

// The clock that everything is timed with, and the conversions between its durations and the
// integers of the messages. Pure functions: for any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace hutch {

using Clock = std::chrono::steady_clock;

inline constexpr std::chrono::milliseconds kYear = std::chrono::hours(24 * 365);

// Clamped to a year so that adding it to now() cannot overflow.
constexpr std::chrono::milliseconds ClampToYear(uint64_t ms) {
  return std::chrono::milliseconds(std::min(ms, static_cast<uint64_t>(kYear.count())));
}
constexpr Clock::duration ClampToYear(Clock::duration d) {
  return std::min<Clock::duration>(d, kYear);
}

inline Clock::time_point DeadlineIn(uint64_t ms) { return Clock::now() + ClampToYear(ms); }

// Of a negative duration: 0.
constexpr uint64_t ToMicroseconds(Clock::duration d) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::microseconds>(d).count()));
}

}  // namespace hutch
