// SPDX-License-Identifier: Apache-2.0

// Whether what the container shows of its caller's files is what the caller's client looked at.
//
// Between that look and the mount somebody may have put a symbolic link, or another directory, in
// the place of a part of the path: a cell that may write to one mount, where another lies below it.
// No name is compared here, but the device and inode of what is mounted.
#pragma once

namespace hutch {

// `lines` as podman/mounts.h makes them.
bool MountsAreVetted(const char* lines);

}  // namespace hutch
