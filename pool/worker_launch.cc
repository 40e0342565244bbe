// SPDX-License-Identifier: Apache-2.0

#include "pool/worker_launch.h"

#include <sys/stat.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include "environments/node.h"
#include "wire/error.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kFirstWorkerUid = 1000;  // inside the container
constexpr unsigned kWorkerUids = 20'000;

std::string RandomHex(size_t digits) {
  static std::random_device entropy;
  std::string hex;
  while (hex.size() < digits) {
    char part[9];
    std::snprintf(part, sizeof part, "%08x", static_cast<unsigned>(entropy()));
    hex += part;
  }
  hex.resize(digits);
  return hex;
}

void WriteFile(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out)
    throw Error(Code::kInternal, "the file " + path.string() + " could not be written", kMakeRoom);
  fs::permissions(path, fs::perms(0644));
}

void WriteModule(const fs::path& root, const std::string& path, const std::string& content) {
  const fs::path relative = fs::path(path).lexically_normal();
  if (path.empty() || relative.is_absolute() || *relative.begin() == "..") {
    throw Error(Code::kInvalidArgument, "a module has a path that leaves its directory: " + path);
  }
  fs::create_directories((root / relative).parent_path());
  WriteFile(root / relative, content);
}

}  // namespace

unsigned NextWorkerUid() {
  static std::atomic<unsigned> next{0};
  return kFirstWorkerUid + next++ % kWorkerUids;
}

WorkerLaunch NewLaunch(const Paths& paths, const std::string& generation, unsigned uid,
                       const std::string& base_id, const std::string& runtime_id,
                       const std::string& tag) {
  WorkerLaunch launch;
  launch.name = "hutch-worker-" + tag + "-" + RandomHex(8);
  launch.token = RandomHex(32);
  launch.uid = uid;
  launch.image = BaseReference(base_id);
  launch.runtime_dir = paths.runtime_dir(runtime_id);
  launch.socket_dir = paths.worker_dir() + "/" + launch.name;
  launch.node_dir = NodeDirectory(paths);
  launch.generation = generation;
  return launch;
}

void MakeWorkerDirectory(const WorkerLaunch& launch, const Modules& modules) {
  fs::create_directories(launch.socket_dir);
  // The worker has another uid; run_dir above it is 0700.
  fs::permissions(launch.socket_dir, fs::perms(0755));
  WriteModules(launch, modules);
  if (!launch.any_environment) return;
  for (const char* name : {kModulesName, kNoPackages}) {
    fs::create_directory(launch.socket_dir + "/" + name);
    fs::permissions(launch.socket_dir + "/" + name, fs::perms(0755));
  }
}

void WriteModules(const WorkerLaunch& launch, const Modules& modules) {
  for (const auto& [path, content] : modules)
    WriteModule(fs::path(launch.socket_dir) / kModulesName, path, content);
}

void WriteSetup(const WorkerLaunch& launch, const std::string& setup) {
  WriteFile(launch.socket_dir + "/" + kSetupName, setup);
}

}  // namespace hutch
