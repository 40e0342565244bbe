// SPDX-License-Identifier: Apache-2.0

// The store of environments: read-only directories with a digest's packages installed, built once
// and then shared.
//
// Thread-safe. Get() blocks and is called on worker threads; each build runs on a thread of its
// own, so a caller that gives up does not end the build that others wait for; a build that nobody
// waits for is cancelled. On disk, below the state directory:
//
// clang-format off
//   store/cache/                      the installer's downloads
//   store/build/<name>/               builds under way
//   environments/<digest>/tree/       the packages
//   environments/<digest>/lock.txt    versions and hashes
//   environments/<digest>/meta.json   what EnvironmentInfo and Environment are read from
//   environments/<digest>/synced      its bytes have reached the disk
//   node                              a link: the digest of the one that has Node (node.h)
// clang-format on
//
// A build appears under its digest by one rename. An environment without `synced` is used only
// until the host is started again.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "environments/base_image.h"
#include "environments/builder.h"
#include "environments/environment_spec.h"
#include "podman/podman.h"
#include "wire/paths.h"
#include "wire/thread_annotations.h"

namespace hutch {

// The mode of the directory of environments: the warden of a worker that was started ahead can open
// the environment whose digest it was given, and cannot list them. The state directory above it is
// 0700.
inline constexpr std::filesystem::perms kFindable{0711};

struct Environment {
  std::string digest;
  std::string tree_dir;              // on the host, to be mounted read-only
  std::string lock;                  // requirements with versions and hashes
  std::vector<std::string> preload;  // modules for the zygote to import
  std::vector<std::string> notes;    // sentences for the user
  double build_sec = 0;              // 0: it was there
  bool built_now = false;
  BaseImage base;  // the one that was named; without an id: none was
};

struct EnvironmentInfo {
  std::string digest;
  std::vector<std::string> requirements;  // as asked for
  std::vector<std::string> packages;      // as installed: name==version
  std::string python_version;
  std::string base_id;  // 32 hex digits, or 64 of an image that was asked for by name
  uint64_t bytes = 0;
  int64_t created_sec = 0;  // since the epoch
  int64_t last_used_sec = 0;
  double build_sec = 0;
};

class EnvironmentStore {
 public:
  using ProgressFn = std::function<void(const BuildProgress&)>;
  using Cancelled = std::function<bool()>;

  // `podman` and `paths` outlive it. Makes the directories it needs.
  EnvironmentStore(Podman& podman, const Paths& paths);
  ~EnvironmentStore();  // cancels the builds under way and waits until their containers are removed
  EnvironmentStore(const EnvironmentStore&) = delete;
  EnvironmentStore& operator=(const EnvironmentStore&) = delete;

  // Throws kInvalidArgument. REQUIRES: the spec has no base that is not known yet.
  std::string Digest(const EnvironmentSpec& spec) const;

  // Returns the environment, building it first if it is not there. Callers of one digest share one
  // build, its progress and its failure; a later call tries again. `progress` and `cancelled` are
  // called on the caller's thread (the latter about every 20 ms); either may be null. Throws
  // what BaseImages::Get() does, kInvalidArgument, kTimeout, kCancelled, kInstallFailed, kPlatform,
  // kMissingBase, kMissingRuntime, kPodman.
  Environment Get(const EnvironmentSpec& spec, std::chrono::steady_clock::time_point deadline,
                  const ProgressFn& progress, const Cancelled& cancelled);

  std::vector<EnvironmentInfo> List() const;  // newest first
  // False: there is none. Workers that have it mounted keep it.
  bool Remove(const std::string& digest);
  // Removes what interrupted builds left: directories, containers, and environments whose bytes a
  // crash may have lost.
  void Sweep();

 private:
  struct Build;

  Environment GetOn(const BaseImage& base, const EnvironmentSpec& spec,
                    std::chrono::steady_clock::time_point deadline, const ProgressFn& progress,
                    const Cancelled& cancelled);
  std::optional<Environment> Load(const EnvironmentSpec& spec, const std::string& digest) const;
  void RunBuild(const std::shared_ptr<Build>& build);
  void Publish(const Build& build, const BuildResult& result, double seconds);
  void Join(bool all);

  Podman& podman_;
  const Paths& paths_;
  BaseImages bases_;
  mutable Mutex mutex_;
  // By digest: those that a caller may join.
  std::map<std::string, std::shared_ptr<Build>> builds_ GUARDED_BY(mutex_);
  // All whose thread is not joined yet.
  std::vector<std::shared_ptr<Build>> threads_ GUARDED_BY(mutex_);
};

}  // namespace hutch
