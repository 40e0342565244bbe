// SPDX-License-Identifier: Apache-2.0

// How the cells of one worker come to be: makes their channels, orders them from the warden, and
// opens their networks.
//
// Once it is starved, because no descriptor is left for a cell or the warden takes no order, it
// makes none until it is to try again. Belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "pool/cell_channels.h"
#include "pool/cell_orders.h"
#include "wire/fd.h"

namespace hutch {

class CellMaker {
 public:
  // Serves the networks of cells: `open` is given the egress channel of a cell that is being made,
  // and `close` is called when that cell is gone, reported or not. Both outlive the cells.
  struct Networks {
    std::function<void(uint64_t cell, Fd channel)> open;
    std::function<void(uint64_t cell)> close;
  };
  struct Ordered {
    uint64_t cell;
    CellChannels channels;
    Fd egress;  // of a cell with a network
  };

  explicit CellMaker(const OrderLink& link) : link_(link) {}  // `link` outlives it

  void UseNetworks(Networks networks) { networks_ = std::move(networks); }
  // While few cells are parked, new ones skip the warm-up call that precedes kCellReady.
  void SkipWarmUp(bool skip) { skip_warm_up_ = skip; }

  bool starved() const { return starved_; }
  void TryAgain() { starved_ = false; }
  // A cell in that slot; std::nullopt: it is starved.
  std::optional<Ordered> Order(uint32_t slot);
  // What is returned closes the network at its end. nullptr: cells have none.
  std::shared_ptr<void> OpenNetwork(uint64_t cell, Fd egress);

 private:
  const OrderLink& link_;
  Networks networks_;
  bool starved_ = false;
  bool skip_warm_up_ = false;
};

}  // namespace hutch
