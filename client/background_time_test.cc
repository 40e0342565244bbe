// SPDX-License-Identifier: Apache-2.0

#include "client/background_time.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

TEST(BackgroundTime, IsAllThatNoCallHasUsed) {
  BackgroundTime time;
  time.AddCall(10);
  time.AddMeasuredCall(100, 5);
  EXPECT_EQ(time.AddMeasured(10 + 5 + 30), 30u);
  time.AddMeasuredCall(7, 7);
  EXPECT_EQ(time.AddMeasured(95 + 7 + 1), 1u)
      << "what a call used after it was measured is its own";
}

// The warden saw more of a call than it had used by the client's clock.
TEST(BackgroundTime, NoErrorAddsUp) {
  BackgroundTime time;
  uint64_t told = 0;
  for (int i = 0; i < 1000; ++i) {
    time.AddMeasuredCall(12, 5);
    told += time.AddMeasured(i == 0 ? 8 : 12);
  }
  EXPECT_EQ(told, 3u);
}

// Its report came after the call that reports it.
TEST(BackgroundTime, WhatCallsHaveUsedSinceIsMadeUpFor) {
  BackgroundTime time;
  time.AddMeasuredCall(100, 5);
  time.AddMeasuredCall(100, 5);
  EXPECT_EQ(time.AddMeasured(5 + 20), 0u);
  EXPECT_EQ(time.AddMeasured(100 + 20), 40u);
}

}  // namespace
}  // namespace hutch
