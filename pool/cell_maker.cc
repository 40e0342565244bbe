// SPDX-License-Identifier: Apache-2.0

#include "pool/cell_maker.h"

#include <atomic>

namespace hutch {
namespace {

uint64_t NextCellId() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

}  // namespace

std::optional<CellMaker::Ordered> CellMaker::Order(uint32_t slot) {
  auto channels = MakeCellChannels(networks_.open != nullptr);
  if (!channels) {
    starved_ = true;  // until TryAgain(): that another slot gets a cell does not fill this one
    return std::nullopt;
  }
  const uint64_t cell = NextCellId();
  const FrameHeader order{
      .kind = FrameKind::kMakeCell, .a = slot, .id = cell, .c = skip_warm_up_ ? kSkipWarmUp : 0};
  if (!link_.send(order, channels->theirs())) {
    starved_ = true;
    return std::nullopt;
  }
  return Ordered{cell, std::move(channels->ours), std::move(channels->egress)};
}

std::shared_ptr<void> CellMaker::OpenNetwork(uint64_t cell, Fd egress) {
  if (networks_.open == nullptr) return nullptr;
  networks_.open(cell, std::move(egress));
  return {nullptr, [close = networks_.close, cell](void*) { close(cell); }};
}

}  // namespace hutch
