// SPDX-License-Identifier: Apache-2.0

// The warm workers of one environment under one policy, and the callers who wait for their cells.
//
// A pool brings demand and supply together: who waits and how many cells are to be parked
// (pool_callers.h), and the workers that have them (pool_workers.h). Who holds which leased cell is
// up to the broker. Belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "environments/environment.h"
#include "pool/pool_callers.h"
#include "pool/pool_context.h"
#include "pool/pool_workers.h"
#include "pool/waiters.h"
#include "pool/warm_watchers.h"
#include "wire/error.h"
#include "wire/values.h"

namespace hutch {

class Pool final : private PoolWorkers::Owner {
 public:
  using Context = PoolContext;
  using Granted = Waiters::Granted;
  using Refused = Waiters::Refused;

  Pool(Context context, std::string key, PoolSpec spec, Environment environment);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const std::string& key() const { return key_; }
  const PoolSpec& spec() const { return spec_; }
  const Environment& environment() const { return environment_; }

  // Calls exactly one of the two, now or later. `ahead`: no call needs the cell yet, so the caller
  // comes after everybody who waits for a call, and gets spare cells only. Callers are served in
  // turn. Refuses with kBusy when the queue is full, and as soon as `patience` has passed or is
  // sure to pass. Returns a ticket for Forget.
  uint64_t Acquire(uint64_t caller, Clock::duration patience, bool ahead, Granted granted,
                   Refused refused);
  void Forget(uint64_t ticket) { callers_.waiters().Forget(ticket); }
  uint64_t max_cells() const { return callers_.limits().max_cells; }
  // kBusy with this pool's figures.
  Error Busy(const std::string& text, const std::string& hint, Clock::duration waited) const {
    return callers_.waiters().Busy(text, hint, waited);
  }
  // Gives ready cells to waiters, then makes what is missing. Also called after may_take changed.
  void Serve() override;
  CellOrders* OrdersFor(uint64_t cell);  // nullptr: it is not leased
  // Of a leased cell that is kept for a session, see WorkerCells. It does not count as one of
  // max_cells from Keep() on.
  void Keep(uint64_t cell);
  void EndCall(uint64_t cell, uint64_t cpu_ms);  // of a kept cell: see CellOrders
  void Release(uint64_t cell);                   // The cell is killed; cell_gone follows.
  // As Release, of a cell that was never used: it does not count as a use of the pool.
  void TakeBack(uint64_t cell);
  // Ends a cell that is not leased, if it is one of this pool; one that is still being made as soon
  // as it is ready. Another takes its place.
  void Discard(uint64_t cell) { workers_.members().Discard(cell); }

  // Calls `ready(error or nullptr)` once a worker is ready (at once if one is) or could not be
  // started.
  void WhenWorkerReady(WarmWatchers::WorkerReady ready);
  void EnsureWarm(uint64_t cells, WarmWatchers::CellsReady done);

  void Tick() override;  // Rotation, surplus slots and idle workers; about once a second.
  void Look(unsigned worth) { workers_.members().Look(worth); }  // as often: see Worker::Look
  // Ends every worker: at once, or, when it is asked again, after the cells that were leased ahead
  // are back. False: a call runs on a worker, or somebody waits for one.
  bool EndUnused(std::string_view why);
  Clock::time_point last_use() const { return last_use_; }
  void Retire();  // Starts nothing more; workers end as their leased cells end.
  bool empty() const { return workers_.members().empty(); }
  bool abandoned() const;  // It has no worker and nobody waits for it: it may be destroyed.

  struct Stats {
    uint64_t workers = 0, slots = 0, ready = 0, leased = 0, waiting = 0, calls = 0, rotations = 0,
             start_failures = 0;  // in a row
    uint64_t depth = 0;           // cells to be parked at the present rate of calls
    uint64_t sessions = 0;        // of the leased cells, which are kept for sessions
    uint64_t cells_made = 0, worker_starts = 0, worker_failures = 0;  // since the pool was made
    std::string last_failure;
    std::vector<std::string> worker_names;
    std::string notes;
  };
  Stats GetStats() const;

 private:
  Demand CurrentDemand() const override {
    return callers_.DemandAt(Clock::now(), workers_.in_use());
  }
  void OnWorkerReady() override { callers_.watchers().OnWorkerReady(); }
  void OnNoWorker(const Error& error) override {
    callers_.FailAll(workers_.members().ready(), error);
  }
  Error NoDescriptors(const std::string& for_what) const override;

  bool ServeNext();        // False: nobody can be served now.
  double IdleSec() const;  // The spec's, or the host's where that is less.
  std::optional<Error> WhyNotWait(uint64_t caller, bool ahead, Clock::duration patience);
  Error TooLate(Clock::duration waited);

  const Context context_;
  const std::string key_;
  const PoolSpec spec_;
  const Environment environment_;
  PoolCallers callers_;
  PoolWorkers workers_;
  Clock::time_point last_use_;
  bool retired_ = false;
  bool serving_ = false;
  uint64_t calls_ = 0;
};

}  // namespace hutch
