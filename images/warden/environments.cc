// SPDX-License-Identifier: Apache-2.0

#include "images/warden/environments.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <initializer_list>

#include "images/warden/write_file.h"
#include "images/worker/wall_switch.h"
#include "images/worker/walls.h"

namespace hutch {
namespace {

constexpr char kAll[] = "/opt/environments";
constexpr char kOne[] = "/opt/env";  // an empty directory of the container's until then
constexpr size_t kDigestSize = 64;

// The kernel lets a process write its own maps only while it is dumpable.
const char* MoveDown() {
  char user[32];
  char group[32];
  snprintf(user, sizeof user, "%u %u 1", getuid(), getuid());
  snprintf(group, sizeof group, "%u %u 1", getgid(), getgid());
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return "unshare";
  prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  const char* failed = nullptr;
  if (!WriteFile("/proc/self/setgroups", "deny")) failed = "setgroups";
  if (failed == nullptr && !WriteFile("/proc/self/uid_map", user)) failed = "uid_map";
  if (failed == nullptr && !WriteFile("/proc/self/gid_map", group)) failed = "gid_map";
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  return failed;
}

bool IsDigest(const char* text) {
  return strlen(text) == kDigestSize && strspn(text, "0123456789abcdef") == kDigestSize;
}

}  // namespace

const char* Environments::Hold() {
  if (const char* failed = MoveDown()) return failed;
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return "private mounts";
  directory_ = open(kAll, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory_ < 0) return kAll;
  if (!WallIsDown("cover") && mount(kOne, kAll, nullptr, MS_BIND, nullptr) != 0) return "the cover";
  if (mount(nullptr, kOne, nullptr, MS_SHARED, nullptr) != 0) return kOne;
  held_ = true;
  return nullptr;
}

const char* Environments::Leave() const {
  if (const char* failed = MoveDown()) return failed;
  return DropCapabilities();
}

const char* Environments::Choose(const char* digest) {
  const char* failed = nullptr;
  if (*digest != '\0') {
    // No link is followed: what is mounted is a directory of that name, in a directory of that one.
    const int environment =
        IsDigest(digest) ? openat(directory_, digest, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                         : -1;
    const int tree = environment >= 0 ? openat(environment, "tree",
                                               O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                                      : -1;
    if (tree < 0 || fchdir(tree) != 0 || mount(".", kOne, nullptr, MS_BIND, nullptr) != 0)
      failed = "its environment could not be mounted";
    if (chdir("/") != 0) failed = "/";
    for (const int fd : {tree, environment}) {
      if (fd >= 0) close(fd);
    }
  }
  close(directory_);
  directory_ = -1;
  if (const char* kept = DropCapabilities(); failed == nullptr) failed = kept;
  return failed;
}

}  // namespace hutch
