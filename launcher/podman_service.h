// SPDX-License-Identifier: Apache-2.0

// The podman service that Hutch runs for itself. Whose it is, is in podman_user.h.
//
// An ordinary user's service is `podman system service` at Paths::podman_socket(), kept by their
// systemd when there is one. Root's belongs to the service user and lives in a private mount
// namespace: a pure cgroup2 view (crun refuses a hybrid one), a /dev/net/tun that the user may
// open; the machine's own mounts stay as they are. Not thread-safe: these functions fork and switch
// the calling thread's user; the launcher calls them from its only thread, under the lock of
// LockStart.
#pragma once

#include <string>
#include <vector>

#include "wire/error.h"
#include "wire/paths.h"

namespace hutch {

// The hint where the host keeps Podman from doing something.
inline constexpr char kDoctor[] =
    "`hutch doctor` names what this host lacks, and the command that fixes it";

// What the host keeps Podman from doing: its cause and fix where they are known, else `text`.
Error Refused(const std::string& text);

// Starts the service unless it answers. Throws kPlatform or kPodman with the tail of its log.
void EnsureService(const Paths& paths);
// Starts the service again where it does not see the state directory because that was mounted
// later. Throws kPlatform where containers run that this would end. REQUIRES: EnsureService.
void EnsureSeen(const Paths& paths);
// Starts a second service, whose containers run on gVisor, unless it answers. Throws kPlatform with
// the command that installs runsc where that is missing. REQUIRES: EnsureService.
void EnsureGvisor(const Paths& paths);
// Ends the services and, for the service user without other services, Podman's pause process and
// our cgroup. REQUIRES: no container of ours is left. `keep_pause`: somebody else's containers are.
void StopService(const Paths& paths, bool keep_pause);

// Replaces this process by `podman ARGS`, run as Podman's user in the service's view. Returns only
// by throwing.
[[noreturn]] void ExecPodman(const Paths& paths, const std::vector<std::string>& args);

}  // namespace hutch
