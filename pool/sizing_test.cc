// SPDX-License-Identifier: Apache-2.0

#include "pool/sizing.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

using std::chrono::milliseconds;
using Time = ArrivalRate::Time;

constexpr SizingLimits kLimits{4, 64, 32};
constexpr uint64_t kPlenty = 32u << 20;  // of free memory, KiB

TEST(Sizing, DecidesByTheHostWhereTheCallerDoesNot) {
  EXPECT_EQ(ResolveSizing(-1, 0, 2, kPlenty).least, 4u);
  EXPECT_EQ(ResolveSizing(-1, 0, 2, kPlenty).most, 64u);
  EXPECT_EQ(ResolveSizing(-1, 0, 1, kPlenty).max_cells, 64u);
  EXPECT_EQ(ResolveSizing(-1, 0, 99, kPlenty).max_cells, 128u) << "a warden keeps books of 128";
}

TEST(Sizing, KeepsToTheCallersWishes) {
  const SizingLimits fixed = ResolveSizing(3, 5, 8, kPlenty);
  EXPECT_EQ(WantedDepth(fixed, 0), 3u);
  EXPECT_EQ(WantedDepth(fixed, 10'000), 3u)
      << "a depth that was asked for does not follow the rate";
  EXPECT_EQ(WantedDepth(ResolveSizing(0, 5, 8, kPlenty), 10'000), 0u);
  EXPECT_EQ(ResolveSizing(9, 5, 8, kPlenty).least, 5u) << "no more is kept than there may be";
  EXPECT_EQ(ResolveSizing(-1, 1, 8, kPlenty).most, 1u);
  EXPECT_EQ(ResolveSizing(-1, 4096, 8, kPlenty).max_cells, 4096u);
}

TEST(Sizing, ParkedCellsHaveAShareOfTheMemoryAndNoMore) {
  EXPECT_EQ(ResolveSizing(-1, 0, 2, 1 << 20).most, (1 << 20) / 20 / kParkedKb);
  EXPECT_EQ(ResolveSizing(-1, 0, 2, 1024).most, kLeastWarm) << "on the smallest host too";
  EXPECT_EQ(ResolveSizing(-1, 0, 2, 0).most, kMostWarm) << "not known";
}

TEST(Sizing, TheRateIsThatOfTheLastSeconds) {
  ArrivalRate rate;
  Time now{std::chrono::hours(1)};
  EXPECT_EQ(rate.PerSecond(now), 0);
  for (int i = 0; i < 6000; ++i) rate.Note(now += milliseconds(5));
  EXPECT_NEAR(rate.PerSecond(now), 200, 10);
  EXPECT_LT(rate.PerSecond(now + std::chrono::seconds(20)), 4);
}

TEST(Sizing, TheDepthFollowsTheRateFromFourTo64) {
  EXPECT_EQ(WantedDepth({4, 64, 128}, 0), 4u);
  EXPECT_EQ(WantedDepth({4, 64, 128}, 200), 14u);
  EXPECT_EQ(WantedDepth({4, 64, 128}, 1e9), 64u);
  EXPECT_EQ(WantedDepth({4, 8, 128}, 1000), 8u);
}

TEST(Sizing, BelowTheLowMarkCellsAreMadeAtOnce) {
  EXPECT_EQ(PlanRefill(kLimits, {.slots = 4, .free = 3, .ready = 1}, 4, false, 8).cells, 1u);
  EXPECT_EQ(PlanRefill(kLimits, {}, 4, false, 8).slots, 2u);
}

TEST(Sizing, BetweenTheMarksTheyWaitForQuiet) {
  const CellCounts counts{.slots = 4, .free = 2, .ready = 2};
  EXPECT_EQ(PlanRefill(kLimits, counts, 4, false, 8).cells, 0u);
  EXPECT_TRUE(PlanRefill(kLimits, counts, 4, false, 8).later);
  EXPECT_EQ(PlanRefill(kLimits, counts, 4, true, 8).cells, 2u);
  EXPECT_FALSE(PlanRefill(kLimits, counts, 4, true, 8).later);
}

TEST(Sizing, MakesTheWantedDepthAndNoMore) {
  EXPECT_EQ(PlanRefill(kLimits, {.slots = 4, .ready = 4}, 4, true, 8).slots, 0u);
  EXPECT_EQ(
      PlanRefill(kLimits, {.slots = 4, .making = 2, .coming = 1, .ready = 1}, 4, true, 8).slots,
      0u);
  EXPECT_EQ(PlanRefill(kLimits, {.slots = 6, .free = 2, .ready = 4}, 4, true, 8).cells, 0u);
}

TEST(Sizing, WhoWaitsIsServedWithoutQuiet) {
  const RefillPlan plan = PlanRefill(kLimits, {.slots = 3, .free = 2, .waiting = 5}, 0, false, 8);
  EXPECT_EQ(plan.cells, 2u);
  EXPECT_EQ(plan.slots, 3u);
}

TEST(Sizing, NeverPassesTheMostCells) {
  EXPECT_EQ(PlanRefill(kLimits, {.slots = 31, .waiting = 50}, 4, true, 99).slots, 1u);
  EXPECT_EQ(PlanRefill(kLimits, {.slots = 32, .waiting = 50}, 4, true, 99).slots, 0u);
  EXPECT_FALSE(PlanRefill(kLimits, {.slots = 32, .waiting = 50}, 4, true, 99).later)
      << "nothing can be done: no timer is set";
}

TEST(Sizing, ABurstIsNoStormOfForks) {
  const RefillPlan plan =
      PlanRefill({4, 64, 1000}, {.slots = 5, .free = 5, .waiting = 500}, 4, true, 8);
  EXPECT_EQ(plan.cells + plan.slots, 8u);
  EXPECT_EQ(
      PlanRefill({4, 64, 1000}, {.slots = 9, .making = 5, .coming = 3, .waiting = 500}, 4, true, 8)
          .slots,
      0u);
}

TEST(Sizing, UnderPressureFewerAreMadeAtOnceButNeverNone) {
  EXPECT_EQ(MakingAtOnce(2, 0), 6u);
  EXPECT_EQ(MakingAtOnce(2, 0.5), 4u);
  EXPECT_EQ(MakingAtOnce(2, 1), 2u);
  EXPECT_EQ(MakingAtOnce(1, 7), 1u);
  EXPECT_EQ(MakingAtOnce(64, -1), 192u);
}

TEST(Sizing, SlotsThatNobodyNeedsAreSurplus) {
  EXPECT_EQ(SurplusSlots({.slots = 40, .ready = 40}, 0, 4), 35u);
  EXPECT_EQ(SurplusSlots({.slots = 40, .ready = 20}, 20, 16), 0u);
  EXPECT_EQ(SurplusSlots({.slots = 5, .ready = 5}, 0, 4), 0u) << "one more than wanted is let be";
  EXPECT_EQ(SurplusSlots({.slots = 9, .waiting = 9}, 0, 0), 0u);
}

TEST(Sizing, APoolIsIdleOnlyWhenNobodyUsesOrWantsIt) {
  using std::chrono::duration;
  EXPECT_TRUE(PoolIsIdle(duration<double>(300), 300, 0, 0));
  EXPECT_FALSE(PoolIsIdle(duration<double>(299), 300, 0, 0));
  EXPECT_FALSE(PoolIsIdle(duration<double>(999), 300, 1, 0));
  EXPECT_FALSE(PoolIsIdle(duration<double>(999), 300, 0, 1));
}

TEST(Sizing, FewerWorkersThanCellsAreParked) {
  const SizingLimits limits = ResolveSingleUse(-1, 0, kPlenty);
  EXPECT_EQ(limits.least, 2u);
  EXPECT_EQ(limits.most, 16u);
  EXPECT_EQ(limits.max_cells, 32u);
  EXPECT_EQ(WantedDepth(limits, 5), 7u) << "what comes in a second is kept";
  EXPECT_EQ(ResolveSingleUse(-1, 0, 1 << 20).most, 2u)
      << "on a small host none is kept for the rate";
  EXPECT_EQ(ResolveSingleUse(-1, 0, 1 << 20).max_cells, 4u);
  EXPECT_EQ(ResolveSingleUse(0, 0, kPlenty).most, 0u);
  EXPECT_EQ(ResolveSingleUse(9, 5, kPlenty).least, 5u);
}

TEST(Sizing, TheHostBoundsWhatIsKeptWhereTheCallerAsksForNothing) {
  const SizingLimits one = ResolveSingleUse(-1, 0, kPlenty, 1);
  EXPECT_EQ(one.least, 1u);
  EXPECT_EQ(one.most, 1u);
  EXPECT_EQ(ResolveSingleUse(-1, 0, kPlenty, 0).most, 0u);
  EXPECT_EQ(ResolveSingleUse(-1, 0, kPlenty, 9).least, 2u);
  EXPECT_EQ(ResolveSingleUse(3, 0, kPlenty, 1).most, 3u) << "the caller has asked for them";
}

TEST(Sizing, WorkersHaveAShareOfTheHostsMemory) {
  EXPECT_EQ(MostWorkers(24u << 20), 96u);
  EXPECT_EQ(MostWorkers(512 << 10), 4u);
  EXPECT_EQ(MostWorkers(uint64_t{1} << 40), 128u);
}

TEST(CellUse, KeepsWhatWasAskedForWhateverTheRate) {
  CellUse use({2, 8, 16});
  const Time now{std::chrono::hours(1)};
  EXPECT_EQ(use.Depth(now, 0), 2u);
  EXPECT_EQ(use.Depth(now, 5), 5u);
  EXPECT_EQ(use.Depth(now, 99), 16u) << "there can be no more cells";
  use.KeepAtLeast(12);
  EXPECT_EQ(use.Depth(now, 0), 12u);
  use.KeepAtLeast(1);
  EXPECT_EQ(use.Depth(now, 0), 12u);
}

TEST(CellUse, IsQuietAMomentAfterTheLastLeaseOrRelease) {
  CellUse use({2, 64, 64});
  Time now{std::chrono::hours(1)};
  EXPECT_LE(use.UntilQuiet(now), Time::duration::zero());
  use.NoteLease(now);
  EXPECT_EQ(use.UntilQuiet(now), kQuiet);
  use.NoteRelease(now += milliseconds(1));
  EXPECT_EQ(use.UntilQuiet(now), kQuiet);
  EXPECT_LE(use.UntilQuiet(now + kQuiet), Time::duration::zero());
}

TEST(CellUse, LeasesRaiseTheDepthAndReleasesDoNot) {
  CellUse leases({4, 64, 64});
  CellUse releases({4, 64, 64});
  Time now{std::chrono::hours(1)};
  for (int i = 0; i < 2000; ++i) {
    leases.NoteLease(now += milliseconds(1));
    releases.NoteRelease(now);
  }
  EXPECT_GT(leases.Depth(now, 0), 10u);
  EXPECT_EQ(releases.Depth(now, 0), 4u);
}

}  // namespace
}  // namespace hutch
