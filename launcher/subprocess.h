// SPDX-License-Identifier: Apache-2.0

// Who the launcher acts as, and the programs that it starts.
//
// REQUIRES a single-threaded process: these functions fork, and switch the calling thread's user.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "wire/paths.h"

namespace hutch {

// For its lifetime the calling thread acts as Podman's user (effective ids, no groups of the
// caller's; raw system calls, as glibc's wrappers would change every thread). Nothing happens where
// that is us already. Nests.
class AsUser {
 public:
  explicit AsUser(const Paths& paths);
  ~AsUser();
  AsUser(const AsUser&) = delete;
  AsUser& operator=(const AsUser&) = delete;

 private:
  std::vector<gid_t> groups_;  // the caller's
  bool switched_ = false;
};

// Becomes Podman's user for good. REQUIRES: root, or nothing happens.
void BecomeUser(const Paths& paths);

// A child process to be: what it gets and nothing else (descriptors above 2 are closed, signals are
// at their defaults).
struct Command {
  std::vector<std::string> argv = {};  // argv[0] is an absolute path
  std::vector<std::string> environment = {};
  int in = -1;       // -1: /dev/null
  int out = -1;      // -1: /dev/null
  int err = -1;      // -1: /dev/null
  bool drop = true;  // become Podman's user for good (where root runs us)
  bool private_view =
      false;  // REQUIRES root: a mount namespace of its own, prepared as the head of this file says
  bool detach = false;  // a session of its own; outlives us
  std::string directory = "/";
};

// Throws kPlatform when the program cannot be started.
pid_t Spawn(const Paths& paths, const Command& command);
// Exit status, or 128 + signal. `Run` is both.
int Reap(pid_t pid);
int Run(const Paths& paths, const Command& command);

}  // namespace hutch
