// SPDX-License-Identifier: Apache-2.0

// The only cell of a worker whose kernel allows no namespaces (a host that forbids them, gVisor):
// the zygote itself, which becomes the user process of the call that the container is for.
//
// Unlike a cell made by clone.h it has no namespaces of its own: it sees the warden in /proc and
// the worker's read-only files at /opt/hutch, and it has three scratch directories (/work, /tmp,
// /dev/shm) of the container where a cell has one. Limits, capabilities and the second filter are
// the same.
//
// Thread contract: called in the single-threaded zygote, once.
#pragma once

#include <cstdint>

#include "images/worker/slot.h"

namespace hutch {

// Reports `slot` to the warden, waits for the request to make its cell, and becomes that cell.
// `control` becomes kControlFd. nullptr, or the step that failed, with errno set.
const char* BecomeSingleCell(const SlotOptions& options, int control, uint32_t slot, bool gvisor,
                             uint64_t* id, bool* skip_warm_up);

}  // namespace hutch
