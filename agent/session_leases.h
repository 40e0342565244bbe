// SPDX-License-Identifier: Apache-2.0

// Leases that are kept for sessions: a session's cell serves calls until its client gives it back,
// does not use it for too long, or goes away.
//
// Belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/admission.h"
#include "agent/call_ledger.h"
#include "agent/exposition.h"
#include "agent/lease_book.h"
#include "agent/peers.h"
#include "agent/pools.h"
#include "wire/clock.h"
#include "wire/error.h"
#include "wire/message.h"

namespace hutch {

class SessionLeases {
 public:
  // All outlive it.
  struct Context {
    LeaseBook& book;
    Peers& peers;
    Pools& pools;
    Admission& admission;
    CallLedger& ledger;
    std::function<void(uint64_t cell)> end;  // gives the lease up
    std::function<void()> room;              // there may be room in the quotas of cells
  };
  explicit SessionLeases(Context context) : context_(std::move(context)) {}

  // Why no session may begin on a cell of that reservation; nullopt: it may.
  std::optional<Error> WhyFull(const Reservation& one) const {
    return context_.admission.WhyNoSession(one.tenant);
  }

  // Messages of clients. What names no lease of that client is ignored: it may just have ended.
  void OnKeep(const Peer& peer, const Keep& keep);
  void OnExecuted(const Peer& peer, const Executed& executed);
  void OnInterrupt(const Peer& peer, const Interrupt& interrupt);
  void OnRestart(const Peer& peer, const Restart& restart);

  void OnEvent(uint64_t cell, const SessionEvent& event);
  void OnGone(uint64_t cell);  // the lease has ended

  // Once per tick: ends sessions that were not used for too long. So a client that is stopped, or
  // hangs, holds no cell for ever.
  void Tick(Clock::time_point now);

  std::vector<SessionState> States(Clock::time_point now) const;  // the oldest first

 private:
  struct Session {
    std::string id{};
    uint64_t keep_request = 0;  // 0: answered
    uint32_t interrupted = 0;   // the call that was, the last one
    Clock::time_point interrupted_at{};
    Clock::duration idle{};  // 0: for ever
    Clock::time_point since{};
    Clock::time_point used{};
    uint32_t uses = 0;   // the client's count when it was last read
    uint64_t calls = 0;  // that are over
  };
  Session* FindOf(const Peer& peer, uint64_t cell);
  void EndCall(Pool& pool, uint64_t cell) const;
  void OnCommandOver(const LeaseRecord& lease, Pool& pool, uint64_t cell) const;
  CellOrders* OrdersFor(uint64_t cell) const;  // of a session; nullptr: its cell is gone

  Context context_;
  std::map<uint64_t, Session> sessions_;  // by cell
};

}  // namespace hutch
