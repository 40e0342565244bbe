// SPDX-License-Identifier: Apache-2.0

#include "client/agent_watch.h"

#include <gtest/gtest.h>

#include <chrono>

namespace hutch {
namespace {

using Next = Heartbeat::Next;
using std::chrono::hours;
using std::chrono::seconds;

constexpr Clock::time_point kBegin{hours(1)};

TEST(AgentWatch, AsksOnceInAWhileHoweverOftenItIsLookedAt) {
  AgentWatch watch;
  EXPECT_EQ(watch.Look(kBegin, {}, 0), Next::kAsk);
  watch.Asked(7);
  EXPECT_EQ(watch.Look(kBegin, {}, 0), Next::kWait);
  EXPECT_FALSE(watch.TakeAnswer(0));
  EXPECT_FALSE(watch.TakeAnswer(8));
  EXPECT_TRUE(watch.TakeAnswer(7));
  EXPECT_EQ(watch.Look(kBegin + seconds(1), {}, 0), Next::kAsk);
}

TEST(AgentWatch, GivesUpAnAgentThatIsSilent) {
  AgentWatch watch;
  int looks = 0;
  while (watch.Look(kBegin + seconds(looks), {}, 0) != Next::kGiveUp) ASSERT_LT(++looks, 20);
  EXPECT_TRUE(watch.overdue());
}

TEST(AgentWatch, SilenceWhileNobodyWaitedMeansNothing) {
  AgentWatch watch;
  for (int looks = 0; looks < 20; ++looks)
    EXPECT_EQ(watch.Look(kBegin + hours(looks), {}, 0), Next::kAsk);
}

}  // namespace
}  // namespace hutch
