// SPDX-License-Identifier: Apache-2.0

#include "agent/broker.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <map>
#include <set>
#include <utility>

#include "agent/validate.h"
#include "environments/node.h"
#include "podman/mounts.h"
#include "wire/clock.h"
#include "wire/heartbeat.h"
#include "wire/log.h"

namespace hutch {
namespace {

constexpr auto kTick = kLookPeriod;
constexpr unsigned kTicksBetweenTrims = 60;
// Workers of an agent before this one end by themselves within 10 s. What is left after that is
// removed.
constexpr auto kFirstSweep = std::chrono::seconds(14);
constexpr auto kDrainPoll = std::chrono::milliseconds(20);
constexpr long kMostDrainMs = 86'400'000;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

Broker::Broker(Loop& loop, Podman& podman, EnvironmentStore& store, const Paths& paths,
               std::string generation, std::function<unsigned()> worker_uid, uint64_t most_workers)
    : loop_(loop),
      host_(podman, paths, std::move(generation)),
      started_(Clock::now()),
      builds_(loop, store),
      sweeper_(loop, host_),
      networks_(loop, podman, paths, host_.generation,
                [this](uint64_t cell) { leases_.ReplaceUnused(cell); }),
      pools_(
          loop, host_, std::move(worker_uid), most_workers,
          {.cell_gone = [this](uint64_t cell,
                               const CellReport& report) { leases_.OnCellGone(cell, report); },
           .session_event = [this](uint64_t cell,
                                   SessionEvent event) { leases_.sessions().OnEvent(cell, event); },
           .reclaim = [this](Pool& pool,
                             const std::string* worker) { return leases_.Reclaim(pool, worker); },
           .may_take = [this](uint64_t caller,
                              const std::string& key) { return leases_.MayTake(caller, key); },
           .open_network = [this](uint64_t cell, const PoolSpec& spec,
                                  Fd channel) { networks_.Open(cell, spec, std::move(channel)); },
           .close_network = [this](uint64_t cell) { networks_.Close(cell, [](const auto&) {}); }}),
      leases_({loop_, peers_, pools_, admission_, ledger_, networks_}) {
  tick_due_ = started_ + kTick;
  loop_.After(kTick, [this] { Tick(); });
  loop_.After(kFirstSweep, [this] { Sweep(); });
}

Broker::~Broker() {
  builds_.GiveUp();
  networks_.Shutdown();
}

void Broker::Handle(Peer& peer, const Message& message) {
  if (peers_.Add(peer)) leases_.AddPeer(peer);
  if (const auto* prepare = std::get_if<Prepare>(&message)) return OnPrepare(peer, *prepare);
  if (const auto* warm = std::get_if<Warm>(&message)) return OnWarm(peer, *warm);
  if (const auto* acquire = std::get_if<Acquire>(&message))
    return leases_.OnAcquire(peer, *acquire);
  if (const auto* done = std::get_if<LeaseEnded>(&message)) return leases_.OnDone(peer, *done);
  if (const auto* ask = std::get_if<Ask>(&message)) return OnAsk(peer, *ask);
  if (const auto* started = std::get_if<Started>(&message))
    return leases_.OnStarted(peer, *started);
  if (const auto* executed = std::get_if<Executed>(&message))
    return leases_.sessions().OnExecuted(peer, *executed);
  if (const auto* keep = std::get_if<Keep>(&message)) return leases_.sessions().OnKeep(peer, *keep);
  if (const auto* interrupt = std::get_if<Interrupt>(&message))
    return leases_.sessions().OnInterrupt(peer, *interrupt);
  if (const auto* restart = std::get_if<Restart>(&message))
    return leases_.sessions().OnRestart(peer, *restart);
  if (const auto* forget = std::get_if<Forget>(&message)) return OnForget(peer.id(), *forget);
  throw Error(Code::kProtocol, "a client sent a message that only an agent sends");
}

void Broker::Gone(Peer& peer) {
  const std::optional<Peers::State> state = peers_.Remove(peer.id());
  if (!state) return;
  for (const auto& [request, unwanted] : state->preparing) *unwanted = true;
  for (const auto& [request, place] : state->waiting) {
    if (Pool* pool = pools_.Find(place.pool)) pool->Forget(place.ticket);
  }
  leases_.RemovePeer(peer.id());
}

void Broker::OnForget(uint64_t peer, const Forget& forget) {
  Peers::State& state = *peers_.Find(peer);
  if (state.awaits_stop == forget.request) state.awaits_stop = 0;
  const auto preparing = state.preparing.find(forget.request);
  if (preparing != state.preparing.end()) {
    *preparing->second = true;
    state.preparing.erase(preparing);
  }
  const auto waiting = state.waiting.find(forget.request);
  if (waiting == state.waiting.end()) return;
  if (Pool* pool = pools_.Find(waiting->second.pool)) pool->Forget(waiting->second.ticket);
  state.waiting.erase(waiting);
}

void Broker::OnPrepare(Peer& peer, const Prepare& prepare) {
  const uint64_t id = peer.id();
  try {
    if (stopping_) throw Error(Code::kUnavailable, "the agent is stopping");
    Validate(prepare);
    if (const auto why = admission_.WhyRefuse(prepare, Enforcement())) throw *why;
    const std::string runtime = host_.paths.runtime_dir(prepare.spec.runtime_id);
    if (::access(runtime.c_str(), R_OK | X_OK) != 0) {
      throw Error(Code::kMissingRuntime,
                  "the worker files " + prepare.spec.runtime_id + " are not installed");
    }
    // The time of its last use, by which `hutch prune` goes.
    ::utimensat(AT_FDCWD, runtime.c_str(), nullptr, 0);
  } catch (const Error& error) {
    return peers_.Fail(id, prepare.request, error);
  }
  const auto unwanted = std::make_shared<std::atomic<bool>>(false);
  peers_.Find(id)->preparing[prepare.request] = unwanted;
  builds_.Get(
      SpecOf(prepare.spec), DeadlineIn(prepare.timeout_ms), unwanted,
      [this, id, request = prepare.request](const BuildProgress& p) {
        peers_.Send(id, Progress{request, p.stage, p.text, p.done, p.total});
      },
      [this, id, prepare](const Error* error, const Environment& environment) {
        if (error != nullptr) return peers_.Fail(id, prepare.request, *error);
        OnEnvironment(id, prepare, environment);
      });
}

void Broker::OnEnvironment(uint64_t id, const Prepare& prepare, const Environment& environment) {
  if (prepare.no_pool && IsNode(prepare.spec)) KeepNode(host_.paths, environment);
  if (environment.built_now) TrimEnvironments();
  Peers::State* state = peers_.Find(id);
  if (state == nullptr || state->preparing.erase(prepare.request) == 0)
    return;  // the client does not wait for it any more
  PoolReady ready{.request = prepare.request,
                  .key = {},
                  .digest = environment.digest,
                  .lock = environment.lock,
                  .notes = environment.notes,
                  .built = environment.built_now,
                  .build_sec = environment.build_sec,
                  .enforcement = Enforcement()};
  if (prepare.no_pool) return peers_.Send(id, ready);
  const std::string key = ready.key = pools_.KeyOf(prepare.spec, environment.digest);
  if (pools_.FindOrMake(key, prepare.spec, environment) == nullptr)
    return peers_.Fail(id, prepare.request,
                       Error(Code::kBusy,
                             "the agent takes no new pools now: it has as many as it may, or is "
                             "stopping",
                             "`hutch ps` lists them; use fewer different sets of packages, limits "
                             "and mounts at once"));
  pools_.Describe(key, admission_.ReservationOf(prepare.spec));
  ledger_.NotePolicy(prepare);
  AnswerWhenReady(id, std::move(ready), prepare.spec);
}

// Once the pool has a worker.
void Broker::AnswerWhenReady(uint64_t id, PoolReady prepared, const PoolSpec& spec) {
  if (prepared.built || AsCaller(spec)) {
    const char* what = AsCaller(spec)
                           ? "starting a worker with your own uid; the first copies the base image"
                           : "starting a worker";
    peers_.Send(id, Progress{prepared.request, "worker", what, 0, 0});
  }
  const Clock::time_point built = Clock::now();
  Pool* pool = pools_.Find(prepared.key);
  prepared.max_cells = pool->max_cells();
  pool->WhenWorkerReady(
      [this, id, built, prepared = std::move(prepared)](const Error* error) mutable {
        if (error != nullptr) return peers_.Fail(id, prepared.request, *error);
        prepared.worker_sec = Seconds(Clock::now() - built);
        if (const Pool* ready = pools_.Find(prepared.key)) {
          const std::string notes = ready->GetStats().notes;
          if (!notes.empty()) prepared.notes.push_back(notes);
        }
        peers_.Send(id, prepared);
      });
}

void Broker::OnWarm(const Peer& peer, const Warm& warm) {
  const uint64_t id = peer.id();
  Pool* pool = pools_.Find(warm.key);
  if (pool == nullptr)
    return peers_.Fail(
        id, warm.request,
        Error(Code::kUnknownPool, "the agent does not know this pool: prepare it first"));
  const uint64_t cells = warm.cells < 0 ? 1 : static_cast<uint64_t>(warm.cells);
  pool->EnsureWarm(cells, [this, id, request = warm.request](uint64_t ready, const Error* error) {
    if (error != nullptr) return peers_.Fail(id, request, *error);
    peers_.Send(id, Answer{request, std::to_string(ready)});
  });
}

void Broker::OnAsk(const Peer& peer, const Ask& ask) {
  const uint64_t id = peer.id();
  const auto answer = [this, id, request = ask.request](std::string text) {
    peers_.Send(id, Answer{request, std::move(text)});
  };
  if (ask.what == "alive") return answer("");
  if (ask.what == "status") return answer(StatusJson(State()));
  if (ask.what == "sessions") return answer(SessionsJson(leases_.sessions().States(Clock::now())));
  if (ask.what == "metrics") return answer(PrometheusText(FamiliesOf(State())));
  if (ask.what == "metrics json") return answer(MetricsJson(FamiliesOf(State())));
  if (ask.what == "reload") {
    try {
      Reload();
    } catch (const Error& error) {
      return peers_.Fail(id, ask.request, error);
    }
    return answer("reloaded");
  }
  if (ask.what.starts_with("stop ")) {
    const long drain = std::strtol(ask.what.c_str() + 5, nullptr, 10);
    return Stop(std::chrono::milliseconds(std::clamp(drain, 0l, kMostDrainMs)), [this, answer] {
      answer("stopped");
      loop_.Stop();
    });
  }
  if (ask.what == "await stop") {
    if (stopping_) return answer(DrainLeft());
    peers_.Find(id)->awaits_stop = ask.request;
    return;
  }
  if (ask.what == "environments") return builds_.List(answer);
  if (ask.what.starts_with("remove ")) {
    return builds_.Remove(ask.what.substr(7),
                          [answer](bool removed) { answer(removed ? "removed" : "absent"); });
  }
  peers_.Fail(id, ask.request,
              Error(Code::kInvalidArgument, "the agent does not know this question"));
}

AgentState Broker::State() {
  const Clock::time_point now = Clock::now();
  const Builds::Counts& builds = builds_.counts();
  AgentState agent{.generation = host_.generation,
                   .uptime_sec = Seconds(now - started_),
                   .calls = ledger_.calls(),
                   .clients = peers_.size(),
                   .leases = leases_.size(),
                   .sessions = admission_.sessions().held,
                   .most_sessions = admission_.sessions().most,
                   .spares = pools_.spares(),
                   .pressure = pools_.PressureAt(now),
                   .builds = builds.built,
                   .builds_failed = builds.failed,
                   .build_sec = builds.seconds,
                   .stopping = stopping_,
                   .process = ReadProcessState(),
                   .pools = pools_.States(now)};
  agent.enforcement = Enforcement();
  if (pools_.cgroups() != nullptr) agent.enforcement_note = pools_.cgroups()->why();
  agent.started_sec = static_cast<double>(std::time(nullptr)) - agent.uptime_sec;
  return agent;
}

void Broker::Configure(const AgentConfig& config) {
  if (!(config == admission_.config())) InvalidatePools();
  admission_.Configure(config);
  pools_.LimitQueues(config.host.queue != 0 ? config.host.queue : kMaxQueuedInAll);
  pools_.EndIdleAfter(config.host.idle_sec);
  pools_.KeepWarm(config.host.warm_workers);
  ledger_.Configure(config.audit);
  networks_.Trust(config.host.ca_bundle);
  leases_.ServeWaiters();
  TrimEnvironments();
}

// Clients ask again for their pools, for the cells that they hold unused, and for their places in
// queues, and are refused what they may not have any more. Calls that run go on.
void Broker::InvalidatePools() {
  pools_.InvalidateAll();
  leases_.ReclaimAll();
  for (auto& [id, state] : peers_) {
    for (const auto& [request, place] : std::map(state.waiting)) {
      if (Pool* pool = pools_.Find(place.pool)) pool->Forget(place.ticket);
      peers_.Fail(
          id, request,
          Error(Code::kUnknownPool, "the agent's configuration changed: prepare the pool again"));
    }
  }
}

void Broker::Reload() {
  if (config_file_.empty())
    throw Error(Code::kInvalidArgument, "this agent was started without a configuration file");
  Configure(LoadConfig(config_file_));
  LogInfo("the configuration is read", {{"file", config_file_}});
}

void Broker::TrimEnvironments() {
  const uint64_t most = admission_.config().host.environment_disk_mb << 20;
  if (most == 0 || stopping_) return;
  std::set<std::string> used = pools_.Environments();
  used.insert(NodeDigest(host_.paths));
  builds_.Trim(most, used);
}

void Broker::Tick() {
  const Clock::time_point now = Clock::now();
  pools_.Look(WorthOfLook(now - tick_due_, pools_.PressureAt(now)));
  leases_.OfferUnused();
  pools_.Tick();
  leases_.ArmUnannounced();
  leases_.sessions().Tick(now);
  if (ticks_ % kTicksBetweenTrims == 0) TrimEnvironments();
  // The period of a tick is a second.
  if (++ticks_ % admission_.config().host.sweep_sec == 0) Sweep();
  tick_due_ = Clock::now() + kTick;
  loop_.After(kTick, [this] { Tick(); });
}

void Broker::Sweep() {
  if (!stopping_) sweeper_.Sweep(pools_.ForSweep());
}

void Broker::Stop(Clock::duration drain, std::function<void()> stopped) {
  loop_.After(drain, [this] { FinishStop(); });
  if (std::exchange(stopping_, true)) return;
  drained_ = Clock::now() + drain;
  builds_.GiveUp();
  stopped_ = std::move(stopped);
  pools_.Retire();
  for (auto& [peer, state] : peers_) {
    if (const uint64_t request = std::exchange(state.awaits_stop, 0))
      peers_.Send(peer, Answer{request, DrainLeft()});
  }
  // Posted, so that what was sent to clients goes out first.
  loop_.Post([this] { AwaitDrain(); });
}

// In milliseconds.
std::string Broker::DrainLeft() const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(drained_ - Clock::now());
  return std::to_string(std::max<int64_t>(0, left.count()));
}

void Broker::AwaitDrain() {
  if (!stopped_) return;
  if (pools_.HaveEnded()) return FinishStop();
  loop_.After(kDrainPoll, [this] { AwaitDrain(); });
}

void Broker::FinishStop() {
  if (!stopped_) return;
  leases_.AuditUnfinished();
  pools_.Clear();
  std::exchange(stopped_, nullptr)();
}

}  // namespace hutch
