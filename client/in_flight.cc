// SPDX-License-Identifier: Apache-2.0

#include "client/in_flight.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

namespace hutch {
namespace {

constexpr int kSendAttempts = 9;  // each on another cell
constexpr Clock::duration kLongestWait = std::chrono::seconds(10);
// What counts as the same wait, as the agent says and as it is seen from here.
constexpr auto kSameWait = std::chrono::milliseconds(100);

Error NoCell(Clock::duration waited, double queued, double capacity, const std::string& hint) {
  const double seconds = std::chrono::duration<double>(waited).count();
  char text[160];
  std::snprintf(text, sizeof text,
                "no cell came free within %.1f s: %.0f more calls wait for %.0f cells", seconds,
                queued, capacity);
  return Error(Code::kBusy, text, hint, false,
               {{"queued", queued}, {"capacity", capacity}, {"waited_sec", seconds}});
}

// A call whose request was sent late has waited longer than the agent knows.
Error WithWholeWait(const Error& error, Clock::duration waited) {
  Figures figures = error.figures();
  const auto known = std::chrono::duration<double>(figures["waited_sec"]);
  if (waited < known + kSameWait) return error;
  return NoCell(waited, figures["queued"], figures["capacity"], error.hint());
}

}  // namespace

InFlightCalls::InFlightCalls(Connection& connection, Reports& reports, HeldLeases& leases)
    : connection_(connection),
      reports_(reports),
      leases_(leases),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) ThrowErrno("make an eventfd");
}

InFlightCalls::~InFlightCalls() = default;

void InFlightCalls::Wake() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) return;  // a full counter is as readable
}

void InFlightCalls::WakeOnce() {
  if (!std::exchange(awake_, true)) Wake();
}

void InFlightCalls::Stop() {
  {
    const Connection::Lock lock(connection_);
    stopped_ = true;
  }
  Wake();
}

uint64_t InFlightCalls::Start(const std::string& key, CallRequest request,
                              std::shared_ptr<const void> owner, bool output) {
  auto call = std::make_unique<InFlightCall>();
  const uint64_t id = call->id = next_id_++;
  call->key = key;
  call->request = std::move(request);
  call->owner = std::move(owner);
  call->output = output;
  call->asked = Clock::now();
  call->patience = DeadlineIn(call->request.limits.queue_ms);
  if (call->request.begun == Clock::time_point{}) call->request.begun = call->asked;
  Cell cell;
  {
    const Connection::Lock lock(connection_);
    if (!waiting_.HasAny(key) && !connection_.broken()) cell = TakeCell(key, call->request);
    if (!cell.held) waiting_.Add(std::move(call));
  }
  // Sent from here, it begins before the thread in Next has been woken.
  if (cell.held) SendTo(std::move(call), std::move(*cell.held));
  GiveBack(cell.unwanted);
  const Connection::Lock lock(connection_);
  WakeOnce();
  return id;
}

InFlightCalls::Cell InFlightCalls::TakeCell(const std::string& key, const CallRequest& request) {
  Cell cell{leases_.TakeNow(key, request), {}};
  while (auto one = leases_.TakeUnwanted(key)) cell.unwanted.push_back(std::move(*one));
  return cell;
}

void InFlightCalls::GiveBack(const std::vector<HeldLease>& unwanted) {
  for (const HeldLease& one : unwanted) connection_.Tell(LeaseEnded{one.lease.id(), false, {}});
}

void InFlightCalls::Cancel(uint64_t id) {
  {
    const Connection::Lock lock(connection_);
    cancelled_.push_back(id);
  }
  Wake();
}

void InFlightCalls::SetMaxCells(const std::string& key, uint64_t cells) {
  const Connection::Lock lock(connection_);
  max_cells_[key] = cells;
}

uint64_t InFlightCalls::MaxCells(const std::string& key) const {
  const Connection::Lock lock(connection_);
  const auto found = max_cells_.find(key);
  return found == max_cells_.end() ? 0 : found->second;
}

void InFlightCalls::OnCell(const std::string& key) {
  if (waiting_.HasAny(key)) WakeOnce();
}

bool InFlightCalls::OnMessage(uint64_t request, ReceivedMessage& received) {
  const auto asked = waiting_.TakeRequest(request);
  if (!asked) return false;
  if (const auto* failed = std::get_if<Failed>(&received.message)) {
    Refuse(*asked, ErrorFrom(*failed));
  } else if (const auto* leased = std::get_if<Leased>(&received.message)) {
    if (waiting_.HasAny(asked->key)) {
      leases_.Add(asked->key, *leased, std::move(received.descriptors));
    } else {
      connection_.GiveBack(received.message);
    }
  }
  return true;
}

void InFlightCalls::Refuse(const WaitingCalls::Asked& asked, Error error) {
  const auto call = waiting_.TakeCallOf(asked);
  if (call == nullptr) return OnCell(asked.key);  // for the others new requests are sent
  const Clock::time_point now = Clock::now();
  if (error.code() == Code::kBusy && call->patience <= now)
    error = WithWholeWait(error, now - call->asked);
  AddFailed(*call, std::move(error));
}

void InFlightCalls::AddFailed(const InFlightCall& call, Error error) {
  failed_.push_back({.id = call.id, .error = std::move(error), .owner = call.owner});
  WakeOnce();
}

void InFlightCalls::Fail(InFlightCall& call, Error error) {
  events_.push_back({.id = call.id, .error = std::move(error), .owner = call.owner});
}

std::vector<CallEvent> InFlightCalls::Next(Clock::duration patience) {
  const Clock::time_point until = Clock::now() + patience;
  for (bool stopped = false, polled = false; !stopped; polled = true) {
    DropCancelled();
    Expire();
    SendWaiting();
    if (!events_.empty() || (polled && Clock::now() >= until)) break;
    stopped = Poll(until);
  }
  return std::exchange(events_, {});
}

bool InFlightCalls::Poll(Clock::time_point until) {
  const Clock::time_point now = Clock::now();
  {
    const Connection::Lock lock(connection_);
    TakeSent();
  }
  polled_.assign(2 + running_.size() * kPolledOfCall, {});
  polled_[0] = {wake_.get(), POLLIN, 0};
  polled_[1] = {connection_.broken() ? -1 : connection_.fd(), POLLIN, 0};
  size_t at = 2;
  for (const auto& call : running_) {
    call->held->lease.Fill(&polled_[at]);
    at += kPolledOfCall;
  }
  const Clock::duration wait = TimeToWait(now, until);
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
  const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
  if (::ppoll(polled_.data(), polled_.size(), &timeout, nullptr) < 0 && errno != EINTR)
    ThrowErrno("wait for a cell");
  if (polled_[0].revents != 0) {
    uint64_t count = 0;
    if (::read(wake_.get(), &count, sizeof count) < 0) ThrowErrno("read an eventfd");
  }
  std::set<uint64_t> lost;
  bool stopped = false;
  {
    const Connection::Lock lock(connection_);
    awake_ = false;
    if (polled_[1].revents != 0) connection_.Read();
    stopped = std::exchange(stopped_, false);
    CheckAgent(Clock::now() - now - wait);
    const bool hung_up =
        std::ranges::any_of(running_, [](const auto& call) { return call->held->lease.hung_up(); });
    if (hung_up || std::exchange(added_, false) || polled_[1].revents != 0) lost = LostLeases();
  }
  at = 2;
  for (auto it = running_.begin(); it != running_.end(); at += kPolledOfCall) {
    it = Step(**it, &polled_[at]) ? running_.erase(it) : std::next(it);
  }
  EndLost(lost);
  return stopped;
}

Clock::duration InFlightCalls::TimeToWait(Clock::time_point now, Clock::time_point until) const {
  for (const auto& call : running_) until = std::min(until, call->held->lease.clock().due());
  const Connection::Lock lock(connection_);
  const auto due = waiting_.due();
  if (due) until = std::min(until, *due);
  // While calls wait for the agent, CheckAgent is to be called in time.
  const Clock::duration most = due ? Clock::duration(kLookPeriod) : kLongestWait;
  return std::clamp<Clock::duration>(until - now, {}, most);
}

void InFlightCalls::CheckAgent(Clock::duration late) {
  if (!waiting_.due() || connection_.broken()) return;
  try {
    connection_.CheckAgent(late);
  } catch (const Error&) {
    return;  // the connection counts as broken: Expire fails all calls that wait
  }
}

std::set<uint64_t> InFlightCalls::LostLeases() const {
  std::set<uint64_t> lost;
  for (const auto& call : running_) {
    const Lease& lease = call->held->lease;
    if (reports_.IsKnownLost(lease.id(), lease.hung_up())) lost.insert(lease.id());
  }
  return lost;
}

void InFlightCalls::EndLost(const std::set<uint64_t>& lost) {
  for (auto it = running_.begin(); it != running_.end();) {
    InFlightCall& call = **it;
    if (!lost.contains(call.held->lease.id())) {
      ++it;
      continue;
    }
    Finish(call, call.held->lease.End(CallStatus::kEnded, call.printed));
    it = running_.erase(it);
  }
}

void InFlightCalls::DropCancelled() {
  std::vector<uint64_t> cancelled;
  WaitingCalls::Left left;
  {
    const Connection::Lock lock(connection_);
    std::ranges::move(failed_, std::back_inserter(events_));
    failed_.clear();
    cancelled.swap(cancelled_);
    left = waiting_.TakeCancelled(cancelled);
    TakeSent();
  }
  for (const uint64_t request : left.requests) connection_.Tell(Forget{request});
  for (const auto& one : left.calls)
    Fail(*one.call, Error(Code::kCancelled, "the call was cancelled before it began"));
  for (const uint64_t id : cancelled) {
    const auto found = std::ranges::find_if(running_, [&](const auto& c) { return c->id == id; });
    if (found == running_.end()) continue;
    Finish(**found, (*found)->held->lease.End(CallStatus::kCancelled, (*found)->printed));
    running_.erase(found);
  }
}

void InFlightCalls::Expire() {
  const Clock::time_point now = Clock::now();
  WaitingCalls::Left left;
  bool broken = false;
  {
    const Connection::Lock lock(connection_);
    broken = connection_.broken();
    left = broken ? waiting_.TakeAll() : waiting_.TakeExpired(now);
  }
  for (const uint64_t request : left.requests) connection_.Tell(Forget{request});
  for (const auto& [call, others] : left.calls) {
    Fail(*call, broken ? Connection::LostError()
                       : NoCell(now - call->asked, static_cast<double>(others),
                                static_cast<double>(MaxCells(call->key)),
                                "raise queue_sec, or start fewer calls at once"));
  }
}

void InFlightCalls::TakeSent() {
  added_ |= !sent_.empty();
  running_.splice(running_.end(), sent_);
}

void InFlightCalls::SendWaiting() {
  if (connection_.broken()) return;  // Expire fails all calls that wait
  for (;;) {
    std::unique_ptr<InFlightCall> call;
    Cell cell;
    {
      const Connection::Lock lock(connection_);
      call = waiting_.TakeFirst(
          [&](const std::string& key, const InFlightCall& first) REQUIRES(connection_lock) {
            Cell taken = TakeCell(key, first.request);
            std::ranges::move(taken.unwanted, std::back_inserter(cell.unwanted));
            cell.held = std::move(taken.held);
            return cell.held.has_value();
          });
    }
    GiveBack(cell.unwanted);
    if (!call) break;
    SendTo(std::move(call), std::move(*cell.held));
  }
  AskForMore();
}

void InFlightCalls::SendTo(std::unique_ptr<InFlightCall> call, HeldLease held) {
  Calls sent(1);  // what takes memory comes before it is sent: what fails after that may have run
  held.queue = Clock::now() - call->asked;
  held.worker_start = std::min(held.worker_start, held.queue);
  try {
    if (leases_.Send(held, call->request)) {
      call->held = std::move(held);
      if (call->output) {
        call->printed = [this, id = call->id](int stream, std::string_view text) {
          events_.push_back({.id = id, .stream = stream, .text = std::string(text)});
        };
      }
      const Connection::Lock lock(connection_);
      leases_.Begun(call->key);
      sent.front() = std::move(call);
      sent_.splice(sent_.end(), sent);
      return;
    }
    if (++call->attempts >= kSendAttempts) throw CellsEnd();
  } catch (const Error& error) {
    const Connection::Lock lock(connection_);
    return AddFailed(*call, error);
  }
  const Connection::Lock lock(connection_);
  waiting_.AddAgain(std::move(call));
}

void InFlightCalls::AskForMore() {
  std::vector<Acquire> requests;
  {
    const Connection::Lock lock(connection_);
    if (connection_.broken()) return;
    requests = waiting_.Ask(Clock::now(), [this] { return connection_.NextRequest(); });
  }
  try {
    for (const Acquire& request : requests) connection_.Send(request);
  } catch (const Error&) {
    return;  // the connection is broken: Expire fails all calls that wait
  }
}

bool InFlightCalls::Step(InFlightCall& call, const pollfd* polled) {
  Lease& lease = call.held->lease;
  try {
    const auto slow = [&] { leases_.TellStarted(*call.held, call.request); };
    if (!lease.Step(call.request, polled, call.printed, slow)) return false;
    Finish(call, lease.Take());
  } catch (const Error& error) {
    if (error.code() == Code::kProtocol) {
      CallRecord record = RecordOf(*call.held, call.request, call.request.begun);
      SetBroken(record, *call.held, error);
      auto open = std::make_shared<OpenCall>(
          OpenCall{call.key, std::move(*call.held), std::move(record), call.request.network});
      AddEnd(call, {.id = call.id, .open = std::move(open), .owner = call.owner});
    } else {
      leases_.GiveUp(lease.id(), Ending::kFault);
      // The call was sent: whatever went wrong then, it may have run.
      AddEnd(call, {.id = call.id,
                    .error = Error(error.code(), error.what(), error.hint(), true),
                    .owner = call.owner});
    }
  }
  return true;
}

void InFlightCalls::Finish(InFlightCall& call, CallOutcome outcome) {
  HeldLease held = std::move(*call.held);
  CallRecord record = RecordOf(held, call.request, call.request.begun);
  record.outcome = std::move(outcome);
  CallEvent event{.id = call.id, .owner = call.owner};
  const uint64_t lease = held.lease.id();
  if (leases_.Keep(call.key, call.request, held, record.outcome)) {
    event.record = std::make_shared<CallRecord>(std::move(record));
  } else if (IsSimple(record.outcome) && !call.request.network) {
    event.record = std::make_shared<CallRecord>(
        leases_.Conclude(call.key, lease, std::move(record), held.lease.lending().TakeAll(), false,
                         call.request.shared() ? nullptr : &call.request));
  } else {
    event.open = std::make_shared<OpenCall>(
        OpenCall{call.key, std::move(held), std::move(record), call.request.network});
  }
  AddEnd(call, std::move(event));
}

void InFlightCalls::AddEnd(const InFlightCall& call, CallEvent event) {
  {
    const Connection::Lock lock(connection_);
    leases_.Over(call.key);
  }
  events_.push_back(std::move(event));
}

}  // namespace hutch
