// SPDX-License-Identifier: Apache-2.0

#include "client/held_leases.h"

#include <algorithm>
#include <utility>

#include "client/trace.h"

namespace hutch {
namespace {

// How long an outcome waits for the warden's report. A timeout may be exceeded by half a second in
// all.
constexpr auto kReportAfterLimit = std::chrono::milliseconds(300);
constexpr auto kReportOfCell = std::chrono::milliseconds(1000);  // that may not have ended
constexpr auto kReportAfterEnd = std::chrono::milliseconds(3000);
constexpr size_t kTrimPeriod = 16;  // leases

// Of no lease: the cell is in handed_.
ReceivedMessage Handed(uint64_t request) {
  Leased notice;
  notice.request = request;
  return {notice, {}};
}

}  // namespace

HeldLease HeldLeases::MakeLease(const Leased& leased, std::vector<Fd> fds) {
  if (fds.size() != 3 || leased.table_slot >= kLeaseTableSlots)
    throw Error(Code::kProtocol, "a lease is incomplete");
  connection_.SetPressure(leased.pressure);
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

void HeldLeases::TrimStocks() {
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
    connection_.Tell(LeaseEnded{largest->GiveUp().lease.id(), false, {}});
  }
}

bool HeldLeases::OnMessage(uint64_t request, ReceivedMessage& received) {
  const auto found = ahead_requests_.find(request);
  if (found == ahead_requests_.end()) return false;
  const AskedAhead& asked = found->second;
  Stock& stock = stocks_[asked.key];
  stock.Answered(asked.loaded.has_value());
  if (const auto* leased = std::get_if<Leased>(&received.message)) {
    HeldLease held = MakeLease(*leased, std::move(received.descriptors));
    if (asked.loaded) held.lease.loaded().SetOnly(*asked.loaded);
    stock.Add(std::move(held));
    TrimStocks();
    on_cell_(asked.key);
  }
  ahead_requests_.erase(found);
  return true;
}

void HeldLeases::Add(const std::string& key, const Leased& leased, std::vector<Fd> descriptors) {
  stocks_[key].Add(MakeLease(leased, std::move(descriptors)));
  TrimStocks();
  on_cell_(key);
}

std::optional<HeldLease> HeldLeases::TakeNow(const std::string& key, const CallRequest& request) {
  std::optional<HeldLease> held = stocks_[key].Take(request.shared(), request.identity);
  if (held) reports_.Expect(held->lease.id());
  return held;
}

std::optional<HeldLease> HeldLeases::Take(const std::string& key, const CallRequest& request) {
  // A cell that a dead agent has left would run the call without its limits.
  if (connection_.broken()) throw Connection::LostError();
  const Connection::Lock lock(connection_);
  Stock& stock = stocks_[key];
  const bool shared = request.shared();
  connection_.ReadIfFree([&]() REQUIRES(connection_lock) {
    return !reports_.has_loans() && stock.Has(shared, request.identity);
  });
  std::optional<HeldLease> held = stock.Take(shared, request.identity);
  if (!held) return held;
  held->queue = held->worker_start = {};  // no call waited for it
  reports_.Expect(held->lease.id());
  return held;
}

void HeldLeases::GiveBackUnwanted(const std::string& key) {
  for (;;) {
    std::optional<HeldLease> unwanted;
    {
      const Connection::Lock lock(connection_);
      unwanted = TakeUnwanted(key);
    }
    if (!unwanted) return;
    connection_.Tell(LeaseEnded{unwanted->lease.id(), false, {}});
  }
}

HeldLease HeldLeases::Acquire(const std::string& key, const CallRequest& request,
                              const CallHooks& hooks, bool session) {
  const uint64_t id = connection_.NextRequest();
  std::optional<HeldLease> held;
  const Clock::time_point begun = Clock::now();
  const Clock::time_point deadline = DeadlineIn(request.limits.queue_ms) + std::chrono::seconds(5);
  const auto handle = [&](ReceivedMessage& received) {
    const auto* leased = std::get_if<Leased>(&received.message);
    if (leased == nullptr)
      throw Error(Code::kProtocol, "the agent did not answer whether a cell is free");
    if (leased->lease != 0) {
      held = MakeLease(*leased, std::move(received.descriptors));
      return true;
    }
    const Connection::Lock lock(connection_);
    held = std::move(handed_.at(id));
    handed_.erase(id);
    return true;
  };
  const hutch::Acquire acquire{id, key, request.limits.queue_ms, false, session};
  if (request.shared()) {
    const auto begin = [&]() REQUIRES(connection_lock) {
      shared_waiters_[key].push_back(id);
      // Another call may have left one since Take() found none.
      if (std::optional<HeldLease> kept = stocks_[key].TakeKept()) HandOn(key, std::move(*kept));
    };
    try {
      connection_.Converse(acquire, id, deadline, hooks, handle, begin);
    } catch (...) {
      ForgetSharedWaiter(key, id);
      throw;
    }
    ForgetSharedWaiter(key, id);
    if (held->calls > 0) connection_.Tell(Forget{id});
  } else {
    connection_.Converse(acquire, id, deadline, hooks, handle);
  }
  held->queue = Clock::now() - begun;  // our clock: with the way there and back
  held->worker_start = std::min(held->worker_start, held->queue);
  const Connection::Lock lock(connection_);
  reports_.Expect(held->lease.id());
  return std::move(*held);
}

void HeldLeases::ForgetSharedWaiter(const std::string& key, uint64_t request) {
  const Connection::Lock lock(connection_);
  std::erase(shared_waiters_[key], request);
  const auto handed = handed_.find(request);
  if (handed == handed_.end()) return;
  HeldLease held = std::move(handed->second);  // a cell from the agent came first
  handed_.erase(handed);
  HandOn(key, std::move(held));
}

void HeldLeases::HandOn(const std::string& key, HeldLease held) {
  std::deque<uint64_t>& waiters = shared_waiters_[key];
  if (waiters.empty()) {
    stocks_[key].Keep(std::move(held));
    TrimStocks();
    return on_cell_(key);
  }
  const uint64_t request = waiters.front();
  waiters.pop_front();
  handed_.emplace(request, std::move(held));
  connection_.Deliver(request, Handed(request));  // or, if it just gave up, it finds it in handed_
}

bool HeldLeases::Send(HeldLease& held, const CallRequest& request) {
  const uint64_t lease = held.lease.id();
  if (!table_.MarkUsed(held.table_slot, lease)) {
    reports_.Forget(lease);
    return false;
  }
  try {
    if (held.calls++ == 0) held.first_call = Clock::now();
    if (held.may_be_taken) table_.CountUse(held.table_slot);
    if (held.lease.Send(request, RandomCallId())) return true;
  } catch (...) {
    GiveUp(lease, Ending::kFault);
    throw;
  }
  GiveUp(lease, Ending::kNoCall);
  return false;
}

bool HeldLeases::MarkUsed(const HeldLease& held) {
  if (table_.MarkUsed(held.table_slot, held.lease.id())) return true;
  reports_.Forget(held.lease.id());
  return false;
}

Error CellsEnd() {
  return Error(Code::kWorkerFailed, "cells end before a call can be sent to them",
               "`hutch logs` says why");
}

void HeldLeases::TellStarted(const HeldLease& held, const CallRequest& request) {
  const uint64_t cpu_ms =
      request.limits.cpu_ms == 0 ? 0 : request.limits.cpu_ms + held.cpu_us / 1000;
  connection_.Tell(Started{held.lease.id(), held.lease.clock().timeout_ms(), cpu_ms,
                           held.lease.given().result_kb()},
                   kTellPatience);
}

void HeldLeases::WhileCallRuns(const std::string& key, const Sha256Digest& identity) {
  std::optional<HeldLease> spent;  // closed after the lock is free
  const Connection::Lock lock(connection_);
  spent = std::exchange(spent_, std::nullopt);
  Stock& stock = stocks_[key];
  connection_.ReadIfFree([&] { return stock.Has(false, identity); });
}

bool HeldLeases::Keep(const std::string& key, const CallRequest& request, HeldLease& held,
                      const CallOutcome& outcome) {
  // A cell that was lent memory holds it until it is dead, so it is not kept.
  if (!request.shared() || held.lease.lending().any() || connection_.broken()) return false;
  const bool ended_well =
      outcome.status == CallStatus::kReturned ||
      (outcome.status == CallStatus::kRaised && outcome.usage.limit == kNoLimit);
  if (!ended_well || held.calls >= request.calls_of_cell ||
      Clock::now() - held.first_call >= request.age_of_cell) {
    return false;
  }
  held.cpu_us += outcome.usage.cpu_us;
  // Clears the limits of this call at the warden, and the first time says that the lease is kept.
  if (held.lease.clock().told() || !std::exchange(held.may_be_taken, true))
    connection_.Tell(Started{held.lease.id(), 0, 0, 0});
  table_.MarkIdle(held.table_slot, held.lease.id());
  const Connection::Lock lock(connection_);
  HandOn(key, std::move(held));
  return true;
}

void HeldLeases::DeferClose(HeldLease held) {
  if (held.lease.given().has_result()) return;
  std::optional<HeldLease> last(std::move(held));
  const Connection::Lock lock(connection_);
  std::swap(last, spent_);
}

void HeldLeases::GiveUp(uint64_t lease, Ending ending) {
  reports_.Forget(lease);
  connection_.Tell(LeaseEnded{lease, false, {.ending = ending}});
}

HeldLeases::Wanted HeldLeases::WantAhead(const std::string& key, const CallRequest* finished,
                                         bool quick) {
  Wanted wanted;
  const Connection::Lock lock(connection_);
  Stock& stock = stocks_[key];
  if (finished != nullptr && stock.ShouldLoad(finished->identity) && stock.Missing() > 0) {
    wanted.load = LoadFrame(*finished, quick);
    const CallLimits& limits = finished->limits;
    wanted.cpu_ms = limits.cpu_ms == 0 ? limits.timeout_ms : limits.cpu_ms;
  }
  while (stock.Missing() > 0) {
    const bool loaded = wanted.requests.empty() && !wanted.load.empty();
    wanted.requests.push_back(connection_.NextRequest());
    AskedAhead& asked = ahead_requests_[wanted.requests.back()];
    asked.key = key;
    if (loaded) asked.loaded = finished->identity;
    stock.Asked(loaded);
  }
  return wanted;
}

void HeldLeases::SendDone(const std::string& key, uint64_t lease, bool want_report,
                          const CallStats& note, Wanted wanted) {
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
    connection_.Send(LeaseEnded{lease, want_report, note});
  } else {
    connection_.Send(
        LeaseEnded{lease, want_report, note, requests[0], std::move(wanted.load), wanted.cpu_ms});
  }
  for (size_t i = 1; i < requests.size(); ++i)
    connection_.Send(hutch::Acquire{requests[i], key, kAheadPatienceMs, true});
}

CallRecord HeldLeases::Conclude(const std::string& key, uint64_t lease, CallRecord record,
                                Loans loans, bool network, const CallRequest* finished) {
  const CallStatus status = record.outcome.status;
  const bool simple = IsSimple(record.outcome);
  const bool want_report = (!simple && status != CallStatus::kInterrupted) || network;
  bool reported = false;
  const auto take = [&record, &reported, simple](std::optional<Report> report) {
    if (!report) return;
    reported = true;
    if (!simple) record.report = report->report;
    record.network = std::move(report->network);
  };
  try {
    // A cell that ended by itself is reported without a request. What is left of it is killed only
    // after that: the kill could overtake how the user's process ended, which its PID 1 reports.
    if (status == CallStatus::kEnded) take(reports_.Await(lease, kReportOfCell));
    const bool lent = reports_.HoldLoans(lease, std::move(loans));
    const bool waiting = want_report && !record.report;
    if (!waiting) reports_.Forget(lease);
    Wanted wanted = WantAhead(key, finished, record.outcome.usage.wall_us < kQuickUs);
    SendDone(key, lease, waiting || lent, NoteOf(record), std::move(wanted));
    if (waiting) {
      const bool patient = status == CallStatus::kEnded || network;
      take(reports_.Await(
          lease, patient ? Clock::duration(kReportAfterEnd) : Clock::duration(kReportAfterLimit)));
      reports_.Forget(lease);
    }
  } catch (const Error&) {
    // The agent is gone, the cell was not: its reply stands. Without a reply nobody knows what
    // became of the call.
    if (status == CallStatus::kEnded && !record.report) {
      throw Error(Code::kUnavailable, "the agent and the cell were lost during the call",
                  "the call may have run; repeat it only if that does no harm", true);
    }
  }
  // An agent that goes takes the network with it, before the call sees anything else of that.
  if (network && !reported) {
    NetworkRecord lost;
    lost.reason = "the agent did not say what became of it";
    lost.lost = true;
    record.network.push_back(lost);
  }
  return record;
}

}  // namespace hutch
