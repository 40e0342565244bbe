// SPDX-License-Identifier: Apache-2.0

// The switch of `make security-control`: takes one wall down, to see that the attacks on it succeed
// without it. It exists only where HUTCH_CONTROL is defined, which is so in files that are built
// for that run and installed nowhere; elsewhere WallIsDown() is a constant, and nothing of it is
// left.
//
// Thread contract: the first call in a process is made by its only thread, while the container's
// own /opt/hutch is in view; the answer never changes. A copy of the process knows it too.
#pragma once

namespace hutch {

#if defined(HUTCH_CONTROL)
// Whether `wall` is one of the words in /opt/hutch/without.
bool WallIsDown(const char* wall);
#else
constexpr bool WallIsDown(const char*) { return false; }
#endif

}  // namespace hutch
