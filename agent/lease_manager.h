// SPDX-License-Identifier: Apache-2.0

// Leases cells to clients, from the request to the report of the ended cell: takes them from the
// pools, holds them to the quotas, reclaims those that are not used when others wait, and counts
// and audits the calls that ran on them.
//
// Belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/admission.h"
#include "agent/call_ledger.h"
#include "agent/lease_book.h"
#include "agent/load_watch.h"
#include "agent/networks.h"
#include "agent/peers.h"
#include "agent/pools.h"
#include "agent/session_leases.h"
#include "loop/loop.h"
#include "wire/message.h"

namespace hutch {

class LeaseManager {
 public:
  // All outlive it.
  struct Context {
    Loop& loop;
    Peers& peers;
    Pools& pools;
    Admission& admission;
    CallLedger& ledger;
    Networks& networks;
  };
  explicit LeaseManager(Context context);

  // Messages and ends of clients. OnAcquire() and OnDone() throw kProtocol on what no client of
  // ours sends.
  void AddPeer(Peer& peer) { book_.AddPeer(peer.id(), peer.lease_table()); }
  void RemovePeer(uint64_t peer);  // ends every cell that it holds
  void OnAcquire(Peer& peer, const Acquire& acquire) { Request(peer, acquire, {}); }
  void OnStarted(const Peer& peer, const Started& started);
  void OnDone(Peer& peer, const LeaseEnded& done);
  SessionLeases& sessions() { return sessions_; }

  // Callbacks of the pools, see Pools::Callbacks.
  void OnCellGone(uint64_t cell, const CellReport& report);
  bool Reclaim(Pool& pool, const std::string* worker);
  bool MayTake(uint64_t peer, const std::string& pool);

  // A cell whose network is lost is replaced unless a call runs on it, whose connections are
  // closed.
  void ReplaceUnused(uint64_t cell);
  // Takes back each cell that was leased ahead and is not used.
  void ReclaimAll();
  void ServeWaiters();     // when there may be room in the quotas
  void OfferUnused();      // once per tick: cells whose calls do not begin go to those who wait
  void ArmUnannounced();   // once per tick: limits for calls that their clients do not announce
  void AuditUnfinished();  // before the agent ends: reported calls whose cells have not ended yet
  size_t size() const { return book_.size(); }

 private:
  struct Load {           // what a cell is given ahead of its call
    std::string frame{};  // "": nothing
    uint64_t cpu_ms = 0;  // 0: no limit
  };
  void Request(Peer& peer, const Acquire& acquire, const Load& load);
  void OnGranted(uint64_t peer, uint64_t request, const std::string& key, bool ahead,
                 LeasedCell grant);
  void OnDoneAfterEnd(Peer& peer, const LeaseEnded& done);
  void Conclude(uint64_t cell, const CellReport& report, std::vector<NetworkRecord> network);
  void ServePoolsOf(uint64_t peer);
  void ReclaimForQuotas();
  void ServeSoon();
  bool TakeBack(uint64_t cell, LeaseRecord& lease);  // false: its client uses it
  void Release(uint64_t cell, LeaseRecord& lease);
  void EndSession(uint64_t cell);
  // Gives the warden the limits of a call, up to the ceiling, which counts from the first time.
  void Arm(CellOrders& orders, const Started& limits, LeaseRecord* lease);
  void ArmLoading(uint64_t cell, uint64_t cpu_ms);
  PoolMetrics* MetricsOf(const LeaseRecord& lease);
  AuditEntry EntryOf(const LeaseRecord& lease);

  Context context_;
  LeaseBook book_;
  LoadWatch loads_;
  SessionLeases sessions_;
  bool reclaiming_ = false;  // ReclaimForQuotas() is posted
  bool serving_ = false;     // ServeWaiters() is posted
};

}  // namespace hutch
