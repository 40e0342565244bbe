// SPDX-License-Identifier: Apache-2.0

// The container of one worker: created and started by a background thread, removed by another when
// this is destroyed.
//
// The two never overtake each other: a removal waits for a start that runs, and a start that comes
// after the removal does nothing. Belongs to the loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "loop/background.h"
#include "loop/loop.h"
#include "podman/podman.h"
#include "pool/confinement.h"
#include "wire/error.h"
#include "wire/paths.h"

namespace hutch {

class WorkerContainer {
 public:
  // All outlive it, and what it leaves to the background.
  WorkerContainer(Loop& loop, Podman& podman, Background& background);
  // Removes the container, if it was started, and its directory.
  ~WorkerContainer();
  WorkerContainer(const WorkerContainer&) = delete;
  WorkerContainer& operator=(const WorkerContainer&) = delete;

  // Once. `started` is called on the loop's thread with what went wrong, or std::nullopt; not after
  // this was destroyed. `paths` outlives it.
  void Start(const Paths& paths, const WorkerLaunch& launch,
             std::function<void(const std::optional<Error>&)> started);

 private:
  struct State;

  Loop& loop_;
  Podman& podman_;
  Background& background_;
  std::string name_;        // "": it was never started
  std::string socket_dir_;  // of the worker, on the host
  std::shared_ptr<State> state_;
  std::shared_ptr<bool> alive_;  // false once destroyed
};

}  // namespace hutch
