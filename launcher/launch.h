// SPDX-License-Identifier: Apache-2.0

// The launcher: starts the agent's container and everything that it needs, and stops them. One
// function for each verb: `hutch-agent --start`, `--install`, `--foreground`, `--stop`, `--doctor`,
// `--podman`.
//
// For a single-threaded program. Each function throws Error and logs its progress on stderr
// (wire/log.h). Several processes may call them at once: Start tries the socket first and then
// takes a lock in the run directory.
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
  bool gvisor = false;      // Install: also start the service for containers on gVisor
  // Start calls it as the agent's user before it makes the container; what it throws goes on to
  // Start's caller.
  std::function<void(const Paths&)> check_config{};
};

// Makes root's service user where it is missing, then calls FindPaths.
Paths PrepareHost();

// Starts the agent unless one answers. Returns the path of its socket.
std::string Start(const LaunchOptions& options);

// Installs this base image and runtime. The agent may run already: another interpreter, or another
// version of Hutch, adds its own.
void Install(const LaunchOptions& options);

// Replaces this process by an agent that has no container: it runs in the foreground, in Podman's
// user namespace.
[[noreturn]] void Foreground(const LaunchOptions& options);

// Removes every container of this instance, stops Podman's service, and removes their sockets.
// `force`: without a grace period. Succeeds where there is nothing to remove.
void Stop(bool force);

// Replaces this process by `podman ARGS`, run as Podman's user in the service's view of the mounts.
[[noreturn]] void PodmanCommand(const std::vector<std::string>& args);

// The host's checks as one JSON object (podman/host.h); needs neither the agent nor the service and
// changes nothing.
std::string Doctor();

// The libpod spec of the agent's container, as JSON. `cells`: what EnsureCells gave.
std::string AgentSpec(const Paths& paths, const LaunchOptions& options, const std::string& cells);

}  // namespace hutch
