// SPDX-License-Identifier: Apache-2.0

// The user that Podman's service and its containers belong to, and the directories that are theirs.
//
// Root's is the service user, which is made where it is missing; an ordinary user's is that user.
// Not thread-safe: these functions fork and switch the calling thread's user.
#pragma once

#include <string>

#include "wire/fd.h"
#include "wire/paths.h"

namespace hutch {

// REQUIRES root. Makes the service user where it is missing, and logs that before it does.
void EnsureServiceUser();
// Throws kPlatform when the user may not map sub-ids; the hint has the command.
void CheckSubIds(const Paths& paths);
// Makes `path` (0700, Podman's user) and its missing parents; checks type, owner and mode by
// descriptor (an attacker's directory or symlink in its place is refused).
Fd EnsureDirectory(const Paths& paths, const std::string& path);
// The directories of Paths, and an exclusive lock among launchers, held while the descriptor is
// open.
Fd LockStart(const Paths& paths);

}  // namespace hutch
