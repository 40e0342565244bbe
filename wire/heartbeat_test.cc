// SPDX-License-Identifier: Apache-2.0

#include "wire/heartbeat.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

using std::chrono::duration;
using std::chrono::hours;
using Next = Heartbeat::Next;

constexpr duration<double> kInTime(0.001);

unsigned LooksUntilGivenUp(unsigned worth) {
  Heartbeat heart;
  for (unsigned looks = 1; looks < 1000; ++looks) {
    if (heart.Look(worth) == Next::kGiveUp) return looks;
  }
  return 0;
}

TEST(Heartbeat, OneWhoAnswersIsAskedAtEachLook) {
  Heartbeat heart;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(heart.Look(kWholeLook), Next::kAsk);
    EXPECT_TRUE(heart.Answered());
  }
}

TEST(Heartbeat, SilenceOfThreeLooksIsEnough) {
  EXPECT_EQ(LooksUntilGivenUp(WorthOfLook(kInTime, 0)), 4u);
}

TEST(Heartbeat, AnAnswerThatComesLateWipesTheSilenceOut) {
  Heartbeat heart;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(heart.Look(kWholeLook), Next::kAsk);
    EXPECT_EQ(heart.Look(kWholeLook), Next::kWait);
    EXPECT_EQ(heart.Look(kWholeLook), Next::kWait);
    EXPECT_TRUE(heart.Answered());
  }
}

TEST(Heartbeat, UnderPressureTheSilenceMustBeLonger) {
  EXPECT_EQ(LooksUntilGivenUp(WorthOfLook(kInTime, 1)), 10u);
  EXPECT_EQ(LooksUntilGivenUp(WorthOfLook(duration<double>(0.1), 0)), 10u);
}

TEST(Heartbeat, WhereTheAskerStoodStillNobodyIsSilent) {
  EXPECT_EQ(WorthOfLook(duration<double>(0.6), 0), 0u);
  EXPECT_EQ(WorthOfLook(hours(8), 0), 0u);  // a laptop's night
  EXPECT_EQ(LooksUntilGivenUp(0), 0u);
}

TEST(Heartbeat, AnAnswerToNoQuestionIsNone) {
  Heartbeat heart;
  EXPECT_FALSE(heart.Answered());
  heart.Look(kWholeLook);
  EXPECT_TRUE(heart.Answered());
  EXPECT_FALSE(heart.Answered());
}

}  // namespace
}  // namespace hutch
