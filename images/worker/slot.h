// SPDX-License-Identifier: Apache-2.0

// A slot: a fork of the zygote with user, mount, UTS, network, cgroup and time namespaces of its
// own, in which one cell at a time is made.
//
// What it keeps for its cells, because each would pay for it (a network namespace: 0.9 ms of CPU):
// loopback, up, until a cell used it (network.h), and a root. The root is a small tmpfs, read-only
// when done. Each directory of the image and the environment appears in it as a read-only overlay
// of this slot alone: a file lock is kept on the overlay's inode, so cells of two slots do not meet
// there. Of the container's own root nothing is left: neither /opt/hutch nor /run/hutch.
//
// Thread contract: called in a fresh, single-threaded fork of the zygote, once.
#pragma once

#include <cstdint>

#include "images/worker/cell_init.h"

namespace hutch {

struct SlotOptions {
  uint64_t memory_kb = 0;
  uint64_t disk_kb = 0;
  uint64_t pids = 0;
  uint64_t nofile = 0;
  // Of the caller's files, lines as podman/mounts.h makes them: shown where the container has them,
  // each directory that is read-only by an overlay too. There a socket or FIFO of the host's is no
  // more than a name: the overlay's inodes are its own.
  const char* mounts = "";
  int cgroup = -1;  // an open cgroup.procs; the slot moves into that cgroup, and its cells are born
                    // there. -1: none
  const char* egress = "";  // lines of LoadNetwork(), "": no network
};

// Forks the calling process with the same parent (CLONE_PARENT). Returns as fork() does.
long ForkSlot();

// What a call may use beyond what the zygote, the calling process or its parent, has already.
Limits LimitsOf(const SlotOptions& options);

// Makes `control` kControlFd and 0 to 2 the null device; everything else is closed. nullptr, or the
// step that failed, with errno set.
const char* PlaceControl(int control);

// Puts the calling process into the slot's namespaces and fills `plan`. `control` becomes
// kControlFd; every other descriptor above 2 is closed, but for a slot's with a network
// kForwarderFd. Returns nullptr, or the step that failed, with errno set. `*locks_shared` becomes
// true where no overlay could be made: cells of this worker could then meet by file locks.
const char* EnterSlot(const SlotOptions& options, int control, CellPlan* plan, bool* locks_shared);

}  // namespace hutch
