// SPDX-License-Identifier: Apache-2.0

#include "pool/single_use_workers.h"

#include <algorithm>

namespace hutch {

Member* SingleUseWorkers::Source() {
  for (auto it = members_.all().rbegin(); it != members_.all().rend(); ++it) {
    if (!it->retiring && it->worker->ready() && it->leased == 0) return &*it;
  }
  return nullptr;
}

RefillOrders SingleUseWorkers::Fill(const Demand& demand) {
  if (!demand.wanted && !demand.in_use) return {};
  const auto starting = static_cast<uint64_t>(std::ranges::count_if(
      members_.all(), [](const Member& m) { return !m.retiring && !m.proven; }));
  const uint64_t alive = members_.alive();
  const CellCounts counts{
      .slots = alive,
      .making = starting,
      .ready = members_.ready(),
      .waiting = std::max<uint64_t>(demand.waiting, demand.wanted && alive == 0 ? 1 : 0)};
  const RefillPlan plan =
      PlanRefill(demand.limits, counts, demand.depth, demand.quiet(), StartingAtOnce(cores_));
  return {.start = plan.slots,
          .later = plan.later && !demand.quiet(),
          .reclaim = demand.waiting > 0 && plan.slots + counts.ready + starting == 0};
}

RefillOrders SingleUseWorkers::Tick(const Demand& demand) {
  uint64_t surplus = SurplusSlots({.slots = members_.alive(), .waiting = demand.waiting},
                                  members_.leased(), demand.depth);
  for (Member& member : members_.all()) {
    if (member.retiring || member.ready.empty()) continue;
    const auto why = DueForRotation(rotation_, {0, demand.now - member.worker->ready_since(),
                                                member.worker->cells().tainted(), member.jitter});
    if (surplus == 0 && why.empty()) continue;
    if (surplus > 0) --surplus;
    members_.Retire(member, why.empty() ? "no more calls come" : why);
  }
  return Fill(demand);
}

uint64_t SingleUseWorkers::OnWorkerReady(Member& member) {
  member.worker->cells().AddSlot();
  return 0;
}

void SingleUseWorkers::OnCellReady(Member& member) { member.worker->cells().StopRefilling(); }

// Nothing else ever runs where a call ran.
bool SingleUseWorkers::OnCellGone(Member& member) {
  const bool failed = !member.proven && !member.retiring;
  member.retiring = true;
  member.ready.clear();
  return !failed;
}

}  // namespace hutch
