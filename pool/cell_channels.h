// SPDX-License-Identifier: Apache-2.0

// The channels of one cell: its socket, its two output pipes and, where it has a network, the
// egress channel, both ends of each, made by the host. Movable values without threads.
#pragma once

#include <optional>
#include <vector>

#include "wire/fd.h"

namespace hutch {

// The host's ends of a cell.
struct CellChannels {
  Fd socket, out, err;
};

struct NewCellChannels {
  CellChannels ours;
  Fd socket, out, err;   // the cell's
  Fd egress, forwarder;  // the egress process's and the forwarder's
  std::vector<int> theirs() const {
    std::vector<int> all = {socket.get(), out.get(), err.get()};
    if (forwarder) all.push_back(forwarder.get());
    return all;
  }
};

// std::nullopt: the process is too near its limit of open files (descriptors.h).
std::optional<NewCellChannels> MakeCellChannels(bool network = false);

}  // namespace hutch
