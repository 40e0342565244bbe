// SPDX-License-Identifier: Apache-2.0

#include "images/worker/wall_switch.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

namespace hutch {
namespace {

char words[512];  // " one two \0"
bool known = false;

}  // namespace

bool WallIsDown(const char* wall) {
  if (!known) {
    const int fd = open("/opt/hutch/without", O_RDONLY | O_CLOEXEC);
    const ssize_t size = fd < 0 ? 0 : read(fd, words + 1, sizeof words - 3);
    if (fd >= 0) close(fd);
    for (ssize_t i = 1; i <= size; ++i) {
      if (words[i] == '\n') words[i] = ' ';
    }
    words[0] = words[size > 0 ? size + 1 : 1] = ' ';
    known = true;
  }
  const char* found = strstr(words, wall);
  return found != nullptr && found[-1] == ' ' && found[strlen(wall)] == ' ';
}

}  // namespace hutch
