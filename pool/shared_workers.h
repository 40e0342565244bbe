// SPDX-License-Identifier: Apache-2.0

// Refill for workers that are shared: the newest one has many slots and serves call after call,
// until it is due for rotation, or sessions hold its slots, and a new one takes its place. Cells of
// sessions do not count as cells of the pool. Belongs to the loop's thread.
#pragma once

#include <functional>

#include "pool/refill.h"

namespace hutch {

class SharedWorkers final : public Refill {
 public:
  // `members` and `pressure` (of the host, 0 to 1; it may be nullptr) outlive it.
  SharedWorkers(Members& members, Rotation rotation, unsigned cores,
                const std::function<double()>& pressure)
      : members_(members), rotation_(rotation), cores_(cores), pressure_(pressure) {}

  Member* Source() override;
  RefillOrders Fill(const Demand& demand) override;
  RefillOrders Tick(const Demand& demand) override;
  uint64_t max_calls() const override { return rotation_.max_calls; }
  bool AtMost(uint64_t max_cells) override;
  bool may_skip_warm_up() const override { return true; }
  bool may_be_single_cell() const override { return false; }

  uint64_t OnWorkerReady(Member& member) override;
  void OnCellReady(Member&) override {}
  bool OnCellGone(Member&) override { return true; }

 private:
  static CellCounts Count(const Member& member, const Demand& demand);
  static void EndSurplus(Member& member, const Demand& demand);

  Members& members_;
  const Rotation rotation_;
  const unsigned cores_;
  const std::function<double()>& pressure_;
};

}  // namespace hutch
