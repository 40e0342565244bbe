// SPDX-License-Identifier: Apache-2.0

// Makes a cell: PID 1 of new namespaces, and the user process in them.
//
// Theory of operation. The slot blocks every signal and calls MakeCell(). It clones PID 1 of the
// cell with CLONE_VM: that process shares the slot's memory, on a small stack of its own, so that
// it costs no copy of the page tables. PID 1 writes the id maps, mounts the scratch and a fresh
// /proc, masks it, and closes the door to further user namespaces. Then it clones the user process,
// by a plain copy-on-write clone: a copy of the slot's memory as the slot is, blocked in
// MakeCell(). That copy jumps back into MakeCell()'s frame and returns from it, as fork() would, in
// the cell. PID 1 keeps no descriptor but the control socket and those of the call, reaps whatever
// is orphaned, writes what the user process had gathered to be printed (printing.h), reports how it
// ended, and exits, at which the kernel kills all that is left in the cell.
//
// A kept cell, that of a session, outlives its user process: when that ends, PID 1 kills all other
// processes of the cell, empties the call socket, and clones another user process from the slot's
// memory, which is as it was at the cell's birth. That one jumps to the frame in which the slot
// waits for its next order (Serve() in cell.cc), and raises its walls as the first one did. Whether
// the cell is kept is in memory that PID 1 shares with the slot, which is informed of it.
//
// With CLONE_PARENT the warden, not the slot, is the parent of PID 1: it kills and reaps it, and
// gets its rusage.
//
// PID 1 runs no code but CellInit()'s: raw system calls, no libc, no allocation, no thread-local
// storage, for all that is the slot's. It is not dumpable and keeps its capabilities (over its own
// namespaces only), so that the user process, which has the same uid and none, may not look into
// it.
//
// Thread contract: the slot is single-threaded, and makes its next cell only when the last one's
// PID 1 is gone.
#pragma once

#include <setjmp.h>

#include <cstdint>

#include "images/worker/walls.h"
#include "wire/cell_frame.h"

namespace hutch {

// What of /proc shows the host, or another cell.
inline constexpr int kMaxMasks = 24;

// Settled when the slot is made; PID 1 only reads it.
struct CellPlan {
  char uid_map[64] = {};
  char gid_map[64] = {};
  char scratch_options[96] = {};
  const char* mask[kMaxMasks] = {};     // paths in /proc that exist here
  const char* mask_by[kMaxMasks] = {};  // what is bound over each
  int masks = 0;
  Limits limits;
};

// Descriptors are the cell's call socket, standard output and error. Returns 0 in the cell's user
// process, every wall up and only descriptors 0, 1, 2, kCallFd and kControlFd open; 1 in the slot
// when the cell is made; a negative errno in the slot when not, with the failed step in `step`.
// REQUIRES: called in a slot (slot.h), all signals blocked.
long MakeCell(const CellPlan& plan, uint64_t id, const int (&descriptors)[3], const char** step);

// Where a user process of a kept cell begins that is not its first. To be set by _setjmp() in a
// function of the slot that does not return; there, in the copy, BeginAgain() does what MakeCell()
// does in the first one. (Not by __builtin_setjmp(), which clang does not have for aarch64.)
extern jmp_buf restart_frame;
// Makes the sockets for PassNextUser(), at descriptors from `least` on. Once in a slot, while it
// has the network of the worker: in that of a cell they would count as its use. False: errno says
// why.
bool PrepareToKeep(int least);
// Closes all descriptors from `first` on but those. False: errno says why.
bool CloseFrom(int first);
// The cell that the slot made is kept from now on.
void KeepCell();
// Hands the kept cell's PID 1 the frame kNextUser, for which it waits. False: it does not listen.
bool PassNextUser(const FrameHeader& header, int descriptor);
// In a user process that is not the first: raises its walls. Returns the cell's id.
uint64_t BeginAgain();

// Puts the descriptors of a call in their places and raises the calling process's own walls:
// session, limits, capabilities, filter. What MakeCell() does in the user process, last. nullptr,
// or the step that failed, with errno set.
const char* RaiseWalls(const Limits& limits, const int (&descriptors)[3]);

// Called once in a slot: learns where libc keeps the thread id, the robust list and the rseq area,
// which the user process must register anew. False where the kernel does not report it.
bool LearnThread();

}  // namespace hutch
