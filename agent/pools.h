// SPDX-License-Identifier: Apache-2.0

// The pools by key, with what the agent keeps of each: makes them, has them look after their
// workers, and ends those that are not used.
//
// Belongs to the loop's thread. What a pool needs of the leases comes in as callbacks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/audit.h"
#include "agent/container_host.h"
#include "agent/exposition.h"
#include "agent/metrics.h"
#include "agent/quotas.h"
#include "agent/sweeper.h"
#include "environments/environment.h"
#include "loop/loop.h"
#include "pool/pool.h"
#include "pool/pressure.h"
#include "pool/sizing.h"
#include "pool/spares.h"

namespace hutch {

struct PoolEntry {
  std::unique_ptr<Pool> pool{};
  PoolMetrics metrics{};
  // The same for all leases of the pool. Set by Pools::Describe().
  std::shared_ptr<const AuditPool> audit{};
  Reservation reservation{};
  bool stale = false;  // made under another configuration: it has to be prepared again
};

class Pools {
 public:
  static constexpr size_t kMost = 512;

  // As in Pool::Context; `may_take` also gets the pool's key.
  struct Callbacks {
    std::function<void(uint64_t cell, const CellReport&)> cell_gone;
    std::function<void(uint64_t cell, SessionEvent)> session_event;
    std::function<bool(Pool&, const std::string* worker)> reclaim;
    std::function<bool(uint64_t caller, const std::string& key)> may_take;
    std::function<void(uint64_t cell, const PoolSpec&, Fd channel)> open_network;
    std::function<void(uint64_t cell)> close_network;
  };

  // `loop` and `host` outlive it. `most_workers`: of all pools together.
  Pools(Loop& loop, ContainerHost& host, std::function<unsigned()> worker_uid,
        uint64_t most_workers, Callbacks callbacks);

  void UseCgroups(Cgroups& cgroups) { cgroups_ = &cgroups; }  // before any pool is made
  const Cgroups* cgroups() const { return cgroups_; }         // nullptr: limits are watched
  // Keeps a worker started ahead for pools of this kind, and from then on of the kind that was
  // asked for last.
  void KeepSpare(const std::string& base_id, const std::string& runtime_id);
  // How many callers may wait in all queues together.
  void LimitQueues(size_t capacity) { queues_.capacity = capacity; }
  // After how many seconds without a call a pool ends, if its spec does not end it before. 0:
  // never.
  void EndIdleAfter(double seconds) { idle_sec_ = seconds; }
  // How many workers for one call each pool that is made from now on keeps parked at most, if its
  // spec does not say it.
  void KeepWarm(uint64_t workers) { warm_workers_ = workers; }

  // A key with secrets is salted: from a plain hash a secret could be guessed.
  std::string KeyOf(const PoolSpec& spec, const std::string& environment_digest) const;
  PoolEntry* FindEntry(const std::string& key);
  Pool* Find(const std::string& key);
  // As Pool::OrdersFor().
  CellOrders* OrdersFor(const std::string& key, uint64_t cell);
  // The entry of that key, made if it is not there. nullptr: no more pools can be made.
  PoolEntry* FindOrMake(const std::string& key, const PoolSpec& spec,
                        const Environment& environment);
  void InvalidateAll();  // makes every entry stale
  // Puts an entry that is new or stale under the present configuration.
  void Describe(const std::string& key, const Reservation& reservation);

  // Once per tick. `worth`: see Worker::Look. Between the two, unused leases are offered.
  void Look(unsigned worth);
  void Tick();
  std::vector<PoolEntry*> Waiting();  // those in which callers wait
  void Discard(uint64_t cell);        // an unleased cell, of whichever pool has it

  // Digests of the environments that pools use.
  std::set<std::string> Environments() const;
  // What a sweep must leave alone. Forgets abandoned pools with copies of callers' files: their
  // clients prepare them again, and make the copies again.
  Sweeper::Known ForSweep();

  void Retire();  // starts nothing more; workers go as their leased cells end
  bool HaveEnded() const;
  void Clear() { entries_.clear(); }

  double PressureAt(Clock::time_point now) { return pressure_.At(now); }
  size_t spares() const { return spares_.size(); }
  std::vector<PoolState> States(Clock::time_point now);

 private:
  using Entries = std::unordered_map<std::string, PoolEntry>;
  std::unique_ptr<Pool> Make(const std::string& key, const PoolSpec& spec,
                             const Environment& environment);
  void EvictWorkers();

  Loop& loop_;
  ContainerHost& host_;
  const std::function<unsigned()> worker_uid_;
  const uint64_t most_workers_;
  const Callbacks callbacks_;
  const std::string salt_;
  Cgroups* cgroups_ = nullptr;
  Pressure pressure_;
  QueuesInAll queues_;
  double idle_sec_ = 0;
  uint64_t warm_workers_ = kMostParkedWorkers;
  Spares spares_;
  bool keeps_spares_ = false;
  bool retired_ = false;
  Entries entries_;  // by key
};

}  // namespace hutch
