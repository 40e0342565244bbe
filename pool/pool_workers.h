// SPDX-License-Identifier: Apache-2.0

// The supply side of a pool: its workers, from their start to their end, and the cells that they
// have ready.
//
// How many are started is decided by a strategy (refill.h), when by the failures so far
// (worker_starter.h); the pool says what is wanted (Demand). Belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "loop/loop.h"
#include "pool/members.h"
#include "pool/pool_context.h"
#include "pool/refill.h"
#include "pool/worker.h"
#include "pool/worker_starter.h"
#include "wire/error.h"
#include "wire/values.h"

namespace hutch {

class PoolWorkers final : private Worker::Listener {
 public:
  // The pool.
  class Owner {
   public:
    virtual Demand CurrentDemand() const = 0;
    virtual void Serve() = 0;  // Cells may have become ready.
    virtual void Tick() = 0;   // A worker may be due for replacement.
    // A worker is ready; Serve() follows.
    virtual void OnWorkerReady() = 0;
    // No worker is ready and none is starting: the last one could not be started.
    virtual void OnNoWorker(const Error& error) = 0;
    // A refusal for want of file descriptors.
    virtual Error NoDescriptors(const std::string& for_what) const = 0;

   protected:
    ~Owner() = default;
  };

  // All outlive it. `reclaim` takes back one cell that was leased ahead, of that worker or
  // (nullptr) of any; `tag` is part of its workers' names.
  PoolWorkers(const PoolContext& context, Owner& owner,
              std::function<bool(const std::string* worker)> reclaim, const std::string& tag,
              const PoolSpec& spec, const Environment& environment);
  ~PoolWorkers();

  bool ready() { return refill_->Source() != nullptr; }  // cells can be made
  Members& members() { return members_; }
  const Members& members() const { return members_; }
  const WorkerStarter::Record& record() const { return starter_.record(); }
  uint64_t cells_made() const { return cells_made_; }
  uint64_t rotations() const { return rotations_; }

  void NoteUse() { in_use_ = true; }  // Cells are to be kept parked again.
  bool in_use() const { return in_use_; }

  // A worker with a parked cell; nullptr: there is none.
  Member* WithReadyCell() { return members_.WithReadyCell(refill_->max_calls()); }
  // No cell is parked or being made, and none can be for want of descriptors.
  bool Starved();
  bool starved_now();  // A slot is without a cell for that reason.
  void TryAgain();     // Where no cell is ready or coming, finds out whether one can be made.
  // The last ready cell must be kept for a caller that has a call: there can be no more cells, and
  // as many are leased as a lone caller has ahead.
  bool IsLastCell(uint64_t max_cells);
  void SkipWarmUp(bool skip);

  void Start();                          // one worker, unless failures postpone it
  void Fill();                           // makes what is missing
  void Rotate();                         // ends what is surplus or old, and replaces it
  void RetireAll(std::string_view why);  // as their leased cells end
  void StopStarting() { stopped_ = true; }

 private:
  void OnWorkerReady(Worker& worker) override;
  void OnCellReady(Worker& worker, uint64_t cell) override;
  void OnCellGone(Worker& worker, uint64_t cell, const CellReport& report) override;
  void OnSessionEvent(Worker& worker, uint64_t cell, SessionEvent event) override;
  void OnSlotsChanged(Worker& worker) override;
  void OnWorkerDead(Worker& worker, const std::string& why) override;

  void CarryOut(const RefillOrders& orders);
  void StartFailed(const Error& error);
  void FailSoon(const Error& error);

  const PoolContext& context_;
  Owner& owner_;
  const std::function<bool(const std::string*)> reclaim_;
  const PoolSpec& spec_;
  WorkerStarter starter_;
  Members members_;
  std::unique_ptr<Refill> refill_;
  TimerId refill_timer_ = 0;
  bool in_use_ = false;
  bool stopped_ = false;  // no worker is started any more
  uint64_t cells_made_ = 0;
  uint64_t rotations_ = 0;
  std::shared_ptr<bool> alive_;  // false once destroyed
};

}  // namespace hutch
