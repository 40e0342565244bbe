#include "pool/cell_channels.h"

#include <algorithm>
#include <tuple>

#include "pool/descriptors.h"
#include "wire/channel.h"
#include "wire/error.h"

namespace hutch {

std::optional<NewCellChannels> MakeCellChannels(bool network) {
  try {
    NewCellChannels made;
    std::tie(made.ours.socket, made.socket) = MakeSocketPair();
    std::tie(made.ours.out, made.out) = MakePipe();
    std::tie(made.ours.err, made.err) = MakePipe();
    if (network) std::tie(made.egress, made.forwarder) = MakeSocketPair();
    const int highest = std::max(
        {made.ours.socket.get(), made.ours.out.get(), made.ours.err.get(), made.egress.get()});
    if (highest < CellsBelow(DescriptorLimit())) return made;
  } catch (const Error&) {  // there is none left at all
  }
  return std::nullopt;
}

}  // namespace hutch
