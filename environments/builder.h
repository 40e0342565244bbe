// SPDX-License-Identifier: Apache-2.0

// Builds one environment in containers that are thrown away: install, import, compile, one after
// another.
//
// install has the network and the download cache and runs nothing of the packages; import runs
// their code and has neither, nor a writable tree; compile has a writable tree and runs nothing of
// them. With sdists allowed, install runs build scripts: it then gets a cache and a store of its
// own, so that it can damage no environment but this one. Belongs to one thread. The destructor
// always removes the containers; the caller removes the directory.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "environments/build_reports.h"
#include "environments/environment_spec.h"
#include "podman/podman.h"
#include "wire/paths.h"

namespace hutch {

// Where the base image that is derived from the caller's interpreter has it.
inline constexpr char kDerivedPython[] = "/opt/python/bin/python3";

struct BuildResult {
  std::string lock;                   // requirements with versions and hashes
  std::vector<std::string> packages;  // name==version
  std::vector<std::string> preload;   // modules that load and start no thread
  std::vector<std::string> notes;     // sentences about those that do not
  uint64_t bytes = 0;
  uint64_t files = 0;
  double install_sec = 0, import_sec = 0, compile_sec = 0;
};

class Builder {
 public:
  // `name` is unique: the directory store_dir/build/<name> is made by the caller and empty;
  // containers are named after it.
  Builder(Podman& podman, const Paths& paths, std::string name,
          std::function<void(BuildProgress)> progress, std::function<bool()> cancelled);
  ~Builder();
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // The line that interpreter.py prints in an image that was not inspected yet, run by the python3
  // that the image's own PATH finds; "" where it prints nothing. Throws kPodman where there is
  // none.
  std::string Look(const std::string& image, const std::string& runtime_id,
                   std::chrono::seconds limit);

  // Builds for this image and not for that of the spec's base_id. Its programs are as little
  // trusted as packages: they have no network, no credentials, and can write to nothing but the
  // tree, which then shares no file with the cache. (Where source packages are built, they have
  // what those have.)
  struct Base {
    std::string image;
    std::string python = kDerivedPython;
    std::string path = "/opt/python/bin:/usr/bin";
    std::string version, libc;  // "3.12.4", "2.36"; "": it is the derived one
  };
  void UseBase(Base base) { base_ = std::move(base); }

  // Leaves `tree/` in the directory. Throws kInstallFailed, kPlatform (full disk),
  // kCancelled, kMissingBase, kMissingRuntime, kPodman.
  BuildResult Run(const EnvironmentSpec& spec);

  void RemoveContainers() noexcept;

 private:
  struct Report;
  bool named() const { return !base_.version.empty(); }
  std::vector<std::string> Target(const std::string& platform) const;
  void Fetch(const EnvironmentSpec& spec, BuildResult* result);
  std::string InstallSettings(const EnvironmentSpec& spec) const;  // JSON, for install.py
  std::string LockLeftIn(const std::string& made) const;
  // Reads the tree again, in a container in which no build script ran.
  void Check(const EnvironmentSpec& spec);
  std::vector<std::string> Import(BuildResult* result);
  // `names` are "modules" or "files"; see compile.py. `text` names them for the user.
  void Compile(const std::string& step, const char* kind, const std::vector<std::string>& names,
               const std::string& text);
  // Starts a container and calls `line` with each line of `report` until `line` returns true.
  void RunStep(const std::string& step, const std::vector<std::string>& command,
               const std::string& mounts_json, const std::string& report,
               std::chrono::seconds limit, const std::function<bool(const std::string&)>& line);
  std::string StartStep(const std::string& step, const std::vector<std::string>& command,
                        const std::string& mounts_json);  // the container's id
  std::string ContainerSpec(const std::string& step, const std::vector<std::string>& command,
                            const std::string& mounts_json) const;

  Podman& podman_;
  const Paths& paths_;
  std::string name_, directory_, runtime_dir_, network_;
  Base derived_, base_;  // the same where no base is named
  std::function<void(BuildProgress)> progress_;
  std::function<bool()> cancelled_;
  bool isolated_ = false;  // build scripts run while fetching: nothing is shared with other builds
  InstallItem::End installed_;
  std::vector<std::string> containers_;
};

}  // namespace hutch
