// SPDX-License-Identifier: Apache-2.0

#include "client/session.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "wire/channel.h"

namespace hutch {
namespace {

constexpr int kStartAttempts = 9;  // each with another cell
constexpr auto kKeepPatience = std::chrono::seconds(10);
// For the processes of a cell to be killed, and a user process to be made. The warden gives up
// after ten seconds.
constexpr auto kEndPatience = std::chrono::seconds(1);
constexpr auto kRestartPatience = std::chrono::seconds(15);
constexpr int kMostUnread = 16 << 10;  // bytes, as the kernel counts them: about 20 commands

// Its worker ends within seconds of its agent.
Error AgentGone(bool may_have_run) {
  return Error(Code::kUnavailable, "the session has ended: its agent is gone",
               may_have_run
                   ? "its files and names are lost, and the call may have run; start another "
                     "session"
                   : "its files and names are lost; start another session",
               may_have_run);
}

// Its code ended the user process, or met a limit: neither is a fault.
bool IsOfTheCode(const std::optional<CellReport>& report) {
  return report && (report->limit != kNoLimit ||
                    (report->memory_limit_kb != 0 && report->end == kEndedItself));
}

// From when the code of a call could run until it had replied.
uint64_t RanUs(const CallRecord& record) {
  const CallUsage& usage = record.outcome.usage;
  return std::min(ToMicroseconds(record.run()), usage.wall_us + usage.load_us + usage.encode_us);
}

uint64_t Processors() {
  static const auto count = static_cast<uint64_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  return count;
}

// The CPU time of a call: what it reports itself, as far as it can have used that.
uint64_t OwnCpuUs(const CallRecord& record) {
  if (record.report) return record.report->cpu_us;
  const CallUsage& usage = record.outcome.usage;
  return std::min(usage.cpu_us + usage.encode_us, Processors() * RanUs(record));
}

// How much of that it had used before the warden was informed of it. Before it ran it waited, as
// for code of a call before it.
uint64_t UnannouncedCpuUs(const Underway& call) {
  if (call.record.report) return 0;  // measured since then
  const uint64_t waited_us = ToMicroseconds(call.record.run()) - RanUs(call.record);
  const uint64_t until_us = ToMicroseconds(call.unannounced);
  return until_us - std::min(until_us, waited_us);
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

std::optional<UserProcesses::Next> UserProcesses::AwaitNext(uint64_t lease,
                                                            Clock::duration patience) {
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

std::optional<uint64_t> UserProcesses::TakeMeasured(uint64_t lease) {
  const Connection::Lock lock(connection_);
  if (!connection_.broken()) connection_.ReadIfFree([] { return false; });
  const auto found = states_.find(lease);
  return found == states_.end() ? std::nullopt : std::exchange(found->second.measured_us, {});
}

void UserProcesses::OnEnded(const UserEnded& message, std::vector<Fd> descriptors) {
  const auto found = states_.find(message.lease);
  if (found == states_.end()) return;
  if (descriptors.size() != 1) throw Error(Code::kProtocol, "the socket of a session is missing");
  found->second.ended = {message.report, std::move(descriptors[0])};
  found->second.ready = false;
}

void UserProcesses::OnBackground(const BackgroundCpu& message) {
  const auto found = states_.find(message.lease);
  if (found == states_.end()) return;
  std::optional<uint64_t>& known = found->second.measured_us;
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

Error Session::Over() {
  return Error(Code::kWorkerFailed,
               "the session has ended: it was not used for idle_sec, or its worker was lost",
               "its files and names are lost; start another session", false);
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
                                 const auto* answer = std::get_if<hutch::Answer>(&received.message);
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
    SetSocketOfCommands();
    return;
  }
  throw CellsEnd();
}

Underway Session::Send(const CallRequest& request, const CallHooks& hooks) {
  RequireConnection();
  const Clock::time_point begun =
      request.begun == Clock::time_point{} ? Clock::now() : request.begun;
  if (!held_) Start(request, hooks);
  parts_.leases.CountUse(*held_);
  Underway call{request, hooks, RecordOf(*held_, request, begun)};
  held_->queue = held_->worker_start = {};
  const uint64_t call_id = RandomCallId();
  call.sent = held_->lease.Send(request, call_id);
  if (call.sent) {
    call_ = static_cast<uint32_t>(call_id);
    TellOfInterrupt();
  }
  return call;
}

void Session::OnSlow(Underway& call) {
  announced_ = true;
  if (!std::exchange(call.announced, true))
    call.unannounced = Clock::now() - held_->lease.clock().sent();
  parts_.leases.TellStarted(*held_, call.request);
}

bool Session::IsLost(bool hung_up) {
  const uint64_t lease = held_->lease.id();
  return parts_.reports.IsLost(lease, hung_up) || parts_.users.HasEnded(lease);
}

void Session::Take(Underway& call, CallOutcome outcome) {
  call_ = 0;
  call.record.outcome = std::move(outcome);
}

void Session::Fail(Underway& call) {
  call_ = 0;
  try {
    throw;
  } catch (const Error& error) {
    if (error.code() != Code::kProtocol) throw;
    SetBroken(call.record, *held_, error);
  }
}

void Session::Settle() {
  if (!IsUnsettled()) return;
  CallRecord idle;
  Replace(idle, {}, false);
}

CallRecord Session::Conclude(Underway& call) {
  if (!call.sent) return Unsent(call);
  CallRecord& record = call.record;
  if (!record.outcome.replied) Replace(record, call.hooks);
  background_.AddCall(of_commands_us_.exchange(0));
  if (call.announced) {
    background_.AddMeasuredCall(OwnCpuUs(record), UnannouncedCpuUs(call));
  } else {
    background_.AddCall(OwnCpuUs(record));
  }
  const auto measured = announced_ ? parts_.users.TakeMeasured(held_->lease.id()) : std::nullopt;
  if (measured) {
    announced_ = false;
    record.background = std::chrono::microseconds(background_.AddMeasured(*measured));
  }
  CallStats stats = NoteOf(record);
  if (stats.ending == Ending::kUntold) {
    stats.ending = record.report ? EndingOfLimit(record.report->limit) : Ending::kFault;
    if (stats.ending == Ending::kNoCall) stats.ending = Ending::kDied;
  }
  parts_.connection.Tell(Executed{held_->lease.id(), stats}, kTellPatience);
  parts_.leases.MarkIdle(*held_);
  return std::move(record);
}

CallRecord Session::Unsent(Underway& call) {
  CallRecord& record = call.record;
  record.outcome.status = CallStatus::kBroken;
  Replace(record, call.hooks, false);
  if (over_) {
    if (!IsOfTheCode(record.report)) throw Over();
    record.outcome.status = CallStatus::kEnded;
    record.outcome.sent = record.outcome.ended = Clock::now();
    return std::move(record);
  }
  SetBroken(
      record, *held_,
      Error(Code::kProtocol,
            "code that ran before left the socket of its calls full or shut, or keeps what it "
            "was lent, so this was not run"));
  parts_.leases.MarkIdle(*held_);
  return std::move(record);
}

std::optional<Report> Session::AwaitReport(uint64_t lease) {
  try {
    return parts_.reports.Await(lease, kEndPatience);
  } catch (const Error&) {
    throw AgentGone(true);
  }
}

void Session::SetOver() {
  over_ = true;
  held_->lease.FreeMemory();
}

void Session::Replace(CallRecord& record, const CallHooks& hooks, bool during_call) {
  const uint64_t lease = held_->lease.id();
  const CallStatus status = record.outcome.status;
  const bool hung_up = held_->lease.hung_up();
  if (hung_up && !restartable_) {
    SetOver();
    if (const auto report = AwaitReport(lease)) {
      record.report = report->report;
      NoteEnd({report->report, during_call});
    } else {
      SetBroken(record, *held_, Error(Code::kProtocol, "it closed the socket of its calls"));
    }
    return;
  }
  // That it has ended is what its cell says, where the agent does not: it may lie.
  const bool ended = status == CallStatus::kEnded && parts_.users.AwaitEnd(lease, kEndPatience);
  if (!ended) parts_.connection.Tell(hutch::Restart{lease, restarts_});
  std::optional<UserProcesses::Next> next = parts_.users.AwaitNext(lease, kRestartPatience);
  if (!next) {
    SetOver();
    if (const auto report = AwaitReport(lease)) {
      record.report = report->report;
      NoteEnd({report->report, during_call});
    }
    return;
  }
  record.report = next->ended;
  NoteEnd({next->ended, during_call});
  if (hung_up && status == CallStatus::kEnded && !ended)
    SetBroken(record, *held_, Error(Code::kProtocol, "it closed the socket of its calls"));
  ++restarts_;
  // The processes that wrote it are dead, so this is all of it.
  held_->lease.BeginUser(std::move(next->socket), record.outcome.output, hooks.output);
  turns_.ForgetSocket();
  SetSocketOfCommands();
}

void Session::Interrupt() {
  interrupt_next_ = true;
  TellOfInterrupt();
}

void Session::TellOfInterrupt() {
  const uint32_t call = call_;  // of another one that begins meanwhile, nothing is interrupted
  if (call != 0 && interrupt_next_.exchange(false))
    parts_.connection.Tell(hutch::Interrupt{lease_, restarts_, call});
}

bool Session::HasEnded() {
  if (!held_) return true;
  pollfd polled{held_->lease.socket(), POLLRDHUP, 0};
  return (::poll(&polled, 1, 0) > 0 && polled.revents != 0) ||
         parts_.users.HasEnded(held_->lease.id());
}

void Session::SetSocketOfCommands() {
  const MutexLock lock(beside_mutex_);
  beside_.socket = Fd(::fcntl(held_->lease.socket(), F_DUPFD_CLOEXEC, 0));
  beside_.table_slot = held_->table_slot;
}

void Session::NoteEnd(const End& end) {
  const MutexLock lock(beside_mutex_);
  beside_.last_end = end;
  beside_.last_ended = restarts_;
}

std::optional<Session::End> Session::LastEnd(uint64_t since) {
  const MutexLock lock(beside_mutex_);
  return beside_.last_ended >= since ? beside_.last_end : std::nullopt;
}

bool Session::SendCommand(const std::vector<int>& descriptors) {
  FrameHeader header{.kind = FrameKind::kCommand};
  const iovec part{&header, sizeof header};
  const MutexLock lock(beside_mutex_);
  int unread = 0;
  return beside_.socket && ::ioctl(beside_.socket.get(), SIOCOUTQ, &unread) == 0 &&
         unread < kMostUnread &&
         SendDatagram(beside_.socket.get(), {&part, 1}, descriptors) == SendStatus::kSent;
}

void Session::LookForCommands() { parts_.connection.Tell(hutch::Interrupt{lease_, restarts_, 0}); }

void Session::CountUse() {
  const MutexLock lock(beside_mutex_);
  if (beside_.socket) parts_.leases.CountUse(beside_.table_slot);
}

void Session::TellCommand(const CallStats& stats, uint64_t cpu_us) {
  of_commands_us_ += std::min(cpu_us, Processors() * stats.run_us);
  parts_.connection.Tell(Executed{lease_, stats, true});
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
  turns_.Drop();
  {
    const MutexLock lock(beside_mutex_);
    beside_.socket.reset();
  }
  if (!held_) return;
  const uint64_t lease = held_->lease.id();
  parts_.users.Forget(lease);
  parts_.leases.GiveUp(lease, Ending::kNoCall);
  held_.reset();  // and what it was lent, which is not used again: nobody waits for its cell's end
}

}  // namespace hutch
