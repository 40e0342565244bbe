// SPDX-License-Identifier: Apache-2.0

// The podman service that Hutch runs for itself, and the user it belongs to.
//
// An ordinary user's service is `podman system service` at Paths::podman_socket(), kept by their
// systemd when there is one. Root's belongs to the service user and lives in a private mount
// namespace: a pure cgroup2 view (crun refuses a hybrid one), a /dev/net/tun that the user may
// open; the machine's own mounts stay as they are. Podman's environment is built from nothing, so
// no secret of the caller's gets into it. Not thread-safe: these functions fork and switch the
// calling thread's user; the launcher calls them from its only thread, under the lock of LockStart.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/subprocess.h"
#include "wire/fd.h"
#include "wire/paths.h"

namespace hutch {

// The hint where the host keeps Podman from doing something.
inline constexpr char kDoctor[] =
    "`hutch doctor` names what this host lacks, and the command that mends it";

// The path of a program of the host by its name, "" where there is none.
std::string FindTool(const std::string& name);
// Whether the user has a systemd of their own that answers.
bool HasUserManager(const Paths& paths);

// The podman program. Throws kPodmanMissing with the command that installs it.
std::string FindPodman();
std::vector<std::string> PodmanEnvironment(const Paths& paths);

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

// Starts the service unless it answers. Throws kPlatform or kPodman with the tail of its log.
void EnsureService(const Paths& paths);
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
