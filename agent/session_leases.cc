// SPDX-License-Identifier: Apache-2.0

#include "agent/session_leases.h"

#include <utility>
#include <vector>

#include "wire/error.h"
#include "wire/log.h"

namespace hutch {
namespace {

constexpr auto kInterruptPeriod = std::chrono::milliseconds(20);  // of one call

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

SessionLeases::Session* SessionLeases::FindOf(const Peer& peer, uint64_t cell) {
  if (context_.book.FindOf(peer.id(), cell) == nullptr) return nullptr;
  const auto found = sessions_.find(cell);
  return found == sessions_.end() ? nullptr : &found->second;
}

void SessionLeases::OnKeep(const Peer& peer, const Keep& keep) {
  if (keep.id.size() > kMaxSessionId)
    throw Error(Code::kProtocol, "a client sent too long an id of a session");
  LeaseRecord* lease = context_.book.FindOf(peer.id(), keep.lease);
  Pool* pool = lease == nullptr ? nullptr : context_.pools.Find(lease->pool);
  if (pool == nullptr || lease->releasing || sessions_.contains(keep.lease)) {
    return context_.peers.Fail(peer.id(), keep.request,
                               Error(Code::kWorkerFailed, "the cell for the session has ended"));
  }
  if (const auto full = WhyFull(lease->reservation))
    return context_.peers.Fail(peer.id(), keep.request, *full);
  lease->ahead = lease->arming.armed = false;
  lease->serves = Serves::kSession;
  const Clock::time_point now = Clock::now();
  sessions_[keep.lease] = {.id = keep.id,
                           .keep_request = keep.request,
                           .idle = ClampToYear(keep.idle_ms),
                           .since = now,
                           .used = now,
                           .uses = context_.book.UsesOf(*lease)};
  if (context_.admission.Keep(&lease->reservation)) context_.room();
  pool->Keep(keep.lease);
  EndCall(*pool, keep.lease);
}

void SessionLeases::EndCall(Pool& pool, uint64_t cell) const {
  pool.EndCall(cell, context_.admission.CpuMs(0));
}

void SessionLeases::OnExecuted(const Peer& peer, const Executed& executed) {
  Session* session = FindOf(peer, executed.lease);
  if (session == nullptr) return;
  LeaseRecord& lease = *context_.book.Find(executed.lease);
  PoolEntry* entry = context_.pools.FindEntry(lease.pool);
  context_.ledger.Count(entry == nullptr ? nullptr : &entry->metrics, false, executed.note,
                        Clock::now());
  ++session->calls;
  session->used = Clock::now();
  if (entry == nullptr) return;
  context_.ledger.Audit({.pool = entry->audit,
                         .caller = lease.caller,
                         .worker = lease.worker,
                         .session = session->id,
                         .number = session->calls},
                        executed.note);
  if (executed.beside) return OnCommandOver(lease, *entry->pool, executed.lease);
  if (std::exchange(lease.arming.armed, false)) EndCall(*entry->pool, executed.lease);
}

// What it took of the CPU time between calls was its own: that counts anew.
void SessionLeases::OnCommandOver(const LeaseRecord& lease, Pool& pool, uint64_t cell) const {
  const uint64_t cpu_ms = context_.admission.CpuMs(0);
  CellOrders* const orders = lease.arming.armed || cpu_ms == 0 ? nullptr : OrdersFor(cell);
  if (orders == nullptr) return;
  orders->Arm(0, cpu_ms);
  EndCall(pool, cell);
}

CellOrders* SessionLeases::OrdersFor(uint64_t cell) const {
  return context_.pools.OrdersFor(context_.book.Find(cell)->pool, cell);
}

void SessionLeases::OnInterrupt(const Peer& peer, const Interrupt& interrupt) {
  Session* session = FindOf(peer, interrupt.lease);
  if (session == nullptr) return;
  // However often a client asks: the warden has others to serve.
  const Clock::time_point now = Clock::now();
  if (session->interrupted == interrupt.call && now < session->interrupted_at + kInterruptPeriod)
    return;
  session->interrupted = interrupt.call;
  session->interrupted_at = now;
  if (CellOrders* orders = OrdersFor(interrupt.lease))
    orders->Interrupt(interrupt.user, interrupt.call);
}

void SessionLeases::OnRestart(const Peer& peer, const Restart& restart) {
  if (FindOf(peer, restart.lease) == nullptr) return;
  if (CellOrders* orders = OrdersFor(restart.lease)) orders->RestartUser(restart.user);
}

void SessionLeases::OnEvent(uint64_t cell, const SessionEvent& event) {
  LeaseRecord* lease = context_.book.Find(cell);
  const auto found = sessions_.find(cell);
  if (lease == nullptr || found == sessions_.end()) return;
  switch (event.kind) {
    case SessionEvent::kKept:
    case SessionEvent::kKeptOnce:
      if (const uint64_t request = std::exchange(found->second.keep_request, 0)) {
        const std::string how = event.kind == SessionEvent::kKept ? "" : kEndsWithUser;
        context_.peers.Send(lease->peer, Answer{request, how});
      }
      return;
    case SessionEvent::kUserExit: {
      lease->arming.armed = false;
      const int socket = event.socket.get();
      context_.peers.Send(lease->peer, UserEnded{cell, event.report}, {&socket, 1});
      return;
    }
    case SessionEvent::kUserReady:
      context_.peers.Send(lease->peer, UserReady{cell});
      return;
    case SessionEvent::kBackground:
      context_.peers.Send(lease->peer, BackgroundCpu{cell, event.report.cpu_us});
      return;
  }
}

void SessionLeases::OnGone(uint64_t cell) {
  const auto session = sessions_.extract(cell);
  const LeaseRecord* lease = context_.book.Find(cell);
  if (!session || session.mapped().keep_request == 0 || lease == nullptr) return;
  context_.peers.Fail(lease->peer, session.mapped().keep_request,
                      Error(Code::kWorkerFailed, "the cell for the session has ended"));
}

std::vector<SessionState> SessionLeases::States(Clock::time_point now) const {
  std::vector<SessionState> states;
  for (const auto& [cell, session] : sessions_) {
    const LeaseRecord* lease = context_.book.Find(cell);
    if (lease == nullptr) continue;
    const bool runs = context_.book.IsMarked(cell, *lease, kLeaseUsed);
    const bool starts = session.keep_request != 0;
    const Clock::duration unused = runs ? Clock::duration{} : now - session.used;
    states.push_back({.id = session.id,
                      .lease = cell,
                      .caller = lease->caller,
                      .worker = lease->worker,
                      .pool = lease->pool,
                      .age_sec = Seconds(now - session.since),
                      .unused_sec = Seconds(unused),
                      .idle_sec = Seconds(session.idle),
                      .calls = session.calls,
                      .state = lease->releasing ? "ending"
                               : starts         ? "starting"
                               : runs           ? "running"
                                                : "idle"});
  }
  return states;
}

void SessionLeases::Tick(Clock::time_point now) {
  std::vector<uint64_t> idle;
  for (auto& [cell, session] : sessions_) {
    const LeaseRecord* lease = context_.book.Find(cell);
    if (lease == nullptr || lease->releasing) continue;
    const bool used = context_.book.IsMarked(cell, *lease, kLeaseUsed);
    const uint32_t uses = context_.book.UsesOf(*lease);
    if (used || std::exchange(session.uses, uses) != uses) session.used = now;
    if (session.idle != Clock::duration{} && now - session.used >= session.idle)
      idle.push_back(cell);
  }
  for (const uint64_t cell : idle) {
    LogInfo("a session was not used for too long", {{"lease", cell}});
    context_.end(cell);
  }
}

}  // namespace hutch
