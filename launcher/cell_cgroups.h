// SPDX-License-Identifier: Apache-2.0

// The cgroup below which each slot gets one of its own: a directory that is delegated to Podman's
// user for good, with its own controllers.
//
// An ordinary user's is that of a unit of their systemd, `hutch-cells`, which delegates
// (Delegate=yes) and holds one sleeping process; the processes of calls are never in the cgroup of
// the Podman service or of the agent, which come and go. Root's service user has
// /sys/fs/cgroup/hutch/cells in its private view, as far as the host has controllers free there.
//
// For the launcher's only thread, under the lock of LockStart.
#pragma once

#include <string>

#include "wire/paths.h"

namespace hutch {

// Where the agent's container finds it.
inline constexpr char kCellsInside[] = "/opt/cells";

// The directory, made where it is missing; "" where this host delegates nothing. Never throws: a
// host without it has the warden. REQUIRES: the service runs.
std::string EnsureCells(const Paths& paths);

// Ends the unit. REQUIRES: no container of ours is left.
void StopCells(const Paths& paths);

}  // namespace hutch
