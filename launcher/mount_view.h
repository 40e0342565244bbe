// SPDX-License-Identifier: Apache-2.0

// The private view of the mounts that the service user's Podman runs in, and the cgroup that it
// owns.
//
// REQUIRES root, and a single-threaded process. Nothing here changes a mount of the machine's own
// namespace.
#pragma once

#include "wire/paths.h"

namespace hutch {

// The directory of the slots' cgroups in that view, owned by Podman's user.
inline constexpr char kCellsOfServiceUser[] = "/sys/fs/cgroup/hutch/cells";

// Gives the calling process a mount namespace of its own. What it mounts nobody else sees. Where
// the machine's mounts are shared, as systemd makes them, it sees what is mounted there later.
// Throws kPlatform.
void SeparateMounts();

// SeparateMounts, with a pure cgroup2 at /sys/fs/cgroup; moves the process into a cgroup that
// Podman's user owns (controllers delegated where the host has them free), and mounts a
// /dev/net/tun that the user may open. Throws kPlatform.
void EnterPrivateView(const Paths& paths);

// Removes that cgroup, as far as nothing lives in it. Never throws.
void RemoveCgroup(const Paths& paths);

}  // namespace hutch
