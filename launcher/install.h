// SPDX-License-Identifier: Apache-2.0

// Puts on the host what containers are made of: the base image in Podman's store, the runtime in
// the state directory.
//
// Both are named by ids that their maker computes from their content, so what is there is never
// written again. Same thread contract as process.h. REQUIRES: the lock of LockStart, and (for the
// base) a running service.
#pragma once

#include <string>

#include "launcher/launch.h"
#include "wire/paths.h"

namespace hutch {

void InstallBase(const Paths& paths, const LaunchOptions& options);
void InstallRuntime(const Paths& paths, const LaunchOptions& options);

}  // namespace hutch
