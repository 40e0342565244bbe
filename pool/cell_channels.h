// The channels of one cell: its socket and its two output pipes, both ends of each, made by the
// host. Movable values without threads.
#pragma once

#include <array>
#include <optional>

#include "wire/fd.h"

namespace hutch {

// The host's ends of a cell.
struct CellChannels {
  Fd socket, out, err;
};

struct NewCellChannels {
  CellChannels ours;
  Fd socket, out, err;  // the cell's
  std::array<int, 3> theirs() const { return {socket.get(), out.get(), err.get()}; }
};

// std::nullopt: the process is too near its limit of descriptors (descriptors.h).
std::optional<NewCellChannels> MakeCellChannels();

}  // namespace hutch
