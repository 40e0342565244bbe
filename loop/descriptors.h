// SPDX-License-Identifier: Apache-2.0

// How near this process is to its limit of open files, and what is given up first.
//
// The kernel hands out the lowest free number: a descriptor numbered n says that n others are open.
// What is to last is not kept when its number is too near the limit, so that the numbers above stay
// free for what lasts a moment (a request to Podman, a file, a message that is being sent), and
// nothing that works ever fails for want of one. Functions of the process's limit; any thread.
#pragma once

#include <cstdint>

namespace hutch {

// Raises the soft limit to the hard one; the limit from then on.
int RaiseDescriptorLimit();
int DescriptorLimit();

// A quarter is kept from clients: what is connected is to get cells.
constexpr int ConnectionsBelow(int limit) { return limit - limit / 4; }
constexpr int CellsBelow(int limit) { return limit - (limit < 512 ? limit / 8 : 64); }

// Whether a cell, or a worker, made now would come too near the limit.
bool NoDescriptorForCells();

}  // namespace hutch
