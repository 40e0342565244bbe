// SPDX-License-Identifier: Apache-2.0

// Checks that the caller's files that are mounted in the container are those that the caller's
// client checked.
//
// Between that check and the mount, part of the path may have been replaced by a symbolic link or
// another directory: by a cell that may write to one mount, where another lies below it. This
// compares no names, but the device and inode of what is mounted.
#pragma once

namespace hutch {

// `lines` as podman/mounts.h makes them.
bool MountsAreVetted(const char* lines);

}  // namespace hutch
