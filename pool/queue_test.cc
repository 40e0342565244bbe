// SPDX-License-Identifier: Apache-2.0

#include "pool/queue.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace hutch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class QueueTest : public ::testing::Test {
 protected:
  static Queue::Time At(int ms) { return Queue::Time(milliseconds(ms)); }
  static bool Anybody(uint64_t) { return true; }

  uint64_t Add(uint64_t caller, bool ahead = false, int deadline_ms = 1'000'000) {
    queue_.Add({++ticket_, caller, ahead, At(now_ms_), At(deadline_ms)});
    return ticket_;
  }
  // Whose turn it is; 0: nobody's.
  uint64_t Next() {
    const auto place = queue_.Next(At(now_ms_), Anybody);
    return place ? place->caller : 0;
  }
  std::vector<uint64_t> Order() {
    std::vector<uint64_t> order;
    while (const uint64_t caller = Next()) order.push_back(caller);
    return order;
  }

  QueuesInAll in_all_;
  Queue queue_{4, in_all_};
  uint64_t ticket_ = 0;
  int now_ms_ = 0;
};

using Callers = std::vector<uint64_t>;

TEST_F(QueueTest, ServesACallersOwnInTheOrderInWhichTheyCame) {
  const uint64_t tickets[] = {Add(1), Add(1), Add(1)};
  for (const uint64_t ticket : tickets) EXPECT_EQ(queue_.Next(At(0), Anybody)->ticket, ticket);
  EXPECT_FALSE(queue_.Next(At(0), Anybody));
}

TEST_F(QueueTest, ServesCallersInTurn) {
  for (int i = 0; i < 3; ++i) Add(1);
  for (int i = 0; i < 2; ++i) Add(2);
  Add(9);
  EXPECT_EQ(Order(), (Callers{1, 2, 9, 1, 2, 1}));
}

TEST_F(QueueTest, OneCallWaitsForOneOfAThousand) {
  for (int i = 0; i < 1000; ++i) Add(5);
  EXPECT_EQ(Next(), 5u);
  for (const uint64_t newcomer : {7u, 3u}) {
    Add(newcomer);
    const Callers two{Next(), Next()};
    EXPECT_NE(std::ranges::find(two, newcomer), two.end());
  }
}

TEST_F(QueueTest, WhoLooksAheadComesLastAndInTurnToo) {
  Add(1, true);
  Add(1, true);
  Add(2, true);
  Add(2);
  EXPECT_EQ(Order(), (Callers{2, 1, 2, 1}));
}

TEST_F(QueueTest, PassesOverWhoMayTakeNoMore) {
  Add(1);
  Add(2);
  const auto two_only = [](uint64_t caller) { return caller == 2; };
  EXPECT_EQ(queue_.Next(At(0), two_only)->caller, 2u);
  EXPECT_FALSE(queue_.Next(At(0), two_only));
  EXPECT_EQ(queue_.waiting(), 1u);
}

TEST_F(QueueTest, AFullQueueHasAPlaceForWhoHasNone) {
  for (int i = 0; i < 4; ++i) Add(1);
  EXPECT_EQ(queue_.IsFull(1, false), Queue::Full::kQueue);
  EXPECT_EQ(queue_.IsFull(2, false), Queue::Full::kNo);
  Add(2);
  EXPECT_EQ(queue_.IsFull(2, false), Queue::Full::kQueue);
  EXPECT_EQ(queue_.IsFull(1, true), Queue::Full::kNo) << "it takes nobody's place";
  Next();
  Next();
  EXPECT_EQ(queue_.IsFull(1, false), Queue::Full::kNo);
}

TEST_F(QueueTest, WhoLooksAheadIsBoundedToo) {
  for (size_t i = 0; i < kMaxAhead; ++i) Add(1, true);
  EXPECT_EQ(queue_.IsFull(1, true), Queue::Full::kQueue);
  EXPECT_EQ(queue_.IsFull(1, false), Queue::Full::kNo);
  EXPECT_EQ(queue_.IsFull(2, true), Queue::Full::kNo);
}

TEST_F(QueueTest, AllQueuesTogetherAreBounded) {
  in_all_.capacity = 3;
  {
    Queue other(4, in_all_);
    for (uint64_t ticket = 1; ticket <= 2; ++ticket) other.Add({ticket, 1, false, At(0), At(1)});
    Add(1);
    EXPECT_EQ(queue_.IsFull(1, false), Queue::Full::kAgent);
    EXPECT_EQ(queue_.IsFull(2, false), Queue::Full::kNo);
    const Queue unused(4, in_all_);
    EXPECT_EQ(unused.IsFull(1, false), Queue::Full::kAgent) << "it waits elsewhere";
    EXPECT_EQ(unused.IsFull(1, true), Queue::Full::kNo);
  }
  EXPECT_EQ(queue_.IsFull(1, false), Queue::Full::kNo) << "the other queue is gone";
  EXPECT_EQ(in_all_.waiting, 1u);
  EXPECT_EQ(in_all_.by_caller, (std::map<uint64_t, size_t>{{1, 1}}));
}

TEST_F(QueueTest, TakesTheLateOnesAndNoOther) {
  const uint64_t late = Add(1, false, 10);
  Add(1, false, 30);
  const uint64_t late_too = Add(2, true, 5);
  EXPECT_EQ(queue_.next_deadline(), At(5));
  EXPECT_TRUE(queue_.TakeLate(At(4)).empty());
  const auto taken = queue_.TakeLate(At(10));
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].ticket, late_too);
  EXPECT_EQ(taken[1].ticket, late);
  EXPECT_EQ(queue_.next_deadline(), At(30));
  EXPECT_EQ(queue_.waiting(), 1u);
}

TEST_F(QueueTest, RemovesWhoGaveUp) {
  const uint64_t first = Add(1);
  Add(1);
  EXPECT_TRUE(queue_.Remove(first));
  EXPECT_FALSE(queue_.Remove(first));
  EXPECT_EQ(Order(), (Callers{1}));
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(in_all_.waiting, 0u);
  EXPECT_TRUE(in_all_.by_caller.empty());
  EXPECT_FALSE(queue_.next_deadline());
}

TEST_F(QueueTest, TakesAllInTheOrderInWhichTheyCame) {
  const uint64_t tickets[] = {Add(3), Add(1, true), Add(2)};
  const auto all = queue_.TakeAll();
  ASSERT_EQ(all.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(all[i].ticket, tickets[i]);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(QueueTest, TellsHowLongANewcomerWouldWait) {
  for (int i = 0; i < 200; ++i) Add(1);
  EXPECT_FALSE(queue_.Outlook(1)) << "nobody was served yet";
  for (int i = 0; i < 100; ++i, now_ms_ += 10) Next();
  ASSERT_TRUE(queue_.Outlook(1));
  EXPECT_EQ(*queue_.Outlook(1), milliseconds(1000)) << "a hundred before it, 10 ms each";
  EXPECT_EQ(*queue_.Outlook(2), milliseconds(10)) << "its turn comes after one of the other";
}

TEST_F(QueueTest, ForgetsThePaceOnceItWasEmpty) {
  for (int i = 0; i < 50; ++i) Add(1);
  for (int i = 0; i < 50; ++i, now_ms_ += 10'000) Next();
  for (int i = 0; i < 50; ++i) Add(1);
  EXPECT_FALSE(queue_.Outlook(1)) << "what was slow then says nothing about now";
}

}  // namespace
}  // namespace hutch
