// SPDX-License-Identifier: Apache-2.0

// Who gets which cell: the pools by key, the leases by cell, the environments being built, and what
// clients ask.
//
// Belongs to the loop's thread; what blocks (libpod, builds) runs in the background and comes back
// by Loop::Post. The broker never looks into a cell: it hands out descriptors and notes what the
// warden reports.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "agent/audit.h"
#include "agent/ceiling.h"
#include "agent/config.h"
#include "agent/egress/egress.h"
#include "agent/exposition.h"
#include "agent/metrics.h"
#include "agent/quotas.h"
#include "environments/environment.h"
#include "loop/background.h"
#include "loop/loop.h"
#include "podman/podman.h"
#include "pool/pool.h"
#include "pool/pressure.h"
#include "pool/spares.h"
#include "wire/message.h"
#include "wire/paths.h"

namespace hutch {

// One client as the broker sees it. Owned by the server, which tells the broker when it is gone.
class Peer {
 public:
  virtual ~Peer() = default;
  // False when the peer is gone or does not read, and will be dropped by the server; or when there
  // are no descriptors to keep `descriptors` until they can be sent.
  virtual bool Send(const Message& message, std::span<const int> descriptors = {}) = 0;
  virtual uint64_t id() const = 0;
  // The lease table shared with this client, kLeaseTableSlots marks.
  virtual uint32_t* lease_table() = 0;
  virtual AuditCaller caller() const { return {}; }
};

class Broker {
 public:
  Broker(Loop& loop, Podman& podman, EnvironmentStore& store, const Paths& paths,
         std::string generation, std::function<unsigned()> worker_uid = NextWorkerUid,
         uint64_t most_workers = MostWorkers(TotalMemoryKb()));
  ~Broker();
  // Before any pool is there. `cgroups` outlives the broker.
  void UseCgroups(Cgroups& cgroups) { cgroups_ = &cgroups; }
  const char* Enforcement() const {  // of limits, see Prepared
    return cgroups_ == nullptr ? "watchdog" : cgroups_->enforcement();
  }

  void Handle(Peer& peer,
              const Message& message);  // throws kProtocol on what no client of ours sends
  void Gone(Peer& peer);                // kills every cell it held

  // Keeps a worker started ahead for pools of this kind, and then of the kind that is asked for.
  void KeepSpare(const std::string& base_id, const std::string& runtime_id);

  // What callers may have, from now on. `file`: where it is read again when a client asks for that;
  // "": nowhere. `audit` outlives the broker; nullptr: none.
  void Configure(const AgentConfig& config);
  void ReadConfigFrom(std::string file) { config_file_ = std::move(file); }
  void WriteAuditTo(AuditLog* audit) { audit_ = audit; }
  void Reload();  // throws kInvalidArgument, and keeps what holds

  // Begins to drain; `stopped` is called when no worker is left or `drain` has passed.
  void Stop(Clock::duration drain, std::function<void()> stopped);

 private:
  struct Lease {
    std::string pool{};
    uint64_t peer = 0;
    uint32_t table_slot = 0;
    std::string worker{};
    unsigned ticks_unused = 0;  // no time: the whole host may have been paused
    bool ahead = false;  // whoever waits for a call may have it while its client does not use it
    bool releasing = false;
    bool want_report = false;
    bool held_ahead = false;         // it was there before the call that took it
    std::optional<CallNote> told{};  // of its call; once
    bool armed = false;              // the warden has the limits of its call
    bool kept = false;               // for more calls than one: its client tells of each
    Reservation reservation{};
    AuditCaller caller{};
    std::vector<NetworkRecord> network{};  // what the proxy decided for its cell
  };
  struct EndedLease {  // its cell ended by itself: what its client says of the call is still to
                       // come
    std::string pool;
    bool held_ahead;
    Ending ending;
    AuditEntry entry;  // but for the note
  };
  // What is the same for all leases of a pool.
  struct PoolFacts {
    std::shared_ptr<const AuditPool> audit;
    Reservation reservation;
    bool stale = false;  // made under another configuration: to be prepared again
  };
  struct PeerState {
    Peer* peer = nullptr;
    std::set<uint64_t> leases;
    std::map<uint64_t, EndedLease> ended;
    std::map<uint64_t, std::pair<std::string, uint64_t>> waiting;  // request -> pool, ticket
    std::vector<uint32_t> free_slots;
    std::map<uint64_t, std::shared_ptr<std::atomic<bool>>>
        preparing;  // request -> nobody waits for it any more
  };

  void OnPrepare(Peer& peer, const Prepare& prepare);
  void OnEnvironment(uint64_t peer, const Prepare& prepare, const Environment& environment);
  void OnWarm(Peer& peer, const Warm& warm);
  struct Load {
    std::string frame;    // "": nothing
    uint64_t cpu_ms = 0;  // 0: no limit
  };
  void OnAcquire(Peer& peer, const Acquire& acquire, const Load& load);
  void OnGranted(uint64_t peer, uint64_t request, const std::string& pool, bool ahead, Grant grant);
  void OnDone(PeerState& state, const Done& done);
  void OnAsk(Peer& peer, const Ask& ask);
  void OnCellGone(uint64_t cell, const CellReport& report);
  // Whether its lease table has a slot left, and there is room in the quotas.
  bool MayLease(uint64_t peer, const std::string& pool);
  void InvalidatePools();
  void TakeBackForQuotas();
  void ServeWaiters();
  void FactsOf(const std::string& key, const Pool& pool);
  void Arm(Lease& lease, const Started& started);
  void ArmForgotten();
  void WatchLoad(uint64_t cell, uint64_t cpu_ms);
  void ArmLoads();
  std::optional<Error> WhyRefuse(const Prepare& prepare) const;
  AuditEntry EntryOf(const Lease& lease) const;
  void Audit(AuditEntry entry, const CallNote& note);
  void TrimEnvironments();
  void Conclude(uint64_t cell, const CellReport& report, std::vector<NetworkRecord> network);
  void OpenNetwork(uint64_t cell, const PoolSpec& pool, Fd channel);
  void ReplaceUnused(uint64_t cell);
  void CloseNetwork(uint64_t cell, Egress::Closed closed);
  bool Reclaim(Pool& pool, const std::string* worker);
  bool TakeBack(uint64_t cell, Lease& lease);  // false: its client uses it
  void OfferUnused();
  void Release(uint64_t cell, Lease& lease);
  PeerState* StateOf(uint64_t peer);
  Pool* FindPool(const std::string& key);
  void Fail(uint64_t peer, uint64_t request, const Error& error);
  void Tick();
  void Sweep();
  void Count(const std::string& pool, bool held_ahead, CallNote note, Ending if_untold);
  void CountAbandoned(Peer& peer, Lease& lease, uint64_t cell);
  AgentState State();
  void EvictWorkers();
  void AwaitDrain();
  void FinishStop();

  Loop& loop_;
  Podman& podman_;
  Podman gvisor_podman_;
  EnvironmentStore& store_;
  const Paths& paths_;
  std::string generation_;
  std::function<unsigned()> worker_uid_;
  uint64_t most_workers_;  // of all pools together
  std::string salt_;       // of pool keys: none tells of a secret
  Clock::time_point started_;
  Background podman_threads_;  // container starts and removals: two at once, more only queue up on
                               // Podman's locks
  Background builder_threads_;
  QueuesInAll queues_;
  Spares spares_;
  bool keeps_spares_ = false;
  Cgroups* cgroups_ = nullptr;
  Pressure pressure_;
  std::unique_ptr<Egress> egress_;  // from the first cell that has a network
  std::set<uint64_t> networked_;    // cells that it has
  std::unordered_map<std::string, std::unique_ptr<Pool>> pools_;
  std::map<uint64_t, Lease> leases_;  // by cell; oldest first
  std::unordered_map<uint64_t, PeerState> peers_;
  std::function<void()> stopped_;
  bool stopping_ = false;
  std::atomic<bool> closing_ = false;  // for builds on other threads: give up
  unsigned ticks_ = 0;
  std::set<std::string> strangers_;  // containers that the last sweep saw and nobody knew
  Clock::time_point tick_due_;       // the next one
  Metrics metrics_;
  AgentConfig config_;
  std::string config_file_;
  AuditLog* audit_ = nullptr;
  Quotas quotas_;
  std::unordered_map<std::string, PoolFacts> facts_;  // by pool key
  struct Loading {
    Clock::time_point due;
    uint64_t cell;
    uint64_t cpu_ms;
  };
  std::deque<Loading> loading_;  // in order
  bool taking_back_ = false;
  bool serving_ = false;
};

}  // namespace hutch
