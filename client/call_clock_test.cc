// SPDX-License-Identifier: Apache-2.0

#include "client/call_clock.h"

#include <gtest/gtest.h>

#include <thread>

namespace hutch {
namespace {

using std::chrono::milliseconds;

TEST(CallClock, IsOverAtItsLimitAndWithoutOneNever) {
  CallClock clock;
  clock.Begin(100);
  EXPECT_FALSE(clock.IsOver(clock.sent() + milliseconds(99)));
  EXPECT_TRUE(clock.IsOver(clock.sent() + milliseconds(100)));
  clock.Begin(0);
  EXPECT_FALSE(clock.IsOver(clock.sent() + std::chrono::hours(24 * 365)));
}

TEST(CallClock, KnowsWhatIsLeftWhichIsNoLessWhileItStands) {
  CallClock clock;
  clock.Begin(100);
  EXPECT_EQ(clock.left(clock.sent() + milliseconds(40)), milliseconds(60));
  EXPECT_EQ(clock.left(clock.sent() + milliseconds(101)), milliseconds(0));
  clock.Stop();
  EXPECT_EQ(clock.left(clock.sent() + milliseconds(101)), Clock::duration::max());
  clock.Resume();
  EXPECT_LE(clock.left(Clock::now()), milliseconds(100));
  clock.Begin(0);
  EXPECT_EQ(clock.left(Clock::now()), Clock::duration::max());
}

TEST(CallClock, TheAgentIsToldOnceOfACallThatIsNotShort) {
  CallClock clock;
  clock.Begin(100);
  EXPECT_EQ(clock.due(), clock.sent() + milliseconds(5));
  EXPECT_FALSE(clock.IsToBeTold(clock.sent() + milliseconds(4)));
  EXPECT_TRUE(clock.IsToBeTold(clock.sent() + milliseconds(5)));
  clock.SetTold();
  EXPECT_FALSE(clock.IsToBeTold(clock.sent() + milliseconds(6)));
  EXPECT_EQ(clock.due(), clock.sent() + milliseconds(100));
  EXPECT_EQ(clock.timeout_ms(), 100u);
}

TEST(CallClock, BeginsAnewOnceAndNotForWhatLoadedAtOnce) {
  CallClock clock;
  clock.Begin(100);
  EXPECT_FALSE(clock.BeginAnew());
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_TRUE(clock.BeginAnew());
  EXPECT_FALSE(clock.IsOver(clock.sent() + milliseconds(115)));
  EXPECT_FALSE(clock.BeginAnew());
  EXPECT_TRUE(clock.IsOver(clock.sent() + milliseconds(1100))) << "loading has a second at most";
}

TEST(CallClock, StandsWhileItIsStoppedWhichTheAgentIsToldOnce) {
  CallClock clock;
  clock.Begin(100);
  EXPECT_TRUE(clock.Stop());
  EXPECT_FALSE(clock.Stop());
  EXPECT_GT(clock.timeout_ms(), 1'000'000'000u);
  std::this_thread::sleep_for(milliseconds(20));
  clock.Resume();
  EXPECT_FALSE(clock.IsOver(clock.sent() + milliseconds(115)));
  EXPECT_FALSE(clock.Stop()) << "it was not told yet that it goes on";
  clock.Resume();
  const Clock::time_point now = Clock::now();
  EXPECT_FALSE(clock.IsToBeTold(now));
  EXPECT_TRUE(clock.IsToBeTold(now + milliseconds(50)));
  EXPECT_GE(clock.timeout_ms(), 1u);
  EXPECT_LE(clock.timeout_ms(), 100u);
}

TEST(CallClock, IsNotOverWhileItStandsAndTellsNobodyThatItGoesOn) {
  CallClock clock;
  clock.Begin(20);
  EXPECT_TRUE(clock.Stop());
  const Clock::time_point late = clock.sent() + std::chrono::hours(1);
  EXPECT_FALSE(clock.IsOver(late));
  EXPECT_FALSE(clock.IsToBeTold(late));
  EXPECT_GT(clock.due(), late);
  clock.LimitTo(milliseconds(10));
  EXPECT_TRUE(clock.IsOver(late)) << "an interrupt has its own time";
}

TEST(CallClock, WithoutALimitNothingStops) {
  CallClock clock;
  clock.Begin(0);
  EXPECT_FALSE(clock.Stop());
}

}  // namespace
}  // namespace hutch
