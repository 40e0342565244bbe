// SPDX-License-Identifier: Apache-2.0

// A pool whose workers serve one call each: a stock of workers with one parked cell, refilled
// behind the calls. The queue, the leases and what a caller sees are those of any pool.
#include <algorithm>

#include "pool/pool.h"

namespace hutch {

uint64_t Pool::Alive() const {
  return static_cast<uint64_t>(
      std::ranges::count_if(workers_, [](const Member& m) { return !m.retiring; }));
}

// Its cell is gone: nothing else ever runs there.
void Pool::UseUp(Member& member) {
  if (!member.proven && !member.retiring) {
    StartFailed(Error(Code::kWorkerFailed, "a worker could not be started: its cell ended at once",
                      "`hutch logs` has the details"));
  }
  member.retiring = true;
  member.ready.clear();
  SweepRetired();
}

void Pool::Restock() {
  const uint64_t waiting = queue_.waiting();
  const bool wanted = !queue_.empty() || !warm_watchers_.empty() || !ready_watchers_.empty();
  if (!wanted && !stocked_) return;
  const auto starting = static_cast<uint64_t>(
      std::ranges::count_if(workers_, [](const Member& m) { return !m.retiring && !m.proven; }));
  const CellCounts counts{.slots = Alive(),
                          .making = starting,
                          .ready = ReadyCells(),
                          .waiting = std::max<uint64_t>(waiting, wanted && Alive() == 0 ? 1 : 0)};
  const Clock::time_point now = Clock::now();
  const bool quiet = now - last_cell_change_ >= kQuiet;
  const Refill refill =
      PlanRefill(sizing_, counts, Depth(now), quiet, StartingAtOnce(context_.cores));
  for (uint64_t i = 0; i < refill.slots; ++i) StartWorker();
  if (refill.later && !quiet && refill_timer_ == 0) {
    refill_timer_ = context_.loop.After(kQuiet - (now - last_cell_change_), [this] {
      refill_timer_ = 0;
      Resize();
    });
  }
  if (waiting > 0 && refill.slots + counts.ready + starting == 0) context_.reclaim(*this, nullptr);
}

void Pool::TickStock() {
  const Clock::time_point now = Clock::now();
  const uint64_t depth = Depth(now);
  uint64_t surplus =
      SurplusSlots({.slots = Alive(), .waiting = queue_.waiting()}, leased_.size(), depth);
  for (Member& member : workers_) {
    if (member.retiring || member.ready.empty()) continue;
    const auto why = DueForRotation(rotation_, {0, now - member.worker->ready_since(),
                                                member.worker->cells().tainted(), member.jitter});
    if (surplus == 0 && why.empty()) continue;
    if (surplus > 0) --surplus;
    RetireMember(member, why.empty() ? "no more calls come" : why);
  }
  Restock();
}

}  // namespace hutch
