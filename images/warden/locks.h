// SPDX-License-Identifier: Apache-2.0

// Locks on files that every process of the host opens as the same inode, in any worker: the
// devices, and the time namespace where cells have none of their own. Calls of different workers
// and users could communicate there: one takes a lock, and another sees that it cannot.
//
// So the warden holds a shared lock of each kind on each of these files, as long as it lives. Then
// no process can lock one exclusively, and a shared lock that a call takes blocks no other.
#pragma once

namespace hutch {

// Called once. nullptr, or the path of a file that another process has locked exclusively.
const char* HoldSharedLocks();

}  // namespace hutch
