// SPDX-License-Identifier: Apache-2.0

// The frames that stay inside a worker: warden <-> zygote, and warden <-> slots. They have the form
// of wire/cell_frame.h and kinds that neither agent nor client knows.
//
// Every one of them comes from a process that runs somebody else's code (a package in the zygote,
// and so in its slots), or from a cell before it has any. So the warden believes no length, no
// state and no pid in them.
//
// clang-format off
// kConfig      warden -> zygote  payload = that of the agent's kConfigure, and HUTCH_SKIP, lines "module TAB reason" of
//                                what an earlier zygote could not import
// kMakeSlot    warden -> zygote  a = slot; descriptors: the slot's control socket, and the agent's one where it sent one
// kImporting   zygote -> warden  payload = the module about to be imported; b = seconds it may take. Empty payload,
//                                b = 0: done.
// kSkip        zygote -> warden  payload = "module TAB reason": start me again without it. The zygote exits after it.
// kZygoteReady zygote -> warden  as in cell_frame.h
// kSlotReady   slot -> warden    a = slot; sent by the slot's own process, whose pid the kernel attaches
// kMakeCell    warden -> slot    as in cell_frame.h
// kCellMade    cell's PID 1 -> warden   id = cell; two descriptors: the root of its /proc, the root of its scratch. The
//                                kernel attaches the sender's pid.
// kCellReady   user process -> warden   id = cell. After it the process has no way to the warden.
// kCellStatus  cell's PID 1 -> warden   id = cell, a = raw wait status of the user process. Of a kept cell: every
//                                other process of the cell is gone, too; after kNextUser kCellReady of another user
//                                process follows
// kKeepCell    warden -> slot    id = cell: it is kept (cell_init.h)
// kNextUser    warden -> slot, slot -> cell's PID 1   as in cell_frame.h
// kCellKept    slot -> warden    id = cell: from now on
// kFailed      slot, user process, zygote -> warden   as in cell_frame.h
// clang-format on
//
// A single-cell worker (HUTCH_SINGLE_CELL=1 in its configuration) makes no cells, because its
// kernel allows it no namespaces. The zygote itself is the slot, and then the user process of the
// one call that the container is for: it sends kSlotReady, and kCellReady once its limits and
// filter are in place. There is no kCellMade; the warden sees by itself how the process ends.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "wire/cell_frame.h"

namespace hutch {

inline constexpr FrameKind kConfig{128};
inline constexpr FrameKind kImporting{129};
inline constexpr FrameKind kSkip{130};
inline constexpr FrameKind kCellMade{131};
inline constexpr FrameKind kCellStatus{132};
inline constexpr FrameKind kKeepCell{133};
inline constexpr FrameKind kCellKept{134};

inline constexpr unsigned kLastFd = 0x7fffffff;  // for close_range; gVisor takes none beyond it

// What a slot is moved into. Namespaces of cgroups and of time are of no use to it but that calls
// of other slots could lock their inodes, where it had none of its own; a kernel may lack them.
inline int SlotNamespaces() {
  int kinds = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS;
  if (access("/proc/self/ns/cgroup", F_OK) == 0) kinds |= CLONE_NEWCGROUP;
  if (access("/proc/self/ns/time", F_OK) == 0) kinds |= CLONE_NEWTIME;
  return kinds;
}

// Called once unshare(SlotNamespaces()) and the id maps are done. unshare() alone moves only
// children into the new namespace of time, and Linux 6.1, for one, makes no child there that shares
// memory with a process outside of it, as a cell's PID 1 does.
inline bool EnterOwnTime() {
  const int own = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
  if (own < 0) return false;
  const int entered = setns(own, CLONE_NEWTIME);
  const int error = errno;
  close(own);
  errno = error;
  return entered == 0;
}

// Descriptors with a fixed place, so that a process of a cell holds exactly 0 to 3.
inline constexpr int kCallFd = 3;    // in a cell: the call socket
inline constexpr int kZygoteFd = 3;  // in the zygote: its control socket
inline constexpr int kControlFd =
    4;  // in a slot, and in a cell until it is ready: the slot's control socket
inline constexpr int kForwarderFd = 5;  // in a slot with a network: the forwarder's program

}  // namespace hutch
