// SPDX-License-Identifier: Apache-2.0

// Locks on what every process of the host opens as the same inode, whichever worker it is in: the
// devices, and the namespace of time where cells have none of their own. Calls could meet there, of
// other workers and of other users too: one locks, another sees that it cannot.
//
// So the warden holds a shared lock of each kind on each, for as long as it lives. Nobody can then
// lock one exclusively, whatever other calls do, and a shared lock of a call keeps nobody from
// anything.
#pragma once

namespace hutch {

// Once. nullptr, or the path of what somebody else has locked exclusively.
const char* HoldSharedLocks();

}  // namespace hutch
