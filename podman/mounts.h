// SPDX-License-Identifier: Apache-2.0

// What a worker is shown of its caller's files: checks, what the container is made with, what its
// warden is told, and the end of copies that nobody uses. Pure but for SweepCopies.
//
// Who may name a source is the client's to decide, which runs as the caller: here, inside a
// container, the host's files cannot be looked at. A bind mount shows one directory and nothing
// above it, so neither `..` nor a symbolic link inside it leads out: both are resolved below the
// cell's own root. What could change is the source itself, between the client's look and the mount;
// so its device and inode travel along, and the warden compares them with what it finds.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "wire/paths.h"
#include "wire/values.h"

namespace hutch {

// Throws kInvalidArgument for a path that is not plain, a destination that lies in another's or in
// a place that is Hutch's own, and a copy that is to be written to.
void CheckMounts(const PoolSpec& spec);

// Where what is shown lies on the host.
std::string ShownPath(const Paths& paths, const MountSpec& mount);

// Whether workers of this pool have the caller's own uid.
bool AsCaller(const PoolSpec& spec);

// For the warden, a line for each: "ro|rw TAB device TAB inode TAB destination".
std::string MountLines(const std::vector<MountSpec>& mounts);

// The copies that a pool needs, by name.
std::vector<std::string> CopiesOf(const PoolSpec& spec);

// Removes the copies that are not `used` and that nobody has asked for since `age` ago, and what
// copying cut off has left. Never throws.
void SweepCopies(const Paths& paths, const std::set<std::string>& used, std::chrono::seconds age);

}  // namespace hutch
