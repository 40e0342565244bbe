// SPDX-License-Identifier: Apache-2.0

#include "agent/lease_manager.h"

#include <sys/uio.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "wire/channel.h"
#include "wire/clock.h"
#include "wire/error.h"
#include "wire/log.h"

namespace hutch {
namespace {

// Gives a cell what it is to load. It is leased to the client that sent the frame right after this:
// nobody else ever gets a cell that was loaded. A frame that does not arrive is no loss: the call
// brings all of it once more.
void GiveAhead(int cell, const std::string& frame) {
  const iovec part{const_cast<char*>(frame.data()), frame.size()};
  try {
    SendDatagram(cell, {&part, 1});
  } catch (const Error&) {
    return;
  }
}

}  // namespace

LeaseManager::LeaseManager(Context context)
    : context_(context),
      loads_(context_.loop, [this](uint64_t cell, uint64_t cpu_ms) { ArmLoading(cell, cpu_ms); }),
      sessions_({book_, context_.peers, context_.pools, context_.admission, context_.ledger,
                 [this](uint64_t cell) { EndSession(cell); }, [this] { ServeSoon(); }}) {}

void LeaseManager::RemovePeer(uint64_t peer) {
  for (const uint64_t cell : book_.CellsOf(peer)) {
    LeaseRecord* lease = book_.Find(cell);
    if (lease == nullptr || lease->note || lease->releasing) continue;
    PoolMetrics* metrics = MetricsOf(*lease);
    if (metrics == nullptr || !book_.IsMarked(cell, *lease, kLeaseUsed)) continue;
    context_.ledger.CountAbandoned(*metrics, lease->held_ahead, Clock::now());
    lease->note = CallStats{.ending = Ending::kCancelled};
  }
  for (const uint64_t cell : book_.RemovePeer(peer)) {
    if (LeaseRecord* lease = book_.Find(cell)) Release(cell, *lease);
  }
}

void LeaseManager::Release(uint64_t cell, LeaseRecord& lease) {
  if (std::exchange(lease.releasing, true)) return;
  context_.networks.CallIsOver(cell);
  if (Pool* pool = context_.pools.Find(lease.pool)) pool->Release(cell);
}

void LeaseManager::EndSession(uint64_t cell) {
  LeaseRecord* lease = book_.Find(cell);
  if (lease == nullptr) return;
  lease->want_report = true;  // by which its client learns of it
  Release(cell, *lease);
}

void LeaseManager::Request(Peer& peer, const Acquire& acquire, const Load& load) {
  const uint64_t id = peer.id();
  const PoolEntry* entry = context_.pools.FindEntry(acquire.key);
  if (entry == nullptr || entry->stale) {
    return context_.peers.Fail(
        id, acquire.request,
        Error(Code::kUnknownPool, "the agent does not know this pool: prepare it again"));
  }
  if (acquire.session) {
    if (const auto full = sessions_.WhyFull(entry->reservation))
      return context_.peers.Fail(id, acquire.request, *full);
  }
  // A cell leased ahead must not use up a quota that waiting calls need.
  if (acquire.ahead && !context_.admission.MayTake(entry->reservation)) {
    return context_.peers.Fail(id, acquire.request,
                               Error(Code::kBusy, "no cell can be kept ahead now"));
  }
  // The ticket is not known until Acquire() returns.
  if (!context_.peers.Find(id)
           ->waiting.try_emplace(acquire.request, Peers::Place{acquire.key})
           .second)
    throw Error(Code::kProtocol, "a client used a request's number twice");
  const uint64_t ticket = entry->pool->Acquire(
      id, ClampToYear(acquire.queue_ms), acquire.ahead,
      [this, id, request = acquire.request, key = acquire.key, ahead = acquire.ahead,
       load](LeasedCell grant) {
        const uint64_t cell = grant.cell;
        if (!load.frame.empty()) GiveAhead(grant.channels.socket.get(), load.frame);
        OnGranted(id, request, key, ahead, std::move(grant));
        if (!load.frame.empty()) loads_.Add(cell, load.cpu_ms);
      },
      [this, id, request = acquire.request, key = acquire.key,
       ahead = acquire.ahead](const Error& error) {
        if (!ahead && error.code() == Code::kBusy) {
          if (PoolEntry* refusing = context_.pools.FindEntry(key)) ++refusing->metrics.refused;
        }
        context_.peers.Fail(id, request, error);
      });
  if (Peers::State* state = context_.peers.Find(id)) {
    const auto waiting = state->waiting.find(acquire.request);
    if (waiting != state->waiting.end()) waiting->second.ticket = ticket;
  }
}

void LeaseManager::OnGranted(uint64_t id, uint64_t request, const std::string& key, bool ahead,
                             LeasedCell grant) {
  Peers::State& state = *context_.peers.Find(id);  // a client that is gone waits for nothing
  const PoolEntry& entry = *context_.pools.FindEntry(key);
  const LeaseRecord& lease = book_.Add(grant.cell, {.pool = key,
                                                    .peer = id,
                                                    .worker = grant.worker,
                                                    .ahead = ahead,
                                                    .held_ahead = ahead,
                                                    .reservation = entry.reservation,
                                                    .caller = state.peer->caller()});
  context_.admission.Take(lease.reservation);
  state.waiting.erase(request);
  const int descriptors[] = {grant.channels.socket.get(), grant.channels.out.get(),
                             grant.channels.err.get()};
  const Leased leased{request,
                      grant.cell,
                      lease.table_slot,
                      grant.worker,
                      ToMicroseconds(grant.waited),
                      ToMicroseconds(grant.worker_start),
                      context_.pools.PressureAt(Clock::now())};
  if (IsLogged(LogLevel::kDebug)) {
    LogDebug("leased", {{"lease", grant.cell},
                        {"client", id},
                        {"pool", key.substr(0, 12)},
                        {"worker", grant.worker},
                        {"waited_us", leased.waited_us}});
  }
  if (state.peer->Send(leased, descriptors)) return;
  context_.peers.Fail(
      id, request,
      entry.pool->Busy(
          "the agent has too few descriptors to hand out a cell",
          "close processes that are connected to the agent, or raise the limit of open "
          "files",
          grant.waited));
  // Posted, because the pool is iterating over its cells.
  context_.loop.Post([this, cell = grant.cell] {
    if (LeaseRecord* unsent = book_.Find(cell)) Release(cell, *unsent);
  });
}

bool LeaseManager::MayTake(uint64_t peer, const std::string& pool) {
  if (!book_.HasFreeSlot(peer)) return false;
  const PoolEntry* entry = context_.pools.FindEntry(pool);
  if (entry == nullptr) return false;
  if (context_.admission.MayTake(entry->reservation)) return true;
  // Posted, because the pool that asks is serving its queue.
  if (!std::exchange(reclaiming_, true)) context_.loop.Post([this] { ReclaimForQuotas(); });
  return false;
}

void LeaseManager::OnStarted(const Peer& peer, const Started& started) {
  LeaseRecord* lease = book_.FindOf(peer.id(), started.lease);
  if (lease == nullptr) return;
  if (IsLogged(LogLevel::kDebug)) LogDebug("started", {{"lease", started.lease}});
  CellOrders* orders = context_.pools.OrdersFor(lease->pool, started.lease);
  if (orders == nullptr) return;
  const bool no_limits = started.timeout_ms == 0 && started.cpu_ms == 0 && started.result_kb == 0;
  if (lease->serves != Serves::kSession && no_limits) {
    lease->ahead = true;
    lease->serves = Serves::kCalls;
    lease->arming.armed = false;
    return orders->Arm(0, 0);
  }
  lease->arming.announced = true;
  Arm(*orders, started, lease);
}

void LeaseManager::Arm(CellOrders& orders, const Started& limits, LeaseRecord* lease) {
  const Clock::time_point now = Clock::now();
  if (!std::exchange(lease->arming.armed, true)) lease->arming.since = now;
  orders.Arm(context_.admission.TimeoutMs(limits.timeout_ms, now - lease->arming.since),
             context_.admission.CpuMs(limits.cpu_ms), limits.result_kb);
}

void LeaseManager::OnDone(Peer& peer, const LeaseEnded& done) {
  if (done.load.size() > sizeof(FrameHeader) + kMaxPayload)
    throw Error(Code::kProtocol, "a client sent a frame that is too large for a cell");
  if (IsLogged(LogLevel::kDebug)) {
    LogDebug("done", {{"lease", done.lease},
                      {"call", LogId(done.note.call_id)},
                      {"queue_us", done.note.queue_us},
                      {"send_us", done.note.send_us},
                      {"run_us", done.note.run_us},
                      {"receive_us", done.note.receive_us}});
  }
  LeaseRecord* lease = book_.FindOf(peer.id(), done.lease);
  if (lease == nullptr) return OnDoneAfterEnd(peer, done);
  lease->want_report |= done.want_report;
  if (!lease->note) {
    lease->note = done.note;
    if (done.note.ending != Ending::kUntold)
      context_.ledger.Count(MetricsOf(*lease), lease->held_ahead, done.note, Clock::now());
  }
  const std::string pool = lease->pool;
  Release(done.lease, *lease);
  if (done.next != 0) {
    Request(peer, Acquire{done.next, pool, kAheadPatienceMs, true}, {done.load, done.load_cpu_ms});
  }
}

// Its cell ended before the client reported the call.
void LeaseManager::OnDoneAfterEnd(Peer& peer, const LeaseEnded& done) {
  if (std::optional<EndedLease> ended = book_.TakeEnded(peer.id(), done.lease)) {
    CallStats note = done.note;
    if (note.ending == Ending::kUntold) note.ending = ended->ending;
    PoolEntry* entry = context_.pools.FindEntry(ended->pool);
    context_.ledger.Count(entry == nullptr ? nullptr : &entry->metrics, ended->held_ahead, note,
                          Clock::now());
    context_.ledger.Audit(std::move(ended->entry), note);
  }
  // The warden's report was not wanted when it came, and is gone.
  if (done.want_report) peer.Send(Report{done.lease, CellReport{}});
  if (done.next != 0)
    context_.peers.Fail(peer.id(), done.next, Error(Code::kUnknownPool, "that lease has ended"));
}

// Before the lease is concluded, the egress process reports what the cell's network was used for.
void LeaseManager::OnCellGone(uint64_t cell, const CellReport& report) {
  context_.networks.Close(cell, [this, cell, report](std::vector<NetworkRecord> network) {
    Conclude(cell, report, std::move(network));
  });
}

void LeaseManager::Conclude(uint64_t cell, const CellReport& report,
                            std::vector<NetworkRecord> network) {
  LeaseRecord* lease = book_.Find(cell);
  if (lease == nullptr) return;
  lease->network = std::move(network);
  sessions_.OnGone(cell);
  if (IsLogged(LogLevel::kDebug)) {
    LogDebug("the cell ended", {{"lease", cell},
                                {"call", LogId(lease->note ? lease->note->call_id : 0)},
                                {"worker", lease->worker},
                                {"limit", NameOfLimit(report.limit)},
                                {"wall_us", report.wall_us},
                                {"cpu_us", report.cpu_us},
                                {"peak_kb", report.peak_kb}});
  }
  if (lease->note && lease->note->ending == Ending::kUntold) {
    lease->note->ending = EndingOf(report);
    context_.ledger.Count(MetricsOf(*lease), lease->held_ahead, *lease->note, Clock::now());
  }
  AuditEntry entry = EntryOf(*lease);
  entry.report = report;
  if (lease->note) context_.ledger.Audit(entry, *lease->note);
  if (context_.admission.Release(lease->reservation)) ServeSoon();
  const uint64_t peer = lease->peer;
  // The report of a cell that ended by itself (it died, or hit a limit) is sent unasked: the client
  // will want it.
  if (lease->want_report || !lease->releasing)
    context_.peers.Send(peer, Report{cell, report, lease->network});
  if (!lease->releasing) {
    book_.KeepEnded(peer, cell,
                    {lease->pool, lease->held_ahead, EndingOf(report), std::move(entry)});
  }
  // Posted, because the pool that reports the end may be iterating over its cells.
  if (book_.Remove(cell)) context_.loop.Post([this, peer] { ServePoolsOf(peer); });
}

// The client held as many leases as its table has slots, and may have waited for that alone.
void LeaseManager::ServePoolsOf(uint64_t peer) {
  std::set<std::string> keys;
  if (const Peers::State* waiter = context_.peers.Find(peer)) {
    for (const auto& [request, place] : waiter->waiting) keys.insert(place.pool);
  }
  for (const std::string& key : keys) {
    if (Pool* pool = context_.pools.Find(key)) pool->Serve();
  }
}

bool LeaseManager::Reclaim(Pool& pool, const std::string* worker) {
  for (auto& [cell, lease] : book_) {
    if (!lease.ahead || lease.releasing || lease.pool != pool.key()) continue;
    if (worker != nullptr && lease.worker != *worker) continue;
    if (TakeBack(cell, lease)) return true;
  }
  return false;
}

bool LeaseManager::TakeBack(uint64_t cell, LeaseRecord& lease) {
  Pool* pool = context_.pools.Find(lease.pool);
  if (pool == nullptr || !book_.Reclaim(cell, lease)) return false;
  pool->TakeBack(cell);
  return true;
}

void LeaseManager::ReplaceUnused(uint64_t cell) {
  LeaseRecord* lease = book_.Find(cell);
  if (lease == nullptr) return context_.pools.Discard(cell);
  if (!lease->releasing) TakeBack(cell, *lease);
}

void LeaseManager::ReclaimAll() {
  std::vector<uint64_t> cells;  // a worker that ends takes its leases with it
  for (const auto& [cell, lease] : book_) {
    if (lease.ahead && !lease.releasing) cells.push_back(cell);
  }
  for (const uint64_t cell : cells) {
    if (LeaseRecord* lease = book_.Find(cell)) TakeBack(cell, *lease);
  }
}

// Callers wait because a quota is full: one cell that was leased ahead and is not used makes room.
void LeaseManager::ReclaimForQuotas() {
  reclaiming_ = false;
  std::vector<Reservation> waiting;
  for (const PoolEntry* entry : context_.pools.Waiting()) waiting.push_back(entry->reservation);
  const Admission::Shortage shortage = context_.admission.ShortageOf(waiting);
  for (auto& [cell, lease] : book_) {
    if (!lease.ahead || lease.releasing || !shortage.IsEasedBy(lease.reservation)) continue;
    if (TakeBack(cell, lease)) return;
  }
}

// Posted, because the pool that reports the end of a cell may be iterating over its cells.
void LeaseManager::ServeSoon() {
  if (!std::exchange(serving_, true)) context_.loop.Post([this] { ServeWaiters(); });
}

void LeaseManager::ServeWaiters() {
  serving_ = false;
  std::vector<std::tuple<uint64_t, Clock::time_point, Pool*>> waiting;
  for (const PoolEntry* entry : context_.pools.Waiting()) {
    waiting.emplace_back(context_.admission.TurnOf(entry->reservation), entry->pool->last_use(),
                         entry->pool.get());
  }
  std::ranges::sort(waiting);
  for (const auto& [turn, last_use, pool] : waiting) pool->Serve();
}

void LeaseManager::OfferUnused() {
  book_.OfferUnused();
  for (const PoolEntry* entry : context_.pools.Waiting()) entry->pool->Serve();
}

void LeaseManager::ArmLoading(uint64_t cell, uint64_t cpu_ms) {
  const LeaseRecord* lease = book_.Find(cell);
  // Once its call is armed, those limits hold for everything that the cell does.
  if (lease == nullptr || lease->releasing || lease->arming.armed) return;
  if (CellOrders* orders = context_.pools.OrdersFor(lease->pool, cell))
    orders->ArmLoading(context_.admission.LoadCpuMs(cpu_ms));
}

void LeaseManager::ArmUnannounced() {
  if (!context_.admission.LimitsTime()) return;
  for (auto& [cell, lease] : book_) {
    CellOrders* orders = lease.releasing ? nullptr : context_.pools.OrdersFor(lease.pool, cell);
    if (orders == nullptr) continue;
    const bool used = book_.IsMarked(cell, lease, kLeaseUsed);
    const uint32_t uses = book_.UsesOf(lease);
    // A cell that serves several short calls is used at one tick after another, by other calls.
    const bool same_call = used && lease.was_used && uses == lease.uses;
    lease.was_used = used;
    lease.uses = uses;
    const bool lasts = lease.serves == Serves::kCalls ? same_call : used;
    Arming& arming = lease.arming;
    if (lasts && !arming.armed) {
      arming.announced = false;
      Arm(*orders, Started{cell, 0, 0, 0}, &lease);
    } else if (!lasts && arming.armed && !arming.announced && lease.serves == Serves::kCalls) {
      arming.armed = false;
      orders->Arm(0, 0);
    }
  }
}

void LeaseManager::AuditUnfinished() {
  for (const auto& [cell, lease] : book_) {
    if (lease.note) context_.ledger.Audit(EntryOf(lease), *lease.note);
  }
}

PoolMetrics* LeaseManager::MetricsOf(const LeaseRecord& lease) {
  PoolEntry* entry = context_.pools.FindEntry(lease.pool);
  return entry == nullptr ? nullptr : &entry->metrics;
}

AuditEntry LeaseManager::EntryOf(const LeaseRecord& lease) {
  const PoolEntry* entry = context_.pools.FindEntry(lease.pool);
  return {.pool = entry == nullptr ? nullptr : entry->audit,
          .caller = lease.caller,
          .worker = lease.worker,
          .network = lease.network};
}

}  // namespace hutch
