// SPDX-License-Identifier: Apache-2.0

// The store of environments as the agent's loop sees it: everything that blocks runs on threads
// here, and its answer comes back on the loop.
//
// Belongs to the loop's thread; so do the callbacks, unless they say otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "environments/environment.h"
#include "loop/background.h"
#include "loop/loop.h"
#include "wire/error.h"

namespace hutch {

class Builds {
 public:
  struct Counts {
    uint64_t built = 0;
    uint64_t failed = 0;
    double seconds = 0;  // of those that were built
  };

  // `loop` and `store` outlive it.
  Builds(Loop& loop, EnvironmentStore& store) : loop_(loop), store_(store) {}
  ~Builds() { GiveUp(); }  // and waits for the threads
  Builds(const Builds&) = delete;
  Builds& operator=(const Builds&) = delete;

  // Calls `done` with the environment or, as EnvironmentStore::Get() throws it, the error; before
  // that `progress`, each time with one step. Once `*unwanted` is true the build is given up unless
  // others want it.
  void Get(EnvironmentSpec spec, Clock::time_point deadline,
           std::shared_ptr<const std::atomic<bool>> unwanted,
           std::function<void(const BuildProgress&)> progress,
           std::function<void(const Error*, const Environment&)> done);
  // Removes environments until the store holds at most `most_bytes`, those that were last used the
  // longest ago first; never one of `used` (digests) or one that was just used.
  void Trim(uint64_t most_bytes, std::set<std::string> used);
  void List(std::function<void(std::string json)> done);  // see EnvironmentsJson()
  void Remove(std::string digest, std::function<void(bool removed)> done);

  void GiveUp() { closing_ = true; }  // all builds, also later ones
  const Counts& counts() const { return counts_; }

 private:
  Loop& loop_;
  EnvironmentStore& store_;
  Counts counts_;
  std::atomic<bool> closing_ = false;  // read by the threads
  Background threads_{16};
};

}  // namespace hutch
