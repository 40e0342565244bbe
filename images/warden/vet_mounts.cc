// SPDX-License-Identifier: Apache-2.0

#include "images/warden/vet_mounts.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

namespace hutch {

bool MountsAreVetted(const char* lines) {
  while (*lines != '\0') {
    const char* end = strchrnul(lines, '\n');
    unsigned long long device = 0;
    unsigned long long inode = 0;
    int at = 0;
    if (sscanf(lines, "%*2[rwo]\t%llu\t%llu\t%n", &device, &inode, &at) != 2 || lines + at >= end)
      return false;
    char path[PATH_MAX];
    const int size =
        snprintf(path, sizeof path, "%.*s", static_cast<int>(end - lines) - at, lines + at);
    struct stat info;
    if (size <= 0 || size >= static_cast<int>(sizeof path) || stat(path, &info) != 0) return false;
    if (info.st_dev != device || info.st_ino != inode) return false;
    lines = *end == '\0' ? end : end + 1;
  }
  return true;
}

}  // namespace hutch
