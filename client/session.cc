// SPDX-License-Identifier: Apache-2.0

#include "client/session.h"

#include <algorithm>
#include <utility>

namespace hutch {
namespace {

constexpr int kStartAttempts = 9;  // each with another cell
constexpr auto kKeepPatience = std::chrono::seconds(10);
// For the processes of a cell to be killed, and a user process to be made. The warden gives up
// after ten seconds.
constexpr auto kEndPatience = std::chrono::seconds(1);
constexpr auto kRestartPatience = std::chrono::seconds(15);

Error Over() {
  return Error(Code::kWorkerFailed,
               "the session has ended: it was not used for idle_sec, or its worker was lost",
               "its files and names are lost; start another session", false);
}

// Its worker ends within seconds of its agent.
Error AgentGone(bool may_have_run) {
  return Error(Code::kUnavailable, "the session has ended: its agent is gone",
               may_have_run
                   ? "its files and names are lost, and the call may have run; start another "
                     "session"
                   : "its files and names are lost; start another session",
               may_have_run);
}

}  // namespace

void UserProcesses::Expect(uint64_t lease) {
  const Connection::Lock lock(connection_);
  states_[lease];
}

void UserProcesses::Forget(uint64_t lease) {
  const Connection::Lock lock(connection_);
  states_.erase(lease);
}

bool UserProcesses::HasEnded(uint64_t lease) {
  const Connection::Lock lock(connection_);
  if (!connection_.broken()) connection_.ReadIfFree([] { return false; });
  const auto found = states_.find(lease);
  return found != states_.end() && found->second.ended;
}

bool UserProcesses::AwaitEnd(uint64_t lease, Clock::duration patience) {
  const Connection::Lock lock(connection_);
  try {
    return connection_.WaitFor(Clock::now() + patience, {}, [&]() REQUIRES(connection_lock) {
      const State& state = states_[lease];
      return state.ended || state.gone;
    });
  } catch (const Error&) {
    return true;  // the agent is gone
  }
}

std::optional<CellReport> UserProcesses::AwaitNext(uint64_t lease, Clock::duration patience) {
  const Connection::Lock lock(connection_);
  try {
    const bool came =
        connection_.WaitFor(Clock::now() + patience, {}, [&]() REQUIRES(connection_lock) {
          const State& state = states_[lease];
          return state.gone || (state.ended && state.ready);
        });
    if (!came || states_[lease].gone) return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // the agent is gone
  }
  State& state = states_[lease];
  state.ready = false;
  return std::exchange(state.ended, {});
}

std::optional<Clock::duration> UserProcesses::TakeBackground(uint64_t lease) {
  const Connection::Lock lock(connection_);
  if (!connection_.broken()) connection_.ReadIfFree([] { return false; });
  const auto found = states_.find(lease);
  if (found == states_.end() || !found->second.background_us) return std::nullopt;
  return std::chrono::microseconds(*std::exchange(found->second.background_us, {}));
}

void UserProcesses::OnEnded(const UserEnded& message) {
  const auto found = states_.find(message.lease);
  if (found == states_.end()) return;
  found->second.ended = message.report;
  found->second.ready = false;
}

void UserProcesses::OnBackground(const BackgroundCpu& message) {
  const auto found = states_.find(message.lease);
  if (found == states_.end()) return;
  std::optional<uint64_t>& known = found->second.background_us;
  known = known.value_or(0) + message.cpu_us;
}

void UserProcesses::OnGone(uint64_t lease) {
  const auto found = states_.find(lease);
  if (found != states_.end()) found->second.gone = true;
}

void UserProcesses::OnReady(const UserReady& message) {
  const auto found = states_.find(message.lease);
  if (found != states_.end()) found->second.ready = true;
}

void Session::RequireConnection() {
  if (over_) throw Over();
  over_ = parts_.connection.broken();
  if (over_) throw AgentGone(false);
}

bool Session::Keep(HeldLease& held, const CallHooks& hooks) {
  const uint64_t lease = held.lease.id();
  if (!parts_.leases.MarkUsed(held)) return false;
  parts_.users.Expect(lease);
  const uint64_t request = parts_.connection.NextRequest();
  try {
    parts_.connection.Converse(hutch::Keep{request, lease, idle_ms_, id_}, request,
                               Clock::now() + kKeepPatience, hooks, [&](ReceivedMessage& received) {
                                 const auto* answer = std::get_if<Answer>(&received.message);
                                 restartable_ = answer != nullptr && answer->text != kEndsWithUser;
                                 return answer != nullptr;
                               });
  } catch (const Error& error) {
    parts_.users.Forget(lease);
    parts_.leases.GiveUp(lease, Ending::kNoCall);
    if (error.code() == Code::kWorkerFailed) return false;  // the cell has just ended
    throw;
  } catch (...) {
    parts_.users.Forget(lease);
    parts_.leases.GiveUp(lease, Ending::kNoCall);
    throw;
  }
  return true;
}

void Session::Start(const CallRequest& request, const CallHooks& hooks) {
  for (int attempt = 0; attempt < kStartAttempts; ++attempt) {
    std::optional<HeldLease> held = parts_.leases.Take(key_, request);
    if (!held) held = parts_.leases.Acquire(key_, request, hooks, true);
    if (!Keep(*held, hooks)) continue;
    worker_ = held->lease.worker();
    lease_ = held->lease.id();
    held_ = std::move(held);
    held_->lease.SetKept([this] { Interrupt(); });
    return;
  }
  throw HeldLeases::CellsEnd();
}

CallOutcome Session::Await(const CallRequest& request, const CallHooks& hooks) {
  const uint64_t lease = held_->lease.id();
  call_ = held_->lease.call_number();
  bool announced = false;
  CallOutcome outcome = held_->lease.Await(
      request, hooks,
      [&] {
        announced_ = true;
        if (!std::exchange(announced, true)) unannounced_ += Clock::now() - held_->lease.sent();
        parts_.leases.TellStarted(*held_, request);
      },
      [&](bool hung_up) {
        return parts_.reports.IsLost(lease, hung_up) || parts_.users.HasEnded(lease);
      });
  call_ = 0;
  if (!announced) unannounced_ += outcome.ended - outcome.sent;
  return outcome;
}

void Session::Settle() {
  if (over_ || !held_ || !parts_.users.HasEnded(held_->lease.id())) return;
  CallRecord idle;
  Replace(idle, {});
}

CallRecord Session::Call(const CallRequest& request, const CallHooks& hooks) {
  RequireConnection();
  const Clock::time_point begun =
      request.begun == Clock::time_point{} ? Clock::now() : request.begun;
  if (!held_) Start(request, hooks);
  parts_.leases.CountUse(*held_);
  CallRecord record = RecordOf(*held_, request, begun);
  held_->queue = held_->worker_start = {};
  if (!held_->lease.Send(request, RandomCallId())) {
    over_ = true;
    throw Over();
  }
  try {
    record.outcome = Await(request, hooks);
  } catch (const Error& error) {
    call_ = 0;
    if (error.code() != Code::kProtocol) throw;
    SetBroken(record, *held_, error);
  }
  if (!record.outcome.replied) Replace(record, hooks);
  const auto background =
      announced_ ? parts_.users.TakeBackground(held_->lease.id()) : std::nullopt;
  if (background) {
    announced_ = false;
    record.background = std::max(Clock::duration{}, *background - unannounced_);
    unannounced_ = {};
  }
  CallStats stats = NoteOf(record);
  if (stats.ending == Ending::kUntold) {
    stats.ending = record.report ? EndingOfLimit(record.report->limit) : Ending::kFault;
    if (stats.ending == Ending::kNoCall) stats.ending = Ending::kDied;
  }
  parts_.connection.Tell(Executed{held_->lease.id(), stats}, kTellPatience);
  parts_.leases.MarkIdle(*held_);
  return record;
}

std::optional<Report> Session::AwaitReport(uint64_t lease) {
  try {
    return parts_.reports.Await(lease, kEndPatience);
  } catch (const Error&) {
    throw AgentGone(true);
  }
}

void Session::Replace(CallRecord& record, const CallHooks& hooks) {
  const uint64_t lease = held_->lease.id();
  const CallStatus status = record.outcome.status;
  if (held_->lease.hung_up()) {
    over_ = true;
    if (const auto report = AwaitReport(lease)) {
      record.report = report->report;
    } else {
      SetBroken(record, *held_, Error(Code::kProtocol, "it closed the socket of its calls"));
    }
    return;
  }
  // That it has ended is what its cell says, where the agent does not: it may lie.
  if (status != CallStatus::kEnded || !parts_.users.AwaitEnd(lease, kEndPatience))
    parts_.connection.Tell(hutch::Restart{lease, restarts_});
  record.report = parts_.users.AwaitNext(lease, kRestartPatience);
  if (!record.report) {
    over_ = true;
    if (const auto report = AwaitReport(lease)) record.report = report->report;
    return;
  }
  ++restarts_;
  // The processes that wrote it are dead, so this is all of it.
  held_->lease.TakeRest(record.outcome.output, hooks.output);
}

void Session::Interrupt() {
  const uint32_t call = call_;  // of another one that begins meanwhile, nothing is interrupted
  if (call != 0) parts_.connection.Tell(hutch::Interrupt{lease_, restarts_, call});
}

bool Session::Restart() {
  if (over_) return false;
  if (!held_) return true;
  CallRecord record;
  record.outcome.status = CallStatus::kCancelled;
  Replace(record, {});
  return !over_;
}

void Session::Close() {
  over_ = true;
  if (!held_) return;
  const uint64_t lease = held_->lease.id();
  parts_.users.Forget(lease);
  try {
    parts_.reports.HoldLoans(lease, held_->lease.TakeLoans());
  } catch (const Error&) {
    // Memory that was lent is not used again.
  }
  parts_.leases.GiveUp(lease, Ending::kNoCall);
  held_.reset();
}

}  // namespace hutch
