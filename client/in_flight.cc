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

constexpr size_t kMostAsked = 64;  // cells requested at once, for the waiting calls of one pool
constexpr int kSendAttempts = 9;   // each on another cell
constexpr Clock::duration kLongestWait = std::chrono::seconds(10);
// What counts as the same wait, as the agent says and as it is seen from here.
constexpr auto kSameWait = std::chrono::milliseconds(100);
// Beyond a caller's patience the agent has this long to say so, for it knows the numbers of all.
constexpr auto kGrace = std::chrono::milliseconds(250);

Error NoCell(Clock::duration waited, double queued, double capacity, const std::string& hint) {
  const double seconds = std::chrono::duration<double>(waited).count();
  char text[160];
  std::snprintf(text, sizeof text,
                "no cell came free within %.1f s: %.0f more calls wait, %.0f cells are in use",
                seconds, queued, capacity);
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

struct InFlightCalls::InFlightCall {
  uint64_t id = 0;
  std::string key;
  CallRequest request;
  std::shared_ptr<const void> owner;
  bool output = false;
  Clock::time_point asked;
  Clock::time_point patience;  // until then
  int attempts = 0;
  std::optional<HeldLease> held;  // once it is sent
  OutputHook printed;
};

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
  bool first = false;
  {
    const Connection::Lock lock(connection_);
    first = !awake_;
    Join(queues_[key], std::move(call), false);
    awake_ = true;
  }
  if (first) Wake();
  return id;
}

void InFlightCalls::Cancel(uint64_t id) {
  {
    const Connection::Lock lock(connection_);
    cancelled_.push_back(id);
  }
  Wake();
}

bool InFlightCalls::HasWaiting(const std::string& key) const {
  const auto queue = queues_.find(key);
  return queue != queues_.end() && !queue->second.calls.empty();
}

bool InFlightCalls::HasWaiting() const {
  return std::ranges::any_of(queues_,
                             [](const auto& queue) { return !queue.second.calls.empty(); });
}

void InFlightCalls::OnCell(const std::string& key) {
  if (HasWaiting(key)) WakeOnce();
}

bool InFlightCalls::OnMessage(uint64_t request, ReceivedMessage& received) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return false;
  const std::string key = std::move(found->second);
  requests_.erase(found);
  if (const auto* failed = std::get_if<Failed>(&received.message)) {
    Refuse(key, request, ErrorFrom(*failed));
    return true;
  }
  queues_[key].asked.erase(request);
  if (const auto* leased = std::get_if<Leased>(&received.message)) {
    if (HasWaiting(key)) {
      leases_.Add(key, *leased, std::move(received.descriptors));
    } else {
      connection_.GiveBack(received.message);
    }
  }
  return true;
}

void InFlightCalls::Refuse(const std::string& key, uint64_t request, Error error) {
  Queue& queue = queues_[key];
  const auto asked = queue.asked.extract(request);
  const auto concerned = std::ranges::find_if(
      queue.calls, [&](const auto& call) { return asked && call->patience == asked.mapped(); });
  // The call that it was sent for has found another cell, or left. For the others new requests are
  // sent.
  if (concerned == queue.calls.end()) return OnCell(key);
  std::unique_ptr<InFlightCall> call = std::move(*concerned);
  queue.calls.erase(concerned);
  const Clock::time_point now = Clock::now();
  if (error.code() == Code::kBusy && call->patience <= now)
    error = WithWholeWait(error, now - call->asked);
  refused_.push_back({.id = call->id, .error = std::move(error), .owner = call->owner});
  WakeOnce();
}

void InFlightCalls::Fail(InFlightCall& call, Error error) {
  events_.push_back({.id = call.id, .error = std::move(error), .owner = call.owner});
}

std::vector<CallEvent> InFlightCalls::Next(Clock::duration patience) {
  const Clock::time_point until = Clock::now() + patience;
  for (bool stopped = false; !stopped;) {
    DropCancelled();
    Expire();
    SendWaiting();
    if (!events_.empty() || Clock::now() >= until) break;
    stopped = Poll(until);
  }
  return std::exchange(events_, {});
}

bool InFlightCalls::Poll(Clock::time_point until) {
  const Clock::time_point now = Clock::now();
  polled_.assign(2 + running_.size() * Lease::kPolled, {});
  polled_[0] = {wake_.get(), POLLIN, 0};
  polled_[1] = {connection_.broken() ? -1 : connection_.fd(), POLLIN, 0};
  size_t at = 2;
  for (const auto& call : running_) {
    call->held->lease.Fill(&polled_[at]);
    at += Lease::kPolled;
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
    if (hung_up || polled_[1].revents != 0) lost = LostLeases();
  }
  at = 2;
  for (auto it = running_.begin(); it != running_.end(); at += Lease::kPolled) {
    it = Step(**it, &polled_[at]) ? running_.erase(it) : std::next(it);
  }
  EndLost(lost);
  return stopped;
}

Clock::duration InFlightCalls::TimeToWait(Clock::time_point now, Clock::time_point until) const {
  for (const auto& call : running_) until = std::min(until, call->held->lease.due());
  bool waiting = false;
  const Connection::Lock lock(connection_);
  for (const auto& [key, queue] : queues_) {
    if (queue.calls.empty()) continue;
    waiting = true;
    until = std::min(until, queue.due);
  }
  // While calls wait for the agent, CheckAgent is to be called in time.
  const Clock::duration most = waiting ? Clock::duration(kLookPeriod) : kLongestWait;
  return std::clamp<Clock::duration>(until - now, {}, most);
}

void InFlightCalls::CheckAgent(Clock::duration late) {
  if (!HasWaiting() || connection_.broken()) return;
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
  std::vector<std::unique_ptr<InFlightCall>> waiting;
  std::vector<uint64_t> unwanted;
  {
    const Connection::Lock lock(connection_);
    std::ranges::move(refused_, std::back_inserter(events_));
    refused_.clear();
    cancelled.swap(cancelled_);
    for (auto& [key, queue] : queues_) {
      if (cancelled.empty()) break;
      for (auto& call : queue.calls) {
        if (std::ranges::count(cancelled, call->id) > 0) waiting.push_back(std::move(call));
      }
      std::erase(queue.calls, nullptr);
      TakeUnwanted(queue, unwanted);
    }
  }
  for (const uint64_t request : unwanted) connection_.Tell(Forget{request});
  for (const auto& call : waiting)
    Fail(*call, Error(Code::kCancelled, "the call was cancelled before it began"));
  for (const uint64_t id : cancelled) {
    const auto found = std::ranges::find_if(running_, [&](const auto& c) { return c->id == id; });
    if (found == running_.end()) continue;
    Finish(**found, (*found)->held->lease.End(CallStatus::kCancelled, (*found)->printed));
    running_.erase(found);
  }
}

void InFlightCalls::Expire() {
  std::vector<std::pair<std::unique_ptr<InFlightCall>, Error>> failed;
  std::vector<uint64_t> unwanted;
  {
    const Clock::time_point now = Clock::now();
    const Connection::Lock lock(connection_);
    for (auto& [key, queue] : queues_) {
      if (!connection_.broken() && queue.due > now) continue;
      queue.due = Clock::time_point::max();
      const auto others = static_cast<double>(queue.calls.empty() ? 0 : queue.calls.size() - 1);
      for (auto& call : queue.calls) {
        if (connection_.broken()) {
          failed.emplace_back(std::move(call), Connection::LostError());
        } else if (call->patience + kGrace <= now) {
          Error error = NoCell(now - call->asked, others, static_cast<double>(running_.size()),
                               "raise queue_sec, or start fewer calls at once");
          failed.emplace_back(std::move(call), std::move(error));
        } else {
          queue.due = std::min(queue.due, call->patience + kGrace);
        }
      }
      std::erase(queue.calls, nullptr);
      TakeUnwanted(queue, unwanted);
    }
  }
  for (const uint64_t request : unwanted) connection_.Tell(Forget{request});
  for (auto& [call, error] : failed) Fail(*call, std::move(error));
}

void InFlightCalls::Join(Queue& queue, std::unique_ptr<InFlightCall> call, bool first) {
  queue.due = std::min(queue.due, call->patience + kGrace);
  queue.calls.insert(first ? queue.calls.begin() : queue.calls.end(), std::move(call));
}

void InFlightCalls::TakeUnwanted(Queue& queue, std::vector<uint64_t>& requests) {
  while (queue.asked.size() > queue.calls.size()) {
    const auto newest = std::prev(queue.asked.end());
    requests_.erase(newest->first);
    requests.push_back(newest->first);
    queue.asked.erase(newest);
  }
}

void InFlightCalls::SendWaiting() {
  if (connection_.broken()) return;  // Expire fails all calls that wait
  for (;;) {
    std::unique_ptr<InFlightCall> call;
    std::optional<HeldLease> held;
    std::vector<HeldLease> unwanted;
    {
      const Connection::Lock lock(connection_);
      for (auto& [key, queue] : queues_) {
        if (queue.calls.empty()) continue;
        held = leases_.TakeNow(key, queue.calls.front()->request);
        while (auto one = leases_.TakeUnwanted(key)) unwanted.push_back(std::move(*one));
        if (!held) continue;
        call = std::move(queue.calls.front());
        queue.calls.pop_front();
        break;
      }
    }
    for (const HeldLease& one : unwanted) connection_.Tell(LeaseEnded{one.lease.id(), false, {}});
    if (!call) break;
    SendTo(std::move(call), std::move(*held));
  }
  AskForMore();
}

void InFlightCalls::SendTo(std::unique_ptr<InFlightCall> call, HeldLease held) {
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
      running_.push_back(std::move(call));
      return;
    }
    if (++call->attempts >= kSendAttempts) throw HeldLeases::CellsEnd();
  } catch (const Error& error) {
    return Fail(*call, error);
  }
  const Connection::Lock lock(connection_);
  Queue& queue = queues_[call->key];
  Join(queue, std::move(call), true);
}

void InFlightCalls::AskForMore() {
  std::vector<Acquire> requests;
  {
    const Clock::time_point now = Clock::now();
    const Connection::Lock lock(connection_);
    if (connection_.broken()) return;
    for (auto& [key, queue] : queues_) {
      const size_t wanted = std::min(queue.calls.size(), kMostAsked);
      while (queue.asked.size() < wanted) {
        const Clock::time_point until = queue.calls[queue.asked.size()]->patience;
        // Rounded up: the agent does not give up on it before its caller does.
        const auto patience = std::chrono::ceil<std::chrono::milliseconds>(until - now);
        const uint64_t request = connection_.NextRequest();
        requests.push_back(
            {request, key, static_cast<uint64_t>(std::max<int64_t>(1, patience.count())), false});
        queue.asked.emplace(request, until);
        requests_[request] = key;
      }
    }
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
        leases_.Conclude(call.key, lease, std::move(record), held.lease.TakeLoans(), false));
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
