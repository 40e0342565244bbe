// SPDX-License-Identifier: Apache-2.0

#include "client/client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <random>

#include "client/trace.h"
#include "wire/channel.h"
#include "wire/paths.h"

namespace hutch {
namespace {

constexpr auto kSlice = std::chrono::milliseconds(250);
// How long an outcome waits for the warden's word. A timeout may be passed by half a second in all.
constexpr auto kReportAfterLimit = std::chrono::milliseconds(300);
constexpr auto kLastWord = std::chrono::milliseconds(1000);  // of one that may not have ended
constexpr auto kReportAfterEnd = std::chrono::milliseconds(3000);
constexpr int kSendAttempts = 9;    // each on another cell
constexpr size_t kTrimPeriod = 16;  // leases
constexpr size_t kTableBytes = kLeaseTableSlots * sizeof(uint32_t);

uint64_t Micros(Clock::duration d) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::microseconds>(d).count()));
}

Ending EndingOf(const CallOutcome& outcome) {
  switch (outcome.status) {
    case CallStatus::kReturned:
      return Ending::kReturned;
    case CallStatus::kRaised: {
      const Ending limit = EndingOfLimit(outcome.usage.limit);
      return limit == Ending::kNoCall ? Ending::kRaised : limit;
    }
    case CallStatus::kUnencodable:
      return Ending::kRaised;
    case CallStatus::kTooLarge:
      return Ending::kLimitResult;
    case CallStatus::kOutOfMemory:
      return Ending::kLimitMemory;
    case CallStatus::kTimedOut:
      return Ending::kLimitTime;
    case CallStatus::kCancelled:
    case CallStatus::kInterrupted:
      return Ending::kCancelled;
    case CallStatus::kBroken:
      return Ending::kDied;
    case CallStatus::kEnded:
      return Ending::kUntold;
  }
  return Ending::kUntold;
}

CallNote NoteOf(const CallRecord& record) {
  return {EndingOf(record.outcome),
          Micros(record.queue),
          Micros(record.send()),
          Micros(record.run()),
          Micros(Clock::now() - record.outcome.ended),
          record.outcome.call_id,
          record.policy,
          record.code,
          record.calls};
}

Error ErrorOf(const Failed& failed) {
  return Error(static_cast<Code>(failed.code), failed.message, failed.hint, failed.may_have_run,
               failed.figures);
}

}  // namespace

uint64_t RandomId() {
  thread_local std::mt19937_64 engine{(uint64_t{std::random_device{}()} << 32) ^
                                      std::random_device{}()};
  return engine() | 1;
}

// A year stands for ever: the sum must not overflow.
Clock::time_point After(uint64_t ms) {
  constexpr std::chrono::milliseconds kYear = std::chrono::hours(24 * 365);
  return Clock::now() +
         std::chrono::milliseconds(std::min(ms, static_cast<uint64_t>(kYear.count())));
}

// A lease of no number: the cell is in handed_.
ReceivedMessage Handed(uint64_t request) {
  Leased notice;
  notice.request = request;
  return {notice, {}};
}

Error Lost() {
  return Error(Code::kUnavailable, "the agent closed the connection",
               "`hutch logs` shows its last words; it starts again with the next call");
}

namespace {

Error Silent() {
  return Error(Code::kUnavailable, "the agent does not answer: it is stopped, or hangs",
               "the next call ends it and starts another one");
}

}  // namespace

bool IsSimple(const CallOutcome& outcome) {
  return outcome.status == CallStatus::kReturned || outcome.status == CallStatus::kUnencodable ||
         (outcome.status == CallStatus::kRaised && outcome.usage.limit == kNoLimit);
}

CallRecord RecordOf(const HeldLease& held, const CallRequest& request, Clock::time_point begun) {
  return {.outcome = CallOutcome(),
          .report = {},
          .worker = held.lease.worker(),
          .queue = held.queue,
          .worker_start = held.worker_start,
          .begun = begun,
          .policy = request.policy,
          .code = request.code,
          .calls = static_cast<uint32_t>(held.calls)};
}

void SetBroken(CallRecord& record, const HeldLease& held, const Error& error) {
  record.outcome.status = CallStatus::kBroken;
  record.outcome.sent = held.lease.sent();
  record.outcome.ended = Clock::now();
  record.outcome.detail = error.what();
}

// One call more of that pool while it lives: what is leased ahead follows their number.
class Client::UnderWay {
 public:
  UnderWay(Client& client, const std::string& key) : client_(client) {
    const std::lock_guard lock(client_.mutex_);
    stock_ = &client_.stocks_[key];
    stock_->Begun();
  }
  ~UnderWay() {
    const std::lock_guard lock(client_.mutex_);
    stock_->Over();
  }

 private:
  Client& client_;
  Stock* stock_;  // of a map that keeps its elements where they are
};

Client::Client(const std::string& socket, long connect_uid)
    : socket_(ConnectTo(socket, connect_uid)),
      pid_(::getpid()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!socket_) throw Error(Code::kUnavailable, "no agent listens at " + socket);
  Send(Hello{kWireVersion, pid_, ::getuid()});
  pollfd polled{socket_.get(), POLLIN, 0};
  std::optional<ReceivedMessage> received;
  while (!received) {
    const Clock::time_point begun = Clock::now();
    const auto period = std::chrono::milliseconds(kLookPeriod).count();
    if (::poll(&polled, 1, static_cast<int>(period)) > 0) {
      received = ReceiveMessage(socket_.get());
    } else if (heart_.Look(WorthOfLook(Clock::now() - begun - kLookPeriod, 0)) ==
               Heartbeat::Next::kGiveUp) {
      throw Silent();
    }
  }
  heart_ = {};
  if (const auto* failed = std::get_if<Failed>(&received->message)) {
    throw Error(static_cast<Code>(failed->code), failed->message, failed->hint, false,
                failed->figures);
  }
  const auto* welcome = std::get_if<Welcome>(&received->message);
  if (welcome == nullptr || received->descriptors.size() != 1)
    throw Error(Code::kProtocol, "the agent gave no welcome");
  void* mapped = ::mmap(nullptr, kTableBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                        received->descriptors[0].get(), 0);
  if (mapped == MAP_FAILED) ThrowErrno("mapping the lease table");
  table_ = static_cast<uint32_t*>(mapped);
}

Client::~Client() {
  if (table_ != nullptr) ::munmap(table_, kTableBytes);
}

void Client::Send(const Message& message) {
  if (broken_) throw Lost();
  try {
    while (!SendMessage(socket_.get(), message)) {
      pollfd polled{socket_.get(), POLLOUT, 0};
      ::poll(&polled, 1, 250);
    }
  } catch (const Error&) {
    broken_ = true;
    changed_.notify_all();
    throw;
  }
}

void Client::Tell(const Message& message) {
  if (broken_) return;
  try {
    // Into a full socket it is not sent. The cell of a dropped lease ends by itself, its socket
    // being closed.
    SendMessage(socket_.get(), message);
  } catch (const Error&) {
    broken_ = true;
    changed_.notify_all();
  }
}

void Client::GiveBack(const Message& message) {
  if (const auto* leased = std::get_if<Leased>(&message))
    Tell(hutch::Done{leased->lease, false, {}});
}

HeldLease Client::MakeLease(const Leased& leased, std::vector<Fd> fds) {
  if (fds.size() != 3 || leased.table_slot >= kLeaseTableSlots)
    throw Error(Code::kProtocol, "a lease is incomplete");
  pressure_.store(leased.pressure, std::memory_order_relaxed);
  if (IsTraced()) {
    Trace("leased", {{"lease", leased.lease},
                     {"worker", leased.worker},
                     {"us", leased.waited_us},
                     {"worker_us", leased.worker_us}});
  }
  return {Lease(leased.lease, leased.worker, std::move(fds[0]), std::move(fds[1]),
                std::move(fds[2]), segments_),
          leased.table_slot, std::chrono::microseconds(leased.waited_us),
          std::chrono::microseconds(leased.worker_us)};
}

void Client::TrimStocks() {
  if (++added_ % kTrimPeriod != 0) return;
  size_t held = 0;
  for (const auto& [key, stock] : stocks_) held += stock.size();
  while (held-- > Stock::kMost) {
    Stock* largest = nullptr;
    for (auto& [key, stock] : stocks_) {
      if (!stock.called() && (largest == nullptr || stock.size() > largest->size()))
        largest = &stock;
    }
    if (largest == nullptr || largest->size() == 0) return;
    Tell(hutch::Done{largest->GiveUp().lease.id(), false, {}});
  }
}

void Client::Dispatch(ReceivedMessage received) {
  const auto request_of = [](const Message& message) -> uint64_t {
    return std::visit(
        [](const auto& m) -> uint64_t {
          if constexpr (requires { m.request; }) return m.request;
          return 0;
        },
        message);
  };
  if (const auto* report = std::get_if<Report>(&received.message)) {
    if (IsTraced()) {
      Trace("report", {{"lease", report->lease},
                       {"limit", NameOfLimit(report->report.limit)},
                       {"wall_us", report->report.wall_us},
                       {"cpu_us", report->report.cpu_us},
                       {"peak_kb", report->report.peak_kb}});
    }
    const auto found = reports_.find(report->lease);
    if (found != reports_.end() && !found->second) found->second = *report;
    SettleLoans(report->lease, report->report);
    return;
  }
  const uint64_t request = request_of(received.message);
  if (request != 0 && request == heart_request_) {
    heart_.Answered();
    return;
  }
  const auto ahead = ahead_requests_.find(request);
  if (ahead != ahead_requests_.end()) {
    const AskedAhead& asked = ahead->second;
    Stock& stock = stocks_[asked.key];
    stock.Answered(asked.loaded.has_value());
    if (const auto* leased = std::get_if<Leased>(&received.message)) {
      HeldLease held = MakeLease(*leased, std::move(received.descriptors));
      if (asked.loaded) held.lease.SetLoaded(*asked.loaded);
      stock.Add(std::move(held));
      TrimStocks();
      flights_.Granted(asked.key);
    }
    ahead_requests_.erase(ahead);
    return;
  }
  const auto flight = flight_requests_.find(request);
  if (flight != flight_requests_.end()) {
    const std::string key = std::move(flight->second);
    flight_requests_.erase(flight);
    if (const auto* failed = std::get_if<Failed>(&received.message))
      return flights_.Refused(key, request, ErrorOf(*failed));
    flights_.Answered(key, request);
    if (const auto* leased = std::get_if<Leased>(&received.message)) {
      if (!flights_.waiting(key)) return GiveBack(received.message);
      stocks_[key].Add(MakeLease(*leased, std::move(received.descriptors)));
      TrimStocks();
      flights_.Granted(key);
    }
    return;
  }
  const auto pending = pending_.find(request);
  if (pending != pending_.end()) {
    pending->second->arrived.push_back(std::move(received));
  } else {
    GiveBack(received.message);  // whoever asked for it gave up meanwhile
  }
}

bool Client::AwaitLoans(uint64_t lease, Loans loans) {
  if (loans.empty()) return false;
  const std::lock_guard lock(mutex_);
  loans_[lease] = std::move(loans);
  const auto known = reports_.find(lease);
  if (known == reports_.end() || !known->second) return true;
  SettleLoans(lease, known->second->report);  // it ended by itself
  return false;
}

void Client::SettleLoans(uint64_t lease, const CellReport& report) {
  const auto found = loans_.find(lease);
  if (found == loans_.end()) return;
  // Only the warden sees that a cell is gone; the agent speaks in its place where it is lost.
  if (report.memory_limit_kb != 0) {
    for (const std::shared_ptr<Segment>& segment : found->second) segment->Ended();
  }
  loans_.erase(found);
}

void Client::DrainLocked(const Done& enough) {
  try {
    while (!enough()) {
      auto received = ReceiveMessage(socket_.get());
      if (!received) return;
      Dispatch(std::move(*received));
    }
  } catch (const Error&) {
    broken_ = true;
    loans_.clear();  // nobody will say any more that those cells are dead
  }
}

void Client::LookAtAgent(Clock::duration late) {
  const Clock::time_point now = Clock::now();
  if (now - looked_ < kLookPeriod) return;
  // Nobody waited meanwhile: what was not answered then says nothing.
  if (now - looked_ > 3 * kLookPeriod) heart_ = {};
  looked_ = now;
  switch (heart_.Look(WorthOfLook(late, pressure()))) {
    case Heartbeat::Next::kAsk:
      heart_request_ = NextRequest();
      return Tell(Ask{heart_request_, "alive"});
    case Heartbeat::Next::kWait:
      return;
    case Heartbeat::Next::kGiveUp:
      GiveUpAgent();
  }
}

void Client::GiveUpAgent() {
  broken_ = true;
  loans_.clear();  // as where the connection is closed
  changed_.notify_all();
  throw Silent();
}

bool Client::IsLost(uint64_t lease, bool hung_up) {
  const std::lock_guard lock(mutex_);
  if (!reading_ && !broken_) DrainLocked([] { return false; });
  return IsLostLocked(lease, hung_up);
}

bool Client::IsLostLocked(uint64_t lease, bool hung_up) const {
  if (hung_up && broken_) return true;
  const auto found = reports_.find(lease);
  return found != reports_.end() && found->second &&
         (hung_up || found->second->report.end == kLost);
}

bool Client::WaitFor(std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
                     const CallHooks& hooks, const Done& done) {
  for (;;) {
    if (done()) return true;
    if (broken_) throw Lost();
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return false;
    const Clock::duration wait = std::min<Clock::duration>(kSlice, deadline - now);
    if (!reading_) {
      reading_ = true;
      lock.unlock();
      pollfd polled[3] = {
          {socket_.get(), POLLIN, 0}, {hooks.cancel_fd, POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      const auto ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
      ::poll(polled, 3, static_cast<int>(ms));
      const bool cancelled = polled[1].revents != 0;
      const bool interrupted = !cancelled && hooks.interrupted && hooks.interrupted();
      eventfd_t woken = 0;
      if (polled[2].revents != 0) ::eventfd_read(wake_.get(), &woken);
      lock.lock();
      reading_ = false;
      DrainLocked([] { return false; });
      changed_.notify_all();
      if (done()) return true;
      if (cancelled || interrupted) {
        throw Error(Code::kCancelled, interrupted ? "interrupted" : "cancelled before it began");
      }
      LookAtAgent(Clock::now() - now - std::chrono::ceil<std::chrono::milliseconds>(wait));
    } else {
      changed_.wait_for(lock, wait);
      if (done()) return true;
      lock.unlock();
      pollfd polled{hooks.cancel_fd, POLLIN, 0};
      const bool cancelled = hooks.cancel_fd >= 0 && ::poll(&polled, 1, 0) > 0;
      const bool interrupted = !cancelled && hooks.interrupted && hooks.interrupted();
      lock.lock();
      if (cancelled || interrupted) {
        throw Error(Code::kCancelled, interrupted ? "interrupted" : "cancelled before it began");
      }
    }
  }
}

void Client::Converse(const Message& request, uint64_t id, Clock::time_point deadline,
                      const CallHooks& hooks, const std::function<bool(ReceivedMessage&)>& handle) {
  Pending pending;
  std::unique_lock lock(mutex_);
  pending_[id] = &pending;
  if (handed_.contains(id)) pending.arrived.push_back(Handed(id));
  const auto forget = [&] { pending_.erase(id); };
  try {
    lock.unlock();
    Send(request);
    lock.lock();
    for (;;) {
      if (!WaitFor(lock, deadline, hooks, [&] { return !pending.arrived.empty(); })) {
        if (heart_.overdue()) GiveUpAgent();
        throw Error(Code::kTimeout, "the agent did not answer in time");
      }
      ReceivedMessage received = std::move(pending.arrived.front());
      pending.arrived.pop_front();
      lock.unlock();
      if (const auto* failed = std::get_if<Failed>(&received.message)) throw ErrorOf(*failed);
      const bool finished = handle(received);
      lock.lock();
      if (finished) break;
    }
    forget();
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    forget();
    lock.unlock();
    Tell(Forget{id});
    for (const ReceivedMessage& late : pending.arrived) GiveBack(late.message);
    throw;
  }
}

Prepared Client::PreparePool(Prepare prepare, const std::function<void(const Progress&)>& progress,
                             const CallHooks& hooks) {
  const uint64_t id = prepare.request = NextRequest();
  Prepared prepared;
  // The agent has the deadline; ours is only for an agent that does not answer at all.
  const Clock::time_point deadline = After(prepare.timeout_ms) + std::chrono::seconds(200);
  Converse(prepare, id, deadline, hooks, [&](ReceivedMessage& received) {
    if (const auto* step = std::get_if<Progress>(&received.message)) {
      if (progress) progress(*step);
      return false;
    }
    if (auto* done = std::get_if<Prepared>(&received.message)) {
      prepared = std::move(*done);
      return true;
    }
    throw Error(Code::kProtocol, "the agent answered a preparation with something else");
  });
  return prepared;
}

uint64_t Client::WarmPool(const std::string& key, int64_t cells, uint64_t timeout_ms,
                          const CallHooks& hooks) {
  const uint64_t id = NextRequest();
  uint64_t ready = 0;
  Converse(Warm{id, key, cells}, id, After(timeout_ms), hooks, [&](ReceivedMessage& received) {
    const auto* answer = std::get_if<Answer>(&received.message);
    if (answer == nullptr) throw Error(Code::kProtocol, "the agent answered with something else");
    const char* end = answer->text.data() + answer->text.size();
    if (std::from_chars(answer->text.data(), end, ready).ptr != end) {
      throw Error(Code::kProtocol, "the agent answered with no number");
    }
    return true;
  });
  return ready;
}

std::string Client::AskAgent(const std::string& what, uint64_t timeout_ms, const CallHooks& hooks) {
  const uint64_t id = NextRequest();
  std::string text;
  Converse(Ask{id, what}, id, After(timeout_ms), hooks, [&](ReceivedMessage& received) {
    auto* answer = std::get_if<Answer>(&received.message);
    if (answer == nullptr) throw Error(Code::kProtocol, "the agent answered with something else");
    text = std::move(answer->text);
    return true;
  });
  return text;
}

void Client::WhileCallRuns(const std::string& key, const Sha256Digest& identity) {
  std::optional<HeldLease> spent;  // closed after the lock is free
  const std::lock_guard lock(mutex_);
  spent = std::exchange(spent_, std::nullopt);
  Stock& stock = stocks_[key];
  if (!reading_) DrainLocked([&] { return stock.Has(false, identity); });
}

void Client::DeferClose(HeldLease held) {
  if (held.lease.holds_result()) return;
  std::optional<HeldLease> last(std::move(held));
  const std::lock_guard lock(mutex_);
  std::swap(last, spent_);
}

std::optional<HeldLease> Client::TakeHeld(const std::string& key, const CallRequest& request) {
  // A cell that a dead agent has left would run, with nobody to hold it to its limits.
  if (broken_) throw Lost();
  const std::lock_guard lock(mutex_);
  Stock& stock = stocks_[key];
  const bool shared = request.shared();
  if (!reading_) DrainLocked([&] { return loans_.empty() && stock.Has(shared, request.identity); });
  std::optional<HeldLease> held = stock.Take(shared, request.identity);
  if (!held) return held;
  held->queue = held->worker_start = {};  // nobody waited for it
  reports_[held->lease.id()];
  return held;
}

void Client::GiveBackUnwanted(const std::string& key) {
  for (;;) {
    std::optional<HeldLease> unwanted;
    {
      const std::lock_guard lock(mutex_);
      unwanted = stocks_[key].TakeUnwanted();
    }
    if (!unwanted) return;
    Tell(hutch::Done{unwanted->lease.id(), false, {}});
  }
}

HeldLease Client::AcquireLease(const std::string& key, const CallRequest& request,
                               const CallHooks& hooks) {
  const uint64_t id = NextRequest();
  std::optional<HeldLease> held;
  const Clock::time_point begun = Clock::now();
  const Clock::time_point deadline = After(request.limits.queue_ms) + std::chrono::seconds(5);
  const auto handle = [&](ReceivedMessage& received) {
    const auto* leased = std::get_if<Leased>(&received.message);
    if (leased == nullptr) throw Error(Code::kProtocol, "the agent answered with something else");
    if (leased->lease != 0) {
      held = MakeLease(*leased, std::move(received.descriptors));
      return true;
    }
    const std::lock_guard lock(mutex_);
    held = std::move(handed_.at(id));
    handed_.erase(id);
    return true;
  };
  const auto wait = [&] {
    Converse(Acquire{id, key, request.limits.queue_ms, false}, id, deadline, hooks, handle);
  };
  if (request.shared()) {
    {
      const std::lock_guard lock(mutex_);
      shared_waiters_[key].push_back(id);
    }
    try {
      wait();
    } catch (...) {
      ForgetSharedWaiter(key, id);
      throw;
    }
    ForgetSharedWaiter(key, id);
    if (held->calls > 0) Tell(Forget{id});
  } else {
    wait();
  }
  held->queue = Clock::now() - begun;  // our clock: with the way there and back
  held->worker_start = std::min(held->worker_start, held->queue);
  const std::lock_guard lock(mutex_);
  reports_[held->lease.id()];
  return std::move(*held);
}

void Client::ForgetSharedWaiter(const std::string& key, uint64_t request) {
  const std::lock_guard lock(mutex_);
  std::erase(shared_waiters_[key], request);
  const auto handed = handed_.find(request);
  if (handed == handed_.end()) return;
  HeldLease held = std::move(handed->second);  // a cell of its own came first
  handed_.erase(handed);
  KeepLocked(key, std::move(held));
}

void Client::KeepLocked(const std::string& key, HeldLease held) {
  std::deque<uint64_t>& waiters = shared_waiters_[key];
  if (waiters.empty()) {
    stocks_[key].Keep(std::move(held));
    TrimStocks();
    return flights_.Granted(key);
  }
  const uint64_t request = waiters.front();
  waiters.pop_front();
  handed_.emplace(request, std::move(held));
  const auto pending = pending_.find(request);
  if (pending == pending_.end()) return;  // it looks there when it begins to wait
  pending->second->arrived.push_back(Handed(request));
  changed_.notify_all();
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) return;  // a full counter is as readable
}

bool Client::Keep(const std::string& key, const CallRequest& request, HeldLease& held,
                  const CallOutcome& outcome) {
  // One that was lent memory holds it until it is dead: it does not live on.
  if (!request.shared() || held.lease.has_loans() || broken_) return false;
  const bool as_it_should =
      outcome.status == CallStatus::kReturned ||
      (outcome.status == CallStatus::kRaised && outcome.usage.limit == kNoLimit);
  if (!as_it_should || held.calls >= request.calls_of_cell ||
      Clock::now() - held.first_call >= request.age_of_cell) {
    return false;
  }
  held.cpu_us += outcome.usage.cpu_us;
  // Takes the limits of this call off the warden's clock, and once says that the lease is kept.
  if (held.lease.told_slow() || !std::exchange(held.may_be_taken, true))
    Tell(Started{held.lease.id(), 0, 0, 0});
  std::atomic_ref<uint32_t>(table_[held.table_slot]).store(MarkOf(held.lease.id(), kLeaseIdle));
  const std::lock_guard lock(mutex_);
  KeepLocked(key, std::move(held));
  return true;
}

void Client::TellStarted(const HeldLease& held, const CallRequest& request) {
  const uint64_t cpu_ms =
      request.limits.cpu_ms == 0 ? 0 : request.limits.cpu_ms + held.cpu_us / 1000;
  Tell(Started{held.lease.id(), request.limits.timeout_ms, cpu_ms, held.lease.result_kb()});
}

bool Client::MarkUsed(const HeldLease& held) {
  const uint64_t lease = held.lease.id();
  uint32_t expected = MarkOf(lease, kLeaseIdle);
  return std::atomic_ref<uint32_t>(table_[held.table_slot])
      .compare_exchange_strong(expected, MarkOf(lease, kLeaseUsed));
}

Client::Wanted Client::WantAhead(const std::string& key, const CallRequest* finished, bool quick) {
  Wanted wanted;
  const std::lock_guard lock(mutex_);
  Stock& stock = stocks_[key];
  if (finished != nullptr && stock.ShouldLoad(finished->identity) && stock.Missing() > 0) {
    wanted.load = LoadFrame(*finished, quick);
    const CallLimits& limits = finished->limits;
    wanted.cpu_ms = limits.cpu_ms == 0 ? limits.timeout_ms : limits.cpu_ms;
  }
  while (stock.Missing() > 0) {
    const bool loaded = wanted.requests.empty() && !wanted.load.empty();
    wanted.requests.push_back(NextRequest());
    AskedAhead& asked = ahead_requests_[wanted.requests.back()];
    asked.key = key;
    if (loaded) asked.loaded = finished->identity;
    stock.Asked(loaded);
  }
  return wanted;
}

void Client::SendDone(const std::string& key, uint64_t lease, bool want_report,
                      const CallNote& note, Wanted wanted) {
  if (IsTraced()) {
    Trace("done", {{"call", LogId(note.call_id)},
                   {"lease", lease},
                   {"queue_us", note.queue_us},
                   {"send_us", note.send_us},
                   {"run_us", note.run_us},
                   {"receive_us", note.receive_us}});
  }
  const std::vector<uint64_t>& requests = wanted.requests;
  if (requests.empty()) {
    Send(hutch::Done{lease, want_report, note});
  } else {
    Send(hutch::Done{lease, want_report, note, requests[0], std::move(wanted.load), wanted.cpu_ms});
  }
  for (size_t i = 1; i < requests.size(); ++i)
    Send(Acquire{requests[i], key, kAheadPatienceMs, true});
}

std::optional<Report> Client::ReportWithin(uint64_t lease, Clock::duration patience) {
  std::unique_lock lock(mutex_);
  WaitFor(lock, Clock::now() + patience, {}, [&] { return reports_[lease].has_value(); });
  return reports_[lease];
}

std::optional<Report> Client::AwaitReport(uint64_t lease, Clock::duration patience) {
  std::optional<Report> report = ReportWithin(lease, patience);
  ForgetReport(lease);
  return report;
}

void Client::ForgetReport(uint64_t lease) {
  const std::lock_guard lock(mutex_);
  reports_.erase(lease);
}

void Client::ForgetLease(uint64_t lease, Ending ending) {
  {
    const std::lock_guard lock(mutex_);
    reports_.erase(lease);
  }
  Tell(hutch::Done{lease, false, {.ending = ending}});
}

HeldLease Client::SendCall(const std::string& key, const CallRequest& request,
                           const CallHooks& hooks) {
  Clock::duration queue{};  // of all attempts
  Clock::duration worker_start{};
  for (int attempt = 0; attempt < kSendAttempts; ++attempt) {
    std::optional<HeldLease> held = TakeHeld(key, request);
    GiveBackUnwanted(key);
    if (!held) held = AcquireLease(key, request, hooks);
    held->queue = queue += held->queue;
    held->worker_start = worker_start += held->worker_start;
    const uint64_t lease = held->lease.id();
    if (!MarkUsed(*held)) {  // the agent took it back: this call never ran
      const std::lock_guard lock(mutex_);
      reports_.erase(lease);
      continue;
    }
    try {
      if (held->calls++ == 0) held->first_call = Clock::now();
      if (held->lease.Send(request, RandomId())) return std::move(*held);
    } catch (...) {
      ForgetLease(lease, Ending::kFault);
      throw;
    }
    ForgetLease(lease, Ending::kNoCall);
  }
  throw Error(Code::kWorkerFailed, "cells end before a call can be sent to them",
              "`hutch logs` says why");
}

CallRecord Client::Call(const std::string& key, const CallRequest& request,
                        const CallHooks& hooks) {
  const Clock::time_point begun =
      request.begun == Clock::time_point{} ? Clock::now() : request.begun;
  const UnderWay under_way(*this, key);
  HeldLease held = SendCall(key, request, hooks);
  const uint64_t lease = held.lease.id();
  CallRecord record = RecordOf(held, request, begun);
  if (!request.shared()) WhileCallRuns(key, request.identity);
  try {
    record.outcome = held.lease.Await(
        request, hooks, [&] { TellStarted(held, request); },
        [&](bool hung_up) { return IsLost(lease, hung_up); });
  } catch (const Error& error) {
    // What the cell does is never a fault of ours, nor of the connection that other calls share.
    if (error.code() == Code::kProtocol) {
      SetBroken(record, held, error);
      return Conclude(key, lease, std::move(record), held.lease.TakeLoans(), request.network);
    }
    ForgetLease(lease, Ending::kFault);
    // The call was sent: whatever went wrong then, it may have run.
    throw Error(error.code(), error.what(), error.hint(), true);
  } catch (...) {
    ForgetLease(lease, Ending::kFault);
    throw;
  }
  if (Keep(key, request, held, record.outcome)) return record;
  // Not of one that did not come back: its loading may be what holds it up.
  const bool load_again = !request.shared() && IsSimple(record.outcome);
  record = Conclude(key, lease, std::move(record), held.lease.TakeLoans(), request.network,
                    load_again ? &request : nullptr);
  DeferClose(std::move(held));
  return record;
}

CallRecord Client::Conclude(OpenCall& open) {
  return Conclude(open.key, open.held.lease.id(), std::move(open.record),
                  open.held.lease.TakeLoans(), open.network);
}

CallRecord Client::Conclude(const std::string& key, uint64_t lease, CallRecord record, Loans loans,
                            bool network, const CallRequest* finished) {
  const CallStatus status = record.outcome.status;
  const bool simple = IsSimple(record.outcome);
  const bool want_report = (!simple && status != CallStatus::kInterrupted) || network;
  bool told = false;
  const auto take = [&record, &told, simple](std::optional<Report> report) {
    if (!report) return;
    told = true;
    if (!simple) record.report = report->report;
    record.network = std::move(report->network);
  };
  try {
    // A cell that ended by itself is reported unasked. Killing what is left of it comes second: the
    // kill could overtake the last word of its PID 1, how the user's process ended.
    if (status == CallStatus::kEnded) take(ReportWithin(lease, kLastWord));
    const bool lent = AwaitLoans(lease, std::move(loans));
    const bool waiting = want_report && !record.report;
    if (!waiting) ForgetReport(lease);
    Wanted wanted = WantAhead(key, finished, record.outcome.usage.wall_us < kQuickUs);
    SendDone(key, lease, waiting || lent, NoteOf(record), std::move(wanted));
    if (waiting) {
      const bool patient = status == CallStatus::kEnded || network;
      take(AwaitReport(
          lease, patient ? Clock::duration(kReportAfterEnd) : Clock::duration(kReportAfterLimit)));
    }
  } catch (const Error&) {
    // The agent is gone, the cell was not: what it replied stands. Without a reply nobody knows
    // what became of it.
    if (status == CallStatus::kEnded && !record.report) {
      throw Error(Code::kUnavailable, "the agent and the cell were lost during the call",
                  "the call may have run; repeat it only if that does no harm", true);
    }
  }
  // An agent that goes takes the network with it, before the call sees anything else of that.
  if (network && !told) {
    NetworkRecord lost;
    lost.reason = "the agent did not say what became of it";
    lost.lost = true;
    record.network.push_back(lost);
  }
  return record;
}

}  // namespace hutch
