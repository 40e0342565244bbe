// SPDX-License-Identifier: Apache-2.0

// One session: a cell that its client keeps, and that serves one call after another. When its user
// process ends (a limit, a crash, Restart()), the cell gets another one: files stay, the state of
// the interpreter is lost.
//
// One thread at a time, but for Interrupt() and what commands need; its Client outlives it. Not
// usable after fork() in the child.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/background_time.h"
#include "client/call_record.h"
#include "client/connection.h"
#include "client/held_leases.h"
#include "client/reports.h"
#include "client/turns.h"
#include "client/waiting.h"
#include "wire/message.h"
#include "wire/thread_annotations.h"

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
  struct Next {
    CellReport ended;
    Fd socket;  // of the calls of the next one
  };
  std::optional<Next> AwaitNext(uint64_t lease, Clock::duration patience) EXCLUDES(connection_lock);

  // The CPU time, in microseconds, that was reported since it was last taken. nullopt: none was.
  std::optional<uint64_t> TakeMeasured(uint64_t lease) EXCLUDES(connection_lock);

  void OnGone(uint64_t lease) REQUIRES(connection_lock);  // its cell is
  void OnEnded(const UserEnded& message, std::vector<Fd> descriptors) REQUIRES(connection_lock);
  void OnReady(const UserReady& message) REQUIRES(connection_lock);
  void OnBackground(const BackgroundCpu& message) REQUIRES(connection_lock);

 private:
  struct State {
    std::optional<Next> ended;
    bool ready = false;
    bool gone = false;
    std::optional<uint64_t> measured_us{};
  };
  Connection& connection_;
  std::map<uint64_t, State> states_ GUARDED_BY(connection_lock);  // by lease
};

class Session final : private Caller {
 public:
  struct Parts {
    Connection& connection;
    Reports& reports;
    HeldLeases& leases;
    UserProcesses& users;
  };
  // `key`: the pool's, prepared. `idle_ms`: the agent ends a session that is not used for so long;
  // 0: never. `id`: its name in the agent's lists and logs. The cell is leased by the first call.
  Session(Parts parts, std::string key, uint64_t idle_ms, std::string id)
      : parts_(parts), key_(std::move(key)), idle_ms_(idle_ms), id_(std::move(id)) {}
  ~Session() { Close(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Throws what Client::Call() throws, and kWorkerFailed where the session is over. The record's
  // `background`: what the session's processes used until this call and no call reports as its
  // own, as far as that was measured and not reported yet.
  CallRecord Call(const CallRequest& request, const CallHooks& hooks) {
    return MakeCall(request, hooks);
  }

  Turns& turns() { return turns_; }
  const Turns& turns() const { return turns_; }
  // As the Exchange() of waiting.h.
  std::optional<Question> Exchange(const std::string& answer) {
    return held_ ? hutch::Exchange(held_->lease, answer) : std::nullopt;
  }
  // Between two calls: takes note of a user process that has ended meanwhile, as when a background
  // thread crashed, or took too much memory.
  void Settle();
  // Whether Settle() has something to do, and waits for it.
  bool IsUnsettled() { return !over_ && held_ && parts_.users.HasEnded(held_->lease.id()); }
  // Has the call that runs raise KeyboardInterrupt, or else the next one, unless that is taken back
  // before it begins. On any thread.
  void Interrupt();
  void TakeBackInterrupt() { interrupt_next_ = false; }
  // ---- while a call runs, on its thread
  // What its time limit leaves it; max(): it has none, or its clock stands.
  Clock::duration TimeLeft() const {
    return held_ ? held_->lease.clock().left(Clock::now()) : Clock::duration::max();
  }
  // Whether the user process that runs it has ended, as far as that is known yet.
  bool HasEnded();
  // ---- commands, which the user process runs beside its calls. On any thread.
  // Gives it one: the four descriptors of a kCommand. False: there is no such process, its code
  // left the socket of its calls full or shut, or too much lies unread there: descriptors that do
  // count for all that the user runs.
  bool SendCommand(const std::vector<int>& descriptors) EXCLUDES(beside_mutex_);
  // A process that runs a call looks for commands.
  void LookForCommands();
  void CountUse() EXCLUDES(beside_mutex_);  // the agent is not to end it as idle
  // One is over, and says that it took so much CPU time; for the agent's counts and audit log.
  void TellCommand(const CallStats& stats, uint64_t cpu_us);
  struct End {
    CellReport report;
    bool during_call = false;  // or it was restarted
  };
  // How the last user process that has ended did, if it was number `since` or a later one. nullopt:
  // none has, or nobody knows.
  std::optional<End> LastEnd(uint64_t since) EXCLUDES(beside_mutex_);

  // Ends the user process, if there is a cell. False: the session is over.
  bool Restart();
  void Close();  // Nothing can be called any more. Never throws.

  // Whether one was sent and has not ended: what is sent now comes behind it. On any thread.
  bool calling() const { return call_ != 0; }

  bool started() const { return held_.has_value(); }
  bool over() const { return over_; }              // its cell is gone, for whatever reason
  uint64_t restarts() const { return restarts_; }  // user processes that have ended
  const std::string& worker() const { return worker_; }
  bool restartable() const { return restartable_; }  // else a user process's end is the session's

 private:
  static Error Over();
  void Start(const CallRequest& request, const CallHooks& hooks);
  bool Keep(HeldLease& held, const CallHooks& hooks);
  void TellOfInterrupt();  // where a call runs, and one was asked for
  Underway Send(const CallRequest& request, const CallHooks& hooks) override;
  Lease* lease() override { return held_ ? &held_->lease : nullptr; }
  void OnSlow(Underway& call) override;
  bool IsLost(bool hung_up) override;
  void Take(Underway& call, CallOutcome outcome) override;
  void Fail(Underway& call) override;
  bool WaitsToConclude(const Underway& call) const override { return !call.record.outcome.replied; }
  CallRecord Conclude(Underway& call) override;
  Error NoCall() const override { return Over(); }
  void RequireConnection();
  void SetSocketOfCommands() EXCLUDES(beside_mutex_);  // that of the present user process
  void NoteEnd(const End& end) EXCLUDES(beside_mutex_);
  void SetOver();                                     // its cell is gone, or of no more use
  std::optional<Report> AwaitReport(uint64_t lease);  // of a cell that is gone
  // What became of a call that could not be sent.
  CallRecord Unsent(Underway& call);
  // After a call that left the user process in no state to serve another, or dead.
  void Replace(CallRecord& record, const CallHooks& hooks, bool during_call = true);

  Parts parts_;
  std::string key_;
  uint64_t idle_ms_;
  std::string id_;
  std::optional<HeldLease> held_;
  std::string worker_;
  // What commands use while a call runs.
  struct Beside {
    Fd socket;  // a duplicate of the present one of its calls
    uint32_t table_slot = 0;
    std::optional<End> last_end;
    uint64_t last_ended = 0;  // the number of that user process
  };
  mutable Mutex beside_mutex_;
  Beside beside_ GUARDED_BY(beside_mutex_);
  std::atomic<uint64_t> restarts_ = 0;
  std::atomic<uint64_t> lease_ = 0;
  std::atomic<uint32_t> call_ = 0;  // the low bits of its id, while it runs
  std::atomic<bool> interrupt_next_ = false;
  BackgroundTime background_;
  std::atomic<uint64_t> of_commands_us_ = 0;  // CPU time that `background_` does not know yet
  bool announced_ = false;                    // a call was, since such time was last reported
  bool over_ = false;
  bool restartable_ = true;
  Turns turns_{*this};
};

}  // namespace hutch
