// SPDX-License-Identifier: Apache-2.0

// The demand side of a pool: who waits for its cells or for it to be warm, how its cells are used,
// and what is therefore wanted of its workers at a moment (Demand).
//
// Belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "loop/loop.h"
#include "pool/queue.h"
#include "pool/refill.h"
#include "pool/sizing.h"
#include "pool/waiters.h"
#include "pool/warm_watchers.h"
#include "wire/error.h"

namespace hutch {

class PoolCallers {
 public:
  // `late`: see Waiters. `loop` and `in_all` outlive it.
  PoolCallers(Loop& loop, QueuesInAll& in_all, const SizingLimits& limits,
              std::function<Error(Clock::duration waited)> late)
      : use_(limits), waiters_(loop, in_all, limits.max_cells, std::move(late)) {}

  CellUse& use() { return use_; }
  const SizingLimits& limits() const { return use_.limits(); }
  Waiters& waiters() { return waiters_; }
  const Waiters& waiters() const { return waiters_; }
  WarmWatchers& watchers() { return watchers_; }

  bool empty() const { return waiters_.empty() && watchers_.empty(); }
  // Somebody waits for a call, a worker, or cells to be parked, not only for a cell ahead of a
  // call.
  bool urgent() const { return waiters_.waiting() > 0 || !watchers_.empty(); }
  // Cells to be parked.
  uint64_t Depth(Clock::time_point now) const { return use_.Depth(now, watchers_.most_cells()); }
  // `in_use`: the pool was used since it last was idle or failed.
  Demand DemandAt(Clock::time_point now, bool in_use) const {
    return {.now = now,
            .waiting = waiters_.waiting(),
            .urgent = urgent(),
            .wanted = !empty(),
            .warming = watchers_.wait_for_cells(),
            .in_use = in_use,
            .depth = Depth(now),
            .limits = use_.limits(),
            .until_quiet = use_.UntilQuiet(now)};
  }
  // Tells everybody who waits; so many cells are parked.
  void FailAll(uint64_t parked, const Error& error) {
    waiters_.RefuseAll(error);
    watchers_.Fail(parked, error);
  }

 private:
  CellUse use_;
  Waiters waiters_;
  WarmWatchers watchers_;
};

}  // namespace hutch
