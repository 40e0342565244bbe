// SPDX-License-Identifier: Apache-2.0

// The agent as its clients see it: answers their messages, has environments built and pools made
// for them, and runs the timer of all its parts. LeaseManager decides who holds which cell, and
// Admission what callers may have.
//
// Belongs to the loop's thread; what blocks (libpod, builds) runs in the background and comes back
// by Loop::Post. The broker never looks into a cell: it hands out descriptors and notes what the
// warden reports.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "agent/admission.h"
#include "agent/audit.h"
#include "agent/builds.h"
#include "agent/call_ledger.h"
#include "agent/config.h"
#include "agent/container_host.h"
#include "agent/exposition.h"
#include "agent/lease_manager.h"
#include "agent/networks.h"
#include "agent/peers.h"
#include "agent/pools.h"
#include "agent/sweeper.h"
#include "environments/environment.h"
#include "loop/loop.h"
#include "podman/podman.h"
#include "pool/pressure.h"
#include "wire/message.h"
#include "wire/paths.h"

namespace hutch {

class Broker {
 public:
  Broker(Loop& loop, Podman& podman, EnvironmentStore& store, const Paths& paths,
         std::string generation, std::function<unsigned()> worker_uid = NextWorkerUid,
         uint64_t most_workers = MostWorkers(TotalMemoryKb()));
  ~Broker();
  // Before any pool is made. `cgroups` outlives the broker.
  void UseCgroups(Cgroups& cgroups) { pools_.UseCgroups(cgroups); }
  const char* Enforcement() const {  // of limits, see PoolReady
    return pools_.cgroups() == nullptr ? "watchdog" : pools_.cgroups()->enforcement();
  }

  // Throws kProtocol on what no client of ours sends.
  void Handle(Peer& peer, const Message& message);
  void Gone(Peer& peer);  // ends every cell it held

  void KeepSpare(const std::string& base_id, const std::string& runtime_id) {
    pools_.KeepSpare(base_id, runtime_id);
  }

  // What callers may have, from now on. `file`: where it is read again when a client asks for that;
  // "": nowhere. `audit` outlives the broker; nullptr: none.
  void Configure(const AgentConfig& config);
  void ReadConfigFrom(std::string file) { config_file_ = std::move(file); }
  void WriteAuditTo(AuditLog* audit) { ledger_.WriteAuditTo(audit); }
  void Reload();  // throws kInvalidArgument, and the previous configuration stays in effect

  // Begins to drain, of which it informs the clients that asked for "await stop"; `stopped` is
  // called when no worker is left or `drain` has passed. Later ones can only shorten it.
  void Stop(Clock::duration drain, std::function<void()> stopped);

 private:
  void OnPrepare(Peer& peer, const Prepare& prepare);
  void OnEnvironment(uint64_t peer, const Prepare& prepare, const Environment& environment);
  void AnswerWhenReady(uint64_t peer, PoolReady prepared, const PoolSpec& spec);
  void OnWarm(const Peer& peer, const Warm& warm);
  void OnForget(uint64_t peer, const Forget& forget);
  void OnAsk(const Peer& peer, const Ask& ask);
  void InvalidatePools();
  void TrimEnvironments();
  void Tick();
  void Sweep();
  AgentState State();
  std::string DrainLeft() const;
  void AwaitDrain();
  void FinishStop();

  Loop& loop_;
  ContainerHost host_;
  const Clock::time_point started_;
  Admission admission_;
  std::string config_file_;
  CallLedger ledger_;
  Peers peers_;
  Builds builds_;
  Sweeper sweeper_;
  Networks networks_;
  Pools pools_;
  LeaseManager leases_;
  std::function<void()> stopped_;
  bool stopping_ = false;
  Clock::time_point drained_;  // at the latest, once it is stopping
  unsigned ticks_ = 0;
  Clock::time_point tick_due_;  // the next one
};

}  // namespace hutch
