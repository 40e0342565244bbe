// SPDX-License-Identifier: Apache-2.0

// How a worker's container is walled off: the libpod spec, as text. Each restriction names its
// reason beside it. And what its warden is told of the calls that will run there.
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
  std::string token;        // the warden proves itself with it
  unsigned uid = 1000;      // inside: a uid of its own for each worker, so that per-uid quotas and
                            // keyrings are separate
  std::string image;        // a reference; made an id before the container is, and never pulled
  std::string runtime_dir;  // on the host
  std::string environment_dir;    // on the host, "": no packages
  bool any_environment = false;   // instead of that: it is started ahead, and told of its own later
  std::string environment;        // the digest that it is told then, "": no packages
  std::string socket_dir;         // on the host
  std::string generation;         // of the agent that starts it
  std::string preload;            // module names separated by commas
  bool setup = false;             // socket_dir holds setup.pickle
  bool modules = false;           // socket_dir holds modules/, mounted at /opt/modules
  std::vector<MountSpec> mounts;  // of the caller's files
  bool as_caller = false;         // its uid inside is the caller's own outside
  BaseImage base;                 // that the caller named; `image` is its id then
  bool cgroups = false;           // the kernel limits each slot: the warden only stands behind it
  // The container itself is the one cell, because no cell can be made in it: the host forbids the
  // namespaces, or it runs on gVisor. It has `scratch_mb` of scratch.
  bool single_cell = false;
  uint64_t scratch_mb = 0;
  bool gvisor = false;  // it runs on a kernel that is not the host's; implies single_cell
};

std::string WorkerContainerSpec(const Paths& paths, const WorkerLaunch& launch);

// What the warden is told of the calls it will have (kConfigure): the container is the same for all
// of them, so one that was started ahead serves whatever pool comes. Throws kInvalidArgument when
// `pool.env` is too large, or no text.
std::string WorkerConfig(const PoolSpec& pool, const WorkerLaunch& launch);

}  // namespace hutch
