// SPDX-License-Identifier: Apache-2.0

#include "images/warden/ticker.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "images/warden/clock.h"

namespace hutch {
namespace {

TEST(Ticker, ComesAgainAndAgainWhileThereIsSomethingToWatch) {
  Ticker ticker;
  ticker.Open();
  for (int i = 0; i < 5; ++i) {
    ticker.Set(true);
    EXPECT_FALSE(ticker.Take());
    pollfd event{ticker.fd(), POLLIN, 0};
    ASSERT_EQ(poll(&event, 1, 30'000), 1);
    EXPECT_TRUE(ticker.Take());
    EXPECT_FALSE(ticker.Take()) << "once";
  }
}

TEST(Ticker, TellsForHowLongNobodyHadTime) {
  Ticker ticker;
  ticker.Open();
  ticker.Set(false);
  const int64_t now = NowUs() + 1'000'000;
  EXPECT_EQ(ticker.HeldUpUs(now), 0);
  EXPECT_EQ(ticker.HeldUpUs(now + 1'050'000), 0) << "a little late is not held up";
  EXPECT_EQ(ticker.HeldUpUs(now + 4'050'000), 2'000'000);
}

}  // namespace
}  // namespace hutch
