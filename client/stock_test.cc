#include "client/stock.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

HeldLease Held(uint64_t id) {
  return {.lease = Lease(id, "worker", Fd(), Fd(), Fd(), SegmentPool::Make())};
}

// Asks for what is missing, all of which comes.
size_t Refill(Stock& stock) {
  size_t came = 0;
  for (; stock.Missing() > 0; ++came) {
    stock.Asked();
    stock.Answered();
    stock.Add(Held(came + 1));
  }
  return came;
}

TEST(Stock, HasTwoAheadOfALoneCaller) {
  Stock stock;
  EXPECT_FALSE(stock.Take(false)) << "nothing was asked for yet";
  EXPECT_EQ(Refill(stock), 2u);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(stock.Take(false));
    EXPECT_EQ(Refill(stock), 1u);
  }
}

TEST(Stock, FollowsABurstAndForgetsIt) {
  Stock stock;
  Refill(stock);
  for (int i = 0; i < 10; ++i) {
    while (stock.Take(false)) {
    }
    stock.Asked();
    EXPECT_FALSE(stock.Take(false)) << "it was asked for, and is not there yet";
    stock.Answered();
    Refill(stock);
  }
  size_t ahead = 0;
  while (stock.Take(false)) ++ahead;
  EXPECT_EQ(ahead, Stock::kMostForBursts);
  Refill(stock);
  for (size_t i = 0; i < Stock::kHits * Stock::kMostForBursts; ++i) {
    ASSERT_TRUE(stock.Take(false));
    Refill(stock);
  }
  for (ahead = 0; stock.Take(false);) ++ahead;
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
  EXPECT_TRUE(stock.empty(false));
  EXPECT_FALSE(stock.Take(false)) << "a call that wants a fresh cell never gets a used one";
  stock.Add(Held(8));
  EXPECT_EQ(stock.Take(true)->lease.id(), 7u);
  EXPECT_EQ(stock.Take(true)->lease.id(), 8u) << "for want of a used one, a fresh one";
}

}  // namespace
}  // namespace hutch
