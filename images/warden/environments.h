// SPDX-License-Identifier: Apache-2.0

// The packages of a worker that was started ahead of the environment it will serve.
//
// Its container has the directory of every environment, read-only. No code but the warden's ever
// sees it: the warden moves into a user and a mount namespace of its own, holds that directory open
// and covers it. Each zygote gets namespaces below these, made before its interpreter starts, in
// which what the warden has mounted is locked: nothing of it can be taken away, so the cover stays.
// When the environment is known its tree, and no other, is mounted at /opt/env, which the warden
// shares with the namespaces below. Then the directory is closed and every capability given up.
//
// The namespace the container began in has no process any more; the warden's is out of reach for
// whoever may not trace it, and nobody may: it is not dumpable.
//
// Thread contract: a single-threaded process.
#pragma once

namespace hutch {

class Environments {
 public:
  // Does all that comes before the environment is known. Returns nullptr or the step that failed,
  // with errno. REQUIRES: no other process is in the container yet.
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
