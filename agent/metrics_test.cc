// SPDX-License-Identifier: Apache-2.0

#include "agent/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace hutch {
namespace {

using std::chrono::seconds;

constexpr Clock::time_point kBegin{std::chrono::hours(1000)};

TEST(Histogram, HasNoQuantileOfNothing) {
  const Histogram histogram;
  EXPECT_FALSE(histogram.Quantile(0.5));
  EXPECT_EQ(histogram.CountUpTo(36), 0u);
}

TEST(Histogram, CountsWhatIsAtMostAPowerOfTwo) {
  for (unsigned exponent = 0; exponent <= 36; ++exponent) {
    const uint64_t bound = uint64_t{1} << exponent;
    Histogram histogram;
    histogram.Add(bound);
    EXPECT_EQ(histogram.CountUpTo(exponent), 1u) << "a bound belongs to its own bucket: " << bound;
    histogram.Add(bound + 1);
    EXPECT_EQ(histogram.CountUpTo(exponent), 1u) << bound;
    if (exponent > 1) {
      EXPECT_EQ(histogram.CountUpTo(exponent - 1), 0u) << bound;
    }
  }
}

TEST(Histogram, TakesAnyNumber) {
  Histogram histogram;
  histogram.Add(0);
  histogram.Add(UINT64_MAX / 4);
  EXPECT_EQ(histogram.count(), 2u);
  EXPECT_EQ(histogram.CountUpTo(0), 1u);
  EXPECT_EQ(histogram.sum_us(), UINT64_MAX / 4);
  EXPECT_GT(*histogram.Quantile(1), 1e11);
}

TEST(Histogram, ItsQuantilesAreAtMostAQuarterOff) {
  std::mt19937_64 engine(42);
  std::lognormal_distribution<> durations(6, 2.5);
  Histogram histogram;
  std::vector<uint64_t> all;
  for (int i = 0; i < 10'000; ++i) {
    all.push_back(static_cast<uint64_t>(durations(engine)) + 1);
    histogram.Add(all.back());
  }
  std::ranges::sort(all);
  for (const double q : {0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = std::max<size_t>(1, static_cast<size_t>(std::ceil(q * 10'000)));
    const auto exact = static_cast<double>(all[rank - 1]);
    EXPECT_LE(*histogram.Quantile(q), exact * 1.25) << q;
    EXPECT_GE(*histogram.Quantile(q), exact / 1.25) << q;
  }
}

TEST(Histogram, AddsUp) {
  Histogram one;
  Histogram other;
  one.Add(10);
  other.Add(1000);
  one += other;
  EXPECT_EQ(one.count(), 2u);
  EXPECT_EQ(one.sum_us(), 1010u);
  EXPECT_EQ(one.CountUpTo(4), 1u);
}

TEST(RecentHistogram, ForgetsWhatIsOld) {
  RecentHistogram recent;
  recent.Add(5, kBegin);
  EXPECT_EQ(recent.Get(kBegin + RecentHistogram::kSpan).count(), 1u);
  recent.Add(5, kBegin + RecentHistogram::kSpan);
  EXPECT_EQ(recent.Get(kBegin + RecentHistogram::kSpan).count(), 2u);
  EXPECT_EQ(recent.Get(kBegin + 2 * RecentHistogram::kSpan).count(), 1u);
  EXPECT_EQ(recent.Get(kBegin + 9 * RecentHistogram::kSpan).count(), 0u);
}

TEST(Rate, IsOverWholeSecondsThatArePast) {
  Rate rate;
  for (int i = 0; i < 50; ++i) rate.Add(kBegin);
  EXPECT_EQ(rate.PerSecond(kBegin), 0) << "this second is not over";
  EXPECT_EQ(rate.PerSecond(kBegin + seconds(1)), 5);
  rate.Add(kBegin + seconds(5));
  EXPECT_DOUBLE_EQ(rate.PerSecond(kBegin + seconds(10)), 5.1);
  EXPECT_DOUBLE_EQ(rate.PerSecond(kBegin + seconds(11)), 0.1);
  EXPECT_EQ(rate.PerSecond(kBegin + seconds(100'000)), 0);
}

TEST(PoolMetrics, CountEachCallOnce) {
  PoolMetrics metrics;
  metrics.Add({Ending::kReturned, 1, 20, 300, 4000}, true, kBegin);
  metrics.Add({Ending::kLimitMemory, 10, 20, 30, 40}, false, kBegin);
  metrics.AddAbandoned(true, kBegin);
  EXPECT_EQ(metrics.calls(), 3u);
  EXPECT_EQ(metrics.hits, 2u);
  EXPECT_EQ(metrics.misses, 1u);
  EXPECT_EQ(metrics.total.count(), 2u) << "how long the abandoned one took is not known";
  EXPECT_EQ(metrics.total.sum_us(), 4321u + 100u);
  EXPECT_EQ(metrics.queue.sum_us() + metrics.send.sum_us() + metrics.run.sum_us() +
                metrics.receive.sum_us(),
            metrics.total.sum_us());
  EXPECT_EQ(metrics.endings[static_cast<size_t>(Ending::kLimitMemory)], 1u);
}

TEST(Endings, AreTheStatusesThatOutcomesHave) {
  EXPECT_STREQ(StatusOf(Ending::kReturned), "returned");
  EXPECT_STREQ(StatusOf(Ending::kLimitResult), "limit");
  EXPECT_STREQ(LimitOf(Ending::kLimitResult), "result");
  EXPECT_STREQ(LimitOf(Ending::kDied), "");
}

TEST(Endings, FollowFromWhatTheWardenSays) {
  EXPECT_EQ(EndingOf(CellReport{.limit = kLimitMemory}), Ending::kLimitMemory);
  EXPECT_EQ(EndingOf(CellReport{.signal = 11}), Ending::kDied);
  EXPECT_EQ(EndingOf(CellReport{.exit_code = 0}), Ending::kDied);
  EXPECT_EQ(EndingOf(CellReport{.memory_limit_kb = 1}), Ending::kDied)
      << "it lived on after it had closed its socket";
  EXPECT_EQ(EndingOf(CellReport{}), Ending::kFault) << "nobody knows";
  EXPECT_EQ(EndingOf(CellReport{.end = kLost, .memory_limit_kb = 1}), Ending::kFault);
}

}  // namespace
}  // namespace hutch
