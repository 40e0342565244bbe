// SPDX-License-Identifier: Apache-2.0

#include "agent/sweeper.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "podman/mounts.h"
#include "wire/log.h"

namespace hutch {
namespace {

// A worker's directory is made before its container. After this long the container is there, or
// never will be.
constexpr auto kDirectoryAge = std::chrono::minutes(5);

// What an agent that was killed has left of workers that are gone.
void SweepDirectories(const Paths& paths, const std::vector<ContainerInfo>& containers) {
  namespace fs = std::filesystem;
  std::set<std::string> names;
  for (const ContainerInfo& container : containers) names.insert(container.name);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(paths.worker_dir(), ignored)) {
    const auto age = fs::file_time_type::clock::now() - entry.last_write_time(ignored);
    if (age > kDirectoryAge && !names.contains(entry.path().filename().string()))
      fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace

std::set<std::string> SweepContainers(ContainerHost& host, const Sweeper::Known& known,
                                      const std::set<std::string>& before) {
  std::set<std::string> strangers;
  try {
    const std::vector<ContainerInfo> containers =
        host.podman.List("hutch.instance=" + host.paths.instance_label());
    if (!TwoAgentsRun(containers)) SweepCopies(host.paths, known.copies, kCopyAge);
    SweepDirectories(host.paths, containers);
    for (const ContainerInfo& container : Removable(containers, "worker", host.generation)) {
      if (known.containers.contains(container.name)) continue;
      const bool ours = IsOf(container, host.generation);
      const bool ended = container.state == "exited" || container.state == "stopped";
      if (ours && !ended) strangers.insert(container.name);
      if (ours && !ended && !before.contains(container.name)) continue;
      (IsOnGvisor(container.labels) ? host.gvisor_podman : host.podman).Remove(container.id);
    }
    for (const ContainerInfo& left : host.podman.ListRemains()) {
      if (!left.name.starts_with("hutch-worker-")) continue;
      if (before.contains(left.id)) {
        host.podman.RemoveRemains(left.id);
      } else {
        strangers.insert(left.id);  // it may be one that is being created
      }
    }
  } catch (const std::exception& error) {
    LogWarn("containers that nobody owns could not be removed", {{"why", error.what()}});
  }
  return strangers;
}

void Sweeper::Sweep(Known known) {
  host_.threads.Post(
      [this, &loop = loop_, &host = host_, known = std::move(known), before = unknown_] {
        loop.Post([this, unknown = SweepContainers(host, known, before)] { unknown_ = unknown; });
      });
}

}  // namespace hutch
