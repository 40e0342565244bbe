// SPDX-License-Identifier: Apache-2.0

// The one cell of a worker whose kernel gives it no namespaces (a host that forbids them, gVisor):
// the zygote itself, which becomes the user process of the call that its container is for.
//
// What is missing to a cell made by clone.h: namespaces of its own, so it sees the warden in /proc,
// the worker's read-only files at /opt/hutch, and three scratches (/work, /tmp, /dev/shm) of the
// container's where a cell has one. Limits, capabilities and the second filter are the same.
//
// Thread contract: called in the single-threaded zygote, once.
#pragma once

#include <cstdint>

#include "images/worker/slot.h"

namespace hutch {

// Tells the warden that `slot` is there, waits to be told of its cell, and becomes it. `control`
// becomes kControlFd. nullptr, or the step that failed, with errno set.
const char* EnterBare(const SlotOptions& options, int control, uint32_t slot, bool gvisor,
                      uint64_t* id, bool* skip_warm_up);

}  // namespace hutch
