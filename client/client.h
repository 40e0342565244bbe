// One process's connection to one agent: prepares pools, keeps cells leased ahead, runs calls on
// them.
//
// Thread-safe. There is no thread of its own: whoever waits reads the connection and hands the
// others what is theirs. Not usable after fork() in the child. When the agent is gone every wait
// ends with kUnavailable; calls whose cell still lives go on to their end.
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

#include "client/lease.h"
#include "wire/error.h"
#include "wire/message.h"

namespace hutch {

// A call's outcome with what the agent and the warden know of it.
struct CallRecord {
  CallOutcome outcome;
  std::optional<CellReport> report;  // asked for whenever the call did not simply return or raise
  std::string worker;
  Clock::duration queue{};         // until a cell was there
  Clock::duration worker_start{};  // part of that
  Clock::time_point begun{};

  Clock::duration send() const { return outcome.sent - begun - queue; }
  Clock::duration run() const { return outcome.ended - outcome.sent; }
};

class Client {
 public:
  // Throws kUnavailable when nobody listens, kVersionMismatch.
  Client(const std::string& socket, long connect_uid);
  ~Client();

  Prepared PreparePool(const PoolSpec& spec, uint64_t timeout_ms,
                       const std::function<void(const Progress&)>& progress,
                       const CallHooks& hooks);
  CallRecord Call(const std::string& key, const CallRequest& request, const CallHooks& hooks);
  uint64_t WarmPool(const std::string& key, int64_t cells, uint64_t timeout_ms,
                    const CallHooks& hooks);
  std::string AskAgent(const std::string& what, uint64_t timeout_ms, const CallHooks& hooks);

  pid_t pid() const { return pid_; }
  // In a forked child, once and as the last thing done with it: while the child had the connection
  // too, the agent would not see its owner's end.
  void Abandon() { socket_.reset(); }
  bool broken() const { return broken_; }

 private:
  struct HeldLease {
    Lease lease;
    uint32_t table_slot;
    Clock::duration queue{};
    Clock::duration worker_start{};
  };
  struct Pending {
    std::deque<ReceivedMessage> arrived;
  };
  using Done = std::function<bool()>;

  std::optional<HeldLease> TakeAhead(const std::string& key);
  HeldLease AcquireLease(const std::string& key, const CallLimits& limits, const CallHooks& hooks);
  bool MarkUsed(const HeldLease& held);
  void LeaseAhead(const std::string& key);
  // Takes a cell and sends it the call: on another one when that one was taken back, or is gone.
  HeldLease SendCall(const std::string& key, const CallRequest& request, const CallHooks& hooks);
  std::optional<CellReport> ReportWithin(uint64_t lease, Clock::duration patience);
  std::optional<CellReport> AwaitReport(uint64_t lease, Clock::duration patience);
  void ForgetReport(uint64_t lease);
  // Gives the lease back, and asks for the warden's report where the call did not simply end.
  CallRecord Conclude(const std::string& key, uint64_t lease, CallRecord record, Loans loans);
  // Keeps what the cell was lent until the warden says that it is dead. True: that is yet to come.
  bool AwaitLoans(uint64_t lease, Loans loans);
  void SettleLoans(uint64_t lease, const CellReport& report);
  void ForgetLease(uint64_t lease, Ending ending);  // never throws: for what is given up anyway

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
  void DrainLocked();
  void Dispatch(ReceivedMessage received);
  HeldLease MakeLease(const Leased& leased, std::vector<Fd> descriptors);

  Fd socket_;
  pid_t pid_;
  uint32_t* table_ = nullptr;
  std::atomic<uint64_t> next_request_{1};
  std::atomic<bool> broken_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reading_ = false;
  std::map<uint64_t, Pending*> pending_;
  std::unordered_map<std::string, std::deque<HeldLease>> ahead_;
  std::map<uint64_t, std::string> ahead_requests_;         // request -> pool key
  std::map<uint64_t, std::optional<CellReport>> reports_;  // leases in use
  std::shared_ptr<SegmentPool> segments_ = SegmentPool::Make();
  std::unordered_map<uint64_t, Loans> loans_;  // of leases given back, until their report
};

}  // namespace hutch
