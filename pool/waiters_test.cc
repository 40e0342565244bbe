// SPDX-License-Identifier: Apache-2.0

#include "pool/waiters.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace hutch {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

class WaitersTest : public ::testing::Test {
 protected:
  WaitersTest() {
    waiters_.emplace(loop_, in_all_, 4, [this](Clock::duration waited) {
      return waiters_->Busy("too late", "", waited);
    });
  }
  uint64_t Add(uint64_t caller, Clock::duration patience = hours(1), bool ahead = false) {
    const uint64_t ticket = waiters_->NextTicket();
    waiters_->Add(ticket, now_, caller, patience, ahead,
                  {now_, [this, caller](LeasedCell) { served_.push_back(caller); },
                   [this](const Error& error) { refusals_.push_back(error); }});
    return ticket;
  }
  bool ServeNext() {
    const auto waiter = waiters_->Next(now_, [](uint64_t) { return true; });
    if (waiter) waiter->granted({});
    return waiter.has_value();
  }

  Loop loop_;
  QueuesInAll in_all_;
  std::optional<Waiters> waiters_;
  Clock::time_point now_{hours(1)};
  std::vector<uint64_t> served_;
  std::vector<Error> refusals_;
};

TEST_F(WaitersTest, EachIsCalledExactlyOnce) {
  Add(1);
  Add(2);
  EXPECT_TRUE(ServeNext());
  waiters_->RefuseAll(Error(Code::kUnavailable, "the end"));
  EXPECT_FALSE(ServeNext());
  EXPECT_EQ(served_.size() + refusals_.size(), 2u);
  EXPECT_TRUE(waiters_->empty());
  EXPECT_EQ(in_all_.waiting, 0u);
}

TEST_F(WaitersTest, OneThatIsForgottenIsNeverCalled) {
  waiters_->Forget(Add(1));
  waiters_->Forget(12345);
  EXPECT_FALSE(ServeNext());
  EXPECT_TRUE(served_.empty() && refusals_.empty());
}

TEST_F(WaitersTest, ThoseWhoAreLateAreRefusedWithTheTimeTheyWaited) {
  Add(1, milliseconds(500));
  Add(2, hours(1));
  waiters_->RefuseLate(now_ += milliseconds(499));
  EXPECT_TRUE(refusals_.empty());
  waiters_->RefuseLate(now_ += milliseconds(1));
  ASSERT_EQ(refusals_.size(), 1u);
  EXPECT_EQ(refusals_[0].code(), Code::kBusy);
  EXPECT_EQ(refusals_[0].figures().at("waited_sec"), 0.5);
  EXPECT_EQ(refusals_[0].figures().at("queued"), 1) << "without the one that is refused";
  EXPECT_EQ(refusals_[0].figures().at("capacity"), 4);
}

TEST_F(WaitersTest, OneWithNoPatienceIsServedWhereACellIsReady) {
  Add(1, Clock::duration::zero());
  waiters_->RefuseLate(now_);
  EXPECT_TRUE(ServeNext());
}

TEST_F(WaitersTest, ThePatienceOfAThousandYearsDoesNotOverflow) {
  Add(1, Clock::duration::max());
  waiters_->RefuseLate(now_ + hours(24 * 364));
  EXPECT_TRUE(refusals_.empty());
}

TEST_F(WaitersTest, SaysWhichQueueIsFull) {
  in_all_.capacity = 1;
  EXPECT_FALSE(waiters_->WhyFull(1, false));
  Add(1);
  const auto full = waiters_->WhyFull(1, false);
  ASSERT_TRUE(full);
  EXPECT_EQ(full->code(), Code::kBusy);
  EXPECT_NE(std::string(full->what()).find("all pools"), std::string::npos);
  EXPECT_FALSE(waiters_->WhyFull(2, false)) << "a caller with no place has one left";
  EXPECT_FALSE(waiters_->WhyFull(1, true)) << "those who look ahead have places of their own";
}

TEST_F(WaitersTest, RefusesAtOnceWhoWouldWaitTwiceAsLongAsItMay) {
  for (int i = 0; i < 200; ++i) Add(1);
  for (int i = 0; i < 100; ++i, now_ += milliseconds(10)) ServeNext();
  // A hundred are before it, 10 ms each.
  EXPECT_TRUE(waiters_->WhyTooLate(1, milliseconds(499)));
  EXPECT_FALSE(waiters_->WhyTooLate(1, milliseconds(501)));
  EXPECT_FALSE(waiters_->WhyTooLate(2, milliseconds(499))) << "its turn comes after one other";
}

TEST_F(WaitersTest, TheTimerRefusesAtTheEarliestDeadline) {
  now_ = Clock::now();
  waiters_->WatchDeadline(Add(1, hours(1)));
  waiters_->WatchDeadline(Add(2, milliseconds(1)));
  while (refusals_.empty()) {
    loop_.After(milliseconds(1), [this] { loop_.Stop(); });
    loop_.Run();
  }
  EXPECT_EQ(waiters_->waiting(), 1u);
}

}  // namespace
}  // namespace hutch
