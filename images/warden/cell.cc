// SPDX-License-Identifier: Apache-2.0

#include "images/warden/cell.h"

#include <unistd.h>

namespace hutch {

ScratchUse ScratchOf(const Cell& cell) {
  ScratchUse use = MeasureScratch(cell.scratch);
  for (const int more : cell.more_scratch) {
    const ScratchUse its = MeasureScratch(more);
    use.used_kb += its.used_kb;
    use.files += its.files;
    use.full = use.full || its.full;
  }
  return use;
}

void Free(Slot* slot) {
  for (const int fd : {slot->control, slot->cell.proc, slot->cell.scratch, slot->cell.user.fd}) {
    if (fd >= 0) close(fd);
  }
  *slot = Slot{};
}

}  // namespace hutch
