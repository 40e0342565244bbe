// SPDX-License-Identifier: Apache-2.0

// One process's connection to one agent: prepares pools, keeps cells leased ahead, runs calls on
// them.
//
// Thread-safe. There is no thread of its own: whoever waits reads the connection and hands the
// others what is theirs. Calls that nobody waits for one by one are in flights.h. Not usable after
// fork() in the child. When the agent is gone, or is asked and does not answer (heartbeat.h), every
// wait ends with kUnavailable; calls whose cell still lives go on to their end.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "client/flights.h"
#include "client/stock.h"
#include "wire/error.h"
#include "wire/heartbeat.h"
#include "wire/message.h"

namespace hutch {

// A call's outcome with what the agent and the warden know of it.
struct CallRecord {
  CallOutcome outcome;
  std::optional<CellReport> report;  // asked for whenever the call did not simply return or raise
  std::vector<NetworkRecord> network{};
  std::string worker;
  Clock::duration queue{};         // until a cell was there
  Clock::duration worker_start{};  // part of that
  Clock::time_point begun{};
  uint64_t policy = 0;  // with `code` and `calls`: see CallNote
  std::array<uint64_t, 2> code{};
  uint32_t calls = 1;

  Clock::duration send() const { return outcome.sent - begun - queue; }
  Clock::duration run() const { return outcome.ended - outcome.sent; }
};

struct OpenCall {
  std::string key;
  HeldLease held;
  CallRecord record;
  bool network = false;
};

Clock::time_point After(uint64_t ms);  // from now; a year stands for ever
uint64_t RandomId();
Error Lost();  // of a connection
// Whether nothing is to be asked about how it ended.
bool IsSimple(const CallOutcome& outcome);
CallRecord RecordOf(const HeldLease& held, const CallRequest& request, Clock::time_point begun);
// The cell broke the protocol.
void SetBroken(CallRecord& record, const HeldLease& held, const Error& error);

class Client {
 public:
  // Throws kUnavailable when nobody listens, kVersionMismatch.
  Client(const std::string& socket, long connect_uid);
  ~Client();

  // `prepare`: its number is chosen here.
  Prepared PreparePool(Prepare prepare, const std::function<void(const Progress&)>& progress,
                       const CallHooks& hooks);
  CallRecord Call(const std::string& key, const CallRequest& request, const CallHooks& hooks);
  uint64_t WarmPool(const std::string& key, int64_t cells, uint64_t timeout_ms,
                    const CallHooks& hooks);
  std::string AskAgent(const std::string& what, uint64_t timeout_ms, const CallHooks& hooks);

  Flights& flights() { return flights_; }
  CallRecord Conclude(OpenCall& open);

  pid_t pid() const { return pid_; }
  // In a forked child, once and as the last thing done with it: while the child had the connection
  // too, the agent would not see its owner's end.
  void Abandon() { socket_.reset(); }
  bool broken() const { return broken_; }
  // Of the host, from 0 to 1, as the agent told it with the latest lease.
  double pressure() const { return pressure_.load(std::memory_order_relaxed); }

 private:
  friend class Flights;
  class UnderWay;
  struct Pending {
    std::deque<ReceivedMessage> arrived;
  };
  using Done = std::function<bool()>;

  // What a call asked for when it came back: leases ahead, of which the first loads that.
  struct Wanted {
    std::vector<uint64_t> requests;
    std::string load;     // a LoadFrame(), "": none
    uint64_t cpu_ms = 0;  // that loading it may take
  };
  struct AskedAhead {
    std::string key;
    std::optional<Sha256Digest> loaded;
  };

  // Runs while the call is in its cell: closes the previous lease, and reads leases that have
  // arrived.
  void WhileCallRuns(const std::string& key, const Sha256Digest& identity);
  void DeferClose(HeldLease held);
  std::optional<HeldLease> TakeHeld(const std::string& key, const CallRequest& request);
  // After a call was, or was not, given a lease of the stock.
  void GiveBackUnwanted(const std::string& key);
  HeldLease AcquireLease(const std::string& key, const CallRequest& request,
                         const CallHooks& hooks);
  void ForgetSharedWaiter(const std::string& key, uint64_t request);
  bool MarkUsed(const HeldLease& held);
  // Requests for leases ahead, as many as there should be more; they are to be sent. `finished`: a
  // call that came back, whose function is the likeliest of a next one; nullptr: nothing is loaded.
  Wanted WantAhead(const std::string& key, const CallRequest* finished, bool quick);
  // After a call: keeps its cell for the next one if it is a shared one, is not due for
  // replacement, and the call ended as it should.
  bool Keep(const std::string& key, const CallRequest& request, HeldLease& held,
            const CallOutcome& outcome);
  void KeepLocked(const std::string& key, HeldLease held);
  void TellStarted(const HeldLease& held, const CallRequest& request);
  // Takes a cell and sends it the call: on another one when that one was taken back, or is gone.
  HeldLease SendCall(const std::string& key, const CallRequest& request, const CallHooks& hooks);
  std::optional<Report> ReportWithin(uint64_t lease, Clock::duration patience);
  std::optional<Report> AwaitReport(uint64_t lease, Clock::duration patience);
  void ForgetReport(uint64_t lease);
  // Gives the lease back, and asks for the warden's report where the call did not simply end.
  // `finished`: as in WantAhead.
  CallRecord Conclude(const std::string& key, uint64_t lease, CallRecord record, Loans loans,
                      bool network, const CallRequest* finished = nullptr);
  // Keeps what the cell was lent until the warden says that it is dead. True: that is yet to come.
  bool AwaitLoans(uint64_t lease, Loans loans);
  void SettleLoans(uint64_t lease, const CellReport& report);
  void ForgetLease(uint64_t lease, Ending ending);  // never throws: for what is given up anyway
  // Tells that a lease is over, and asks for more ahead.
  void SendDone(const std::string& key, uint64_t lease, bool want_report, const CallNote& note,
                Wanted wanted);

  uint64_t NextRequest() { return next_request_++; }
  // Sends a request and gives `handle` each message that answers it until it says true.
  void Converse(const Message& request, uint64_t id, Clock::time_point deadline,
                const CallHooks& hooks, const std::function<bool(ReceivedMessage&)>& handle);
  // Returns false at the deadline. `done` is asked under the lock.
  bool WaitFor(std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
               const CallHooks& hooks, const Done& done);
  void Send(const Message& message);
  void Tell(const Message& message);  // a note that nobody waits for: never blocks, never throws
  void GiveBack(const Message& message);  // a lease that came for nobody
  void DrainLocked(const Done& enough);   // reads what has come, until there is enough
  void Dispatch(ReceivedMessage received);
  HeldLease MakeLease(const Leased& leased, std::vector<Fd> descriptors);
  // After one was added to a stock: each holds three descriptors of this process, and a cell.
  void TrimStocks();
  // While somebody waits for the agent: asks whether it is there. `late`: by how much this thread
  // was woken too late.
  void LookAtAgent(Clock::duration late);
  [[noreturn]] void GiveUpAgent();
  // The agent said that nobody watches its cell any more, or, `hung_up`, that it is dead; or nobody
  // is left to say so.
  bool IsLost(uint64_t lease, bool hung_up);
  bool IsLostLocked(uint64_t lease, bool hung_up) const;

  Fd socket_;
  pid_t pid_;
  uint32_t* table_ = nullptr;
  std::atomic<uint64_t> next_request_{1};
  std::atomic<bool> broken_{false};
  std::atomic<double> pressure_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reading_ = false;
  Heartbeat heart_;  // of the agent
  uint64_t heart_request_ = 0;
  Clock::time_point looked_{};
  std::map<uint64_t, Pending*> pending_;
  Fd wake_;  // an eventfd: whoever reads the connection looks up
  std::unordered_map<std::string, Stock> stocks_;                         // by pool key
  size_t added_ = 0;                                                      // to stocks_
  std::unordered_map<std::string, std::deque<uint64_t>> shared_waiters_;  // requests, by pool key
  std::map<uint64_t, HeldLease> handed_;  // shared cells that were left to who waits: by request
  std::optional<HeldLease> spent_;  // the last one: closed while a next call waits for its reply
  std::map<uint64_t, AskedAhead> ahead_requests_;
  std::map<uint64_t, std::string> flight_requests_;    // of flights_: request -> pool key
  std::map<uint64_t, std::optional<Report>> reports_;  // leases in use
  std::shared_ptr<SegmentPool> segments_ = SegmentPool::Make();
  std::unordered_map<uint64_t, Loans> loans_;  // of leases given back, until their report
  Flights flights_{*this};
};

}  // namespace hutch
