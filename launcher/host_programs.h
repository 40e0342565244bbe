// SPDX-License-Identifier: Apache-2.0

// The programs of the host that the launcher starts, and what they are told of its surroundings.
//
// The environment of Podman is built from nothing, so no secret of the caller's gets into it. Where
// root calls, no PATH of the caller's is used. Reads the process's environment: one thread.
#pragma once

#include <string>
#include <vector>

#include "wire/paths.h"

namespace hutch {

inline constexpr char kSafePath[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

std::string Variable(const char* name);  // of the caller's environment; "": it is not set
// The path of a program of the host by its name, "" where there is none.
std::string FindTool(const std::string& name);
// Whether the user has a systemd of their own that answers.
bool HasUserManager(const Paths& paths);

// The podman program. Throws kPodmanMissing with the command that installs it.
std::string FindPodman();
std::vector<std::string> PodmanEnvironment(const Paths& paths);

}  // namespace hutch
