#include "pool/sizing.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

constexpr SizingLimits kLimits{2, 8};

TEST(Sizing, DecidesByTheHostWhereTheCallerDoesNot) {
  EXPECT_EQ(ResolveSizing(-1, 0, 1).warm, 2u);
  EXPECT_EQ(ResolveSizing(-1, 0, 1).max_cells, 32u);
  EXPECT_EQ(ResolveSizing(-1, 0, 8).warm, 9u);
  EXPECT_EQ(ResolveSizing(-1, 0, 8).max_cells, 128u);
}

TEST(Sizing, KeepsToTheCallersWishes) {
  EXPECT_EQ(ResolveSizing(0, 5, 8).warm, 0u);
  EXPECT_EQ(ResolveSizing(3, 5, 8).warm, 3u);
  EXPECT_EQ(ResolveSizing(9, 5, 8).warm, 5u) << "no more is kept warm than there may be";
  EXPECT_EQ(ResolveSizing(-1, 1, 8).warm, 1u);
}

TEST(Sizing, MakesTheWarmStockAndNoMore) {
  EXPECT_EQ(SlotsToAdd(kLimits, {}), 2u);
  EXPECT_EQ(SlotsToAdd(kLimits, {.slots = 1, .ready = 1}), 1u);
  EXPECT_EQ(SlotsToAdd(kLimits, {.slots = 2, .ready = 2}), 0u);
  EXPECT_EQ(SlotsToAdd(kLimits, {.slots = 2, .making = 2}), 0u);
  EXPECT_EQ(SlotsToAdd(kLimits, {.slots = 2, .coming = 2}), 0u);
}

TEST(Sizing, AddsForEveryCallerWhoWaits) {
  EXPECT_EQ(SlotsToAdd(kLimits, {.slots = 2, .ready = 0, .coming = 0, .waiting = 1}), 3u);
  EXPECT_EQ(SlotsToAdd(kLimits, {.slots = 2, .coming = 2, .waiting = 1}), 1u);
}

TEST(Sizing, NeverPassesTheMostCells) {
  EXPECT_EQ(SlotsToAdd(kLimits, {.slots = 7, .waiting = 50}), 1u);
  EXPECT_EQ(SlotsToAdd(kLimits, {.slots = 8, .waiting = 50}), 0u);
  EXPECT_EQ(SlotsToAdd(kLimits, {.slots = 9, .waiting = 50}), 0u);
  EXPECT_EQ(SlotsToAdd({100, 8}, {.slots = 8}), 0u);
}

TEST(Sizing, ABurstIsNoStormOfForks) {
  EXPECT_EQ(SlotsToAdd({2, 1000}, {.waiting = 500}), kSlotsAtOnce);
  EXPECT_EQ(SlotsToAdd({2, 1000}, {.slots = 3, .making = 3, .waiting = 500}), kSlotsAtOnce - 3);
  EXPECT_EQ(SlotsToAdd({2, 1000}, {.slots = 9, .making = 9, .waiting = 500}), 0u);
}

TEST(Sizing, APoolIsIdleOnlyWhenNobodyUsesOrWantsIt) {
  using std::chrono::duration;
  EXPECT_TRUE(PoolIsIdle(duration<double>(300), 300, 0, 0));
  EXPECT_FALSE(PoolIsIdle(duration<double>(299), 300, 0, 0));
  EXPECT_FALSE(PoolIsIdle(duration<double>(999), 300, 1, 0));
  EXPECT_FALSE(PoolIsIdle(duration<double>(999), 300, 0, 1));
}

}  // namespace
}  // namespace hutch
