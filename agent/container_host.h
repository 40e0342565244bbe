// SPDX-License-Identifier: Apache-2.0

// What the agent makes and removes containers with. It outlives everything that uses it. The loop's
// thread posts to `threads`, and work there may use both services.
#pragma once

#include <string>

#include "loop/background.h"
#include "podman/podman.h"
#include "wire/paths.h"

namespace hutch {

struct ContainerHost {
  ContainerHost(Podman& its_podman, const Paths& its_paths, std::string its_generation)
      : podman(its_podman),
        gvisor_podman(its_paths.gvisor_socket()),
        paths(its_paths),
        generation(std::move(its_generation)) {}

  Podman& podman;
  Podman gvisor_podman;  // the service whose containers run on gVisor
  const Paths& paths;
  const std::string generation;  // of this agent
  Background threads{2};  // starts and removals: two at once, more only wait for Podman's locks
};

}  // namespace hutch
