// SPDX-License-Identifier: Apache-2.0

#include "pool/worker_container.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include "wire/log.h"
#include "wire/thread_annotations.h"

namespace hutch {
namespace {

constexpr int kRemovals = 3;

}  // namespace

// What the background threads share.
struct WorkerContainer::State {
  Mutex mutex;  // held while it is started or removed
  bool removed GUARDED_BY(mutex) = false;
};

WorkerContainer::WorkerContainer(Loop& loop, Podman& podman, Background& background)
    : loop_(loop),
      podman_(podman),
      background_(background),
      state_(std::make_shared<State>()),
      alive_(std::make_shared<bool>(true)) {}

void WorkerContainer::Start(const Paths& paths, const WorkerLaunch& worker,
                            std::function<void(const std::optional<Error>&)> started) {
  name_ = worker.name;
  socket_dir_ = worker.socket_dir;
  background_.Post([launch = worker, started = std::move(started), alive = alive_, state = state_,
                    &paths, &loop = loop_, &podman = podman_]() mutable {
    const MutexLock lock(state->mutex);
    if (state->removed) return;
    std::optional<Error> failure;
    try {
      // The id is used from here on, so that a tag that is moved meanwhile changes nothing.
      const std::optional<std::string> image = podman.ImageId(launch.image);
      if (!image) throw Error(Code::kMissingBase, "there is no image " + launch.image);
      launch.image = *image;
      podman.Start(podman.Create(WorkerContainerSpec(paths, launch)));
    } catch (const Error& e) {
      failure = e;
    } catch (const std::exception& e) {
      failure = Error(Code::kWorkerFailed, e.what());
    }
    loop.Post([alive, failure, started] {
      if (*alive) started(failure);
    });
  });
}

WorkerContainer::~WorkerContainer() {
  *alive_ = false;
  if (name_.empty()) return;
  background_.Post([&podman = podman_, state = state_, name = name_, dir = socket_dir_] {
    const MutexLock lock(state->mutex);
    state->removed = true;
    // If it cannot be removed, what runs in it goes on; the agent's sweep tries again later.
    for (int attempt = 1; attempt <= kRemovals; ++attempt) {
      try {
        podman.Remove(name);
        break;
      } catch (const std::exception& e) {
        LogWarn("a worker could not be removed yet", {{"worker", name}, {"why", e.what()}});
      }
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    std::error_code ignored;
    std::filesystem::remove_all(dir, ignored);
  });
}

}  // namespace hutch
