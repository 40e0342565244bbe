// SPDX-License-Identifier: Apache-2.0

// How near this process is to its limit of open files, and what is refused first.
//
// The kernel hands out the lowest free number: a descriptor numbered n shows that n others are
// open. A long-lived descriptor is closed again when its number is too near the limit. The numbers
// above stay free for short-lived ones (a request to Podman, a file, a message that is being sent),
// so what runs already does not fail for lack of one. Functions of the process's limit; any thread.
#pragma once

#include <cstdint>

namespace hutch {

// Raises the soft limit to the hard one; the limit from then on.
int RaiseDescriptorLimit();
int DescriptorLimit();

// Clients may not take the last quarter: it is for the cells of those that are connected.
constexpr int ConnectionsBelow(int limit) { return limit - limit / 4; }
constexpr int CellsBelow(int limit) { return limit - (limit < 512 ? limit / 8 : 64); }

// Whether a cell, or a worker, made now would come too near the limit.
bool NoDescriptorForCells();

}  // namespace hutch
