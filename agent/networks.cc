// SPDX-License-Identifier: Apache-2.0

#include "agent/networks.h"

#include <utility>

namespace hutch {

Networks::Networks(Loop& loop, Podman& podman, const Paths& paths, std::string generation,
                   std::function<void(uint64_t)> lost)
    : loop_(loop),
      podman_(podman),
      paths_(paths),
      generation_(std::move(generation)),
      lost_(std::move(lost)) {}

void Networks::Trust(const std::string& ca_bundle) {
  ca_bundle_ = ca_bundle;
  if (egress_ != nullptr) egress_->Trust(ca_bundle);
}

void Networks::Open(uint64_t cell, const PoolSpec& pool, Fd channel) {
  if (egress_ == nullptr) {
    egress_ = std::make_unique<Egress>(
        loop_, podman_, paths_,
        EgressLaunch{pool.base_id, pool.runtime_id, generation_, ca_bundle_});
    egress_->OnLost(lost_);
  }
  cells_.insert(cell);
  egress_->AddCell(cell, pool, std::move(channel));
}

void Networks::CallIsOver(uint64_t cell) {
  if (cells_.contains(cell)) egress_->CallIsOver(cell);
}

void Networks::Close(uint64_t cell, Egress::Closed closed) {
  if (cells_.erase(cell) == 0) return closed({});
  egress_->CloseCell(cell, std::move(closed));
}

void Networks::Shutdown() {
  cells_.clear();
  egress_.reset();
}

}  // namespace hutch
