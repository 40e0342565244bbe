// How many slots a worker should have, and when a pool is idle: pure decisions over numbers.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace hutch {

struct SizingLimits {
  uint64_t warm = 2;        // cells kept ready
  uint64_t max_cells = 64;  // slots at the most
};

// The caller's wishes (-1 and 0: decide) made into limits for a host with `cores`.
constexpr SizingLimits ResolveSizing(int64_t warm, uint64_t max_cells, unsigned cores) {
  SizingLimits limits;
  limits.max_cells = max_cells != 0 ? max_cells : std::max(32u, 16u * cores);
  limits.warm = warm >= 0 ? static_cast<uint64_t>(warm) : std::max(2u, cores + 1);
  limits.warm = std::min(limits.warm, limits.max_cells);
  return limits;
}

struct SlotCounts {
  uint64_t slots = 0;    // alive or being made
  uint64_t making = 0;   // slots being made
  uint64_t ready = 0;    // cells parked
  uint64_t coming = 0;   // cells being made, or about to be in a free slot
  uint64_t waiting = 0;  // callers in the queue
};

// How many more slots to ask for now: enough for every waiting caller and the warm stock, at most
// kSlotsAtOnce in the making, so that a burst does not turn into a storm of forks.
inline constexpr uint64_t kSlotsAtOnce = 4;
constexpr uint64_t SlotsToAdd(const SizingLimits& limits, const SlotCounts& counts) {
  const uint64_t wanted =
      std::max<uint64_t>(counts.waiting, 0) + std::min(limits.warm, limits.max_cells);
  const uint64_t have = counts.ready + counts.coming + counts.making;
  const uint64_t missing = wanted > have ? wanted - have : 0;
  const uint64_t room = limits.max_cells > counts.slots ? limits.max_cells - counts.slots : 0;
  const uint64_t at_once = kSlotsAtOnce > counts.making ? kSlotsAtOnce - counts.making : 0;
  return std::min({missing, room, at_once});
}

constexpr bool PoolIsIdle(std::chrono::duration<double> since_last_call, double idle_sec,
                          uint64_t leased, uint64_t waiting) {
  return leased == 0 && waiting == 0 && since_last_call.count() >= idle_sec;
}

}  // namespace hutch
