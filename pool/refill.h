// SPDX-License-Identifier: Apache-2.0

// How a pool comes to parked cells: a strategy, of which there are two. SharedWorkers
// (shared_workers.h) keep cells parked in one worker that serves many calls; SingleUseWorkers
// (single_use_workers.h) keep workers with one parked cell each.
//
// A strategy changes the workers that it is given, and returns what only the pool can do. It
// belongs to the loop's thread; time comes in with the Demand.
#pragma once

#include <cstdint>

#include "loop/loop.h"
#include "pool/members.h"
#include "pool/rotation.h"
#include "pool/sizing.h"

namespace hutch {

// What is wanted of a pool at one moment.
struct Demand {
  Clock::time_point now;
  uint64_t waiting = 0;  // callers who wait for a call
  bool urgent = false;   // somebody waits for a call, a worker, or cells to be parked
  bool wanted = false;   // that, or somebody waits for a cell ahead of a call
  bool warming = false;  // somebody waits for cells to be parked
  bool in_use = false;   // it was used since it last was idle or failed
  uint64_t depth = 0;    // cells to be parked
  SizingLimits limits;
  Clock::duration
      until_quiet{};  // kQuiet has passed since the last change when this is not positive
  bool quiet() const { return until_quiet <= Clock::duration::zero(); }
};

// What a strategy asks of its pool, to be done in this order.
struct RefillOrders {
  uint64_t start = 0;    // workers
  bool later = false;    // Fill() again when it is quiet
  bool reclaim = false;  // take back one cell that was leased ahead
  bool tick = false;     // Pool::Tick() at once
};

class Refill {
 public:
  virtual ~Refill() = default;

  // The worker that new cells come from; nullptr: none is ready.
  virtual Member* Source() = 0;
  virtual RefillOrders Fill(const Demand& demand) = 0;  // makes what is missing
  virtual RefillOrders Tick(const Demand& demand) = 0;  // ends what is surplus or old
  // Cells that one worker may serve.
  virtual uint64_t max_calls() const = 0;
  // True if no more cells can be made.
  virtual bool AtMost(uint64_t max_cells) = 0;
  // Whether new cells may skip their warm-up while few are parked.
  virtual bool may_skip_warm_up() const = 0;
  // Whether a container may be the one cell where no cells can be made.
  virtual bool may_be_single_cell() const = 0;

  // Returns how many older workers it replaces.
  virtual uint64_t OnWorkerReady(Member& member) = 0;
  virtual void OnCellReady(Member& member) = 0;  // before the cell is parked
  // A cell of a ready worker is gone. False: the worker never had a cell that was ready, so its
  // start has failed.
  virtual bool OnCellGone(Member& member) = 0;
};

}  // namespace hutch
