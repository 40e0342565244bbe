// SPDX-License-Identifier: Apache-2.0

// Installs what containers are made of: the base image in Podman's store, the runtime in the state
// directory.
//
// Both are named by ids that are computed from their content, so an existing one is never written
// again. For a single-threaded process, as subprocess.h. REQUIRES: the lock of LockStart, and (for
// the base) a running service.
#pragma once

#include <string>

#include "launcher/launch.h"
#include "wire/paths.h"

namespace hutch {

void InstallBase(const Paths& paths, const LaunchOptions& options);
void InstallRuntime(const Paths& paths, const LaunchOptions& options);

}  // namespace hutch
