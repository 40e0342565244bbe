// SPDX-License-Identifier: Apache-2.0

// The launcher: makes the agent be there, and not be there. `hutch-agent
// --start`, `--install`, `--stop`, `--doctor`, `--podman`.
//
// Plain functions of a single-threaded program; each throws Error and prints its progress on stderr
// ("hutch: ..."). Safe when many processes call them at once: Start tries the socket first and then
// holds a lock in the run directory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "wire/paths.h"

namespace hutch {

struct LaunchOptions {
  std::string package;      // the installed `hutch/_runtime` directory
  std::string python;       // the caller's interpreter: the base image is derived from it
  std::string cloudpickle;  // the caller's cloudpickle package: becomes <runtime>/cloudpickle
  std::string uv;           // the uv program; "" installs none
  std::string base_id;      // [0-9a-f]{32}
  std::string runtime_id;   // [0-9a-f]{32}
  bool gvisor = false;      // Install: containers on gVisor are wanted too
  // Start: run as the agent's user before its container is made. What it throws is the caller's.
  std::function<void(const Paths&)> check_config{};
};

// FindPaths, after making root's service user where it is missing.
Paths PrepareHost();

// Starts the agent unless it answers; returns its socket.
std::string Start(const LaunchOptions& options);

// Adds this base image and runtime to a host whose agent may run already (another interpreter,
// another version).
void Install(const LaunchOptions& options);

// Becomes an agent without a container of its own, in Podman's user namespace and in the
// foreground.
[[noreturn]] void Foreground(const LaunchOptions& options);

// Removes every container of this instance, the service, and what they left. `force`: without a
// grace period. Nothing of ours there is success.
void Stop(bool force);

// Becomes `podman ARGS` as Podman's user, in the service's view of the mounts.
[[noreturn]] void PodmanCommand(const std::vector<std::string>& args);

// The host's checks as one JSON object (podman/host.h); needs neither the agent nor the service and
// changes nothing.
std::string Doctor();

// The libpod spec of the agent's container, as JSON. `cells`: what EnsureCells gave.
std::string AgentSpec(const Paths& paths, const LaunchOptions& options, const std::string& cells);

}  // namespace hutch
