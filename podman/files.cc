// SPDX-License-Identifier: Apache-2.0

#include "podman/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "wire/fd.h"

namespace hutch {
namespace {

constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// Opens a subdirectory of `parent` and makes it readable and writable, so that it can be emptied.
Fd OpenDirectory(int parent, const char* name) {
  Fd fd(::openat(parent, name, kDirectory));
  if (!fd && errno == EACCES) {
    ::fchmodat(parent, name, 0700, AT_SYMLINK_NOFOLLOW);
    fd.reset(::openat(parent, name, kDirectory));
  }
  if (fd) ::fchmod(fd.get(), 0700);
  return fd;
}

std::vector<std::string> Names(int directory) {
  std::vector<std::string> names;
  Fd own(::openat(directory, ".", kDirectory));
  if (!own) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(own.get()), ::closedir);
  if (!listing) return names;
  (void)own.release();              // the listing's
  constexpr size_t kMost = 10'000;  // at once: a directory may have more entries than memory holds
  while (const dirent* entry = ::readdir(listing.get())) {
    if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
    names.emplace_back(entry->d_name);
    if (names.size() == kMost) break;
  }
  return names;
}

// Empties `directory`, whose subdirectories are moved up to `top` under names of `next`.
void Flatten(int top, int directory, uint64_t* next) {
  for (bool progress = true; progress;) {
    progress = false;
    for (const std::string& name : Names(directory)) {
      if (::unlinkat(directory, name.c_str(), 0) == 0 ||
          ::unlinkat(directory, name.c_str(), AT_REMOVEDIR) == 0) {
        progress = true;
        continue;
      }
      if (top == directory || errno != ENOTEMPTY) continue;
      OpenDirectory(directory, name.c_str());  // what is moved has to be writable, too
      const std::string target = ".hutch-removed-" + std::to_string((*next)++);
      progress |= ::renameat(directory, name.c_str(), top, target.c_str()) == 0;
    }
  }
}

void RemoveAt(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return;
  const Fd top = OpenDirectory(AT_FDCWD, path.c_str());
  if (!top) return;
  uint64_t next = 0;
  for (bool again = true; again;) {
    again = false;
    Flatten(top.get(), top.get(), &next);
    for (const std::string& name : Names(top.get())) {
      {
        const Fd directory = OpenDirectory(top.get(), name.c_str());
        if (!directory) continue;
        Flatten(top.get(), directory.get(), &next);
      }
      again |= ::unlinkat(top.get(), name.c_str(), AT_REMOVEDIR) == 0;
    }
  }
  ::rmdir(path.c_str());
}

}  // namespace

std::optional<std::string> ReadRegularFile(const std::string& path, size_t most) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status;
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  if (status.st_size > 0 && static_cast<uint64_t>(status.st_size) > most) return std::nullopt;
  std::string text;
  char buffer[16384];
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer, std::min(sizeof buffer, most + 1 - text.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return std::nullopt;
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > most) return std::nullopt;
  }
}

void RemoveTree(const std::string& path) noexcept {
  try {
    RemoveAt(path);
  } catch (const std::exception&) {
    // Only for lack of memory; the next sweep tries again.
  }
}

}  // namespace hutch
