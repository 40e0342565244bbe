// SPDX-License-Identifier: Apache-2.0

// The clock that all deadlines of the warden are read from.
#pragma once

#include <time.h>

#include <cstdint>

namespace hutch {

// Microseconds of CLOCK_MONOTONIC, which cannot be set.
inline int64_t NowUs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000 + now.tv_nsec / 1000;
}

}  // namespace hutch
