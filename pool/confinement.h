// SPDX-License-Identifier: Apache-2.0

// How a worker's container is confined: the libpod spec, as text, with the reason of each
// restriction beside it; and the configuration of the calls that will run there, for its warden.
//
// Pure functions; safe on any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "environments/base_image.h"
#include "wire/paths.h"
#include "wire/values.h"

namespace hutch {

inline constexpr char kWorkerSocketDir[] = "/run/hutch";  // where a worker finds its own directory
inline constexpr char kWorkerSocketName[] = "warden.sock";
inline constexpr char kSetupName[] = "setup.pickle";  // beside the socket
inline constexpr char kModulesName[] = "modules";     // likewise a directory
inline constexpr char kNoPackages[] = "none";         // likewise, and empty

inline constexpr unsigned kCallerUid = 1000;  // inside, of a worker that has the caller's own uid

struct WorkerLaunch {
  std::string name;         // of the container: unique for each worker
  std::string token;        // by which the warden proves who it is
  unsigned uid = 1000;      // inside: a uid of its own for each worker, so that per-uid quotas and
                            // keyrings are separate
  std::string image;        // a reference; resolved to an id before the start, and never pulled
  std::string runtime_dir;  // on the host
  std::string environment_dir;    // on the host, "": no packages
  std::string node_dir;           // on the host, "": none is known
  bool node_modules = false;      // it has packages of npm
  bool any_environment = false;   // instead: it is started ahead, and configured with one later
  std::string environment;        // the digest of that one, "": no packages
  std::string socket_dir;         // on the host
  std::string generation;         // of the agent that starts it
  std::string preload;            // module names separated by commas
  bool setup = false;             // socket_dir holds setup.pickle
  bool modules = false;           // socket_dir holds modules/, mounted at /opt/modules
  std::vector<MountSpec> mounts;  // of the caller's files
  bool as_caller = false;         // its uid inside is the caller's own outside
  BaseImage base;                 // the caller's own base image; `image` is its id then
  bool cgroups = false;           // the kernel limits each slot: the warden is the second line
  // The container itself is the one cell, because no cell can be made in it: the host forbids the
  // namespaces, or it runs on gVisor. It has `scratch_mb` of scratch.
  bool single_cell = false;
  uint64_t scratch_mb = 0;
  bool gvisor = false;  // it runs on a kernel that is not the host's; implies single_cell
};

std::string WorkerContainerSpec(const Paths& paths, const WorkerLaunch& launch);

// The configuration of the calls, for the warden (kConfigure). The container is the same for all
// pools, so that one that was started ahead can serve any of them. Throws kInvalidArgument if
// `pool.env` is too large or is not valid UTF-8.
std::string WorkerConfig(const PoolSpec& pool, const WorkerLaunch& launch);

}  // namespace hutch
