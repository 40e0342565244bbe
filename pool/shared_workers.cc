// SPDX-License-Identifier: Apache-2.0

#include "pool/shared_workers.h"

#include <algorithm>

namespace hutch {
namespace {

// A worker is not replaced for want of slots before it has so many sessions: else each one that
// begins while all other slots are in use would cost a worker.
constexpr uint64_t kManySessions = kMostSlots / 4;

}  // namespace

Member* SharedWorkers::Source() {
  for (auto it = members_.all().rbegin(); it != members_.all().rend(); ++it) {
    if (!it->retiring && it->worker->ready()) return &*it;
  }
  return nullptr;
}

CellCounts SharedWorkers::Count(const Member& member, const Demand& demand) {
  const SlotTable& slots = member.worker->cells().slots();
  return {.slots = slots.alive() - std::min(slots.alive(), member.kept),
          .making = slots.making(),
          .free = slots.free(),
          .coming = slots.making_cells(),
          .ready = member.ready.size(),
          .waiting = demand.waiting};
}

RefillOrders SharedWorkers::Fill(const Demand& demand) {
  Member* source = Source();
  if (source == nullptr) return {.start = demand.wanted && !members_.starting() ? 1u : 0u};
  WorkerCells& cells = source->worker->cells();
  const CellCounts counts = Count(*source, demand);
  SizingLimits limits = demand.limits;
  if (source->kept > 0) {  // what they leave of its slots
    const uint64_t left = kMostSlots - std::min<uint64_t>(kMostSlots, source->kept);
    limits.max_cells = std::min(limits.max_cells, left);
  }
  // The first cell of a worker is somebody's first result: nothing else is made beside it.
  const uint64_t most = MakingAtOnce(cores_, pressure_ ? pressure_() : 0);
  const uint64_t at_once = source->proven ? most : std::clamp<uint64_t>(demand.waiting, 1, most);
  const RefillPlan plan = cells.starved()
                              ? RefillPlan{}
                              : PlanRefill(limits, counts, demand.depth, demand.quiet(), at_once);
  cells.MakeCells(plan.cells);
  for (uint64_t i = 0; i < plan.slots; ++i) cells.AddSlot();
  const bool fills = demand.waiting == 0 && demand.warming;
  const uint64_t to_come = (fills ? 0 : counts.ready) + counts.coming + counts.making;
  // Its sessions hold slots that calls could have: the next worker takes its place beside it.
  const bool full = source->kept >= kManySessions && limits.max_cells < demand.limits.max_cells &&
                    counts.slots >= limits.max_cells && counts.free == 0 &&
                    counts.ready + counts.coming + counts.making < demand.waiting + demand.depth;
  return {.start = full && !members_.starting() ? 1u : 0u,
          .later = plan.later && !demand.quiet(),
          .reclaim = (demand.waiting > 0 || fills) && plan.cells + plan.slots + to_come == 0,
          .tick = demand.waiting > 0 && cells.calls() >= rotation_.max_calls};
}

RefillOrders SharedWorkers::Tick(const Demand& demand) {
  Member* source = Source();
  if (source == nullptr) {  // whatever became of the worker that was to serve
    return demand.urgent ? Fill(demand) : RefillOrders{};
  }
  EndSurplus(*source, demand);
  if (members_.starting()) return {};
  // The replacement is begun a little before the last call, so that nobody waits for it.
  const WorkerCells& cells = source->worker->cells();
  const uint64_t margin = std::min<uint64_t>(rotation_.max_calls / 10, 32);
  const auto why =
      DueForRotation(rotation_, {cells.calls() + margin, demand.now - source->worker->ready_since(),
                                 cells.tainted(), source->jitter});
  return {.start = why.empty() ? 0u : 1u};
}

void SharedWorkers::EndSurplus(Member& member, const Demand& demand) {
  WorkerCells& cells = member.worker->cells();
  const uint64_t surplus =
      SurplusSlots(Count(member, demand), member.leased - member.kept, demand.depth);
  const uint64_t free = std::min(surplus, cells.slots().free());
  cells.EndFreeSlots(free);
  // The slots of these cells are free at the next tick.
  for (uint64_t i = free; i < surplus && member.ready.size() > demand.depth; ++i) {
    cells.Kill(member.ready.front());
    member.ready.pop_front();
  }
}

bool SharedWorkers::AtMost(uint64_t max_cells) {
  const Member* source = Source();
  return source != nullptr && source->worker->cells().slots().alive() >= max_cells + source->kept;
}

uint64_t SharedWorkers::OnWorkerReady(Member& ready) {
  uint64_t replaced = 0;
  for (Member& member : members_.all()) {
    if (&member == &ready || member.retiring) continue;
    ++replaced;
    members_.Retire(member, "replaced");
  }
  return replaced;
}

}  // namespace hutch
