// SPDX-License-Identifier: Apache-2.0

#include "client/waiting_calls.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace hutch {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

class WaitingCallsTest : public ::testing::Test {
 protected:
  void Add(uint64_t id, const std::string& key = "pool", Clock::duration patience = hours(1)) {
    auto call = std::make_unique<InFlightCall>();
    call->id = id;
    call->key = key;
    call->patience = now_ + patience;
    waiting_.Add(std::move(call));
  }
  std::vector<Acquire> Ask() {
    return waiting_.Ask(now_, [this] { return ++last_request_; });
  }
  uint64_t Take() {
    const auto call =
        waiting_.TakeFirst([](const std::string&, const InFlightCall&) { return true; });
    return call == nullptr ? 0 : call->id;
  }

  const Clock::time_point now_{hours(1)};
  uint64_t last_request_ = 0;
  WaitingCalls waiting_;
};

TEST_F(WaitingCallsTest, CallsOfAPoolGoInTheOrderInWhichTheyCame) {
  Add(1);
  Add(2);
  EXPECT_TRUE(waiting_.HasAny("pool"));
  EXPECT_FALSE(waiting_.HasAny("other"));
  auto first = waiting_.TakeFirst([](const std::string&, const InFlightCall&) { return true; });
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->id, 1u);
  waiting_.AddAgain(std::move(first));
  EXPECT_EQ(Take(), 1u) << "its cell ended before it began";
  EXPECT_EQ(Take(), 2u);
  EXPECT_EQ(Take(), 0u);
}

TEST_F(WaitingCallsTest, EachCallIsAskedForOnce) {
  Add(1, "pool", seconds(3));
  Add(2);
  const std::vector<Acquire> requests = Ask();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].queue_ms, 3000u);
  EXPECT_TRUE(Ask().empty());
  for (uint64_t id = 3; id < 200; ++id) Add(id);
  EXPECT_EQ(Ask().size() + 2, 64u);
}

TEST_F(WaitingCallsTest, ARefusalIsForTheCallThatWaitsAsLong) {
  Add(1, "pool", seconds(3));
  Add(2, "pool", seconds(5));
  const std::vector<Acquire> requests = Ask();
  const auto asked = waiting_.TakeRequest(requests[1].request);
  ASSERT_TRUE(asked);
  EXPECT_FALSE(waiting_.TakeRequest(requests[1].request)) << "it was answered";
  const auto refused = waiting_.TakeCallOf(*asked);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->id, 2u);
  EXPECT_EQ(waiting_.TakeCallOf(*asked), nullptr) << "nobody else is refused for it";
  EXPECT_EQ(Take(), 1u);
}

TEST_F(WaitingCallsTest, TheRequestsOfThoseWhoLeaveAreWithdrawn) {
  Add(1);
  Add(2);
  Add(3, "other");
  const std::vector<Acquire> requests = Ask();
  WaitingCalls::Left left = waiting_.TakeCancelled({2, 99});
  ASSERT_EQ(left.calls.size(), 1u);
  EXPECT_EQ(left.calls[0].call->id, 2u);
  EXPECT_EQ(left.calls[0].others, 1u);
  ASSERT_EQ(left.requests.size(), 1u);
  EXPECT_FALSE(waiting_.TakeRequest(left.requests[0]));
  left = waiting_.TakeAll();
  EXPECT_EQ(left.calls.size(), 2u);
  EXPECT_EQ(left.requests.size(), 2u);
  EXPECT_FALSE(waiting_.due());
}

TEST_F(WaitingCallsTest, OnlyThoseWhoseGraceIsOverHaveWaitedTooLong) {
  Add(1, "pool", seconds(3));
  Add(2, "pool", seconds(9));
  const auto due = waiting_.due();
  ASSERT_TRUE(due);
  EXPECT_GT(*due, now_ + seconds(3)) << "the agent may say so first";
  EXPECT_TRUE(waiting_.TakeExpired(now_ + seconds(3)).calls.empty());
  const WaitingCalls::Left left = waiting_.TakeExpired(*due);
  ASSERT_EQ(left.calls.size(), 1u);
  EXPECT_EQ(left.calls[0].call->id, 1u);
  EXPECT_GT(waiting_.due(), due);
}

}  // namespace
}  // namespace hutch
