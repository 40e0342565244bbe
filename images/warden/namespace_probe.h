// SPDX-License-Identifier: Apache-2.0

// Finds out whether this kernel and container allow the namespaces of slots and cells. Called once,
// before anything but the warden runs in the container: a later answer could come from a package.
//
// Thread contract: called in the single-threaded warden.
#pragma once

#include <cstdint>

namespace hutch {

struct NamespaceRefusal {
  uint64_t error = 0;  // errno; 0: cells can be made
  uint64_t step = 0;   // NamespaceStep that failed
};

// Makes the namespaces and mounts of a slot and a cell, in child processes that then end.
NamespaceRefusal TryNamespaces();

}  // namespace hutch
