// SPDX-License-Identifier: Apache-2.0

// The caller's files that a worker sees: checks of mounts=, the lines for the warden, and the
// removal of copies that nobody uses. Pure functions, but for SweepCopies.
//
// The client, which runs as the caller, decides whether the caller may name a source: the agent
// runs in a container and cannot look at the host's files. A bind mount shows one directory and
// nothing above it, so neither `..` nor a symbolic link inside it leads out: both are resolved
// below the cell's own root. What could change is the source itself, between the client's check and
// the mount; so its device and inode are sent along, and the warden compares them with what it
// finds.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "wire/paths.h"
#include "wire/values.h"

namespace hutch {

// Throws kInvalidArgument for a path that is not absolute and normal, a destination that lies in
// another one or in a directory of Hutch's own, and a copy that is writable.
void CheckMounts(const PoolSpec& spec);

// The path on the host of what the mount shows.
std::string ShownPath(const Paths& paths, const MountSpec& mount);

// Whether workers of this pool have the caller's own uid.
bool AsCaller(const PoolSpec& spec);

// For the warden, a line for each: "ro|rw TAB device TAB inode TAB destination".
std::string MountLines(const std::vector<MountSpec>& mounts);

// The copies that a pool needs, by name.
std::vector<std::string> CopiesOf(const PoolSpec& spec);

// Removes the copies that are not `used` and that nobody has asked for since `age` ago, and what
// interrupted copying left. Never throws.
void SweepCopies(const Paths& paths, const std::set<std::string>& used, std::chrono::seconds age);

}  // namespace hutch
