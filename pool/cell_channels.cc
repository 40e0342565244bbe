// SPDX-License-Identifier: Apache-2.0

#include "pool/cell_channels.h"

#include <sys/stat.h>

#include <algorithm>
#include <tuple>

#include "loop/descriptors.h"
#include "wire/channel.h"
#include "wire/error.h"

namespace hutch {

std::optional<NewCellChannels> MakeCellChannels(bool network) {
  try {
    NewCellChannels made;
    std::tie(made.ours.socket, made.socket) = MakeSocketPair();
    std::tie(made.ours.out, made.out) = MakePipe();
    std::tie(made.ours.err, made.err) = MakePipe();
    // A cell runs as another user, and programs in it open "/dev/stdout": it may write, never read.
    ::fchmod(made.out.get(), 0622);
    ::fchmod(made.err.get(), 0622);
    if (network) std::tie(made.egress, made.forwarder) = MakeSocketPair();
    const int highest = std::max(
        {made.ours.socket.get(), made.ours.out.get(), made.ours.err.get(), made.egress.get()});
    if (highest < CellsBelow(DescriptorLimit())) return made;
  } catch (const Error&) {  // no descriptor is left at all
  }
  return std::nullopt;
}

}  // namespace hutch
