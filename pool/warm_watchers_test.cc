// SPDX-License-Identifier: Apache-2.0

#include "pool/warm_watchers.h"

#include <gtest/gtest.h>

#include <string>

namespace hutch {
namespace {

TEST(WarmWatchers, EachIsCalledOnceWhenItsCellsAreParked) {
  WarmWatchers watchers;
  uint64_t two = 0, five = 0;
  watchers.AddForCells(2, [&](uint64_t ready, const Error*) { two += ready; });
  watchers.AddForCells(5, [&](uint64_t ready, const Error*) { five += ready; });
  EXPECT_EQ(watchers.most_cells(), 5u);
  watchers.OnCellsParked(1);
  watchers.OnCellsParked(3);
  watchers.OnCellsParked(4);
  EXPECT_EQ(two, 3u);
  EXPECT_EQ(five, 0u);
  watchers.OnCellsParked(5);
  EXPECT_EQ(five, 5u);
  EXPECT_TRUE(watchers.empty());
  EXPECT_EQ(watchers.most_cells(), 0u);
}

TEST(WarmWatchers, AWorkerIsNotYetAParkedCell) {
  WarmWatchers watchers;
  int workers = 0;
  watchers.AddForWorker([&](const Error* error) { workers += error == nullptr ? 1 : 0; });
  watchers.AddForCells(1, [](uint64_t, const Error*) { FAIL(); });
  watchers.OnWorkerReady();
  watchers.OnWorkerReady();
  EXPECT_EQ(workers, 1);
  EXPECT_TRUE(watchers.wait_for_cells());
}

TEST(WarmWatchers, AFailureReachesAllAndOneThatAsksAgainInsideWaitsAnew) {
  WarmWatchers watchers;
  std::string said;
  watchers.AddForWorker([&](const Error* error) {
    said += error->what();
    watchers.AddForWorker([](const Error*) {});
  });
  watchers.AddForCells(3, [&](uint64_t ready, const Error* error) {
    said += error->what() + std::to_string(ready);
  });
  watchers.Fail(2, Error(Code::kWorkerFailed, "no"));
  EXPECT_EQ(said, "nono2");
  EXPECT_FALSE(watchers.empty());
  EXPECT_FALSE(watchers.wait_for_cells());
}

}  // namespace
}  // namespace hutch
