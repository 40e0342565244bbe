// SPDX-License-Identifier: Apache-2.0

#include "pool/pool.h"

#include <algorithm>
#include <cstdio>
#include <random>

#include "loop/descriptors.h"
#include "podman/mounts.h"
#include "pool/pressure.h"
#include "wire/egress.h"

namespace hutch {
namespace {

double RandomFraction() {
  static std::random_device entropy;
  return std::uniform_real_distribution<>(0, 1)(entropy);
}

Error Retired() { return Error(Code::kUnknownPool, "this pool is being retired"); }

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

std::string Joined(const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : ",") + name;
  return joined;
}

constexpr char kDescriptorsHint[] =
    "end what holds connections to the agent, or raise the limit of open files";

}  // namespace

Pool::Pool(Context context, std::string key, PoolSpec spec, Environment environment)
    : context_(std::move(context)),
      key_(std::move(key)),
      spec_(std::move(spec)),
      environment_(std::move(environment)),
      single_use_(spec_.isolation != Isolation::kCell),
      bare_(spec_.isolation == Isolation::kGvisor),
      rotation_{single_use_ ? 1 : spec_.max_calls,
                std::chrono::duration<double>(spec_.max_age_sec)},
      sizing_(single_use_ ? ResolveStock(spec_.warm, spec_.max_cells, AvailableMemoryKb())
                          : ResolveSizing(spec_.warm, spec_.max_cells, context_.cores,
                                          AvailableMemoryKb())),
      queue_(QueueCapacity(sizing_.max_cells), context_.queues),
      last_use_(Clock::now()),
      alive_(std::make_shared<bool>(true)) {}

Pool::~Pool() {
  *alive_ = false;
  if (retry_timer_ != 0) context_.loop.Cancel(retry_timer_);
  if (refill_timer_ != 0) context_.loop.Cancel(refill_timer_);
  if (deadline_timer_ != 0) context_.loop.Cancel(deadline_timer_);
}

Pool::Member* Pool::MemberOf(const Worker& worker) {
  const auto found =
      std::ranges::find_if(workers_, [&](const Member& m) { return m.worker.get() == &worker; });
  return found == workers_.end() ? nullptr : &*found;
}

Pool::Member* Pool::MemberOfCell(uint64_t cell) {
  const auto found = leased_.find(cell);
  return found == leased_.end() ? nullptr : found->second;
}

Pool::Member* Pool::Current() {
  for (auto it = workers_.rbegin(); it != workers_.rend(); ++it) {
    if (!it->retiring && it->worker->ready() && !(single_use_ && it->leased > 0)) return &*it;
  }
  return nullptr;
}

bool Pool::Starting() const {
  return std::ranges::any_of(workers_,
                             [](const Member& m) { return !m.retiring && !m.worker->ready(); });
}

bool Pool::abandoned() const {
  return workers_.empty() && queue_.empty() && leased_.empty() && ready_watchers_.empty() &&
         warm_watchers_.empty();
}

uint64_t Pool::ReadyCells() const {
  uint64_t ready = 0;
  for (const Member& member : workers_) ready += member.ready.size();
  return ready;
}

Error Pool::Busy(const std::string& text, const std::string& hint, Clock::duration waited) const {
  return Error(Code::kBusy, text, hint, false,
               {{"queued", static_cast<double>(queue_.waiting())},
                {"capacity", static_cast<double>(sizing_.max_cells)},
                {"waited_sec", Seconds(waited)}});
}

// Cells in use bring none back: their descriptors are their callers'.
bool Pool::Starved() {
  const Member* current = Current();
  return current != nullptr && ReadyCells() + current->worker->cells_coming() == 0 &&
         (current->worker->starved() || NoDescriptorForCells());
}

Error Pool::NoDescriptors(Clock::duration waited) const {
  return Busy("the agent has no descriptors for one more cell: it may have " +
                  std::to_string(DescriptorLimit()) + " open",
              kDescriptorsHint, waited);
}

std::optional<Error> Pool::WhyNotWait(uint64_t caller, bool ahead, Clock::duration patience) {
  constexpr char kHint[] =
      "start fewer calls at once, try again later, or raise Pool(max_cells=...)";
  switch (queue_.IsFull(caller, ahead)) {
    case Queue::Full::kQueue:
      return Busy("the queue is full: " + std::to_string(queue_.waiting()) + " calls wait for " +
                      std::to_string(sizing_.max_cells) + " cells",
                  kHint, {});
    case Queue::Full::kAgent:
      return Busy("the agent's queue is full: " + std::to_string(context_.queues.waiting) +
                      " calls wait in all pools, " + std::to_string(queue_.waiting()) +
                      " in this one",
                  kHint, {});
    case Queue::Full::kNo:
      break;
  }
  if (Starved()) return NoDescriptors({});
  // A guess, so only where it is plain: a cell would come twice as late as it may.
  const auto outlook = ahead ? std::nullopt : queue_.Outlook(caller);
  if (!outlook || *outlook / 2 < patience) return std::nullopt;
  char text[160];
  std::snprintf(text, sizeof text,
                "no cell will come free within %.1f s: at the present pace it takes %.1f s, "
                "%llu calls wait for %llu cells",
                Seconds(patience), Seconds(*outlook),
                static_cast<unsigned long long>(queue_.waiting()),
                static_cast<unsigned long long>(sizing_.max_cells));
  return Busy(text, "raise queue_sec, start fewer calls at once, or raise Pool(max_cells=...)", {});
}

uint64_t Pool::Acquire(uint64_t caller, Clock::duration patience, bool ahead, Granted granted,
                       Refused refused) {
  last_use_ = Clock::now();
  stocked_ = true;
  const uint64_t ticket = next_ticket_++;
  if (retired_) {
    refused(Retired());
    return ticket;
  }
  // Where nothing is to be had, whether one more cell can be made is known before anybody waits.
  if (Member* current = Current();
      current != nullptr && ReadyCells() + current->worker->cells_coming() == 0)
    current->worker->TryAgain();
  if (const auto why = WhyNotWait(caller, ahead, patience)) {
    refused(*why);
    return ticket;
  }
  // At least a millisecond: also without any patience a cell that is ready is given.
  patience = std::max<Clock::duration>(ClampToYear(patience), std::chrono::milliseconds(1));
  queue_.Add({ticket, caller, ahead, last_use_, last_use_ + patience});
  waiters_[ticket] = {std::move(granted), std::move(refused)};
  Serve();
  if (queue_.Contains(ticket)) WatchDeadlines();
  return ticket;
}

void Pool::Forget(uint64_t ticket) {
  if (queue_.Remove(ticket)) waiters_.erase(ticket);
}

Pool::Waiter Pool::TakeWaiter(uint64_t ticket) {
  return std::move(waiters_.extract(ticket).mapped());
}

void Pool::RefuseLate() {
  for (const Queue::Place& place : queue_.TakeLate(Clock::now())) {
    const Clock::duration waited = Clock::now() - place.since;
    char text[160];
    std::snprintf(
        text, sizeof text,
        "no cell came free within %.1f s: %llu of %llu cells are in use, %llu more calls wait",
        Seconds(waited), static_cast<unsigned long long>(leased_.size()),
        static_cast<unsigned long long>(sizing_.max_cells),
        static_cast<unsigned long long>(queue_.waiting()));
    const Member* current = Current();
    const bool starved = current != nullptr && current->worker->starved();
    TakeWaiter(place.ticket)
        .refused(
            Busy(starved ? std::string(text) + "; the agent has no descriptors for one more" : text,
                 starved ? kDescriptorsHint : "raise queue_sec, or Pool(max_cells=...)", waited));
  }
}

// One timer, for the earliest deadline there was when it was set: most who wait are served before,
// and cost no timer.
void Pool::WatchDeadlines() {
  const auto next = queue_.next_deadline();
  if (!next || (deadline_timer_ != 0 && deadline_ <= *next)) return;
  if (deadline_timer_ != 0) context_.loop.Cancel(deadline_timer_);
  deadline_ = *next;
  deadline_timer_ = context_.loop.After(*next - Clock::now(), [this] {
    deadline_timer_ = 0;
    RefuseLate();
    WatchDeadlines();
  });
}

void Pool::Arm(uint64_t cell, uint64_t timeout_ms, uint64_t cpu_ms, uint64_t result_kb) {
  if (Member* member = MemberOfCell(cell)) member->worker->Arm(cell, timeout_ms, cpu_ms, result_kb);
}

void Pool::ArmLoading(uint64_t cell, uint64_t cpu_ms) {
  if (Member* member = MemberOfCell(cell)) member->worker->ArmLoading(cell, cpu_ms);
}

void Pool::Release(uint64_t cell) {
  touched_ = last_use_ = Clock::now();
  TakeBack(cell);
}

void Pool::TakeBack(uint64_t cell) {
  if (Member* member = MemberOfCell(cell)) member->worker->Kill(cell);
}

void Pool::Discard(uint64_t cell) {
  for (Member& member : workers_) {
    std::erase(member.ready, cell);
    member.worker->Discard(cell);
  }
}

void Pool::WhenWorkerReady(std::function<void(const Error*)> ready) {
  last_use_ = Clock::now();
  if (retired_) {
    const Error error = Retired();
    return ready(&error);
  }
  if (Current() != nullptr) return ready(nullptr);
  ready_watchers_.push_back(std::move(ready));
  if (!Starting()) StartWorker();
}

void Pool::EnsureWarm(uint64_t cells, std::function<void(uint64_t, const Error*)> done) {
  last_use_ = Clock::now();
  stocked_ = true;
  if (retired_) {
    const Error error = Retired();
    return done(0, &error);
  }
  const uint64_t wanted = std::min(cells, sizing_.max_cells);
  sizing_.least = std::max(sizing_.least, wanted);
  sizing_.most = std::max(sizing_.most, wanted);
  if (ReadyCells() >= wanted) return done(ReadyCells(), nullptr);
  warm_watchers_.push_back({wanted, std::move(done)});
  Serve();
}

void Pool::StartWorker() {
  if (retired_ || retry_timer_ != 0) return;
  const auto wait = StartBackoff(failures_);
  if (failures_ > 0 && starting_since_ && Clock::now() - *starting_since_ < wait) {
    retry_timer_ = context_.loop.After(wait - (Clock::now() - *starting_since_), [this] {
      retry_timer_ = 0;
      Serve();
    });
    return;
  }
  if (NoDescriptorForCells()) {
    return FailSoon(Busy("the agent has no descriptors for one more worker: it may have " +
                             std::to_string(DescriptorLimit()) + " open",
                         kDescriptorsHint, {}));
  }
  starting_since_ = Clock::now();
  ++worker_starts_;
  try {
    // One that waits for a pool, where this one wants nothing that a container must be made with.
    std::unique_ptr<Worker> worker;
    const bool stored = environment_.tree_dir ==
                        context_.paths.environment_dir() + "/" + environment_.digest + "/tree";
    const bool plain =
        (!HasPackages(spec_) || stored) && spec_.mounts.empty() && spec_.base.empty();
    if (context_.spare && plain && !bare_ && !own_only_) worker = context_.spare(spec_);
    const bool spare = worker != nullptr;
    if (!spare) {
      const bool as_caller = AsCaller(spec_);
      const unsigned uid = as_caller ? kCallerUid : context_.worker_uid();
      WorkerLaunch launch = NewLaunch(context_.paths, context_.generation, uid, spec_.base_id,
                                      spec_.runtime_id, key_.substr(0, 8));
      launch.mounts = spec_.mounts;
      launch.as_caller = as_caller;
      launch.base = environment_.base;
      if (!launch.base.id.empty()) launch.image = launch.base.id;
      if (HasPackages(spec_)) launch.environment_dir = environment_.tree_dir;
      launch.bare = bare_;
      launch.gvisor = spec_.isolation == Isolation::kGvisor;
      launch.scratch_mb = spec_.disk_mb;
      worker = std::make_unique<Worker>(context_.loop, context_.podman, context_.background, *this,
                                        context_.paths, std::move(launch), spec_.modules);
    }
    if (HasNetwork(spec_) && context_.open_network) {
      worker->UseNetworks({[this](uint64_t cell, Fd channel) {
                             context_.open_network(cell, spec_, std::move(channel));
                           },
                           context_.close_network});
    }
    worker->Configure(*this, spec_,
                      Joined(spec_.preload_given ? spec_.preload : environment_.preload),
                      context_.cgroups, HasPackages(spec_) ? environment_.digest : "");
    Member& member = workers_.emplace_back();
    member.worker = std::move(worker);
    member.spare = spare;
    member.jitter = RandomFraction();
  } catch (const Error& error) {  // the disk is full, the base image is gone: the same as a start
                                  // that failed
    StartFailed(error);
  } catch (
      const std::exception& error) {  // of the standard library's: a directory that cannot be made
    StartFailed(
        Error(Code::kWorkerFailed, std::string("a worker could not be started: ") + error.what()));
  }
}

void Pool::StartFailed(const Error& error) {
  ++failures_;
  stocked_ = false;  // nothing is tried for a stock that nobody waits for
  ++worker_failures_;
  last_failure_ = error.what();
  FailSoon(error);
}

void Pool::FailSoon(const Error& error) {
  // Not inside whoever asked for a worker. Those whom another worker serves go on waiting for it.
  context_.loop.Post([this, alive = alive_, error] {
    if (*alive && Current() == nullptr && !Starting()) FailWaiters(error);
  });
}

void Pool::FailWaiters(const Error& error) {
  for (const Queue::Place& place : queue_.TakeAll()) TakeWaiter(place.ticket).refused(error);
  for (auto& watcher : std::exchange(ready_watchers_, {})) watcher(&error);
  for (Watcher& watcher : std::exchange(warm_watchers_, {})) watcher.done(ReadyCells(), &error);
}

void Pool::OnWorkerReady(Worker& worker) {
  if (single_use_) worker.AddSlot();
  // The replacement is there: the ones before it may go.
  for (Member& member : workers_) {
    if (!single_use_ && member.worker.get() != &worker && !member.retiring) {
      ++rotations_;
      RetireMember(member, "replaced");
    }
  }
  for (auto& watcher : std::exchange(ready_watchers_, {})) watcher(nullptr);
  Serve();
}

void Pool::OnCellReady(Worker& worker, uint64_t cell) {
  Member* member = MemberOf(worker);
  if (member == nullptr) return;
  member->proven = true;
  own_only_ = false;
  failures_ = 0;
  ++cells_made_;
  if (member->retiring) return worker.Kill(cell);
  if (single_use_) worker.StopRefilling();
  member->ready.push_back(cell);
  Serve();
}

void Pool::OnCellGone(Worker& worker, uint64_t cell, const CellReport& report) {
  if (Member* member = MemberOf(worker)) {
    std::erase(member->ready, cell);
    if (leased_.erase(cell) != 0) {
      --member->leased;
      context_.cell_gone(cell, report);
    }
    if (single_use_ && worker.ready()) UseUp(*member);  // else OnWorkerDead follows
    if (member->retiring && member->leased == 0) SweepRetired();
  }
  Resize();
}

void Pool::OnSlotsChanged(Worker& worker) {
  if (worker.tainted()) Tick();
  Serve();
}

void Pool::OnWorkerDead(Worker& worker, const std::string& why) {
  const auto found =
      std::ranges::find_if(workers_, [&](const Member& m) { return m.worker.get() == &worker; });
  if (found == workers_.end()) return;
  const bool failed = !found->proven && !found->retiring;
  const bool spare = found->spare;
  std::fprintf(stderr, "worker %s is gone: %s\n", worker.name().c_str(), why.c_str());
  last_failure_ = why;
  const bool telling = worker.failure() == Code::kPodmanDown ||
                       worker.failure() == Code::kMissingBase ||
                       worker.failure() == Code::kPlatform;
  const Code code = telling ? worker.failure() : Code::kWorkerFailed;
  graveyard_.push_back(std::move(found->worker));
  workers_.erase(found);
  SweepRetired();
  const bool network = !spec_.allow_network.empty() || !spec_.secrets.empty();
  const bool plain = spec_.mounts.empty() && !network;
  if (failed && code == Code::kPlatform && single_use_ && plain) {
    bare_ = true;
    Serve();
  } else if (failed && spare && !telling) {
    // What befell it may be no fault of this pool's: one that is made for it has the last word.
    ++worker_failures_;
    own_only_ = true;
    StartWorker();
  } else if (failed) {
    std::string hint = "`hutch doctor` checks the host; `hutch logs` has the details";
    if (code == Code::kPlatform) {
      hint = "isolation=\"container\" needs none of them; ";
      if (network)
        hint = "allow_network= and secrets= need them, for a network of the call's own; ";
      if (!spec_.mounts.empty()) hint = "mounts= needs them, to show no socket of the host's; ";
      hint += "`hutch doctor` says what would fix it";
    }
    StartFailed(Error(code, "a worker could not be started: " + why, hint));
  } else {
    Serve();
  }
}

void Pool::RetireMember(Member& member, std::string_view why) {
  if (member.retiring) return;
  std::fprintf(stderr, "worker %s retires: %.*s\n", member.worker->name().c_str(),
               static_cast<int>(why.size()), why.data());
  member.retiring = true;
  member.ready.clear();
  member.worker->StopRefilling();
  const std::string name = member.worker->name();
  while (context_.reclaim(*this, &name)) {
  }
  SweepRetired();
}

void Pool::SweepRetired() {
  context_.loop.Post([this, alive = alive_] {
    if (!*alive) return;
    for (auto it = workers_.begin(); it != workers_.end();) {
      if (it->retiring && it->leased == 0) {
        graveyard_.push_back(std::move(it->worker));
        it = workers_.erase(it);
      } else {
        ++it;
      }
    }
    graveyard_.clear();
  });
}

// Whether a cell that is ready is not for who only looks ahead: it is the last, there can be no
// more of them, and as many are leased as a lone caller has ahead.
bool Pool::IsLast() {
  if (single_use_) return leased_.size() >= 2 && ReadyCells() < 2 && Alive() >= sizing_.max_cells;
  const Member* current = Current();
  return current != nullptr && leased_.size() >= 2 && ReadyCells() < 2 &&
         current->worker->slots() >= sizing_.max_cells;
}

void Pool::Serve() {
  if (serving_) return;
  serving_ = true;
  RefuseLate();  // before any is served: nobody gets a cell late
  while (!queue_.empty()) {
    const auto member = std::ranges::find_if(workers_, [&](const Member& m) {
      return !m.retiring && m.worker->ready() && !m.ready.empty() &&
             m.worker->calls() < rotation_.max_calls;
    });
    if (member == workers_.end()) break;
    if (queue_.waiting() == 0 && (!warm_watchers_.empty() || IsLast())) break;
    const auto served = queue_.Next(Clock::now(), context_.may_take);
    if (!served) break;
    Grant grant;
    grant.cell = member->ready.front();
    member->ready.pop_front();
    grant.worker = member->worker->name();
    grant.channels = member->worker->Take(grant.cell);
    grant.waited = Clock::now() - served->since;
    if (member->worker->ready_since() > served->since) {
      grant.worker_start = member->worker->ready_since() - served->since;
    }
    ++member->leased;
    ++calls_;
    touched_ = Clock::now();
    rate_.Note(touched_);
    leased_[grant.cell] = &*member;
    TakeWaiter(served->ticket).granted(std::move(grant));
  }
  std::erase_if(warm_watchers_, [this](Watcher& watcher) {
    if (ReadyCells() < watcher.cells) return false;
    watcher.done(ReadyCells(), nullptr);
    return true;
  });
  serving_ = false;
  const bool low = !waiters_.empty() || 2 * ReadyCells() < Depth(Clock::now());
  for (Member& member : workers_) member.worker->Hurry(low && !single_use_);
  Resize();
}

uint64_t Pool::Depth(Clock::time_point now) const {
  uint64_t depth = WantedDepth(sizing_, rate_.PerSecond(now));
  for (const Watcher& watcher : warm_watchers_) depth = std::max(depth, watcher.cells);
  return std::min(depth, sizing_.max_cells);
}

CellCounts Pool::Count(const Member& member) const {
  const Worker& worker = *member.worker;
  return {worker.slots(),        worker.slots_making(), worker.slots_free(),
          worker.cells_coming(), member.ready.size(),   queue_.waiting()};
}

void Pool::Resize() {
  if (retired_) return;
  if (single_use_) return Restock();
  Member* current = Current();
  const uint64_t waiting = queue_.waiting();
  const bool wanted = !queue_.empty() || !warm_watchers_.empty() || !ready_watchers_.empty();
  if (current == nullptr) {
    if (wanted && !Starting()) StartWorker();
    return;
  }
  const CellCounts counts = Count(*current);
  const Clock::time_point now = Clock::now();
  const bool quiet = now - touched_ >= kQuiet;
  // The first cell of a worker is somebody's first result: nothing else is made beside it.
  const uint64_t most = MakingAtOnce(context_.cores, context_.pressure ? context_.pressure() : 0);
  const uint64_t at_once = current->proven ? most : std::clamp<uint64_t>(waiting, 1, most);
  const Refill refill = current->worker->starved()
                            ? Refill{}
                            : PlanRefill(sizing_, counts, Depth(now), quiet, at_once);
  current->worker->MakeCells(refill.cells);
  for (uint64_t i = 0; i < refill.slots; ++i) current->worker->AddSlot();
  if (refill.later && !quiet && refill_timer_ == 0) {
    refill_timer_ = context_.loop.After(kQuiet - (now - touched_), [this] {
      refill_timer_ = 0;
      Resize();
    });
  }
  const bool fills = waiting == 0 && !warm_watchers_.empty();
  if ((waiting > 0 || fills) && refill.cells + refill.slots == 0 &&
      (fills ? 0 : counts.ready) + counts.coming + counts.making == 0) {
    context_.reclaim(*this, nullptr);
  }
  if (waiting > 0 && current->worker->calls() >= rotation_.max_calls) Tick();
}

void Pool::Look(unsigned worth) {
  std::vector<Worker*> workers;  // one that is given up leaves the list, and lives on for a while
  for (const Member& member : workers_) workers.push_back(member.worker.get());
  for (Worker* worker : workers) worker->Look(worth);
}

void Pool::Tick() {
  if (retired_) return;
  for (Member& member : workers_) {
    if (member.worker->starved()) member.worker->TryAgain();
  }
  const Clock::time_point now = Clock::now();
  if (PoolIsIdle(now - last_use_, spec_.idle_sec, 0, queue_.waiting() + queue_.ahead())) {
    EndUnused("idle");
    return;
  }
  if (single_use_) return TickStock();
  Member* current = Current();
  if (current == nullptr) {
    if (IsWaitedFor()) Resize();  // whatever became of the worker that was to serve them
    return;
  }
  EndSurplus(*current, now);
  if (Starting()) return;
  const Worker& worker = *current->worker;
  // A little before its last call the replacement is begun, so that nobody waits for it.
  const uint64_t margin = std::min<uint64_t>(rotation_.max_calls / 10, 32);
  const auto why = DueForRotation(rotation_, {worker.calls() + margin, now - worker.ready_since(),
                                              worker.tainted(), current->jitter});
  if (!why.empty()) StartWorker();
}

bool Pool::IsWaitedFor() const {
  return queue_.waiting() > 0 || !ready_watchers_.empty() || !warm_watchers_.empty();
}

bool Pool::EndUnused(std::string_view why) {
  if (IsWaitedFor()) return false;
  // What is leased ahead of calls that do not come is taken back first; a call that runs keeps the
  // pool.
  bool coming = false;
  while (context_.reclaim(*this, nullptr)) coming = true;
  if (!leased_.empty()) return coming;
  stocked_ = false;
  for (Member& member : workers_) RetireMember(member, why);
  return true;
}

void Pool::EndSurplus(Member& member, Clock::time_point now) {
  const uint64_t depth = Depth(now);
  const uint64_t surplus = SurplusSlots(Count(member), member.leased, depth);
  const uint64_t free = std::min(surplus, member.worker->slots_free());
  member.worker->EndFreeSlots(free);
  // Their slots are free at the next look.
  for (uint64_t i = free; i < surplus && member.ready.size() > depth; ++i) {
    member.worker->Kill(member.ready.front());
    member.ready.pop_front();
  }
}

void Pool::Retire() {
  retired_ = true;
  FailWaiters(Error(Code::kUnavailable, "the agent is stopping", "", false));
  for (Member& member : workers_) RetireMember(member, "the pool ends");
}

Pool::Stats Pool::GetStats() const {
  Stats stats;
  for (const Member& member : workers_) {
    ++stats.workers;
    stats.slots += member.worker->slots();
    stats.ready += member.ready.size();
    stats.worker_names.push_back(member.worker->name());
    if (!member.worker->notes().empty()) stats.notes = member.worker->notes();
  }
  stats.leased = leased_.size();
  stats.depth = Depth(Clock::now());
  stats.waiting = queue_.waiting();
  stats.calls = calls_;
  stats.rotations = rotations_;
  stats.start_failures = failures_;
  stats.cells_made = cells_made_;
  stats.worker_starts = worker_starts_;
  stats.worker_failures = worker_failures_;
  stats.last_failure = last_failure_;
  return stats;
}

}  // namespace hutch
