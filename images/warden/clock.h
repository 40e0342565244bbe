// SPDX-License-Identifier: Apache-2.0

// The clock that all deadlines of the warden are read from, and that of its own processor time.
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

// Microseconds of processor time that this thread has used.
inline int64_t OwnCpuUs() {
  timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<int64_t>(used.tv_sec) * 1'000'000 + used.tv_nsec / 1000;
}

}  // namespace hutch
