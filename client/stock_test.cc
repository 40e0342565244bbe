// SPDX-License-Identifier: Apache-2.0

#include "client/stock.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

constexpr Sha256Digest kNone{};

HeldLease Held(uint64_t id) {
  return {.lease = Lease(id, "worker", Fd(), Fd(), Fd(), SegmentPool::Make())};
}

HeldLease Loaded(uint64_t id, const Sha256Digest& identity) {
  HeldLease held = Held(id);
  held.lease.loaded().SetOnly(identity);
  return held;
}

// Asks for what is missing, all of which comes.
size_t Refill(Stock& stock) {
  size_t came = 0;
  for (; stock.Missing() > 0; ++came) {
    stock.Asked(false);
    stock.Answered(false);
    stock.Add(Held(came + 1));
  }
  return came;
}

TEST(Stock, HasTwoAheadOfALoneCaller) {
  Stock stock;
  EXPECT_FALSE(stock.Take(false, kNone)) << "nothing was asked for yet";
  EXPECT_EQ(Refill(stock), 2u);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(stock.Take(false, kNone));
    EXPECT_EQ(Refill(stock), 1u);
  }
}

TEST(Stock, FollowsABurstAndForgetsIt) {
  Stock stock;
  Refill(stock);
  for (int i = 0; i < 10; ++i) {
    while (stock.Take(false, kNone)) {
    }
    stock.Asked(false);
    EXPECT_FALSE(stock.Take(false, kNone)) << "it was asked for, and is not there yet";
    stock.Answered(false);
    Refill(stock);
  }
  size_t ahead = 0;
  while (stock.Take(false, kNone)) ++ahead;
  EXPECT_EQ(ahead, Stock::kMostForBursts);
  Refill(stock);
  for (size_t i = 0; i < Stock::kHits * Stock::kMostForBursts; ++i) {
    ASSERT_TRUE(stock.Take(false, kNone));
    Refill(stock);
  }
  for (ahead = 0; stock.Take(false, kNone);) ++ahead;
  EXPECT_LE(ahead, Stock::kLeast + 1);
}

TEST(Stock, HasOneForEachCallUnderWayWithinItsBound) {
  Stock stock;
  for (size_t i = 0; i < 10; ++i) stock.Begun();
  EXPECT_EQ(Refill(stock), 11u);
  for (size_t i = 0; i < 1000; ++i) stock.Begun();
  EXPECT_EQ(Refill(stock), Stock::kMost - 11);
  for (size_t i = 0; i < 1010; ++i) stock.Over();
  EXPECT_EQ(stock.Missing(), 0u);
}

TEST(Stock, GivesASharedCellToSharedCallsOnly) {
  Stock stock;
  stock.Keep(Held(7));
  EXPECT_FALSE(stock.Has(false, kNone));
  EXPECT_FALSE(stock.Take(false, kNone)) << "a call that wants a fresh cell never gets a used one";
  stock.Add(Held(8));
  EXPECT_EQ(stock.Take(true, kNone)->lease.id(), 7u);
  EXPECT_EQ(stock.Take(true, kNone)->lease.id(), 8u) << "for want of a used one, a fresh one";
}

TEST(Stock, GivesALoadedCellToCallsOfItsIdentityOnly) {
  Stock stock;
  stock.Add(Loaded(1, {1}));
  EXPECT_FALSE(stock.Has(false, {2}));
  EXPECT_FALSE(stock.Has(true, {2}));
  EXPECT_FALSE(stock.Take(false, {2}));
  EXPECT_FALSE(stock.Take(true, {2}));
  EXPECT_FALSE(stock.Take(false, kNone));
  stock.Add(Held(2));
  EXPECT_EQ(stock.Take(false, {2})->lease.id(), 2u) << "an unloaded one is for any call";
  stock.Add(Held(3));
  EXPECT_EQ(stock.Take(false, {1})->lease.id(), 1u) << "its own comes before an unloaded one";
  EXPECT_EQ(stock.Take(false, {1})->lease.id(), 3u);
}

TEST(Stock, AsksForMoreWhereOnlyCellsOfOthersAreLeft) {
  Stock stock;
  stock.Add(Loaded(1, {1}));
  stock.Add(Loaded(2, {1}));
  EXPECT_EQ(stock.Missing(), 0u);
  EXPECT_FALSE(stock.Take(false, {2}));
  EXPECT_FALSE(stock.TakeUnwanted()) << "there is room for more";
  EXPECT_GT(stock.Missing(), 0u);
}

TEST(Stock, GivesUpLoadedCellsThatAreInTheWayOrForgotten) {
  Stock stock;
  for (uint64_t i = 1; i <= Stock::kMostForBursts; ++i) stock.Add(Loaded(i, {1}));
  EXPECT_FALSE(stock.Take(false, {2}));
  ASSERT_EQ(stock.TakeUnwanted()->lease.id(), 1u);
  EXPECT_FALSE(stock.TakeUnwanted()) << "one place is enough";
  for (size_t i = 0; i < Stock::kHits; ++i) {
    stock.Add(Held(100));
    ASSERT_TRUE(stock.Take(false, {2}));
  }
  EXPECT_EQ(stock.TakeUnwanted()->lease.id(), 2u) << "nobody has called that for long";
}

TEST(Stock, LoadsWhatIsCalledAgainAndKeepsAPlainOneWhereCallsDiffer) {
  Stock stock;
  EXPECT_FALSE(stock.ShouldLoad({1})) << "most programs run once";
  EXPECT_TRUE(stock.ShouldLoad({1}));
  for (uint8_t i = 2; i < 2 + Stock::kRecent; ++i) stock.ShouldLoad({i});
  EXPECT_FALSE(stock.ShouldLoad({1})) << "it is long ago";
  stock.Add(Loaded(1, {1}));
  EXPECT_FALSE(stock.Take(false, {2}));
  EXPECT_FALSE(stock.ShouldLoad({1})) << "the next one is to be for any call";
  stock.Asked(false);
  EXPECT_TRUE(stock.ShouldLoad({1}));
}

TEST(Stock, GivesUpTheOldestFirst) {
  Stock stock;
  stock.Keep(Held(1));
  stock.Add(Held(2));
  stock.Add(Loaded(3, {1}));
  EXPECT_EQ(stock.size(), 3u);
  EXPECT_EQ(stock.GiveUp().lease.id(), 2u);
  EXPECT_EQ(stock.GiveUp().lease.id(), 3u);
  EXPECT_EQ(stock.GiveUp().lease.id(), 1u) << "a cell that is warm is worth more than one ahead";
  EXPECT_EQ(stock.size(), 0u);
}

}  // namespace
}  // namespace hutch
