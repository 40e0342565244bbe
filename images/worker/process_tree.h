// SPDX-License-Identifier: Apache-2.0

// A program that this process has started, with all that it has started in turn.
//
// Thread contract: any thread; the GIL is not needed.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>

namespace hutch {

// What the program and those below it have used, with those that they have waited for.
uint64_t CpuOfTreeUs(pid_t root);

// Kills a child of this process, and all that it has started: what is below it, since it adopts
// what its descendants leave behind (spawn.h). Where nothing can be adopted, as under gVisor, it is
// what began after the root and was left to PID 1. Waits for the root, as wait4() does. Returns its
// status, or -1 where other code has waited for it.
int EndTree(pid_t root, rusage* usage);

}  // namespace hutch
