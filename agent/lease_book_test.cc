// SPDX-License-Identifier: Apache-2.0

#include "agent/lease_book.h"

#include <gtest/gtest.h>

#include <vector>

namespace hutch {
namespace {

constexpr uint64_t kPeer = 7;

class LeaseBookTest : public ::testing::Test {
 protected:
  LeaseBookTest() { book_.AddPeer(kPeer, table_.data()); }

  LeaseRecord& Add(uint64_t cell, bool ahead = false) {
    return book_.Add(cell, {.pool = "key", .peer = kPeer, .ahead = ahead});
  }
  void Mark(uint64_t cell, LeaseMark mark) {
    table_[book_.Find(cell)->table_slot] = MarkOf(cell, mark);
  }

  std::vector<uint32_t> table_ = std::vector<uint32_t>(2 * kLeaseTableSlots);
  LeaseBook book_;
};

TEST_F(LeaseBookTest, ANewLeaseIsIdleInItsOwnSlot) {
  const uint32_t first = Add(1).table_slot;
  const uint32_t second = Add(2).table_slot;
  EXPECT_NE(first, second);
  EXPECT_EQ(table_[first], MarkOf(1, kLeaseIdle));
  EXPECT_EQ(table_[second], MarkOf(2, kLeaseIdle));
  EXPECT_EQ(book_.FindOf(kPeer, 1), book_.Find(1));
  EXPECT_EQ(book_.FindOf(kPeer + 1, 1), nullptr) << "another client's lease";
}

TEST_F(LeaseBookTest, ATableHasAsManyLeasesAsSlotsAndSaysWhenOneIsFreeAgain) {
  for (uint64_t cell = 1; cell <= kLeaseTableSlots; ++cell) {
    ASSERT_TRUE(book_.HasFreeSlot(kPeer));
    Add(cell);
  }
  EXPECT_FALSE(book_.HasFreeSlot(kPeer));
  EXPECT_TRUE(book_.Remove(5));
  EXPECT_TRUE(book_.HasFreeSlot(kPeer));
  EXPECT_FALSE(book_.Remove(6)) << "there was a free slot already";
  EXPECT_FALSE(book_.Remove(6)) << "it is not there";
  EXPECT_FALSE(book_.HasFreeSlot(kPeer + 1)) << "an unknown client has none";
}

TEST_F(LeaseBookTest, ReclaimsALeaseThatIsIdleAndNoneThatIsUsed) {
  LeaseRecord& idle = Add(1, true);
  LeaseRecord& used = Add(2, true);
  Mark(2, kLeaseUsed);
  EXPECT_FALSE(book_.Reclaim(2, used));
  EXPECT_FALSE(used.releasing);
  EXPECT_TRUE(book_.IsMarked(2, used, kLeaseUsed));
  EXPECT_TRUE(book_.Reclaim(1, idle));
  EXPECT_TRUE(idle.releasing);
  EXPECT_TRUE(book_.IsMarked(1, idle, kLeaseReclaimed));
  EXPECT_FALSE(book_.Reclaim(1, idle)) << "once";
}

TEST_F(LeaseBookTest, AMarkOfThisSlotsLastLeaseIsNotBelieved) {
  const uint32_t slot = Add(1).table_slot;
  book_.Remove(1);
  LeaseRecord& next = Add(2, true);
  ASSERT_EQ(next.table_slot, slot);
  table_[slot] = MarkOf(1, kLeaseIdle);
  EXPECT_FALSE(book_.Reclaim(2, next));
}

TEST_F(LeaseBookTest, OffersALeaseThatWasGivenForACallAndStaysIdle) {
  LeaseRecord& idle = Add(1);
  LeaseRecord& used = Add(2);
  Mark(2, kLeaseUsed);
  for (unsigned tick = 1; tick < LeaseBook::kTicksToBegin; ++tick) book_.OfferUnused();
  EXPECT_FALSE(idle.ahead);
  book_.OfferUnused();
  EXPECT_TRUE(idle.ahead);
  EXPECT_FALSE(used.ahead);
}

TEST_F(LeaseBookTest, LeavesTheTableOfAClientThatIsGoneAlone) {
  LeaseRecord& lease = Add(1, true);
  EXPECT_EQ(book_.RemovePeer(kPeer), std::set<uint64_t>{1});
  table_.clear();
  table_.shrink_to_fit();
  EXPECT_FALSE(book_.Reclaim(1, lease));
  EXPECT_FALSE(book_.IsMarked(1, lease, kLeaseIdle));
  for (unsigned tick = 0; tick <= LeaseBook::kTicksToBegin; ++tick) book_.OfferUnused();
  book_.KeepEnded(kPeer, 1, {"key", false, Ending::kDied, {}});
  EXPECT_EQ(book_.TakeEnded(kPeer, 1), std::nullopt);
  EXPECT_FALSE(book_.Remove(1));
  EXPECT_EQ(book_.size(), 0u);
  EXPECT_TRUE(book_.RemovePeer(kPeer).empty());
}

TEST_F(LeaseBookTest, GivesOutWhatBecameOfAnEndedLeaseOnceAndKeepsTheNewest) {
  for (uint64_t cell = 1; cell <= kLeaseTableSlots + 1; ++cell)
    book_.KeepEnded(kPeer, cell, {"key", cell % 2 == 0, Ending::kLimitMemory, {}});
  EXPECT_EQ(book_.TakeEnded(kPeer, 1), std::nullopt) << "the oldest gave way";
  const std::optional<EndedLease> ended = book_.TakeEnded(kPeer, 2);
  ASSERT_TRUE(ended);
  EXPECT_TRUE(ended->held_ahead);
  EXPECT_EQ(ended->ending, Ending::kLimitMemory);
  EXPECT_EQ(book_.TakeEnded(kPeer, 2), std::nullopt);
}

}  // namespace
}  // namespace hutch
