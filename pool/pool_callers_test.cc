// SPDX-License-Identifier: Apache-2.0

#include "pool/pool_callers.h"

#include <gtest/gtest.h>

#include <chrono>

namespace hutch {
namespace {

using std::chrono::hours;

class PoolCallersTest : public ::testing::Test {
 protected:
  void Wait(bool ahead) {
    Waiters& waiters = callers_.waiters();
    waiters.Add(waiters.NextTicket(), now_, 1, hours(1), ahead,
                {now_, [](LeasedCell) {}, [this](const Error&) { ++told_; }});
  }
  void WaitForCells(uint64_t cells) {
    callers_.watchers().AddForCells(cells, [this](uint64_t, const Error*) { ++told_; });
  }
  Demand Now() const { return callers_.DemandAt(now_, false); }

  Loop loop_;
  QueuesInAll in_all_;
  const Clock::time_point now_{hours(1)};
  PoolCallers callers_{loop_, in_all_, SizingLimits{.least = 2, .most = 4, .max_cells = 8},
                       [](Clock::duration) { return Error(Code::kBusy, "too late"); }};
  int told_ = 0;
};

TEST_F(PoolCallersTest, WithoutACallerCellsAreOnlyParked) {
  EXPECT_TRUE(callers_.empty());
  EXPECT_FALSE(Now().urgent || Now().wanted || Now().warming);
  EXPECT_EQ(Now().depth, 2u);
}

TEST_F(PoolCallersTest, WhoLooksAheadWantsACellButIsNotUrgent) {
  Wait(true);
  EXPECT_TRUE(Now().wanted);
  EXPECT_FALSE(Now().urgent);
  EXPECT_EQ(Now().waiting, 0u);
  Wait(false);
  EXPECT_TRUE(Now().urgent);
  EXPECT_EQ(Now().waiting, 1u);
}

TEST_F(PoolCallersTest, AsManyCellsAreParkedAsAnybodyWaitsFor) {
  WaitForCells(5);
  WaitForCells(3);
  EXPECT_TRUE(Now().warming && Now().urgent);
  EXPECT_EQ(Now().depth, 5u);
}

TEST_F(PoolCallersTest, EverybodyIsToldOnce) {
  Wait(false);
  Wait(true);
  WaitForCells(5);
  callers_.FailAll(0, Error(Code::kUnavailable, "the end"));
  callers_.FailAll(0, Error(Code::kUnavailable, "the end"));
  EXPECT_EQ(told_, 3);
  EXPECT_TRUE(callers_.empty());
}

}  // namespace
}  // namespace hutch
