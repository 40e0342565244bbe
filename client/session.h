// SPDX-License-Identifier: Apache-2.0

// One session: a cell that its client keeps, and that serves one call after another. When its user
// process ends (a limit, a crash, Restart()), the cell gets another one: files stay, the state of
// the interpreter is lost.
//
// One thread at a time, but for Interrupt(); its Client outlives it. Not usable after fork() in the
// child.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "client/call_record.h"
#include "client/connection.h"
#include "client/held_leases.h"
#include "client/reports.h"
#include "wire/message.h"

namespace hutch {

// What the agent tells of the user processes of the sessions of one client. Thread-safe: under the
// lock of its Connection.
class UserProcesses {
 public:
  explicit UserProcesses(Connection& connection) : connection_(connection) {}

  void Expect(uint64_t lease) EXCLUDES(connection_lock);
  void Forget(uint64_t lease) EXCLUDES(connection_lock);
  // Whether it has ended, and was not awaited yet.
  bool HasEnded(uint64_t lease) EXCLUDES(connection_lock);
  // Waits for its end, or that of its cell. False: it did not come in time.
  bool AwaitEnd(uint64_t lease, Clock::duration patience) EXCLUDES(connection_lock);
  // Waits for its end, and for the next one. nullopt: they did not come in time.
  std::optional<CellReport> AwaitNext(uint64_t lease, Clock::duration patience)
      EXCLUDES(connection_lock);

  void OnGone(uint64_t lease) REQUIRES(connection_lock);  // its cell is
  void OnEnded(const UserEnded& message) REQUIRES(connection_lock);
  void OnReady(const UserReady& message) REQUIRES(connection_lock);

 private:
  struct State {
    std::optional<CellReport> ended;
    bool ready = false;
    bool gone = false;
  };
  Connection& connection_;
  std::map<uint64_t, State> states_ GUARDED_BY(connection_lock);  // by lease
};

class Session {
 public:
  struct Parts {
    Connection& connection;
    Reports& reports;
    HeldLeases& leases;
    UserProcesses& users;
  };
  // `key`: the pool's, prepared. `idle_ms`: the agent ends a session that is not used for so long;
  // 0: never. The cell is leased by the first call.
  Session(Parts parts, std::string key, uint64_t idle_ms)
      : parts_(parts), key_(std::move(key)), idle_ms_(idle_ms) {}
  ~Session() { Close(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Throws what Client::Call() throws, and kWorkerFailed where the session is over.
  CallRecord Call(const CallRequest& request, const CallHooks& hooks);
  // Between two calls: takes note of a user process that has ended meanwhile, as when a background
  // thread crashed, or took too much memory.
  void Settle();
  // Has the call that runs raise KeyboardInterrupt. On any thread.
  void Interrupt();
  // Ends the user process, if there is a cell. False: the session is over.
  bool Restart();
  void Close();  // Nothing can be called any more. Never throws.

  bool started() const { return held_.has_value(); }
  bool over() const { return over_; }              // its cell is gone, for whatever reason
  uint64_t restarts() const { return restarts_; }  // user processes that have ended
  const std::string& worker() const { return worker_; }

 private:
  void Start(const CallRequest& request, const CallHooks& hooks);
  bool Keep(HeldLease& held, const CallHooks& hooks);
  CallOutcome Await(const CallRequest& request, const CallHooks& hooks);
  void RequireConnection();
  // After a call that left the user process in no state to serve another, or dead.
  void Replace(CallRecord& record, const CallHooks& hooks);

  Parts parts_;
  std::string key_;
  uint64_t idle_ms_;
  std::optional<HeldLease> held_;
  std::string worker_;
  std::atomic<uint64_t> restarts_ = 0;
  std::atomic<uint64_t> lease_ = 0;
  std::atomic<uint32_t> call_ = 0;  // the low bits of its id, while it runs
  bool over_ = false;
};

}  // namespace hutch
