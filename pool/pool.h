// SPDX-License-Identifier: Apache-2.0

// The warm workers of one environment under one policy, and those who wait for a cell of theirs.
//
// Belongs to the loop's thread. A Pool owns its workers; who holds which leased cell is the
// broker's affair. Every decision about numbers and time is one of queue.h, rotation.h and
// sizing.h; this file only carries them out.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "environments/environment.h"
#include "pool/queue.h"
#include "pool/rotation.h"
#include "pool/sizing.h"
#include "pool/worker.h"

namespace hutch {

// What a caller gets: a cell that is its own until it is released.
struct LeasedCell {
  uint64_t cell = 0;
  std::string worker;
  CellChannels channels;
  Clock::duration waited{};
  Clock::duration worker_start{};  // part of the wait in which no worker was ready
};

class Pool final : public Worker::Listener {
 public:
  // What a pool needs of its surroundings; all outlive it.
  struct Context {
    Loop& loop;
    Podman& podman;
    Background& background;
    const Paths& paths;
    std::string generation;
    unsigned cores;
    std::function<void(uint64_t cell, const CellReport&)> cell_gone;  // leased cells only
    std::function<bool(Pool&, const std::string* worker)>
        reclaim;                                    // takes back a cell that was leased ahead
    std::function<bool(uint64_t caller)> may_take;  // whether it can hold one more lease
    QueuesInAll& queues;
    std::function<unsigned()> worker_uid = NextWorkerUid;  // inside, for one more worker
    // A worker that was started ahead, for any environment of the store; nullptr: none is there.
    std::function<std::unique_ptr<Worker>(const PoolSpec&)> spare = nullptr;
    // Of a cell with a network, leased or not: see Worker::CellNetworks.
    std::function<void(uint64_t cell, const PoolSpec&, Fd channel)> open_network = nullptr;
    std::function<void(uint64_t cell)> close_network = nullptr;
    std::function<double()> pressure = nullptr;  // of the host, see pressure.h; nullptr: none
    Cgroups* cgroups = nullptr;                  // where slots get theirs; nullptr: nowhere
  };
  using Granted = std::function<void(LeasedCell)>;
  using Refused = std::function<void(const Error&)>;

  Pool(Context context, std::string key, PoolSpec spec, Environment environment);
  ~Pool();

  const std::string& key() const { return key_; }
  const PoolSpec& spec() const { return spec_; }
  const Environment& environment() const { return environment_; }

  // Calls exactly one of the two, now or later. `ahead`: nobody waits for it, so it comes after
  // everybody who does, and out of spare cells only. Callers are served in turn. Refuses with kBusy
  // when the queue is full, and as soon as `patience` has passed or is sure to. Returns a ticket
  // for Forget.
  uint64_t Acquire(uint64_t caller, Clock::duration patience, bool ahead, Granted granted,
                   Refused refused);
  void Forget(uint64_t ticket);
  // kBusy with this pool's figures.
  Error Busy(const std::string& text, const std::string& hint, Clock::duration waited) const;
  bool IsLast();
  void Serve();  // gives ready cells to waiters, then sees to more slots; after may_take changed
  void Arm(uint64_t cell, uint64_t timeout_ms, uint64_t cpu_ms, uint64_t result_kb = 0);
  void ArmLoading(uint64_t cell, uint64_t cpu_ms);  // until Arm(): see kArm
  void Release(uint64_t cell);                      // the cell dies; cell_gone follows
  void TakeBack(uint64_t cell);  // as Release, of a cell that was never used: the pool may be idle
                                 // all the same
  // One that nobody has, if it is ours, also one that is still being made: another takes its place.
  void Discard(uint64_t cell);

  // Calls `ready(error or nullptr)` once a worker is ready (at once if one is) or could not be
  // started.
  void WhenWorkerReady(std::function<void(const Error*)> ready);
  void EnsureWarm(uint64_t cells, std::function<void(uint64_t ready, const Error*)> done);

  void Tick();                // rotation, surplus slots and idle eviction; about once a second
  void Look(unsigned worth);  // at its workers, as often: see Worker::Look
  // Ends every worker, at once or, asked again, when what was leased ahead is back. False: a call
  // runs on one of them, or somebody waits for one.
  bool EndUnused(std::string_view why);
  Clock::time_point last_use() const { return last_use_; }
  void Retire();  // start nothing more; workers go as their leased cells end
  bool empty() const { return workers_.empty(); }
  bool abandoned() const;  // it has nothing and nobody waits for it: it may be destroyed

  struct Stats {
    uint64_t workers = 0, slots = 0, ready = 0, leased = 0, waiting = 0, calls = 0, rotations = 0,
             start_failures = 0;  // in a row
    uint64_t depth = 0;           // cells that are to be parked, as the rate of calls is
    uint64_t cells_made = 0, worker_starts = 0, worker_failures = 0;  // since the pool is there
    std::string last_failure;
    std::vector<std::string> worker_names;
    std::string notes;
  };
  Stats GetStats() const;

 private:
  struct Member {
    std::unique_ptr<Worker> worker;
    double jitter = 0;
    bool retiring = false;
    bool spare = false;          // it was started ahead, for whatever pool
    bool proven = false;         // a cell of it was ready once
    std::deque<uint64_t> ready;  // parked cells, oldest first
    uint64_t leased = 0;
  };
  struct Waiter {
    Granted granted;
    Refused refused;
  };
  struct Watcher {
    uint64_t cells;
    std::function<void(uint64_t, const Error*)> done;
  };

  void OnWorkerReady(Worker& worker) override;
  void OnCellReady(Worker& worker, uint64_t cell) override;
  void OnCellGone(Worker& worker, uint64_t cell, const CellReport& report) override;
  void OnSlotsChanged(Worker& worker) override;
  void OnWorkerDead(Worker& worker, const std::string& why) override;

  Member* MemberOf(const Worker& worker);
  Member* MemberOfCell(uint64_t cell);
  Member* Current();      // the worker that new cells come from: the newest that is ready
  bool Starting() const;  // one more is on its way
  bool IsWaitedFor() const;
  void StartWorker();
  void StartFailed(const Error& error);
  void FailSoon(const Error& error);  // all who wait, unless another worker serves them
  void RetireMember(Member& member, std::string_view why);
  void Resize();
  uint64_t Depth(Clock::time_point now) const;  // how many cells are to be parked
  CellCounts Count(const Member& member) const;
  void EndSurplus(Member& member, Clock::time_point now);
  // Of a pool whose workers serve one call each (single_use.cc):
  uint64_t Alive() const;  // workers that are not going
  void Restock();          // as Resize
  void TickStock();        // as Tick
  void UseUp(Member& member);
  void SweepRetired();
  uint64_t ReadyCells() const;
  void FailWaiters(const Error& error);
  Waiter TakeWaiter(uint64_t ticket);
  std::optional<Error> WhyNotWait(uint64_t caller, bool ahead, Clock::duration patience);
  void RefuseLate();
  bool Starved();  // nothing is to be had, and nothing can be made for want of descriptors
  Error NoDescriptors(Clock::duration waited) const;
  void WatchDeadlines();

  Context context_;
  std::string key_;
  PoolSpec spec_;
  Environment environment_;
  const bool single_use_;     // each worker serves one call
  bool stocked_ = false;      // single use: it is in use, so a stock is kept
  bool single_cell_ = false;  // no cell can be made: the container itself is the one cell
  bool own_only_ = false;     // a spare was of no use: the next worker is one of its own
  Rotation rotation_;
  SizingLimits sizing_;
  ArrivalRate rate_;
  Clock::time_point last_cell_change_;  // when a cell was last given or taken back
  TimerId refill_timer_ = 0;
  std::list<Member> workers_;
  std::vector<std::unique_ptr<Worker>>
      dead_workers_;  // dead ones, destroyed on the next turn of the loop
  Queue queue_;
  std::unordered_map<uint64_t, Waiter> waiters_;  // by ticket, for each place of the queue
  TimerId deadline_timer_ = 0;
  Clock::time_point deadline_;  // for which that timer is set
  std::vector<std::function<void(const Error*)>> ready_watchers_;
  std::vector<Watcher> warm_watchers_;
  std::map<uint64_t, Member*> leased_;
  uint64_t next_ticket_ = 1;
  Clock::time_point last_use_;
  std::optional<Clock::time_point> starting_since_;
  unsigned failures_ = 0;  // starts failed in a row
  std::string last_failure_;
  TimerId retry_timer_ = 0;
  bool retired_ = false;
  bool serving_ = false;
  uint64_t calls_ = 0;
  uint64_t rotations_ = 0;
  uint64_t cells_made_ = 0;
  uint64_t worker_starts_ = 0;
  uint64_t worker_failures_ = 0;
  std::shared_ptr<bool> alive_;
};

}  // namespace hutch
