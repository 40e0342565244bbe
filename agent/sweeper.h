// SPDX-License-Identifier: Apache-2.0

// Removes what no pool uses: worker containers, also of earlier agents; containers that Podman did
// not finish; workers' directories; and copies of callers' files.
//
// Belongs to the loop's thread; a sweep runs on ContainerHost's threads. A container of this
// agent's own is removed only when two sweeps in a row found it unknown: one that was started after
// the first began is not an orphan. While an agent of another version runs, which serves clients of
// its own, nothing is removed that may be its.
#pragma once

#include <chrono>
#include <set>
#include <string>

#include "agent/container_host.h"
#include "loop/loop.h"

namespace hutch {

// Longer than building an environment may take: a client makes its copies before it asks for the
// pool that uses them.
inline constexpr auto kCopyAge = std::chrono::minutes(15);

class Sweeper {
 public:
  struct Known {
    std::set<std::string> containers;  // by name
    std::set<std::string> copies;      // see CopiesOf()
  };

  // `loop` and `host` outlive it.
  Sweeper(Loop& loop, ContainerHost& host) : loop_(loop), host_(host) {}

  void Sweep(Known known);  // in the background

 private:
  Loop& loop_;
  ContainerHost& host_;
  std::set<std::string> unknown_;
};

// One sweep. Blocks, and never throws: what cannot be removed is left for the next one. `before`:
// what the last sweep returned. Returns what is unknown but may just have been started.
std::set<std::string> SweepContainers(ContainerHost& host, const Sweeper::Known& known,
                                      const std::set<std::string>& before);

}  // namespace hutch
