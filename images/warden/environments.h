// SPDX-License-Identifier: Apache-2.0

// The packages of a worker that is started before it is known which environment it will serve.
//
// Its container has the directory of all environments, read-only. Only the warden's code ever sees
// that directory: the warden moves into a user and a mount namespace of its own, holds the
// directory open and covers it with a mount. Each zygote gets namespaces below these, made before
// its interpreter starts, in which the warden's mounts are locked, so the cover cannot be removed.
// When the environment is known, its tree and no other is mounted at /opt/env, which the warden
// shares with the namespaces below. Then the directory is closed and all capabilities are dropped.
//
// No process is left in the container's first namespace. Entering the warden's takes the right to
// trace the warden, which no process has: it is not dumpable.
//
// Thread contract: a single-threaded process.
#pragma once

namespace hutch {

class Environments {
 public:
  // Does everything that precedes the choice of the environment. Returns nullptr or the step that
  // failed, with errno. REQUIRES: no other process is in the container yet.
  const char* Hold();
  bool held() const { return held_; }

  // In a child that is about to execute an interpreter. REQUIRES: held()
  const char* Leave() const;

  // Mounts the tree of `digest`, "" for none. Once. REQUIRES: held()
  const char* Choose(const char* digest);

 private:
  bool held_ = false;
  int directory_ = -1;
};

}  // namespace hutch
