// SPDX-License-Identifier: Apache-2.0

#include "pool/rotation.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

constexpr Rotation kRotation{100, duration<double>(60)};

WorkerAge Aged(uint64_t calls, double seconds, bool tainted = false, double jitter = 0) {
  return {calls, duration<double>(seconds), tainted, jitter};
}

TEST(Rotation, LeavesAWorkerWithinItsLimits) {
  EXPECT_EQ(DueForRotation(kRotation, Aged(99, 59.9)), "");
}

TEST(Rotation, EndsAWorkerAtItsLastCall) {
  EXPECT_EQ(DueForRotation(kRotation, Aged(100, 0)), "calls");
  EXPECT_EQ(DueForRotation({1, duration<double>(60)}, Aged(1, 0)), "calls");
}

TEST(Rotation, EndsAWorkerAtItsAge) { EXPECT_EQ(DueForRotation(kRotation, Aged(0, 60)), "age"); }

TEST(Rotation, EndsATaintedWorkerAtOnce) {
  EXPECT_EQ(DueForRotation(kRotation, Aged(0, 0, true)), "taint");
}

TEST(Rotation, JitterOnlyShortensALife) {
  for (double jitter = 0; jitter <= 1; jitter += 0.125) {
    EXPECT_EQ(DueForRotation(kRotation, Aged(0, 60, false, jitter)), "age");
    EXPECT_EQ(DueForRotation(kRotation, Aged(0, 53.9, false, jitter)), "");
  }
  EXPECT_EQ(DueForRotation(kRotation, Aged(0, 54, false, 1)), "age");
}

TEST(StartBackoff, BeginsAtOnceAndDoublesToHalfAMinute) {
  EXPECT_EQ(StartBackoff(0), milliseconds(0));
  EXPECT_EQ(StartBackoff(1), milliseconds(200));
  EXPECT_EQ(StartBackoff(2), milliseconds(400));
  EXPECT_EQ(StartBackoff(8), milliseconds(25'600));
  EXPECT_EQ(StartBackoff(9), milliseconds(30'000));
  EXPECT_EQ(StartBackoff(~0u), milliseconds(30'000));
}

}  // namespace
}  // namespace hutch
