// SPDX-License-Identifier: Apache-2.0

#include "pool/pool_workers.h"

#include <random>
#include <utility>
#include <vector>

#include "loop/descriptors.h"
#include "pool/shared_workers.h"
#include "pool/single_use_workers.h"
#include "wire/egress_rules.h"
#include "wire/log.h"

namespace hutch {
namespace {

double RandomFraction() {
  static std::random_device entropy;
  return std::uniform_real_distribution<>(0, 1)(entropy);
}

std::unique_ptr<Refill> RefillFor(const PoolSpec& spec, Members& members,
                                  const PoolContext& context) {
  const Rotation rotation{spec.max_calls, std::chrono::duration<double>(spec.max_age_sec)};
  if (spec.isolation == Isolation::kCell)
    return std::make_unique<SharedWorkers>(members, rotation, context.cores, context.pressure);
  return std::make_unique<SingleUseWorkers>(members, rotation, context.cores);
}

Error WhyNotStarted(const PoolSpec& spec, Code code, const std::string& why) {
  std::string hint = "`hutch doctor` checks the host; `hutch logs` has the details";
  if (code == Code::kPlatform) {
    hint = "isolation=\"container\" works without them; ";
    if (HasNetwork(spec))
      hint = "allow_network= and secrets= need them, for a network of the call's own; ";
    if (!spec.mounts.empty()) hint = "mounts= needs them, to hide the sockets of the host; ";
    hint += "`hutch doctor` says what would fix it";
  }
  return Error(code, "a worker could not be started: " + why, hint);
}

}  // namespace

PoolWorkers::PoolWorkers(const PoolContext& context, Owner& owner,
                         std::function<bool(const std::string*)> reclaim, const std::string& tag,
                         const PoolSpec& spec, const Environment& environment)
    : context_(context),
      owner_(owner),
      reclaim_(std::move(reclaim)),
      spec_(spec),
      starter_(context, tag, spec, environment),
      members_(context.loop, [this](const std::string& worker) { return reclaim_(&worker); }),
      refill_(RefillFor(spec, members_, context)),
      alive_(std::make_shared<bool>(true)) {}

PoolWorkers::~PoolWorkers() {
  *alive_ = false;
  context_.loop.Cancel(refill_timer_);
}

// ---- starts and failures

void PoolWorkers::Start() {
  const Clock::time_point now = Clock::now();
  if (stopped_ || starter_.Postponed(now, [this] { owner_.Serve(); })) return;
  if (NoDescriptorForCells()) return FailSoon(owner_.NoDescriptors("worker"));
  try {
    WorkerStarter::Started started = starter_.Start(now, *this);
    members_.Add(std::move(started.worker), started.spare, RandomFraction());
  } catch (const Error& error) {  // the disk is full, the base image is gone
    StartFailed(error);
  } catch (const std::exception& error) {  // a directory that cannot be made
    StartFailed(
        Error(Code::kWorkerFailed, std::string("a worker could not be started: ") + error.what()));
  }
}

void PoolWorkers::StartFailed(const Error& error) {
  in_use_ = false;  // Nothing more is tried for cells that nobody waits for.
  starter_.NoteFailure(error.what());
  FailSoon(error);
}

// On the loop's next turn, not inside the call that asked for a worker. Those whom another worker
// serves go on waiting for it.
void PoolWorkers::FailSoon(const Error& error) {
  context_.loop.Post([this, alive = alive_, error] {
    if (*alive && !ready() && !members_.starting()) owner_.OnNoWorker(error);
  });
}

// ---- what its workers report

void PoolWorkers::OnWorkerReady(Worker& worker) {
  if (Member* member = members_.Of(worker)) rotations_ += refill_->OnWorkerReady(*member);
  owner_.OnWorkerReady();
  owner_.Serve();
}

void PoolWorkers::OnCellReady(Worker& worker, uint64_t cell) {
  Member* member = members_.Of(worker);
  if (member == nullptr) return;
  member->proven = true;
  starter_.NoteCell();
  ++cells_made_;
  if (member->retiring) return worker.cells().Kill(cell);
  refill_->OnCellReady(*member);
  member->ready.push_back(cell);
  owner_.Serve();
}

void PoolWorkers::OnCellGone(Worker& worker, uint64_t cell, const CellReport& report) {
  if (Member* member = members_.Of(worker)) {
    if (members_.EndCell(*member, cell)) context_.cell_gone(cell, report);
    // The cells of a worker that is dead are gone before OnWorkerDead().
    if (worker.ready() && !refill_->OnCellGone(*member)) {
      StartFailed(Error(Code::kWorkerFailed,
                        "a worker could not be started: its cell ended at once",
                        "`hutch logs` has the details"));
    }
    if (member->retiring && member->leased == 0) {
      members_.SweepSoon();
    } else if (member->retiring && worker.ready()) {
      worker.cells().EndFreeSlots(kMostSlots);
    }
  }
  Fill();
}

void PoolWorkers::OnSessionEvent(Worker&, uint64_t cell, SessionEvent event) {
  context_.session_event(cell, std::move(event));
}

void PoolWorkers::OnSlotsChanged(Worker& worker) {
  if (worker.cells().tainted()) owner_.Tick();
  owner_.Serve();
}

void PoolWorkers::OnWorkerDead(Worker& worker, const std::string& why) {
  Member* found = members_.Of(worker);
  if (found == nullptr) return;
  Log(found->proven || found->retiring ? LogLevel::kWarn : LogLevel::kError, "a worker died",
      {{"worker", worker.name()}, {"why", why}});
  starter_.NoteEnd(why);
  // These say by themselves what is wrong, whoever's worker it was.
  const bool clear = worker.failure() == Code::kPodmanDown ||
                     worker.failure() == Code::kMissingBase || worker.failure() == Code::kPlatform;
  const Code code = clear ? worker.failure() : Code::kWorkerFailed;
  const Member member = members_.Remove(*found);
  const bool failed = !member.proven && !member.retiring;
  const bool needs_namespaces = !spec_.mounts.empty() || HasNetwork(spec_);
  if (failed && code == Code::kPlatform && refill_->may_be_single_cell() && !needs_namespaces) {
    starter_.UseSingleCells();
    owner_.Serve();
  } else if (failed && member.spare && !clear) {
    starter_.NoteSpareFailure();
    Start();
  } else if (failed) {
    StartFailed(WhyNotStarted(spec_, code, why));
  } else {
    owner_.Serve();
  }
}

// ---- what is parked

void PoolWorkers::Fill() {
  if (!stopped_) CarryOut(refill_->Fill(owner_.CurrentDemand()));
}

void PoolWorkers::Rotate() {
  if (!stopped_) CarryOut(refill_->Tick(owner_.CurrentDemand()));
}

void PoolWorkers::CarryOut(const RefillOrders& orders) {
  for (uint64_t i = 0; i < orders.start; ++i) Start();
  if (orders.later && refill_timer_ == 0) {
    refill_timer_ = context_.loop.After(owner_.CurrentDemand().until_quiet, [this] {
      refill_timer_ = 0;
      Fill();
    });
  }
  if (orders.reclaim) reclaim_(nullptr);
  if (orders.tick) owner_.Tick();
}

bool PoolWorkers::starved_now() {
  const Member* source = refill_->Source();
  return source != nullptr && source->worker->cells().starved();
}

// Cells in use bring none back: their descriptors are their callers'.
bool PoolWorkers::Starved() {
  const Member* source = refill_->Source();
  return source != nullptr &&
         members_.ready() + source->worker->cells().slots().making_cells() == 0 &&
         (source->worker->cells().starved() || NoDescriptorForCells());
}

void PoolWorkers::TryAgain() {
  const Member* source = refill_->Source();
  if (source == nullptr) return;
  WorkerCells& cells = source->worker->cells();
  if (members_.ready() + cells.slots().making_cells() == 0) cells.TryAgain();
}

bool PoolWorkers::IsLastCell(uint64_t max_cells) {
  return members_.leased() - members_.kept() >= 2 && members_.ready() < 2 &&
         refill_->AtMost(max_cells);
}

void PoolWorkers::SkipWarmUp(bool skip) {
  for (Member& member : members_.all())
    member.worker->cells().maker().SkipWarmUp(skip && refill_->may_skip_warm_up());
}

// ---- their end

void PoolWorkers::RetireAll(std::string_view why) {
  in_use_ = false;
  for (Member& member : members_.all()) members_.Retire(member, why);
}

}  // namespace hutch
