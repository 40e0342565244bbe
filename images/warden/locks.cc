// SPDX-License-Identifier: Apache-2.0

#include "images/warden/locks.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

namespace hutch {
namespace {

constexpr const char* kOfTheHost[] = {"/dev/null",   "/dev/zero",    "/dev/full",
                                      "/dev/random", "/dev/urandom", "/proc/self/ns/time"};

}  // namespace

const char* HoldSharedLocks() {
  for (const char* path : kOfTheHost) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);  // never closed
    if (fd < 0 && errno == ENOENT) continue;
    struct flock all{};
    all.l_type = F_RDLCK;
    all.l_whence = SEEK_SET;
    if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) != 0 || fcntl(fd, F_OFD_SETLK, &all) != 0)
      return path;
  }
  return nullptr;
}

}  // namespace hutch
