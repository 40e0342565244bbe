// SPDX-License-Identifier: Apache-2.0

// The leases of one client: takes a cell for each call, keeps leases of each pool ahead of calls,
// keeps shared cells between calls, and gives back what is over.
//
// Thread-safe: under the lock of its Connection, which the functions take unless they require it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/call_record.h"
#include "client/connection.h"
#include "client/lease_table.h"
#include "client/reports.h"
#include "client/stock.h"

namespace hutch {

Error CellsEnd();  // what a call fails with after a number of attempts to send it

class HeldLeases {
 public:
  // `on_cell` is called under the lock: a pool's stock has got a cell.
  HeldLeases(Connection& connection, Reports& reports,
             std::function<void(const std::string& key)> on_cell)
      : connection_(connection),
        reports_(reports),
        on_cell_(std::move(on_cell)),
        table_(connection.TakeLeaseTable()) {}

  // One more call of a pool while it lives: the number of leases ahead follows that of calls.
  class CallUnderWay;
  void Begun(const std::string& key) REQUIRES(connection_lock) { stocks_[key].Begun(); }
  void Over(const std::string& key) REQUIRES(connection_lock) { stocks_[key].Over(); }

  // A lease of the stock for a call that begins, if there is one.
  std::optional<HeldLease> TakeNow(const std::string& key, const CallRequest& request)
      REQUIRES(connection_lock);
  // The same, after reading the leases that have come.
  std::optional<HeldLease> Take(const std::string& key, const CallRequest& request)
      EXCLUDES(connection_lock);
  // Waits for a lease of its own, or a shared cell that another call leaves.
  // `session`: it will be kept for one.
  HeldLease Acquire(const std::string& key, const CallRequest& request, const CallHooks& hooks,
                    bool session = false) EXCLUDES(connection_lock);
  // What TakeNow() and Take() leave behind: leases that serve no other call, to be given back.
  std::optional<HeldLease> TakeUnwanted(const std::string& key) REQUIRES(connection_lock) {
    return stocks_[key].TakeUnwanted();
  }
  void GiveBackUnwanted(const std::string& key) EXCLUDES(connection_lock);
  // A lease that the agent gave to one who waits for it elsewhere goes to the stock.
  void Add(const std::string& key, const Leased& leased, std::vector<Fd> descriptors)
      REQUIRES(connection_lock);

  // Sends the call to the cell. False: it never ran, since the agent took the cell back, or the
  // cell is gone; the lease is given back.
  bool Send(HeldLease& held, const CallRequest& request) EXCLUDES(connection_lock);
  // Of a lease that is kept for a session. MarkUsed: false if the agent took it back; it is given
  // up.
  bool MarkUsed(const HeldLease& held) EXCLUDES(connection_lock);
  void MarkIdle(const HeldLease& held) { table_.MarkIdle(held.table_slot, held.lease.id()); }
  void CountUse(uint32_t table_slot) { table_.CountUse(table_slot); }
  void CountUse(const HeldLease& held) {
    table_.CountUse(held.table_slot);
    table_.MarkUsed(held.table_slot, held.lease.id());
  }
  // The call has been running for some time: the agent is to hold it to its limits.
  void TellStarted(const HeldLease& held, const CallRequest& request);
  // While a call of the pool is in its cell: closes the previous lease, and reads leases that have
  // arrived.
  void WhileCallRuns(const std::string& key, const Sha256Digest& identity)
      EXCLUDES(connection_lock);

  // After a call. Keeps its cell for the next one if it is a shared one, is not due for
  // replacement, and the call ended well. False: `held` is the caller's still.
  bool Keep(const std::string& key, const CallRequest& request, HeldLease& held,
            const CallOutcome& outcome) EXCLUDES(connection_lock);
  // Gives the lease back, and requests the warden's report unless the call simply ended.
  // `finished`: its function is the most likely one of a next call; nullptr: none is loaded ahead.
  CallRecord Conclude(const std::string& key, uint64_t lease, CallRecord record, Loans loans,
                      bool network, const CallRequest* finished = nullptr)
      EXCLUDES(connection_lock);
  // Its descriptors are closed while the next call waits for its reply.
  void DeferClose(HeldLease held) EXCLUDES(connection_lock);
  // Gives a lease back without a record. Never throws.
  void GiveUp(uint64_t lease, Ending ending) EXCLUDES(connection_lock);

  // The answer to a request for a lease ahead. False: it is none.
  bool OnMessage(uint64_t request, ReceivedMessage& received) REQUIRES(connection_lock);

 private:
  struct AskedAhead {
    std::string key;
    std::optional<Sha256Digest> loaded;
  };
  // Requests for leases ahead, not sent yet, of which the first loads `load`.
  struct Wanted {
    std::vector<uint64_t> requests;
    std::string load;     // a LoadFrame(), "": none
    uint64_t cpu_ms = 0;  // that loading it may take
  };

  HeldLease MakeLease(const Leased& leased, std::vector<Fd> descriptors);
  // After one was added to a stock: each holds three descriptors of this process, and a cell.
  void TrimStocks() REQUIRES(connection_lock);
  // To the call that waits for a shared cell, or to the stock.
  void HandOn(const std::string& key, HeldLease held) REQUIRES(connection_lock);
  void ForgetSharedWaiter(const std::string& key, uint64_t request) EXCLUDES(connection_lock);
  // As many as there should be more. `finished`: as in Conclude.
  Wanted WantAhead(const std::string& key, const CallRequest* finished, bool quick)
      EXCLUDES(connection_lock);
  // Says that a lease is over, and asks for more ahead.
  void SendDone(const std::string& key, uint64_t lease, bool want_report, const CallStats& note,
                Wanted wanted);

  Connection& connection_;
  Reports& reports_;
  std::function<void(const std::string& key)> on_cell_;
  LeaseTable table_;
  std::shared_ptr<SegmentPool> segments_ = SegmentPool::Make();
  std::unordered_map<std::string, Stock> stocks_ GUARDED_BY(connection_lock);  // by pool key
  size_t added_ GUARDED_BY(connection_lock) = 0;                               // to stocks_
  std::map<uint64_t, AskedAhead> ahead_requests_ GUARDED_BY(connection_lock);
  // Requests of calls that wait for shared cells, by pool key, and the cells that other calls left
  // for them, by request.
  std::unordered_map<std::string, std::deque<uint64_t>> shared_waiters_ GUARDED_BY(connection_lock);
  std::map<uint64_t, HeldLease> handed_ GUARDED_BY(connection_lock);
  std::optional<HeldLease> spent_ GUARDED_BY(connection_lock);  // see DeferClose
};

class HeldLeases::CallUnderWay {
 public:
  CallUnderWay(HeldLeases& leases, const std::string& key) : leases_(leases) {
    const Connection::Lock lock(leases_.connection_);
    stock_ = &leases_.stocks_[key];
    stock_->Begun();
  }
  ~CallUnderWay() {
    const Connection::Lock lock(leases_.connection_);
    stock_->Over();
  }
  CallUnderWay(const CallUnderWay&) = delete;
  CallUnderWay& operator=(const CallUnderWay&) = delete;

 private:
  HeldLeases& leases_;
  Stock* stock_;  // an unordered_map does not move its elements
};

}  // namespace hutch
