// SPDX-License-Identifier: Apache-2.0

#include "agent/broker.h"

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "agent/limits.h"
#include "podman/mounts.h"
#include "wire/channel.h"
#include "wire/egress.h"
#include "wire/heartbeat.h"
#include "wire/sha256.h"

namespace hutch {
namespace {

using nlohmann::json;

constexpr auto kTick = kLookPeriod;
constexpr unsigned kTicksBetweenSweeps = 60;
// Within so many, a client that was given a cell for a call has begun to use it.
constexpr unsigned kTicksToBegin = 3;
// Workers of an agent before this one end by themselves within 10 s; what is left after that is
// removed.
constexpr auto kFirstSweep = std::chrono::seconds(14);
constexpr auto kDrainPoll = std::chrono::milliseconds(20);
constexpr size_t kMaxPools = 512;
// Longer than building an environment may take: who has made a copy has not asked for its pool yet.
constexpr auto kCopyAge = std::chrono::minutes(15);
// A worker's directory is there before its container; after so long the container is, or never was.
constexpr auto kDirectoryAge = std::chrono::minutes(5);
constexpr size_t kMaxLockText = 4 << 20;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

bool IsHex(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Whatever is in it: a label or a worker's last words may be no UTF-8.
std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string Salt() {
  std::random_device entropy;
  std::string salt;
  for (int i = 0; i < 4; ++i) salt.append(std::to_string(entropy())).push_back('-');
  return salt;
}

std::string Bounds(const LimitField& limit) {
  char text[80];
  std::snprintf(text, sizeof text, "%s is from %.8g to %.8g", limit.name, limit.least, limit.most);
  return text;
}

// Limits are checked here again, whoever the client is: no number from outside reaches a container
// unchecked.
void Validate(const Prepare& prepare) {
  const PoolSpec& spec = prepare.spec;
  const auto refuse = [](const std::string& what) { throw Error(Code::kInvalidArgument, what); };
  if (!IsHex(spec.base_id, 32) || !IsHex(spec.runtime_id, 32))
    refuse("base_id and runtime_id are 32 hex digits");
  for (const LimitField& limit : kLimitFields) {
    const double asked = limit.asked(prepare);
    if (!(asked >= limit.least && asked <= limit.most)) refuse(Bounds(limit));
  }
  if (!(spec.cpus > 0)) refuse("cpus is above 0");
  if (spec.max_calls < 1) refuse("max_calls is at least 1");
  if (!(spec.max_age_sec > 0 && spec.idle_sec > 0)) refuse("max_age_sec and idle_sec are above 0");
  if (spec.max_cells > 4096) refuse("max_cells is at most 4096");
  if (spec.isolation == Isolation::kShared)
    refuse("isolation of a pool is \"cell\", \"container\" or \"gvisor\"");
  if (spec.isolation == Isolation::kGvisor &&
      !(spec.mounts.empty() && spec.allow_network.empty() && spec.secrets.empty()))
    refuse("isolation=\"gvisor\" takes no mounts, and has no network");
  CheckMounts(spec);
  CheckEgress(spec);
}

// What an agent that was killed has left of workers that are gone.
void SweepDirectories(const Paths& paths, const std::vector<ContainerInfo>& containers) {
  namespace fs = std::filesystem;
  std::set<std::string> names;
  for (const ContainerInfo& container : containers) names.insert(container.name);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(paths.worker_dir(), ignored)) {
    const auto age = fs::file_time_type::clock::now() - entry.last_write_time(ignored);
    if (age > kDirectoryAge && !names.contains(entry.path().filename().string()))
      fs::remove_all(entry.path(), ignored);
  }
}

// Only to a cell that is leased to whoever sent the frame, in the same breath: nobody else ever
// gets one that was loaded. Nothing is lost where the frame does not arrive: the call brings all
// of it once more.
void GiveAhead(int cell, const std::string& frame) {
  const iovec part{const_cast<char*>(frame.data()), frame.size()};
  try {
    SendDatagram(cell, {&part, 1});
  } catch (const Error&) {
    return;
  }
}

}  // namespace

Broker::Broker(Loop& loop, Podman& podman, EnvironmentStore& store, const Paths& paths,
               std::string generation, std::function<unsigned()> worker_uid, uint64_t most_workers)
    : loop_(loop),
      podman_(podman),
      gvisor_podman_(paths.gvisor_socket()),
      store_(store),
      paths_(paths),
      generation_(std::move(generation)),
      worker_uid_(std::move(worker_uid)),
      most_workers_(most_workers),
      salt_(Salt()),
      started_(Clock::now()),
      podman_threads_(2),
      builder_threads_(16),
      spares_({loop_, podman_, podman_threads_, paths_, generation_, worker_uid_}) {
  tick_due_ = started_ + kTick;
  loop_.After(kTick, [this] { Tick(); });
  loop_.After(kFirstSweep, [this] { Sweep(); });
}

Broker::~Broker() {
  closing_ = true;
  networked_.clear();
  egress_.reset();
}

void Broker::KeepSpare(const std::string& base_id, const std::string& runtime_id) {
  if (!IsHex(base_id, 32) || !IsHex(runtime_id, 32)) return;
  keeps_spares_ = true;
  spares_.Keep(base_id, runtime_id);
}

Broker::PeerState* Broker::StateOf(uint64_t peer) {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &found->second;
}

Pool* Broker::FindPool(const std::string& key) {
  const auto found = pools_.find(key);
  return found == pools_.end() ? nullptr : found->second.get();
}

void Broker::Fail(uint64_t peer, uint64_t request, const Error& error) {
  if (PeerState* state = StateOf(peer)) {
    state->waiting.erase(request);
    state->preparing.erase(request);
    state->peer->Send(Failed{request, static_cast<int32_t>(error.code()), error.what(),
                             error.hint(), error.may_have_run(), error.figures()});
  }
}

void Broker::Handle(Peer& peer, const Message& message) {
  auto [it, fresh] = peers_.try_emplace(peer.id());
  PeerState& state = it->second;
  if (fresh) {
    state.peer = &peer;
    for (uint32_t slot = kLeaseTableSlots; slot > 0; --slot) state.free_slots.push_back(slot - 1);
  }
  if (const auto* prepare = std::get_if<Prepare>(&message)) return OnPrepare(peer, *prepare);
  if (const auto* warm = std::get_if<Warm>(&message)) return OnWarm(peer, *warm);
  if (const auto* acquire = std::get_if<Acquire>(&message)) return OnAcquire(peer, *acquire, {});
  if (const auto* done = std::get_if<Done>(&message)) return OnDone(state, *done);
  if (const auto* ask = std::get_if<Ask>(&message)) return OnAsk(peer, *ask);
  if (const auto* started = std::get_if<Started>(&message)) {
    const auto lease = leases_.find(started->lease);
    if (lease == leases_.end() || lease->second.peer != peer.id()) return;
    return Arm(lease->second, *started);
  }
  if (const auto* forget = std::get_if<Forget>(&message)) {
    const auto preparing = state.preparing.find(forget->request);
    if (preparing != state.preparing.end()) {
      *preparing->second = true;
      state.preparing.erase(preparing);
    }
    const auto waiting = state.waiting.find(forget->request);
    if (waiting == state.waiting.end()) return;
    if (Pool* pool = FindPool(waiting->second.first)) pool->Forget(waiting->second.second);
    state.waiting.erase(waiting);
    return;
  }
  throw Error(Code::kProtocol, "a client sent a message that is not its own");
}

void Broker::Gone(Peer& peer) {
  const auto found = peers_.find(peer.id());
  if (found == peers_.end()) return;
  const PeerState state = std::move(found->second);
  peers_.erase(found);
  for (const auto& [request, unwanted] : state.preparing) *unwanted = true;
  for (const auto& [request, place] : state.waiting) {
    if (Pool* pool = FindPool(place.first)) pool->Forget(place.second);
  }
  for (const uint64_t cell : state.leases) {
    const auto lease = leases_.find(cell);
    if (lease == leases_.end()) continue;
    CountAbandoned(peer, lease->second, cell);
    Release(cell, lease->second);
  }
}

void Broker::Release(uint64_t cell, Lease& lease) {
  if (std::exchange(lease.releasing, true)) return;
  if (networked_.contains(cell)) egress_->CallIsOver(cell);
  if (Pool* pool = FindPool(lease.pool)) pool->Release(cell);
}

void Broker::OnPrepare(Peer& peer, const Prepare& prepare) {
  const uint64_t id = peer.id();
  try {
    if (stopping_) throw Error(Code::kUnavailable, "the agent is stopping");
    Validate(prepare);
    if (const auto why = WhyRefuse(prepare)) throw *why;
    if (::access(paths_.runtime_dir(prepare.spec.runtime_id).c_str(), R_OK | X_OK) != 0) {
      throw Error(Code::kMissingRuntime,
                  "the worker files " + prepare.spec.runtime_id + " are not installed");
    }
  } catch (const Error& error) {
    return Fail(id, prepare.request, error);
  }
  const Clock::time_point deadline = Clock::now() + ClampToYear(prepare.timeout_ms);
  const auto unwanted = std::make_shared<std::atomic<bool>>(false);
  peers_.at(id).preparing[prepare.request] = unwanted;
  builder_threads_.Post([this, id, prepare, deadline, unwanted] {
    try {
      const auto progress = [this, id, request = prepare.request](const BuildProgress& p) {
        loop_.Post([this, id, message = Progress{request, p.stage, p.text, p.done, p.total}] {
          if (PeerState* state = StateOf(id)) state->peer->Send(message);
        });
      };
      Environment environment = store_.Get(SpecOf(prepare.spec), deadline, progress,
                                           [&] { return closing_ || *unwanted; });
      loop_.Post([this, id, prepare, environment = std::move(environment)] {
        OnEnvironment(id, prepare, environment);
      });
    } catch (const Error& error) {
      loop_.Post([this, id, request = prepare.request, error] {
        if (error.code() != Code::kCancelled) ++metrics_.builds_failed;
        Fail(id, request, error);
      });
    } catch (const std::exception& error) {
      loop_.Post([this, id, request = prepare.request, text = std::string(error.what())] {
        Fail(id, request, Error(Code::kInternal, text));
      });
    }
  });
}

void Broker::OnEnvironment(uint64_t id, const Prepare& prepare, const Environment& environment) {
  if (environment.built_now) {
    ++metrics_.builds;
    metrics_.build_sec += environment.build_sec;
    TrimEnvironments();
  }
  PeerState* state = StateOf(id);
  if (state == nullptr || state->preparing.erase(prepare.request) == 0)
    return;  // nobody waits for it any more
  std::string keyed = environment.digest + EncodeMessage(Prepare{0, 0, prepare.spec});
  if (!prepare.spec.secrets.empty()) keyed += salt_;
  const std::string key = Sha256Hex(keyed);
  Pool* pool = FindPool(key);
  if (pool == nullptr) {
    if (pools_.size() >= kMaxPools) {
      const auto unused =
          std::ranges::find_if(pools_, [](const auto& p) { return p.second->abandoned(); });
      if (unused != pools_.end()) {
        metrics_.pools.erase(unused->first);
        facts_.erase(unused->first);
        pools_.erase(unused);
      }
    }
    if (stopping_ || pools_.size() >= kMaxPools) {
      return Fail(id, prepare.request, Error(Code::kBusy, "the agent takes no new pools now"));
    }
    Pool::Context context{
        loop_,
        prepare.spec.isolation == Isolation::kGvisor ? gvisor_podman_ : podman_,
        podman_threads_,
        paths_,
        generation_,
        std::max(1u, std::thread::hardware_concurrency()),
        [this](uint64_t cell, const CellReport& report) { OnCellGone(cell, report); },
        [this](Pool& from, const std::string* worker) { return Reclaim(from, worker); },
        [this, key](uint64_t caller) { return MayLease(caller, key); },
        queues_,
        worker_uid_,
        [this](const PoolSpec& spec) {
          auto spare = spares_.Take(spec.base_id, spec.runtime_id);
          if (keeps_spares_ && !stopping_) spares_.Keep(spec.base_id, spec.runtime_id);
          return spare;
        },
        [this](uint64_t cell, const PoolSpec& spec, Fd channel) {
          OpenNetwork(cell, spec, std::move(channel));
        },
        [this](uint64_t cell) { CloseNetwork(cell, [](const auto&) {}); },
        [this] { return pressure_.At(Clock::now()); },
        cgroups_};
    pool = pools_
               .emplace(key,
                        std::make_unique<Pool>(std::move(context), key, prepare.spec, environment))
               .first->second.get();
  }
  FactsOf(key, *pool);
  if (audit_ != nullptr) audit_->NotePolicy(prepare);
  Prepared prepared{prepare.request,       key,
                    environment.digest,    environment.lock.substr(0, kMaxLockText),
                    environment.notes,     environment.built_now,
                    environment.build_sec, 0,
                    Enforcement()};
  if (environment.built_now || AsCaller(prepare.spec)) {
    const char* what = AsCaller(prepare.spec)
                           ? "starting a worker with your own uid; the first copies the base image"
                           : "starting a worker";
    state->peer->Send(Progress{prepare.request, "worker", what, 0, 0});
  }
  const Clock::time_point built = Clock::now();
  pool->WhenWorkerReady([this, id, key, built, prepared](const Error* error) mutable {
    if (error != nullptr) return Fail(id, prepared.request, *error);
    PeerState* peer = StateOf(id);
    if (peer == nullptr) return;
    prepared.worker_sec = Seconds(Clock::now() - built);
    if (const Pool* ready = FindPool(key)) {
      const std::string notes = ready->GetStats().notes;
      if (!notes.empty()) prepared.notes.push_back(notes);
    }
    peer->peer->Send(prepared);
  });
}

void Broker::OnWarm(Peer& peer, const Warm& warm) {
  Pool* pool = FindPool(warm.key);
  if (pool == nullptr)
    return Fail(peer.id(), warm.request, Error(Code::kUnknownPool, "prepare it first"));
  const uint64_t cells = warm.cells < 0 ? 1 : static_cast<uint64_t>(warm.cells);
  pool->EnsureWarm(
      cells, [this, id = peer.id(), request = warm.request](uint64_t ready, const Error* error) {
        if (error != nullptr) return Fail(id, request, *error);
        if (PeerState* state = StateOf(id))
          state->peer->Send(Answer{request, std::to_string(ready)});
      });
}

void Broker::OnAcquire(Peer& peer, const Acquire& acquire, const Load& load) {
  const uint64_t id = peer.id();
  Pool* pool = FindPool(acquire.key);
  if (pool == nullptr || facts_[acquire.key].stale) {
    return Fail(id, acquire.request,
                Error(Code::kUnknownPool, "the agent does not know this pool: prepare it again"));
  }
  // Where shares are short a cell that nobody waits for is not taken away from who does.
  if (acquire.ahead && !shares_.MayTake(facts_[acquire.key].holding))
    return Fail(id, acquire.request, Error(Code::kBusy, "no cell can be kept ahead now"));
  PeerState& state = peers_.at(id);
  // Until Acquire() returns the ticket is not known; 0 stands for it.
  if (!state.waiting.try_emplace(acquire.request, acquire.key, 0).second)
    throw Error(Code::kProtocol, "a client used a request's number twice");
  const uint64_t ticket = pool->Acquire(
      id, ClampToYear(acquire.queue_ms), acquire.ahead,
      [this, id, request = acquire.request, key = acquire.key, ahead = acquire.ahead,
       load](Grant grant) {
        const uint64_t cell = grant.cell;
        if (!load.frame.empty()) GiveAhead(grant.channels.socket.get(), load.frame);
        OnGranted(id, request, key, ahead, std::move(grant));
        if (!load.frame.empty()) WatchLoad(cell, load.cpu_ms);
      },
      [this, id, request = acquire.request, key = acquire.key,
       ahead = acquire.ahead](const Error& error) {
        if (!ahead && error.code() == Code::kBusy) ++metrics_.pools[key].refused;
        Fail(id, request, error);
      });
  if (PeerState* still = StateOf(id)) {
    const auto waiting = still->waiting.find(acquire.request);
    if (waiting != still->waiting.end()) waiting->second.second = ticket;
  }
}

void Broker::OnGranted(uint64_t id, uint64_t request, const std::string& pool, bool ahead,
                       Grant grant) {
  PeerState& state = peers_.at(id);  // whoever is gone waits no more
  Lease& lease = leases_[grant.cell];
  lease = {.pool = pool,
           .peer = id,
           .table_slot = state.free_slots.back(),
           .worker = grant.worker,
           .ahead = ahead,
           .held_ahead = ahead,
           .holding = facts_[pool].holding,
           .caller = state.peer->caller()};
  shares_.Take(lease.holding);
  state.waiting.erase(request);
  state.leases.insert(grant.cell);
  state.free_slots.pop_back();
  std::atomic_ref<uint32_t>(state.peer->lease_table()[lease.table_slot])
      .store(MarkOf(grant.cell, kLeaseIdle));
  const int descriptors[] = {grant.channels.socket.get(), grant.channels.out.get(),
                             grant.channels.err.get()};
  const Leased leased{request,
                      grant.cell,
                      lease.table_slot,
                      grant.worker,
                      ToMicroseconds(grant.waited),
                      ToMicroseconds(grant.worker_start),
                      pressure_.At(Clock::now())};
  if (state.peer->Send(leased, descriptors)) return;
  if (const Pool* from = FindPool(pool)) {
    Fail(id, request,
         from->Busy("the agent has no descriptors to hand out a cell",
                    "end what holds connections to the agent, or raise the limit of "
                    "open files",
                    grant.waited));
  }
  // Not inside the pool's own loop over its cells.
  loop_.Post([this, cell = grant.cell] {
    const auto found = leases_.find(cell);
    if (found != leases_.end()) Release(cell, found->second);
  });
}

bool Broker::MayLease(uint64_t peer, const std::string& pool) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.free_slots.empty()) return false;
  if (shares_.MayTake(facts_[pool].holding)) return true;
  // Not inside the pool that asks.
  if (!std::exchange(taking_back_, true)) loop_.Post([this] { TakeBackForShares(); });
  return false;
}

void Broker::OnDone(PeerState& state, const Done& done) {
  if (done.load.size() > sizeof(FrameHeader) + kMaxPayload)
    throw Error(Code::kProtocol, "a client sent a frame that is too large for a cell");
  const auto lease = leases_.find(done.lease);
  if (lease == leases_.end() || lease->second.peer != state.peer->id()) {
    if (const auto ended = state.ended.extract(done.lease)) {
      const EndedLease& lost = ended.mapped();
      Count(lost.pool, lost.held_ahead, done.note, lost.ending);
      CallNote note = done.note;
      if (note.ending == Ending::kUntold) note.ending = lost.ending;
      Audit(lost.entry, note);
    }
    // Its cell ended before the client said so, and the report was not wanted then: it is gone.
    if (done.want_report) state.peer->Send(Report{done.lease, CellReport{}});
    if (done.next != 0)
      Fail(state.peer->id(), done.next, Error(Code::kUnknownPool, "that lease is gone"));
    return;
  }
  lease->second.want_report |= done.want_report;
  if (!lease->second.told) {
    lease->second.told = done.note;
    if (done.note.ending != Ending::kUntold)
      Count(lease->second.pool, lease->second.held_ahead, done.note, Ending::kFault);
  }
  const std::string pool = lease->second.pool;
  Peer& peer = *state.peer;
  Release(done.lease, lease->second);
  if (done.next != 0) {
    OnAcquire(peer, Acquire{done.next, pool, kAheadPatienceMs, true},
              {done.load, done.load_cpu_ms});
  }
}

void Broker::OpenNetwork(uint64_t cell, const PoolSpec& pool, Fd channel) {
  if (egress_ == nullptr) {
    egress_ = std::make_unique<Egress>(
        loop_, podman_, paths_,
        EgressLaunch{pool.base_id, pool.runtime_id, generation_, config_.host.ca_bundle});
    egress_->OnLost([this](uint64_t lost) { ReplaceUnused(lost); });
  }
  networked_.insert(cell);
  egress_->AddCell(cell, pool, std::move(channel));
}

void Broker::CloseNetwork(uint64_t cell, Egress::Closed closed) {
  if (networked_.erase(cell) == 0) return closed({});
  egress_->CloseCell(cell, std::move(closed));
}

// Of a cell whose network is gone: who has it already sees its connections closed.
void Broker::ReplaceUnused(uint64_t cell) {
  const auto found = leases_.find(cell);
  if (found == leases_.end()) {
    for (auto& [key, pool] : pools_) pool->Discard(cell);
    return;
  }
  if (!found->second.releasing) TakeBack(cell, found->second);
}

// The egress process first says what it was used for.
void Broker::OnCellGone(uint64_t cell, const CellReport& report) {
  CloseNetwork(cell, [this, cell, report](std::vector<NetworkRecord> network) {
    Conclude(cell, report, std::move(network));
  });
}

void Broker::Conclude(uint64_t cell, const CellReport& report, std::vector<NetworkRecord> network) {
  const auto found = leases_.find(cell);
  if (found == leases_.end()) return;
  Lease& lease = found->second;
  lease.network = std::move(network);
  if (lease.told && lease.told->ending == Ending::kUntold) {
    lease.told->ending = EndingOf(report);
    Count(lease.pool, lease.held_ahead, *lease.told, Ending::kFault);
  }
  AuditEntry entry = EntryOf(lease);
  entry.report = report;
  if (lease.told) Audit(entry, *lease.told);
  const bool was_full = !shares_.MayTake(lease.holding);
  shares_.Give(lease.holding);
  if (was_full && !std::exchange(serving_, true)) loop_.Post([this] { ServeWaiters(); });
  PeerState* state = StateOf(lease.peer);
  if (state == nullptr) {
    leases_.erase(found);
    return;
  }
  // A cell that ended by itself (it died, or hit a limit): the report goes out unasked, for the
  // client will want it.
  if (lease.want_report || !lease.releasing) state->peer->Send(Report{cell, report, lease.network});
  if (!lease.releasing) {
    state->ended[cell] = {lease.pool, lease.held_ahead, EndingOf(report), std::move(entry)};
    if (state->ended.size() > kLeaseTableSlots) state->ended.erase(state->ended.begin());
  }
  state->leases.erase(cell);
  state->free_slots.push_back(lease.table_slot);
  leases_.erase(found);
  if (state->free_slots.size() > 1) return;
  // It held as much as it can, and may have waited for that alone. Not inside the pool that tells.
  loop_.Post([this, peer = state->peer->id()] {
    std::set<std::string> pools;
    if (const PeerState* waiter = StateOf(peer)) {
      for (const auto& [request, place] : waiter->waiting) pools.insert(place.first);
    }
    for (const std::string& key : pools) {
      if (Pool* pool = FindPool(key)) pool->Serve();
    }
  });
}

void Broker::Count(const std::string& pool, bool held_ahead, CallNote note, Ending if_untold) {
  if (note.ending == Ending::kNoCall) return;
  if (note.ending == Ending::kUntold) note.ending = if_untold;
  ++metrics_.calls;
  if (FindPool(pool) != nullptr) metrics_.pools[pool].Add(note, held_ahead, Clock::now());
}

// A call that was running when its client went.
void Broker::CountAbandoned(Peer& peer, Lease& lease, uint64_t cell) {
  if (lease.told || lease.releasing || FindPool(lease.pool) == nullptr) return;
  uint32_t& mark = peer.lease_table()[lease.table_slot];
  if (std::atomic_ref<uint32_t>(mark).load() != MarkOf(cell, kLeaseUsed)) return;
  ++metrics_.calls;
  metrics_.pools[lease.pool].AddAbandoned(lease.held_ahead, Clock::now());
  lease.told = CallNote{.ending = Ending::kCancelled};
}

bool Broker::Reclaim(Pool& pool, const std::string* worker) {
  for (auto& [cell, lease] : leases_) {
    if (!lease.ahead || lease.releasing || lease.pool != pool.key()) continue;
    if (worker != nullptr && lease.worker != *worker) continue;
    if (TakeBack(cell, lease)) return true;
  }
  return false;
}

bool Broker::TakeBack(uint64_t cell, Lease& lease) {
  PeerState* state = StateOf(lease.peer);
  Pool* pool = FindPool(lease.pool);
  if (state == nullptr || pool == nullptr) return false;
  uint32_t expected = MarkOf(cell, kLeaseIdle);
  if (!std::atomic_ref<uint32_t>(state->peer->lease_table()[lease.table_slot])
           .compare_exchange_strong(expected, MarkOf(cell, kLeaseReclaimed))) {
    return false;  // in use, for now
  }
  lease.releasing = true;
  pool->TakeBack(cell);
  return true;
}

// A cell that was given for a call and has none: its client is stopped, or hangs. It then is as one
// that was leased ahead, so that nobody waits for that client to go on.
void Broker::OfferUnused() {
  for (auto& [cell, lease] : leases_) {
    if (lease.ahead || lease.releasing || ++lease.ticks_unused < kTicksToBegin) continue;
    PeerState* state = StateOf(lease.peer);
    if (state == nullptr) continue;
    uint32_t& mark = state->peer->lease_table()[lease.table_slot];
    lease.ahead = std::atomic_ref<uint32_t>(mark).load() == MarkOf(cell, kLeaseIdle);
  }
  for (auto& [key, pool] : pools_) {
    if (pool->GetStats().waiting > 0) pool->Serve();
  }
}

void Broker::OnAsk(Peer& peer, const Ask& ask) {
  const uint64_t id = peer.id();
  const auto answer = [this, id, request = ask.request](std::string text) {
    if (PeerState* state = StateOf(id)) state->peer->Send(Answer{request, std::move(text)});
  };
  if (ask.what == "alive") return answer("");
  if (ask.what == "status") return answer(StatusJson(State()));
  if (ask.what == "metrics") return answer(PrometheusText(FamiliesOf(State())));
  if (ask.what == "metrics json") return answer(MetricsJson(FamiliesOf(State())));
  if (ask.what == "reload") {
    try {
      Reload();
    } catch (const Error& error) {
      return Fail(id, ask.request, error);
    }
    return answer("reloaded");
  }
  if (ask.what.starts_with("stop ")) {
    const long drain = std::strtol(ask.what.c_str() + 5, nullptr, 10);
    answer("stopping");
    return Stop(std::chrono::milliseconds(std::clamp(drain, 0l, 600'000l)),
                [this] { loop_.Stop(); });
  }
  if (ask.what == "environments") {
    return builder_threads_.Post([this, answer] {
      json list = json::array();
      for (const EnvironmentInfo& info : store_.List()) {
        list.push_back({{"digest", info.digest},
                        {"requirements", info.requirements},
                        {"bytes", info.bytes},
                        {"packages", info.packages},
                        {"python", info.python_version},
                        {"base", info.base_id},
                        {"created", info.created_sec}});
      }
      loop_.Post([answer, text = Dump(list)] { answer(text); });
    });
  }
  if (ask.what.starts_with("remove ")) {
    return builder_threads_.Post([this, answer, digest = ask.what.substr(7)] {
      const bool removed = IsHex(digest, 64) && store_.Remove(digest);
      loop_.Post([answer, removed] { answer(removed ? "removed" : "absent"); });
    });
  }
  Fail(id, ask.request,
       Error(Code::kInvalidArgument, "the agent does not know how to answer that"));
}

AgentState Broker::State() {
  const Clock::time_point now = Clock::now();
  AgentState agent{.generation = generation_,
                   .uptime_sec = Seconds(now - started_),
                   .calls = metrics_.calls,
                   .clients = peers_.size(),
                   .leases = leases_.size(),
                   .spares = spares_.size(),
                   .pressure = pressure_.At(now),
                   .builds = metrics_.builds,
                   .builds_failed = metrics_.builds_failed,
                   .build_sec = metrics_.build_sec,
                   .stopping = stopping_,
                   .process = ReadProcessState(),
                   .pools = {}};
  agent.enforcement = Enforcement();
  if (cgroups_ != nullptr) agent.enforcement_note = cgroups_->why();
  agent.started_sec = static_cast<double>(std::time(nullptr)) - agent.uptime_sec;
  for (const auto& [key, pool] : pools_) {
    PoolMetrics& metrics = metrics_.pools[key];
    agent.pools.push_back({key, pool->environment().digest, pool->spec().requirements,
                           pool->spec().labels, pool->spec().memory_mb, pool->GetStats(), metrics,
                           metrics.rate.PerSecond(now), metrics.recent.Get(now)});
  }
  return agent;
}

void Broker::Tick() {
  const Clock::time_point now = Clock::now();
  const unsigned worth = WorthOfLook(now - tick_due_, pressure_.At(now));
  spares_.Look(worth);
  for (auto& [key, pool] : pools_) pool->Look(worth);
  OfferUnused();
  for (auto& [key, pool] : pools_) pool->Tick();
  EvictWorkers();
  ArmForgotten();
  if (ticks_ % kTicksBetweenSweeps == 0) TrimEnvironments();
  if (++ticks_ % kTicksBetweenSweeps == 0) Sweep();
  tick_due_ = Clock::now() + kTick;
  loop_.After(kTick, [this] { Tick(); });
}

// One pool at a time, that which was used the longest ago: the next look, a second later, sees what
// that gave.
void Broker::EvictWorkers() {
  uint64_t workers = 0;
  std::vector<Pool*> pools;
  for (auto& [key, pool] : pools_) {
    const uint64_t its = pool->GetStats().workers;
    workers += its;
    if (its > 0) pools.push_back(pool.get());
  }
  if (workers <= most_workers_) return;
  std::ranges::sort(pools, {}, &Pool::last_use);
  for (Pool* pool : pools) {
    if (pool->EndUnused("the host has as many workers as it may")) return;
  }
}

void Broker::Sweep() {
  if (stopping_) return;
  std::set<std::string> known;
  std::set<std::string> copies;
  for (auto it = pools_.begin(); it != pools_.end();) {
    Pool& pool = *it->second;
    const std::vector<std::string> its = CopiesOf(pool.spec());
    // Its clients prepare it again, and make the copies again.
    if (!its.empty() && pool.abandoned() && Clock::now() - pool.last_use() > kCopyAge) {
      metrics_.pools.erase(it->first);
      facts_.erase(it->first);
      it = pools_.erase(it);
      continue;
    }
    copies.insert(its.begin(), its.end());
    for (const std::string& name : pool.GetStats().worker_names) known.insert(name);
    ++it;
  }
  if (const std::string spare = spares_.name(); !spare.empty()) known.insert(spare);
  podman_threads_.Post([this, known, copies, before = strangers_] {
    std::set<std::string> strangers;
    SweepCopies(paths_, copies, kCopyAge);
    try {
      const std::vector<ContainerInfo> containers =
          podman_.List("hutch.instance=" + paths_.instance_label());
      SweepDirectories(paths_, containers);
      for (const ContainerInfo& container : containers) {
        const auto role = container.labels.find("hutch.role");
        if (role == container.labels.end() || role->second != "worker" ||
            known.contains(container.name))
          continue;
        const auto generation = container.labels.find("hutch.generation");
        // One of ours that was started after `known` was made is not an orphan: only one that is
        // not known at the next look either.
        const bool ours = generation != container.labels.end() && generation->second == generation_;
        const bool ended = container.state == "exited" || container.state == "stopped";
        if (ours && !ended) strangers.insert(container.name);
        if (ours && !ended && !before.contains(container.name)) continue;
        (IsOnGvisor(container.labels) ? gvisor_podman_ : podman_).Remove(container.id);
      }
      for (const ContainerInfo& left : podman_.ListRemains()) {
        if (!left.name.starts_with("hutch-worker-")) continue;
        if (before.contains(left.id)) {
          podman_.RemoveRemains(left.id);
        } else {
          strangers.insert(left.id);  // it may be one that is just being created
        }
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "sweep: %s\n", error.what());
    }
    loop_.Post([this, strangers] { strangers_ = strangers; });
  });
}

void Broker::Stop(Clock::duration drain, std::function<void()> stopped) {
  if (stopping_) return;
  stopping_ = true;
  closing_ = true;
  stopped_ = std::move(stopped);
  spares_.Retire();
  for (auto& [key, pool] : pools_) pool->Retire();
  loop_.After(drain, [this] { FinishStop(); });
  // Not inside this call: its caller's answer goes out first.
  loop_.Post([this] { AwaitDrain(); });
}

void Broker::AwaitDrain() {
  if (!stopped_) return;
  if (std::ranges::all_of(pools_, [](const auto& p) { return p.second->empty(); }))
    return FinishStop();
  loop_.After(kDrainPoll, [this] { AwaitDrain(); });
}

void Broker::FinishStop() {
  if (!stopped_) return;
  for (const auto& [cell, lease] : leases_) {
    if (lease.told) Audit(EntryOf(lease), *lease.told);
  }
  pools_.clear();
  std::exchange(stopped_, nullptr)();
}

}  // namespace hutch
