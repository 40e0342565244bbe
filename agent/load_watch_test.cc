// SPDX-License-Identifier: Apache-2.0

#include "agent/load_watch.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace hutch {
namespace {

using Armed = std::vector<std::pair<uint64_t, uint64_t>>;

TEST(LoadWatch, ArmsEachLoadOnceInOrderAndNotBeforeItsDelay) {
  Loop loop;
  Armed armed;
  const Clock::time_point begun = Clock::now();
  std::optional<LoadWatch> watch;
  watch.emplace(loop, [&](uint64_t cell, uint64_t cpu_ms) {
    armed.emplace_back(cell, cpu_ms);
    EXPECT_GE(Clock::now() - begun, LoadWatch::kDelay);
    if (cell == 1) watch->Add(3, 30);
    if (cell == 3) loop.Stop();
  });
  watch->Add(1, 10);
  watch->Add(2, 0);
  EXPECT_TRUE(armed.empty());
  loop.Run();
  EXPECT_EQ(armed, (Armed{{1, 10}, {2, 0}, {3, 30}}));
}

TEST(LoadWatch, ArmsNothingOnceItIsGone) {
  Loop loop;
  Armed armed;
  {
    LoadWatch watch(loop,
                    [&](uint64_t cell, uint64_t cpu_ms) { armed.emplace_back(cell, cpu_ms); });
    watch.Add(1, 10);
  }
  loop.After(2 * LoadWatch::kDelay, [&] { loop.Stop(); });
  loop.Run();
  EXPECT_TRUE(armed.empty());
}

}  // namespace
}  // namespace hutch
