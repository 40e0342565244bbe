// SPDX-License-Identifier: Apache-2.0

#include "pool/pool.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "loop/descriptors.h"
#include "pool/pressure.h"

namespace hutch {
namespace {

Error Retired() {
  return Error(Code::kUnknownPool, "the agent has closed this pool: prepare it again");
}

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

SizingLimits LimitsOf(const PoolSpec& spec, const PoolContext& context) {
  return spec.isolation == Isolation::kCell
             ? ResolveSizing(spec.warm, spec.max_cells, context.cores, AvailableMemoryKb())
             : ResolveSingleUse(spec.warm, spec.max_cells, AvailableMemoryKb(),
                                context.warm_workers);
}

constexpr char kDescriptorsHint[] =
    "close programs that are connected to the agent, or raise the limit of open files";

}  // namespace

Pool::Pool(Context context, std::string key, PoolSpec spec, Environment environment)
    : context_(std::move(context)),
      key_(std::move(key)),
      spec_(std::move(spec)),
      environment_(std::move(environment)),
      callers_(context_.loop, context_.queues, LimitsOf(spec_, context_),
               [this](Clock::duration waited) { return TooLate(waited); }),
      workers_(
          context_, *this,
          [this](const std::string* worker) { return context_.reclaim(*this, worker); },
          key_.substr(0, 8), spec_, environment_),
      last_use_(Clock::now()) {}

bool Pool::abandoned() const {
  return empty() && callers_.empty() && workers_.members().leased() == 0;
}

// ---- waiting for a cell

uint64_t Pool::Acquire(uint64_t caller, Clock::duration patience, bool ahead, Granted granted,
                       Refused refused) {
  last_use_ = Clock::now();
  workers_.NoteUse();
  const uint64_t ticket = callers_.waiters().NextTicket();
  if (retired_) {
    refused(Retired());
    return ticket;
  }
  workers_.TryAgain();
  if (const auto why = WhyNotWait(caller, ahead, patience)) {
    refused(*why);
    return ticket;
  }
  callers_.waiters().Add(ticket, last_use_, caller, patience, ahead,
                         {last_use_, std::move(granted), std::move(refused)});
  Serve();
  callers_.waiters().WatchDeadline(ticket);
  return ticket;
}

std::optional<Error> Pool::WhyNotWait(uint64_t caller, bool ahead, Clock::duration patience) {
  if (auto full = callers_.waiters().WhyFull(caller, ahead)) return full;
  if (workers_.Starved()) return NoDescriptors("cell");
  if (ahead && callers_.limits().most == 0)
    return Error(Code::kBusy, "no cell is kept ready ahead of calls");
  return ahead ? std::nullopt : callers_.waiters().WhyTooLate(caller, patience);
}

Error Pool::NoDescriptors(const std::string& for_what) const {
  return Busy("the agent has no file descriptors for one more " + for_what + ": it may have " +
                  std::to_string(DescriptorLimit()) + " open",
              kDescriptorsHint, {});
}

Error Pool::TooLate(Clock::duration waited) {
  char text[160];
  std::snprintf(
      text, sizeof text,
      "no cell came free within %.1f s: %llu of %llu cells are in use, %llu more calls wait",
      Seconds(waited),
      static_cast<unsigned long long>(workers_.members().leased() - workers_.members().kept()),
      static_cast<unsigned long long>(callers_.limits().max_cells),
      static_cast<unsigned long long>(callers_.waiters().waiting()));
  if (!workers_.starved_now()) return Busy(text, "raise queue_sec, or Pool(max_cells=...)", waited);
  return Busy(std::string(text) + "; the agent has no file descriptors for one more",
              kDescriptorsHint, waited);
}

void Pool::WhenWorkerReady(WarmWatchers::WorkerReady ready) {
  last_use_ = Clock::now();
  if (retired_) {
    const Error error = Retired();
    return ready(&error);
  }
  if (workers_.ready()) return ready(nullptr);
  callers_.watchers().AddForWorker(std::move(ready));
  if (!workers_.members().starting()) workers_.Start();
}

void Pool::EnsureWarm(uint64_t cells, WarmWatchers::CellsReady done) {
  last_use_ = Clock::now();
  workers_.NoteUse();
  if (retired_) {
    const Error error = Retired();
    return done(0, &error);
  }
  const uint64_t wanted = std::min(cells, callers_.limits().max_cells);
  callers_.use().KeepAtLeast(wanted);
  if (const uint64_t ready = workers_.members().ready(); ready >= wanted)
    return done(ready, nullptr);
  callers_.watchers().AddForCells(wanted, std::move(done));
  Serve();
}

// ---- giving cells

void Pool::Serve() {
  if (serving_) return;
  serving_ = true;
  callers_.waiters().RefuseLate(Clock::now());  // before any is served: nobody gets a cell late
  while (ServeNext()) {
  }
  const uint64_t ready = workers_.members().ready();
  callers_.watchers().OnCellsParked(ready);
  serving_ = false;
  workers_.SkipWarmUp(!callers_.waiters().empty() || 2 * ready < callers_.Depth(Clock::now()));
  workers_.Fill();
}

bool Pool::ServeNext() {
  if (callers_.waiters().empty()) return false;
  Member* member = workers_.WithReadyCell();
  if (member == nullptr) return false;
  // Those who only look ahead leave alone what others are about to need.
  if (callers_.waiters().waiting() == 0 &&
      (callers_.watchers().wait_for_cells() || workers_.IsLastCell(callers_.limits().max_cells)))
    return false;
  const Clock::time_point now = Clock::now();
  auto waiter = callers_.waiters().Next(now, context_.may_take);
  if (!waiter) return false;
  LeasedCell leased;
  leased.cell = workers_.members().Lease(*member);
  leased.worker = member->worker->name();
  leased.channels = member->worker->cells().Take(leased.cell);
  leased.waited = now - waiter->since;
  if (member->worker->ready_since() > waiter->since)
    leased.worker_start = member->worker->ready_since() - waiter->since;
  ++calls_;
  callers_.use().NoteLease(now);
  waiter->granted(std::move(leased));
  return true;
}

CellOrders* Pool::OrdersFor(uint64_t cell) {
  Member* member = workers_.members().OfLeased(cell);
  return member == nullptr ? nullptr : member->worker->cells().OrdersFor(cell);
}

void Pool::Keep(uint64_t cell) {
  Member* member = workers_.members().OfLeased(cell);
  if (member == nullptr) return;
  workers_.members().Keep(cell);
  member->worker->cells().Keep(cell);
  Serve();  // it is none of the pool's max_cells any more
}

void Pool::EndCall(uint64_t cell, uint64_t cpu_ms) {
  last_use_ = Clock::now();
  if (CellOrders* orders = OrdersFor(cell)) orders->EndCall(cpu_ms);
}

void Pool::Release(uint64_t cell) {
  last_use_ = Clock::now();
  callers_.use().NoteRelease(last_use_);
  TakeBack(cell);
}

void Pool::TakeBack(uint64_t cell) {
  if (Member* member = workers_.members().OfLeased(cell)) member->worker->cells().Kill(cell);
}

// ---- the present state

double Pool::IdleSec() const {
  const double of_host = context_.idle_sec ? context_.idle_sec() : 0;
  return of_host > 0 ? std::min(of_host, spec_.idle_sec) : spec_.idle_sec;
}

void Pool::Tick() {
  if (retired_) return;
  workers_.members().TryStarved();
  const Clock::duration since_use = Clock::now() - last_use_;
  if (PoolIsIdle(since_use, IdleSec(), 0,
                 callers_.waiters().waiting() + callers_.waiters().ahead())) {
    EndUnused("idle");
    return;
  }
  workers_.Rotate();
}

bool Pool::EndUnused(std::string_view why) {
  if (callers_.urgent()) return false;
  // Cells that were leased ahead of calls are taken back first; a call that runs keeps the pool.
  bool coming_back = false;
  while (context_.reclaim(*this, nullptr)) coming_back = true;
  if (workers_.members().leased() != 0) return coming_back;
  workers_.RetireAll(why);
  return true;
}

void Pool::Retire() {
  retired_ = true;
  workers_.StopStarting();
  callers_.FailAll(workers_.members().ready(),
                   Error(Code::kUnavailable, "the agent is stopping", "", false));
  workers_.RetireAll("the pool ends");
}

Pool::Stats Pool::GetStats() const {
  Stats stats;
  for (const Member& member : workers_.members().all()) {
    ++stats.workers;
    stats.slots += member.worker->cells().slots().alive();
    stats.ready += member.ready.size();
    stats.worker_names.push_back(member.worker->name());
    if (!member.worker->notes().empty()) stats.notes = member.worker->notes();
  }
  const WorkerStarter::Record& record = workers_.record();
  stats.leased = workers_.members().leased();
  stats.sessions = workers_.members().kept();
  stats.depth = callers_.Depth(Clock::now());
  stats.waiting = callers_.waiters().waiting();
  stats.calls = calls_;
  stats.rotations = workers_.rotations();
  stats.start_failures = record.failures;
  stats.cells_made = workers_.cells_made();
  stats.worker_starts = record.starts;
  stats.worker_failures = record.starts_failed;
  stats.last_failure = record.last_failure;
  return stats;
}

}  // namespace hutch
