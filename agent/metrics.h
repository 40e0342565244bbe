// SPDX-License-Identifier: Apache-2.0

// What the agent counts: calls by how they ended, where their time went, and how fast they come.
//
// Plain values that belong to the loop's thread; time comes in as an argument. Adding a call
// allocates nothing. All counts start at zero with the agent.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "loop/loop.h"
#include "wire/message.h"

namespace hutch {

// Counts of durations in microseconds, in buckets that grow by a quarter of a power of two: from
// 1 us to 38 hours, so a quantile is at most a quarter off. Each power of two is the inclusive
// upper bound of a bucket, as Prometheus expects.
class Histogram {
 public:
  static constexpr size_t kBuckets = 144;

  void Add(uint64_t us);
  uint64_t count() const { return count_; }
  uint64_t sum_us() const { return sum_us_; }
  // The number of durations of at most 2^exponent microseconds. REQUIRES: exponent <= 36.
  uint64_t CountUpTo(unsigned exponent) const;
  // In microseconds; at most a quarter off. nullopt: there are none. REQUIRES: 0 <= q <= 1.
  std::optional<double> Quantile(double q) const;
  Histogram& operator+=(const Histogram& other);

 private:
  std::array<uint64_t, kBuckets> buckets_{};
  uint64_t count_ = 0;
  uint64_t sum_us_ = 0;
};

// A histogram of what was added in the last kSpan to 2 * kSpan.
class RecentHistogram {
 public:
  static constexpr auto kSpan = std::chrono::minutes(5);

  void Add(uint64_t us, Clock::time_point now);
  Histogram Get(Clock::time_point now);

 private:
  void Turn(Clock::time_point now);

  Histogram current_, before_;
  Clock::time_point since_{};
};

// Events per second, over the last kSeconds whole seconds.
class Rate {
 public:
  static constexpr int64_t kSeconds = 10;

  void Add(Clock::time_point now);
  double PerSecond(Clock::time_point now);

 private:
  void Turn(int64_t second);

  std::array<uint64_t, kSeconds + 1> counts_{};  // by second, with the current one
  int64_t second_ = 0;                           // the current one
};

inline constexpr size_t kEndings = static_cast<size_t>(Ending::kUntold);
const char* StatusOf(Ending ending);  // "returned" "raised" "limit" "died" "cancelled" "fault"
const char* LimitOf(Ending ending);   // "time" "cpu_time" ...; "": no limit ended it

// The metrics of one pool.
struct PoolMetrics {
  std::array<uint64_t, kEndings> endings{};  // by Ending; kNoCall stays 0
  uint64_t hits = 0;                         // calls on a cell that their client already held
  uint64_t misses = 0;                       // calls that had to ask for a cell
  uint64_t refused = 0;  // calls that got no cell in time, or no place in the queue
  Histogram queue, send, run, receive, total;  // as the clients report each call
  RecentHistogram recent;                      // of whole calls, like `total`
  Rate rate;

  uint64_t calls() const;
  // `ahead`: the cell was leased before the call wanted it.
  void Add(const CallStats& note, bool ahead, Clock::time_point now);
  // A call whose client is gone: how long it took is not known.
  void AddAbandoned(bool ahead, Clock::time_point now);
};

struct Metrics {
  std::unordered_map<std::string, PoolMetrics> pools;  // by key
  uint64_t calls = 0;                                  // also of pools that are gone
  uint64_t builds = 0;
  uint64_t builds_failed = 0;
  double build_sec = 0;
};

// How a call ended whose client could not tell, by the warden's report of its cell.
Ending EndingOf(const CellReport& report);

}  // namespace hutch
