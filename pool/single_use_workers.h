// SPDX-License-Identifier: Apache-2.0

// Refill for workers that serve one call each: workers with one parked cell are started ahead of
// the calls, and each is removed after its call. Belongs to the loop's thread.
#pragma once

#include "pool/refill.h"

namespace hutch {

class SingleUseWorkers final : public Refill {
 public:
  // `members` outlives it.
  SingleUseWorkers(Members& members, Rotation rotation, unsigned cores)
      : members_(members), rotation_{1, rotation.max_age}, cores_(cores) {}

  Member* Source() override;
  RefillOrders Fill(const Demand& demand) override;
  RefillOrders Tick(const Demand& demand) override;
  uint64_t max_calls() const override { return 1; }
  bool AtMost(uint64_t max_cells) override { return members_.alive() >= max_cells; }
  // Beside the start of a container a warm-up costs little.
  bool may_skip_warm_up() const override { return false; }
  bool may_be_single_cell() const override { return true; }

  uint64_t OnWorkerReady(Member& member) override;
  void OnCellReady(Member& member) override;
  bool OnCellGone(Member& member) override;

 private:
  Members& members_;
  const Rotation rotation_;
  const unsigned cores_;
};

}  // namespace hutch
