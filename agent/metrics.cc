// SPDX-License-Identifier: Apache-2.0

#include "agent/metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace hutch {
namespace {

constexpr unsigned kPerOctave = 4;

// Bucket 0 holds 0 and 1, bucket 3 holds 4; above that each power of two has kPerOctave buckets.
size_t BucketOf(uint64_t us) {
  const uint64_t below = us == 0 ? 0 : us - 1;  // upper bounds are inclusive
  if (below < kPerOctave) return below;
  const auto octave = static_cast<unsigned>(std::bit_width(below)) - 3;  // 0: 5 to 8 us
  const uint64_t part = (below >> octave) - kPerOctave;
  return std::min<size_t>(kPerOctave + octave * kPerOctave + part, Histogram::kBuckets - 1);
}

uint64_t UpperBound(size_t bucket) {
  if (bucket < kPerOctave) return bucket + 1;
  const size_t octave = bucket / kPerOctave - 1;
  return (kPerOctave + bucket % kPerOctave + 1) << octave;
}

int64_t SecondOf(Clock::time_point now) {
  return std::chrono::floor<std::chrono::seconds>(now.time_since_epoch()).count();
}

}  // namespace

void Histogram::Add(uint64_t us) {
  ++buckets_[BucketOf(us)];
  ++count_;
  sum_us_ += us;
}

uint64_t Histogram::CountUpTo(unsigned exponent) const {
  const size_t last = BucketOf(uint64_t{1} << exponent);
  return std::accumulate(buckets_.begin(), buckets_.begin() + static_cast<std::ptrdiff_t>(last) + 1,
                         uint64_t{0});
}

std::optional<double> Histogram::Quantile(double q) const {
  if (count_ == 0) return std::nullopt;
  const auto rank = std::max<uint64_t>(
      1, static_cast<uint64_t>(std::ceil(q * static_cast<double>(count_))));  // 1: the smallest
  uint64_t passed = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    if (buckets_[i] == 0 || passed + buckets_[i] < rank) {
      passed += buckets_[i];
      continue;
    }
    const auto low = static_cast<double>(i == 0 ? 1 : UpperBound(i - 1) + 1);
    const auto high = static_cast<double>(UpperBound(i));
    return low +
           (high - low) * static_cast<double>(rank - passed) / static_cast<double>(buckets_[i]);
  }
  return static_cast<double>(UpperBound(kBuckets - 1));
}

Histogram& Histogram::operator+=(const Histogram& other) {
  for (size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_us_ += other.sum_us_;
  return *this;
}

void RecentHistogram::Turn(Clock::time_point now) {
  if (now - since_ < kSpan) return;
  before_ = now - since_ < 2 * kSpan ? current_ : Histogram();
  current_ = {};
  since_ = now;
}

void RecentHistogram::Add(uint64_t us, Clock::time_point now) {
  Turn(now);
  current_.Add(us);
}

Histogram RecentHistogram::Get(Clock::time_point now) {
  Turn(now);
  Histogram both = current_;
  return both += before_;
}

void Rate::Turn(int64_t second) {
  for (int64_t i = std::max(second_ + 1, second - kSeconds); i <= second; ++i)
    counts_[static_cast<size_t>(i) % counts_.size()] = 0;
  second_ = std::max(second_, second);
}

void Rate::Add(Clock::time_point now) {
  Turn(SecondOf(now));
  ++counts_[static_cast<size_t>(second_) % counts_.size()];
}

double Rate::PerSecond(Clock::time_point now) {
  Turn(SecondOf(now));
  const uint64_t all = std::accumulate(counts_.begin(), counts_.end(), uint64_t{0});
  const uint64_t running = counts_[static_cast<size_t>(second_) % counts_.size()];
  return static_cast<double>(all - running) / static_cast<double>(kSeconds);
}

const char* StatusOf(Ending ending) {
  switch (ending) {
    case Ending::kReturned:
      return "returned";
    case Ending::kRaised:
      return "raised";
    case Ending::kDied:
      return "died";
    case Ending::kCancelled:
      return "cancelled";
    case Ending::kFault:
      return "fault";
    case Ending::kNoCall:
    case Ending::kUntold:
      return "";
    default:
      return "limit";
  }
}

const char* LimitOf(Ending ending) {
  if (ending == Ending::kLimitResult) return "result";
  for (uint32_t limit = kLimitTime; limit <= kLimitDisk; ++limit) {
    if (EndingOfLimit(limit) == ending) return NameOfLimit(limit);
  }
  return "";
}

uint64_t PoolMetrics::calls() const {
  return std::accumulate(endings.begin(), endings.end(), uint64_t{0});
}

void PoolMetrics::Add(const CallStats& note, bool ahead, Clock::time_point now) {
  ++endings[static_cast<size_t>(note.ending)];
  ++(ahead ? hits : misses);
  queue.Add(note.queue_us);
  send.Add(note.send_us);
  run.Add(note.run_us);
  receive.Add(note.receive_us);
  const uint64_t all = note.queue_us + note.send_us + note.run_us + note.receive_us;
  total.Add(all);
  recent.Add(all, now);
  rate.Add(now);
}

void PoolMetrics::AddAbandoned(bool ahead, Clock::time_point now) {
  ++endings[static_cast<size_t>(Ending::kCancelled)];
  ++(ahead ? hits : misses);
  rate.Add(now);
}

Ending EndingOf(const CellReport& report) {
  const Ending limit = EndingOfLimit(report.limit);
  if (limit != Ending::kNoCall) return limit;
  if (report.signal != 0 || report.exit_code >= 0) return Ending::kDied;
  return report.memory_limit_kb != 0 && report.end != kLost ? Ending::kDied : Ending::kFault;
}

}  // namespace hutch
