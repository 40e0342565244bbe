// SPDX-License-Identifier: Apache-2.0

// How many cells a pool keeps parked, when it makes more, and when it is idle: pure decisions over
// numbers and times that come in.
//
// Theory. A call takes a parked cell. With too few of them a burst waits for forks, with too many
// memory lies idle. So the wanted depth follows the rate of calls, and the number of parked cells
// is kept between two marks, half the depth and the depth. Below the low mark cells are made at
// once. Between the marks they are made only when no cell was leased or released for a moment: on
// few cores, a cell that is made between a call and its reply delays the reply.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

namespace hutch {

struct SizingLimits {
  uint64_t least = 4;       // cells kept parked at any rate of calls
  uint64_t most = 64;       // cells kept parked at the highest rate
  uint64_t max_cells = 64;  // cells at most, parked or in use, but for those of sessions
  // Cells are kept parked for the calls of so many seconds at the present rate: about the time that
  // it takes to make them.
  double cover_sec = 0.05;
};

inline constexpr uint64_t kLeastWarm = 4;
inline constexpr uint64_t kMostWarm = 64;
inline constexpr double kWarmShare = 0.05;       // of the available memory, for parked cells
inline constexpr uint64_t kParkedKb = 2 * 1024;  // private memory of a parked cell, at most

// The limits for a caller's `warm` and `max_cells` (-1 and 0: to be decided here) on a host with
// `cores` and `free_kb` of available memory (0: not known).
constexpr SizingLimits ResolveSizing(int64_t warm, uint64_t max_cells, unsigned cores,
                                     uint64_t free_kb) {
  SizingLimits limits;
  limits.max_cells = max_cells != 0 ? max_cells : std::clamp(16u * cores, 64u, 128u);
  if (warm >= 0) {
    limits.least = limits.most = static_cast<uint64_t>(warm);
  } else {
    const auto affordable =
        static_cast<uint64_t>(static_cast<double>(free_kb) * kWarmShare) / kParkedKb;
    limits.least = kLeastWarm;
    limits.most = free_kb == 0 ? kMostWarm : std::clamp(affordable, kLeastWarm, kMostWarm);
  }
  limits.least = std::min(limits.least, limits.max_cells);
  limits.most = std::min(limits.most, limits.max_cells);
  return limits;
}

// The memory of one worker: with packages it has 50 MB and more.
inline constexpr uint64_t kWorkerKb = 64 * 1024;
inline constexpr double kWorkersShare = 0.25;  // of the host's memory

// The limits where each cell has a worker of its own, which serves one call: to make a cell is to
// start a container, and a parked one costs the memory of an interpreter and its packages. Where
// the caller leaves it to us, `most_warm` are kept at most.
inline constexpr uint64_t kLeastParkedWorkers = 2;
inline constexpr uint64_t kMostParkedWorkers = 16;
inline constexpr uint64_t kMostSingleUseWorkers = 32;
constexpr SizingLimits ResolveSingleUse(int64_t warm, uint64_t max_cells, uint64_t free_kb,
                                        uint64_t most_warm = kMostParkedWorkers) {
  const auto affordable = [free_kb](double share, uint64_t least, uint64_t most) {
    if (free_kb == 0) return least;
    const auto workers = static_cast<uint64_t>(static_cast<double>(free_kb) * share) / kWorkerKb;
    return std::clamp(workers, least, most);
  };
  SizingLimits limits{.cover_sec = 1};
  limits.max_cells =
      max_cells != 0 ? max_cells : affordable(kWorkersShare, 4, kMostSingleUseWorkers);
  if (warm >= 0) {
    limits.least = limits.most = static_cast<uint64_t>(warm);
  } else {
    limits.least = std::min(kLeastParkedWorkers, most_warm);
    limits.most =
        std::min(affordable(2 * kWarmShare, kLeastParkedWorkers, kMostParkedWorkers), most_warm);
  }
  limits.least = std::min(limits.least, limits.max_cells);
  limits.most = std::min(limits.most, limits.max_cells);
  return limits;
}

// How many of those workers may start at once: each starts a container and an interpreter.
constexpr uint64_t StartingAtOnce(unsigned cores) { return std::max(2u, cores); }

// Calls a second, in an exponentially weighted window of some seconds.
class ArrivalRate {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void Note(Time now) {
    rate_ = PerSecond(now) + 1 / kWindowSec;
    noted_ = now;
  }
  double PerSecond(Time now) const {
    return rate_ * std::exp(-std::chrono::duration<double>(now - noted_).count() / kWindowSec);
  }

 private:
  static constexpr double kWindowSec = 4;
  double rate_ = 0;
  Time noted_{};
};

// How many cells to keep parked at this rate.
inline uint64_t WantedDepth(const SizingLimits& limits, double calls_per_sec) {
  const auto more = static_cast<uint64_t>(std::min(calls_per_sec, 1e6) * limits.cover_sec);
  return std::clamp(limits.least + more, limits.least, std::max(limits.least, limits.most));
}

// How many slots and cells may be made at once: a burst of calls must not make as many forks at
// once, and the more `pressure` there is on the host (0 to 1, see pressure.h), the fewer are made.
constexpr uint64_t MakingAtOnce(unsigned cores, double pressure) {
  const double most = std::max(4u, 3u * cores);
  const double least = std::max(1u, cores);
  return static_cast<uint64_t>(most - std::clamp(pressure, 0.0, 1.0) * (most - least));
}

// A pool is quiet when no cell was leased or released for this time. A caller that calls again and
// again spends less between two calls.
inline constexpr auto kQuiet = std::chrono::microseconds(1500);

// How the cells of one pool are used, and how many are to be parked for that.
class CellUse {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit CellUse(const SizingLimits& limits) : limits_(limits) {}
  const SizingLimits& limits() const { return limits_; }
  // At least `cells` are kept parked from now on.
  void KeepAtLeast(uint64_t cells) {
    limits_.least = std::max(limits_.least, cells);
    limits_.most = std::max(limits_.most, cells);
  }
  void NoteLease(Time now) {
    last_change_ = now;
    rate_.Note(now);
  }
  void NoteRelease(Time now) { last_change_ = now; }

  // Cells to be parked, and at least `cells` of them.
  uint64_t Depth(Time now, uint64_t cells) const {
    return std::min(std::max(WantedDepth(limits_, rate_.PerSecond(now)), cells), limits_.max_cells);
  }
  // Not positive: it is quiet.
  std::chrono::steady_clock::duration UntilQuiet(Time now) const {
    return kQuiet - (now - last_change_);
  }

 private:
  SizingLimits limits_;
  ArrivalRate rate_;
  Time last_change_;  // when a cell was last leased or released
};

struct CellCounts {
  uint64_t slots = 0;    // alive or being made
  uint64_t making = 0;   // slots being made
  uint64_t free = 0;     // slots with no cell
  uint64_t coming = 0;   // cells being made
  uint64_t ready = 0;    // cells parked
  uint64_t waiting = 0;  // callers in the queue
};

struct RefillPlan {
  uint64_t cells = 0;  // to make now, in free slots
  uint64_t slots = 0;  // to add now
  bool later = false;  // more is to be made when it is quiet
};

// What to make now, so that `depth` cells are parked beside those that callers wait for. `quiet`:
// no cell was leased or released for kQuiet.
constexpr RefillPlan PlanRefill(const SizingLimits& limits, const CellCounts& counts,
                                uint64_t depth, bool quiet, uint64_t at_once) {
  const uint64_t have = counts.ready + counts.coming + counts.making;
  const uint64_t wanted = counts.waiting + depth;
  const uint64_t low = counts.waiting + (depth + 1) / 2;
  RefillPlan plan;
  if (have >= wanted) return plan;
  const uint64_t missing = (quiet ? wanted : low) > have ? (quiet ? wanted : low) - have : 0;
  const uint64_t busy = counts.making + counts.coming;
  const uint64_t now = std::min(missing, at_once > busy ? at_once - busy : 0);
  const uint64_t room = limits.max_cells > counts.slots ? limits.max_cells - counts.slots : 0;
  plan.cells = std::min(now, counts.free);
  plan.slots = std::min(now - plan.cells, room);
  plan.later =
      have + plan.cells + plan.slots < wanted && (counts.free > plan.cells || room > plan.slots);
  return plan;
}

// Slots that are needed neither by calls, nor by callers who wait, nor for the depth. A quarter of
// the depth more is left alone, so that a rate that goes up and down does not make and end slots.
constexpr uint64_t SurplusSlots(const CellCounts& counts, uint64_t leased, uint64_t depth) {
  const uint64_t useful = leased + counts.waiting + depth + depth / 4;
  return counts.slots > useful ? counts.slots - useful : 0;
}

constexpr bool PoolIsIdle(std::chrono::duration<double> since_last_call, double idle_sec,
                          uint64_t leased, uint64_t waiting) {
  return leased == 0 && waiting == 0 && since_last_call.count() >= idle_sec;
}

// How many workers all pools of an agent may have before the pool that was used the longest ago
// loses its workers.
constexpr uint64_t MostWorkers(uint64_t total_kb) {
  const auto share = static_cast<uint64_t>(static_cast<double>(total_kb) * kWorkersShare);
  return std::clamp<uint64_t>(share / kWorkerKb, 4, 128);
}

}  // namespace hutch
