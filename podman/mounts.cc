// SPDX-License-Identifier: Apache-2.0

#include "podman/mounts.h"

#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <string_view>

#include "wire/error.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxMounts = 32;
constexpr size_t kMaxDestination = 200;  // images/worker/slot.cc has room for so much
constexpr size_t kMaxSource = 4000;
constexpr size_t kCopyName = 64;

// A mount there would hide, or be hidden by, what Hutch or the system puts there.
constexpr std::string_view kTaken[] = {
    "/bin",        "/boot",      "/dev",     "/etc",       "/lib",         "/lib32",
    "/lib64",      "/libx32",    "/opt/env", "/opt/hutch", "/opt/modules", "/opt/node",
    "/opt/python", "/proc",      "/run",     "/sbin",      "/sys",         "/tmp",
    "/usr",        "/var/hutch", "/var/run", "/var/tmp",   "/work"};

bool Within(std::string_view path, std::string_view directory) {
  return path == directory || (path.starts_with(directory) && path[directory.size()] == '/');
}

bool IsPlain(const std::string& path, size_t most) {
  if (path.size() < 2 || path.size() > most || path[0] != '/') return false;
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(path.begin(), path.end(), control)) return false;
  if (path.find("//") != std::string::npos) return false;
  for (const auto& part : fs::path(path).relative_path()) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

[[noreturn]] void Refuse(const std::string& what) { throw Error(Code::kInvalidArgument, what); }

void CheckSource(const MountSpec& mount) {
  if (!IsPlain(mount.source, kMaxSource)) Refuse("the source of a mount is not a plain path");
  if (mount.copy.empty()) return;
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (mount.copy.size() != kCopyName || !std::all_of(mount.copy.begin(), mount.copy.end(), hex))
    Refuse("a copy is named by 64 hex digits");
  if (mount.writable) Refuse("a copy cannot be written to");
}

}  // namespace

void CheckMounts(const PoolSpec& spec) {
  if (spec.mounts.size() > kMaxMounts)
    Refuse("there are more than " + std::to_string(kMaxMounts) + " mounts");
  for (const auto* list : {&spec.mounts, &spec.links, &spec.venv}) {
    for (const MountSpec& mount : *list) CheckSource(mount);
  }
  if (spec.links.size() > kMaxMounts || spec.venv.size() > 1)
    Refuse("mounts have too many directories");
  for (const MountSpec& mount : spec.mounts) {
    const std::string& to = mount.destination;
    // An overlay's options end at a comma or colon.
    if (!IsPlain(to, kMaxDestination) || to.find_first_of(":,\\\"") != std::string::npos)
      Refuse("the destination of a mount is not a plain path");
    for (const std::string_view taken : kTaken) {
      if (Within(to, taken) || Within(taken, to))
        Refuse("nothing can be mounted at " + to + ": " + std::string(taken) + " is Hutch's own");
    }
    for (const MountSpec& other : spec.mounts) {
      if (&other != &mount && Within(to, other.destination))
        Refuse("the mount at " + to + " lies in the one at " + other.destination);
    }
  }
}

std::string ShownPath(const Paths& paths, const MountSpec& mount) {
  return mount.copy.empty() ? mount.source : paths.copies_dir() + "/" + mount.copy + "/content";
}

bool AsCaller(const PoolSpec& spec) {
  return std::any_of(spec.mounts.begin(), spec.mounts.end(),
                     [](const MountSpec& m) { return m.as_caller || m.writable; });
}

std::string MountLines(const std::vector<MountSpec>& mounts) {
  std::string lines;
  for (const MountSpec& mount : mounts) {
    lines += (mount.writable ? "rw\t" : "ro\t") + std::to_string(mount.device) + "\t" +
             std::to_string(mount.inode) + "\t" + mount.destination + "\n";
  }
  return lines;
}

std::vector<std::string> CopiesOf(const PoolSpec& spec) {
  std::vector<std::string> names;
  for (const auto* list : {&spec.mounts, &spec.links, &spec.venv}) {
    for (const MountSpec& mount : *list) {
      if (!mount.copy.empty()) names.push_back(mount.copy);
    }
  }
  return names;
}

void SweepCopies(const Paths& paths, const std::set<std::string>& used, std::chrono::seconds age) {
  std::error_code error;
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(paths.copies_dir(), error)) {
    struct stat status;
    if (used.contains(entry.path().filename()) || ::lstat(entry.path().c_str(), &status) != 0)
      continue;
    if (std::time(nullptr) - status.st_mtime > age.count()) old.push_back(entry.path());
  }
  for (const fs::path& path : old) {
    // Renamed first, so that an interrupted removal leaves nothing that looks complete.
    const fs::path trash = path.string() + ".old";
    fs::rename(path, trash, error);
    fs::remove_all(trash, error);
  }
}

}  // namespace hutch
